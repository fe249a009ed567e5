"""Does anything get lost when relax, md, train and data generate are killed at random moments and resumed?

    python benchmarks/kill_matrix.py [--kills 10] [--seed 0] [--only relax md train generate] [--json FILE]

Every command runs once without interruption, and in another folder killed again and again with SIGKILL, each time
after a random part of the duration of the uninterrupted run, and resumed. If it ends between two kills, its results are
compared, and the next kills hit a new run. A row per command: the number of kills, the number of runs that were
completed between them, results that existed after a kill and were missing after a later one, and the largest difference
from the uninterrupted run: energies and positions (relax, md), weights (train), labels (generate).
"""

import argparse
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from ase import Atoms
from ase.build import add_adsorbate, fcc111
from ase.calculators.emt import EMT
from ase.io import read, write
from rows import Row, Rows, rounded, show
from safetensors.numpy import load_file

from faenet_calc.simulate.trajectory import read_snapshots

RECIPES = Path(__file__).parents[1] / "examples" / "recipes"


@dataclass(frozen=True)
class Task:
    """A command to kill.

    Attributes:
        arguments: Of `faenet-calc`, for a folder for its output.
        count: Number of results in the folder, never smaller than before.
        difference: Largest difference of the results in two folders; infinite if they are not the same results.
    """

    arguments: Callable[[Path], list[str]]
    count: Callable[[Path], int]
    difference: Callable[[Path, Path], float]


def slabs(n: int) -> list[Atoms]:
    """Copper slabs with oxygen, rattled."""
    found = []
    for seed in range(n):
        atoms = fcc111("Cu", (2, 2, 3), vacuum=8.0)
        add_adsorbate(atoms, "O", 1.2, "fcc")
        atoms.rattle(0.1, seed=seed)
        atoms.info.clear()
        found.append(atoms)
    return found


def difference_of_atoms(ours: list[Atoms], theirs: list[Atoms]) -> float:
    """Largest difference of energies (eV) and positions (Å)."""
    if len(ours) != len(theirs):
        return float("inf")
    return max(
        max(abs(a.get_potential_energy() - b.get_potential_energy()), float(np.abs(a.positions - b.positions).max()))
        for a, b in zip(ours, theirs, strict=True)
    )


def difference_of_weights(ours: Path, theirs: Path) -> float:
    """Largest difference of the weights of two checkpoints."""
    one, other = load_file(ours), load_file(theirs)
    if one.keys() != other.keys():
        return float("inf")
    return max(float(np.abs(one[name].astype(float) - other[name].astype(float)).max(initial=0.0)) for name in one)


def labels(folder: Path) -> list[str]:
    """The label file, structure by structure, in any order."""
    file = folder / "labels.extxyz"
    if not file.exists():
        return []
    lines, found = file.read_text().splitlines(), []
    while lines:
        n = int(lines[0]) + 2
        found.append("\n".join(lines[:n]))
        lines = lines[n:]
    return sorted(found)


def lines(path: Path) -> int:
    """Number of complete lines."""
    return path.read_text().count("\n") if path.exists() else 0


def snapshots(path: Path) -> int:
    """Number of readable snapshots of a trajectory."""
    return len(read_snapshots(path)) if path.exists() else 0


def tasks(inputs: Path) -> dict[str, Task]:
    """The four commands, with their input files."""
    write(inputs / "slabs.extxyz", slabs(8))
    write(inputs / "start.extxyz", slabs(1))
    labelled = slabs(40)
    for atoms in labelled:
        atoms.symbols[-1] = "Pd"
        atoms.calc = EMT()
        atoms.get_forces()
    write(inputs / "data.extxyz", labelled)
    recipe = (RECIPES / "emt.yaml").read_text().replace("tasks: 60", "tasks: 16")
    (inputs / "recipe.yaml").write_text(recipe)
    model = ["-m", "metals-s", "--device", "cpu"]
    settings = ["model.preset=modern-s", "run.max_epochs=12", "run.device=cpu", "model.interactions=1"]
    return {
        "relax": Task(
            lambda out: ["relax", *model, str(inputs / "slabs.extxyz"), "-o", str(out / "out.extxyz"),
                         "--fmax", "0.02", "--resume"],
            lambda out: len(read(out / "out.extxyz", ":")) if (out / "out.extxyz").exists() else 0,
            lambda a, b: difference_of_atoms(read(a / "out.extxyz", ":"), read(b / "out.extxyz", ":")),
        ),
        "md": Task(
            lambda out: ["md", *model, str(inputs / "start.extxyz"), "-o", str(out / "out.traj"), "--steps", "1000",
                         "--interval", "10", "--seed", "1", "--resume"],
            lambda out: snapshots(out / "out.traj"),
            lambda a, b: difference_of_atoms(read(a / "out.traj", ":"), read(b / "out.traj", ":")),
        ),
        "train": Task(
            lambda out: ["train", str(inputs / "data.extxyz"), "--set", f"run.out_dir={out / 'run'}",
                         *(word for setting in settings for word in ("--set", setting)), "--resume", "auto"],
            lambda out: lines(out / "run" / "validation.csv"),
            lambda a, b: difference_of_weights(a / "run" / "best.safetensors", b / "run" / "best.safetensors"),
        ),
        "generate": Task(
            lambda out: ["data", "generate", str(inputs / "recipe.yaml"), "-o", str(out)],
            lambda out: lines(out / "journal.jsonl"),
            lambda a, b: 0.0 if labels(a) == labels(b) != [] else float("inf"),
        ),
    }  # fmt: skip


def command(arguments: list[str]) -> list[str]:
    """A quiet process of `faenet-calc`."""
    return [sys.executable, "-m", "faenet_calc", *arguments, "-q"]


def measured(task: Task, folder: Path, *, kills: int, dice: random.Random) -> Row:
    """Run a task without and with kills."""
    whole, killed = folder / "whole", folder / "killed"
    for out in (whole, killed):
        out.mkdir(parents=True)
    start = time.monotonic()
    subprocess.run(command(task.arguments(whole)), check=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    duration = time.monotonic() - start
    hit, lost, counts, differences = 0, 0, [0], []
    while hit < kills or not differences:
        process = subprocess.Popen(
            command(task.arguments(killed)), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            process.wait(timeout=None if hit == kills else dice.uniform(0.1, 0.6) * duration)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            hit += 1
        counts.append(task.count(killed))
        lost += max(0, max(counts) - counts[-1])
        if process.returncode >= 0:  # it has ended by itself
            same = process.returncode == 0 and counts[-1] == task.count(whole)
            differences.append(task.difference(whole, killed) if same else float("inf"))
            shutil.rmtree(killed)
            killed.mkdir()
            counts = [0]
    return {
        "kills": hit,
        "completed_runs": len(differences),
        "lost_results": lost,
        "results": task.count(whole),
        "difference": max(differences),
        "seconds_alone": duration,
    }


def main(argv: list[str] | None = None) -> None:
    """Print the matrix."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="+", choices=("relax", "md", "train", "generate"))
    parser.add_argument("--json", type=Path, help="append the rows to this file")
    arguments = parser.parse_args(argv)
    kept, table = Rows(arguments.json), []
    with tempfile.TemporaryDirectory() as name:
        for kind, task in tasks(Path(name)).items():
            if arguments.only and kind not in arguments.only:
                continue
            dice = random.Random(arguments.seed)
            row = measured(task, Path(name) / kind, kills=arguments.kills, dice=dice)
            full: Row = {
                "benchmark": "kill_matrix",
                "command": kind,
                **rounded(row, 3),
                "difference": row["difference"],
            }
            kept.append(full)
            show(full)
            table.append(full)
    print("| command | kills | completed runs | results | lost | largest difference |\n|---|---|---|---|---|---|")
    for row in table:
        cells = (row["kills"], row["completed_runs"], row["results"], row["lost_results"], row["difference"])
        print(f"| {row['command']} | {' | '.join(map(str, cells))} |")


if __name__ == "__main__":
    main()
