"""Active learning: run MD until a committee disagrees, label the structures found, fine-tune, repeat.

python examples/active_learning.py [--quick] [--out FOLDER] [--start slab.extxyz] [--calculator my_package.MyDFT]

OUT/0, OUT/1, … contain the MD runs, new labels and fine-tuned members of each generation; an interrupted run is resumed
by the same command. The errors in the table are on the newly labelled structures: "after" includes them in the training
set, so it shows that they were learned, not how the model performs elsewhere.
"""

import argparse
import json
import warnings
from pathlib import Path

import numpy as np
from ase import Atoms
from ase.build import add_adsorbate, fcc111
from ase.calculators.calculator import Calculator
from ase.calculators.singlepoint import SinglePointCalculator
from ase.io import read

from faenet_calc import FAENetCalculator, run_md
from faenet_calc.graphs.writing import write_structures
from faenet_calc.labelling.calculators import build_calculator
from faenet_calc.labelling.recipe import CalculatorConfig
from faenet_calc.simulate.md import MDStoppedWarning
from faenet_calc.training.config_file import read_config
from faenet_calc.training.loop import train

QUICK = {"members": 2, "steps": 100, "runs": 2, "labels": 5, "visits": 300}  # with tiny networks
FULL = {"members": 4, "steps": 5000, "runs": 4, "labels": 10, "visits": 20000}
TINY = ("model.hidden_channels=48", "model.filters=32", "model.interactions=2", "model.cutoff=4.0")
SHORT = ("optim.batch_size=4", "optim.ema_decay=0.97")
GENTLY = ("optim.lr=2e-3", "finetune.refit_references=false", "finetune.replay_fraction=0.4")


def label(structures: list[Atoms], reference: Calculator, path: Path) -> None:
    """Write structures with the energies and raw forces of the reference."""
    for atoms in structures:
        atoms.set_constraint()
        atoms.calc = reference
        atoms.calc = SinglePointCalculator(atoms, energy=atoms.get_potential_energy(), forces=atoms.get_forces())
    write_structures(path, structures, overwrite=True)


def committee(
    folder: Path, data: Path, settings: list[str], before: list[Path], args: argparse.Namespace
) -> list[Path]:
    """Train committee members with different seeds, from scratch or starting from earlier members."""
    epochs = -(-args.visits * (1 if before else 2) // len(read(data, ":")))
    settings = [*settings, f"data.train={json.dumps([str(data)])}", f"run.max_epochs={epochs}"]
    found = []
    for seed in range(args.members):
        own = [f"run.seed={seed}", f"run.out_dir={json.dumps(str(folder / f'member-{seed}'))}"]
        own += [f"finetune.checkpoint={json.dumps(str(before[seed]))}"] if before else []
        found.append(train(read_config("", [*settings, *own]), resume=True).checkpoint)
    return found


def disagreement(calc: FAENetCalculator, structures: list[Atoms]) -> list[float]:
    """Largest standard deviation of a force over the committee (eV/Å), for each structure."""
    votes = calc.predict(structures, properties=("forces_var",))
    return [float(np.sqrt(vote["forces_var"].sum(axis=1).max())) for vote in votes]


def explore(folder: Path, models: list[Path], start: Atoms, args: argparse.Namespace) -> list[Atoms]:
    """Run MD until the committee is uncertain; return the structures with the largest disagreement."""
    calc, chosen = FAENetCalculator(models, on_outside_domain="ignore"), []  # leaving the domain is intended
    if disagreement(calc, [start])[0] > args.max_std:
        start.info = {"md_run": 0, "md_steps": 0}
        return [start.copy()]
    for seed in range(args.runs):
        path = folder / f"md-{seed}.traj"
        run = run_md(
            start, calc, temperature_K=args.temperature, timestep_fs=2.0, steps=args.steps, seed=seed,
            trajectory=path, overwrite=True, interval=5, check_interval=5, max_committee_std=args.max_std,
        )  # fmt: skip
        met = [*read(path, "1:"), run.atoms]
        for number in np.argsort(disagreement(calc, met))[: -args.labels - 1 : -1]:
            met[number].info = {"md_run": seed, "md_steps": run.n_steps}
            chosen.append(met[number])
    return chosen


def force_error(models: list[Path], structures: list[Atoms]) -> float:
    """Mean absolute error of the committee mean (meV/Å)."""
    answers = FAENetCalculator(models, on_outside_domain="ignore").predict(structures, properties=("forces",))
    errors = [answer["forces"] - atoms.get_forces() for answer, atoms in zip(answers, structures, strict=True)]
    return 1000 * float(np.abs(np.concatenate(errors)).mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="tiny networks and short runs (about a minute)")
    parser.add_argument("--out", type=Path, default=Path("demo-output/active-learning"), help="folder for files")
    parser.add_argument("--start", type=Path, help="structure to simulate (default: an adatom on Cu(111))")
    parser.add_argument("--calculator", default="ase.calculators.emt.EMT", help="import path of the reference")
    parser.add_argument("--temperature", type=float, default=600.0, help="temperature in K")
    parser.add_argument(
        "--max-std", type=float, default=0.2, help="limit on the force spread over the committee in eV/Å"
    )
    parser.add_argument("--generations", type=int, default=3)
    parser.set_defaults(**FULL)
    args = parser.parse_args()
    vars(args).update(QUICK if args.quick else {})
    args.out.mkdir(parents=True, exist_ok=True)
    warnings.simplefilter("ignore", MDStoppedWarning)  # stopping is intended
    reference = build_calculator(CalculatorConfig(factory=args.calculator), trust_code=True)
    start = fcc111("Cu", (2, 2, 3), a=3.6, vacuum=8.0, periodic=True)
    add_adsorbate(start, "Cu", 2.0, "fcc")
    start = read(args.start) if args.start else start
    start.info = {}

    data = [args.out / "first.extxyz"]  # small displacements; replace by your own data
    if not data[0].exists():
        rattled = [start.copy() for _ in range(16)]
        for seed, atoms in enumerate(rattled):
            atoms.rattle(0.003 * (seed + 1), seed=seed)
        label(rattled, reference, data[0])
    common = ["data.val_fraction=0", f"data.cache_dir={json.dumps(str(args.out / 'graphs'))}", "run.report=false"]
    common += [*TINY, *SHORT] if args.quick else []
    models = committee(args.out / "first", data[0], common, [], args)
    print("generation   MD steps until unsure   new labels   force error on them (meV/Å): before   after fine-tuning")
    for generation in range(args.generations):
        folder = args.out / str(generation)
        folder.mkdir(exist_ok=True)
        new = folder / "labels.extxyz"
        if not new.exists():
            label(explore(folder, models, start, args), reference, new)
        found = read(new, ":")
        before = force_error(models, found)
        replay = f"finetune.replay={json.dumps([str(path) for path in data])}"
        models, data = committee(folder, new, [*common, *GENTLY, replay], models, args), [*data, new]
        steps = np.mean([steps for _, steps in sorted({(a.info["md_run"], a.info["md_steps"]) for a in found})])
        print(f"{generation:>10} {steps:>23.0f} {len(found):>12} {before:>36.0f} {force_error(models, found):>19.0f}")


if __name__ == "__main__":
    main()
