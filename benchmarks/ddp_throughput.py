"""Training throughput of two processes against one, with the same total batch size.

    python benchmarks/ddp_throughput.py [--preset modern-s] [--batch 8] [--steps 6] [--repeats 5] [-o rows.jsonl]

Needs two idle cores: the benchmark measures wall time, and "cores used" below 2 means that a core was busy. Three
variants take turns: one process with one thread, one process with two threads (control), and two gloo processes with
one thread and half the batch each. Rates are medians over the turns. The ratio of CPU times (one process against the
busier of the two) excludes waiting: it is the speed-up without any synchronization delay.
Rows are JSON with the keys benchmark, case, metric, value and unit.
"""

import argparse
import json
import os
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing
from ase.build import add_adsorbate, fcc111
from ase.calculators.emt import EMT
from ase.calculators.singlepoint import SinglePointCalculator
from ase.io import write

from faenet_calc.training.batches import epoch_batches
from faenet_calc.training.config_file import read_config
from faenet_calc.training.distributed import Ranks
from faenet_calc.training.loop import Run

_FREE_CORES = 1.7  # that two processes must have used on average
CASES = ("1 process, 1 thread", "1 process, 2 threads", "2 processes, 1 thread each")


def write_slabs(path: Path, n: int) -> None:
    """Write slabs of 49 atoms with EMT labels."""
    random, structures = np.random.default_rng(0), []
    for _ in range(n):
        atoms = fcc111("Cu", (4, 4, 3), vacuum=8.0, periodic=True)
        add_adsorbate(atoms, "O", 1.2, position=tuple(random.uniform(0, 8, 2)))
        atoms.info = {}
        atoms.rattle(0.05, rng=random)
        atoms.calc = EMT()
        atoms.calc = SinglePointCalculator(atoms, energy=atoms.get_potential_energy(), forces=atoms.get_forces())
        structures.append(atoms)
    write(path, structures)


def make_run(folder: Path, arguments: argparse.Namespace, ranks: Ranks) -> Run:
    """Training run with a fixed number of structures per step, for any number of processes."""
    settings = [
        f"data.train={json.dumps([str(folder / 'slabs.extxyz')])}", f"data.cache_dir={json.dumps(str(folder))}",
        f"run.out_dir={json.dumps(str(folder / f'{ranks.world}'))}", f"model.preset={arguments.preset}",
        f"optim.batch_size={arguments.batch // ranks.world}", "data.val_fraction=0", "run.max_epochs=1",
        "run.tensorboard=false", "run.device=cpu",
    ]  # fmt: skip
    (folder / f"{ranks.world}").mkdir(exist_ok=True)
    return Run(read_config("", settings), torch.device("cpu"), ranks, resume=False, progress=False)


def take_steps(run: Run, n_steps: int) -> tuple[float, float]:
    """Wall and CPU time (s) of some steps, including the assembly of batches."""
    wall, cpu = time.perf_counter(), time.process_time()
    for batch in epoch_batches(run.costs, run.global_batch, seed=0, epoch=0)[:n_steps]:
        run.step(run.make(batch, run.state.epoch))
    return time.perf_counter() - wall, time.process_time() - cpu


def work(rank: int, folder: Path, arguments: argparse.Namespace) -> None:
    """Body of one of the two processes; the first also trains alone while the second waits at a barrier."""
    dist.init_process_group("gloo", init_method=f"file://{folder / 'meet'}", rank=rank, world_size=2)
    torch.set_num_threads(1)
    ranks = Ranks(rank=rank, world=2)
    alone = make_run(folder, arguments, Ranks()) if rank == 0 else None
    together = make_run(folder, arguments, ranks)
    found: dict[str, list[tuple[float, float, float]]] = {case: [] for case in CASES}
    for repeat in range(arguments.repeats + 1):
        for case in CASES:
            dist.barrier()
            threads = 2 if "2 threads" in case else 1
            torch.set_num_threads(threads)
            wall = cpu = 0.0
            if case == CASES[2]:
                wall, cpu = take_steps(together, arguments.steps)
            elif alone is not None:
                wall, cpu = take_steps(alone, arguments.steps)
            parts = ranks.gather((wall, cpu))
            if repeat:  # the first is warm-up
                cpus = [part[1] for part in parts]
                found[case].append((max(part[0] for part in parts), max(cpus), sum(cpus)))
    if rank == 0:
        (folder / "found.json").write_text(json.dumps(found))
    dist.destroy_process_group()


def rows(found: dict[str, list[list[float]]], arguments: argparse.Namespace) -> list[dict[str, object]]:
    """Medians over the turns as rows."""
    samples, case = arguments.batch * arguments.steps, f"{arguments.preset}, {arguments.batch} slabs of 49 atoms a step"
    wall, busiest, used = ({name: np.array(turns)[:, k] for name, turns in found.items()} for k in range(3))
    table = []
    for name in CASES:
        table.append((f"samples per wall second ({name})", samples / float(np.median(wall[name])), "1/s"))
        table.append((f"cores used ({name})", float(np.median(used[name] / wall[name])), ""))
    for name in CASES[1:]:
        table.append((f"wall ratio ({name})", float(np.median(wall[CASES[0]] / wall[name])), ""))
    table.append(("CPU-time ratio (2 processes)", float(np.median(busiest[CASES[0]] / busiest[CASES[2]])), ""))
    table.append(("load average when it ended", os.getloadavg()[0], ""))
    both = float(np.median(used[CASES[2]] / wall[CASES[2]])) > _FREE_CORES
    table.append(("two free cores (0: the wall ratios say nothing)", float(both), ""))
    return [
        {"benchmark": "ddp_throughput", "case": case, "metric": metric, "value": round(value, 3), "unit": unit}
        for metric, value, unit in table
    ]


def main() -> None:
    """Start both processes and print their results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default="modern-s")
    parser.add_argument("--batch", type=int, default=8, help="structures per step, both processes together")
    parser.add_argument("--steps", type=int, default=6, help="steps per turn")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("-o", "--out", type=Path, help="also write the rows to this file")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        write_slabs(folder / "slabs.extxyz", arguments.batch * arguments.steps)
        torch.multiprocessing.spawn(work, (folder, arguments), nprocs=2)
        found = json.loads((folder / "found.json").read_text())
    lines = [json.dumps(row) for row in rows(found, arguments)]
    print("\n".join(lines))
    if arguments.out is not None:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
