"""Learning curves for single systems: fine-tuning against training from scratch.

    python benchmarks/finetune_curve.py --start MODEL --data oc20-relax/systems20.extxyz.xz -o curve.jsonl [--systems 3]
        [--seeds 3] [--replay datasets/metals-v1:train]

The data are DFT relaxations of adsorbates on slabs (OC20 systems, RPBE) with `sid`, `run` (vasp, bfgs, gpmin: three
optimizers from the same start) and `step`. Each system is treated separately. 5, 10, 20 or 50 snapshots are taken
evenly from the first 90 % of its vasp run, which excludes the minimum. A model is (a) fine-tuned from MODEL and (b)
trained from random weights of the same architecture, both for the same number of steps. Systems are ordered by the
fraction of their atoms whose element MODEL was trained on; `outside` lists the other elements. n = 0 is MODEL without
fine-tuning; `nothing` predicts zero forces and a constant energy. Each trained point is repeated with other seeds
(initial weights, order, frames). With --replay FILE… (c) MODEL is fine-tuned while forces of its earlier training data
are replayed (a third of each batch); the labels have another level of theory than those of MODEL, so energies are not.

Errors are evaluated on the remaining snapshots of the vasp run (some are close in time to training snapshots) and on
the other two runs: MAE of force components on free atoms, and of the energy per atom (after one offset for n = 0 and
`nothing`). The system is then relaxed from step 0 with the model: RMS distance of the free atoms from the DFT minimum
(`start_rmsd_A`: of the start), error of the energy gain, and error of the energy at the minimum.

Weights are kept in a temporary folder: the data may be used for comparison, not for shipped models. An interrupted
benchmark is resumed when it is run again.
"""

import argparse
import itertools
import math
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import ase.io
import numpy as np
import torch
from ase import Atoms
from ase.calculators.calculator import CalculatorError
from ase.constraints import FixAtoms
from ase.geometry import find_mic
from rows import Row, Rows, model_words, rounded, show

from faenet_calc import FAENetCalculator, load_potential, relax
from faenet_calc.errors import InputError
from faenet_calc.files import source_for_ase
from faenet_calc.potential.config import PotentialConfig
from faenet_calc.settings import to_mapping
from faenet_calc.training.config import TrainConfig
from faenet_calc.training.config_file import config_from_mapping
from faenet_calc.training.loop import train
from faenet_calc.training.preset_hyperparameters import FINETUNING_LR

COUNTS = (5, 10, 20, 50)
USED_SHARE = 0.9  # of the vasp run; what comes after is close to the minimum
BATCH, EMA_DECAY = 2, 0.98
REPLAYED, REPLAY_FRACTION = "fine-tuned with replay", 1 / 3
RELAX_FMAX, RELAX_STEPS = 0.03, 200
Runs = dict[str, list[Atoms]]


def read_systems(path: Path) -> dict[int, Runs]:
    """System id → run name → snapshots ordered by step, with fixed atoms as constraints."""
    found: dict[int, Runs] = {}
    for atoms in ase.io.read(source_for_ase(path, "extxyz"), ":", format="extxyz"):
        atoms.set_constraint(FixAtoms(mask=atoms.arrays["fixed"].astype(bool)))
        runs = found.setdefault(int(atoms.info["sid"]), {})
        runs.setdefault(str(atoms.info["run"]), []).append(atoms)
    for runs in found.values():
        for snapshots in runs.values():
            snapshots.sort(key=lambda atoms: int(atoms.info["step"]))
    return found


def by_familiarity(systems: dict[int, Runs], trained: set[str]) -> list[int]:
    """System ids, ordered by the fraction of atoms of trained elements (largest first)."""
    shares = {}
    for sid, runs in systems.items():
        symbols = list(runs["vasp"][0].symbols)
        shares[sid] = sum(symbol in trained for symbol in symbols) / len(symbols)
    return sorted(shares, key=lambda sid: (-shares[sid], sid))


def chosen_steps(run: list[Atoms], count: int) -> list[int]:
    """Indices of ``count`` snapshots, evenly from the start to before the end of a run."""
    last = math.floor(USED_SHARE * (len(run) - 1))
    return sorted({round(float(place)) for place in np.linspace(0, last, count)})


def rest(runs: Runs, used: list[int], at_most: int) -> dict[str, list[Atoms]]:
    """Remaining snapshots of the same run and of the other runs, thinned out evenly."""
    own = [atoms for place, atoms in enumerate(runs["vasp"]) if place not in used]
    others = [atoms for name, run in sorted(runs.items()) if name != "vasp" for atoms in run]
    return {
        name: [part[int(place)] for place in np.unique(np.linspace(0, len(part) - 1, at_most).round())]
        for name, part in (("same_run", own), ("other_runs", others))
    }


def training_config(
    shape: PotentialConfig,
    start: str | None,
    files: list[str],
    folder: Path,
    steps: int,
    lr: float,
    seed: int,
    replay: Sequence[str] = (),
) -> TrainConfig:
    """Settings of one training run; with ``start`` None, random weights of the same architecture."""
    count = len(ase.io.read(files[0], ":"))
    mapping: dict[str, Any] = {
        "run": {
            "out_dir": str(folder / "run"),
            "seed": seed,
            "max_epochs": max(1, math.ceil(steps / math.ceil(count / BATCH))),
            "threads": 1,
            "device": "cpu",
            "tensorboard": False,
            "report": False,
        },
        "data": {"train": files, "val_fraction": 0.0, "cache_dir": str(folder / "cache")},
        "loss": {"energy": 5.0, "forces": 1.0},
        "optim": {"batch_size": BATCH, "ema_decay": EMA_DECAY, "lr": lr},
    }
    if start is None:
        own = to_mapping(shape)
        mapping["model"] = {**own["model"], "forces": own["forces"]}
        mapping |= {name: own[name] for name in ("frames", "graph", "energy")}
    else:
        mapping["finetune"] = {"checkpoint": start}
        if replay:
            mapping["data"].pop("cache_dir")  # the replayed files are read once
            mapping["finetune"] |= {
                "replay": list(replay), "replay_fraction": REPLAY_FRACTION, "replay_energies": False,
            }  # fmt: skip
    return config_from_mapping(mapping)


def trained_calculator(start: str, way: str, snapshots: list[Atoms], arguments: Any, seed: int) -> tuple[Any, Row]:
    """Calculator of a model trained on some snapshots, and the cost of the training."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        ase.io.write(folder / "train.extxyz", snapshots)
        shape = load_potential(start, device="cpu").config
        began = time.process_time()
        scratch = way == "scratch"
        lr = arguments.scratch_lr if scratch else arguments.finetune_lr
        files = [str(folder / "train.extxyz")]
        replay = arguments.replay if way == REPLAYED else ()
        config = training_config(shape, None if scratch else start, files, folder, arguments.steps, lr, seed, replay)
        result = train(config)
        cost = {"training_steps": result.state.step, "training_cpu_s": round(time.process_time() - began, 1)}
        return FAENetCalculator(load_potential(result.checkpoint, device="cpu")), cost


def errors(structures: list[Atoms], energies: Any, forces: list[Any], offset: bool) -> Row:
    """Mean absolute errors; with ``offset``, energies are compared after the best common shift (the median)."""
    sizes = np.array([len(atoms) for atoms in structures])
    wrong = (np.array(energies) - [atoms.get_potential_energy() for atoms in structures]) / sizes
    wrong = wrong - np.median(wrong) if offset else wrong
    components = []
    for atoms, predicted in zip(structures, forces, strict=True):
        free = np.setdiff1d(np.arange(len(atoms)), atoms.constraints[0].get_indices())
        components.append(np.abs(predicted - atoms.get_forces(apply_constraint=False))[free].ravel())
    return {
        "energy_mae_meV_per_atom": 1e3 * float(np.abs(wrong).mean()),
        "forces_mae_eV_per_A": float(np.concatenate(components).mean()),
    }


def rmsd(one: Atoms, other: Atoms) -> float:
    """RMS distance (Å) of free atoms."""
    free = np.setdiff1d(np.arange(len(one)), one.constraints[0].get_indices())
    difference, _ = find_mic(one.positions - other.positions, one.cell, one.pbc)
    return float(np.sqrt((difference[free] ** 2).sum(axis=1).mean()))


def relaxation(calc: Any, run: list[Atoms], offset: bool) -> Row:
    """Relax from the first snapshot of a run and compare with its last one."""
    start, minimum = run[0], run[-1]
    result = relax(start, calc, fmax=RELAX_FMAX, steps=RELAX_STEPS)
    true = minimum.get_potential_energy()
    gained = calc.get_property("energy", start) - result.energy
    found: Row = {"rmsd_A": rmsd(result.atoms, minimum), "start_rmsd_A": rmsd(start, minimum)}
    found["gained_energy_error_eV"] = float(gained - (start.get_potential_energy() - true))
    if not offset:
        found["minimum_energy_error_eV"] = float(result.energy - true)
    return found | {"converged": result.converged, "relaxation_steps": result.n_steps, "failed": result.error}


def measured(calc: Any, runs: Runs, used: list[int], at_most: int, offset: bool) -> Row:
    """Errors on the remaining snapshots and at the minimum; ``calc`` None is the zero-force baseline."""
    row: Row = {}
    try:
        for name, structures in rest(runs, used, at_most).items():
            if calc is None:
                energies, forces = [0.0] * len(structures), [0.0] * len(structures)
            else:
                found = calc.predict(structures)
                energies, forces = [one["energy"] for one in found], [one["forces"] for one in found]
            row[name] = errors(structures, energies, forces, offset)
        return row if calc is None else row | {"minimum": relaxation(calc, runs["vasp"], offset)}
    except (CalculatorError, InputError) as failure:  # numbers that are not finite: elements far from the trained ones
        return row | {"failed": f"{type(failure).__name__}: {failure}"}


def curve(start: str, runs: Runs, arguments: Any, done: set[tuple[str, int, int]]) -> Iterator[Row]:
    """Compute all missing points of one system."""
    untrained = [("nothing", 0, 0), ("fine-tuned", 0, 0)]
    ways = ("fine-tuned", *([REPLAYED] if arguments.replay else []), "scratch")
    trained = itertools.product(range(arguments.seeds), ways, arguments.counts)
    for way, count, seed in [*untrained, *((way, count, seed) for seed, way, count in trained)]:
        if (way, count, seed) in done:
            continue
        used = chosen_steps(runs["vasp"], count) if count else []
        calc, cost = None, Row()
        if count:
            snapshots = [runs["vasp"][place] for place in used]
            calc, cost = trained_calculator(start, way, snapshots, arguments, seed)
        elif way != "nothing":
            calc = FAENetCalculator(start, device="cpu", on_unknown_element="ignore")
        yield {"way": way, "n": len(used), "asked": count, "seed": seed, **cost,
               **measured(calc, runs, used, arguments.test, offset=not count)}  # fmt: skip


def summary(rows: list[Row]) -> Iterator[Row]:
    """Median absolute errors over systems and seeds, one row per method and number of snapshots."""
    for way, count in sorted({(row["way"], row["asked"]) for row in rows}):
        cases = [row for row in rows if (row["way"], row["asked"]) == (way, count)]
        words = {"way": way, "asked": count, "points": len(cases), "failed": sum("failed" in case for case in cases)}
        found: dict[str, list[float]] = {}
        for case in cases:
            for part in ("same_run", "other_runs", "minimum"):
                for key, value in case.get(part, {}).items():
                    if isinstance(value, float):
                        found.setdefault(f"{part}.{key}", []).append(abs(value))
        medians = {name: float(np.median(values)) for name, values in found.items()}
        yield {"benchmark": "finetune_curve", "summary": True, **words, **medians}


def main() -> None:
    """Curves of some systems and their medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--start", required=True, help="name or path of the model to fine-tune")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("-o", "--out", type=Path)
    parser.add_argument("--systems", type=int, default=3)
    parser.add_argument("--sid", type=int, action="append", help="system id; may be repeated")
    parser.add_argument("--counts", type=int, nargs="+", default=COUNTS)
    parser.add_argument(
        "--steps", type=int, default=800, help="steps of each training run (800: about a minute on one core)"
    )
    parser.add_argument("--seeds", type=int, default=1, help="number of seeds of each trained point")
    parser.add_argument("--replay", nargs="+", default=(), help="earlier training data whose forces are replayed")
    parser.add_argument("--finetune-lr", type=float, default=FINETUNING_LR, help="default: that of the package")
    parser.add_argument("--scratch-lr", type=float, default=5e-3)
    parser.add_argument("--test", type=int, default=40, help="maximum number of test snapshots of each kind")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    systems = read_systems(arguments.data)
    trained = set(FAENetCalculator(arguments.start, device="cpu").trained_elements)
    chosen = arguments.sid or by_familiarity(systems, trained)[: arguments.systems]
    settings = {key: getattr(arguments, key) for key in ("steps", "test", "finetune_lr", "scratch_lr")}
    rows = Rows(arguments.out, {"row": "header", **model_words(arguments.start), **settings})
    for sid in chosen:
        runs = systems[sid]
        first = runs["vasp"][0]
        words = {"formula": first.get_chemical_formula(), "outside": sorted(set(first.symbols) - trained)}
        done = {(row["way"], row["asked"], row.get("seed", 0)) for row in rows.of("point") if row["sid"] == sid}
        for point in curve(arguments.start, runs, arguments, done):
            rows.append({"row": "point", "sid": sid, **words, **rounded(point)})
            show({"benchmark": "finetune_curve", **rows.rows[-1]})
    for row in summary([row for row in rows.of("point") if row["sid"] in chosen]):
        show(rounded(row))


if __name__ == "__main__":
    main()
