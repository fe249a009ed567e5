"""Active learning: run MD until a committee disagrees, label the structures found, fine-tune, repeat.

python examples/active_learning.py [--quick] [--out FOLDER]                                # labels from EMT
python examples/active_learning.py --recipe dft.yaml --first labels.extxyz --start slab.extxyz   # labels from DFT

The calculator that labels is that of a recipe for `faenet-calc data generate`, whose labels may be the first training
set. OUT/0, OUT/1, … contain the MD runs, new labels and fine-tuned members of each generation. An interrupted run is
resumed by the same command and loses at most one label. The errors in the table are on the newly labelled structures:
"after" includes them in the training set, so it shows that they were learned, not how the model performs elsewhere.
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
from faenet_calc.labelling.recipe import CalculatorConfig, load_recipe
from faenet_calc.simulate.md import MDStoppedWarning
from faenet_calc.training.config_file import read_config
from faenet_calc.training.loop import train

# Name → (quick, with tiny networks; full; help text).
SIZES = {
    "members": (2, 4, "models in the committee"),
    "steps": (100, 5000, "maximum number of steps of an MD run"),
    "runs": (2, 4, "MD runs per generation"),
    "labels": (5, 10, "structures to label per MD run"),
    "visits": (300, 20000, "structures seen in one fine-tuning; twice as many in the first training"),
}
TINY = ("model.hidden_channels=48", "model.filters=32", "model.interactions=2", "model.cutoff=4.0")
SHORT = ("optim.batch_size=4", "optim.ema_decay=0.97")
GENTLY = ("optim.lr=2e-3", "finetune.refit_references=false", "finetune.replay_fraction=0.4")


def label(structures: list[Atoms], reference: Calculator, path: Path) -> None:
    """Write structures with the energies and raw forces of the reference; labels of an interrupted run are kept."""
    part = path.with_name(f"unfinished-{path.name}")
    labelled = read(part, ":") if part.exists() else []
    for atoms in structures[len(labelled) :]:
        atoms.set_constraint()
        atoms.calc = reference
        atoms.calc = SinglePointCalculator(atoms, energy=atoms.get_potential_energy(), forces=atoms.get_forces())
        labelled.append(atoms)
        write_structures(part, labelled, overwrite=True)
    part.rename(path)


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
            met[number].info, met[number].calc = {"md_run": seed, "md_steps": run.n_steps}, None
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
    parser.add_argument("--start", help="structure to simulate, e.g. labels.extxyz@-1 (default: an adatom on Cu(111))")
    parser.add_argument("--recipe", type=Path, help="recipe whose calculator labels (default: EMT)")
    parser.add_argument("--first", type=Path, help="first training set (default: 16 rattled copies of the start)")
    parser.add_argument("--temperature", type=float, default=600.0, help="temperature in K")
    parser.add_argument(
        "--max-std", type=float, default=0.2, help="limit on the force spread over the committee in eV/Å"
    )
    parser.add_argument("--generations", type=int, default=3)
    for name, (quick, full, text) in SIZES.items():
        parser.add_argument(f"--{name}", type=int, help=f"{text} (default: {full}, with --quick {quick})")
    args = parser.parse_args()
    for name, (quick, full, _) in SIZES.items():
        if getattr(args, name) is None:
            setattr(args, name, quick if args.quick else full)
    args.out.mkdir(parents=True, exist_ok=True)
    warnings.simplefilter("ignore", MDStoppedWarning)  # stopping is intended
    config = load_recipe(args.recipe).calculator if args.recipe else CalculatorConfig(factory="ase.calculators.emt.EMT")
    reference = build_calculator(config)
    start = fcc111("Cu", (2, 2, 3), a=3.6, vacuum=8.0, periodic=True)
    add_adsorbate(start, "Cu", 2.0, "fcc")
    start = read(args.start) if args.start else start
    start.info = {}

    data = [args.first or args.out / "first.extxyz"]
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
        met, new = folder / "found.extxyz", folder / "labels.extxyz"
        if not met.exists():
            write_structures(met, explore(folder, models, start, args))
        if not new.exists():
            label(read(met, ":"), reference, new)
        found = read(new, ":")
        before = force_error(models, found)
        replay = f"finetune.replay={json.dumps([str(path) for path in data])}"
        models, data = committee(folder, new, [*common, *GENTLY, replay], models, args), [*data, new]
        steps = np.mean([steps for _, steps in sorted({(a.info["md_run"], a.info["md_steps"]) for a in found})])
        print(f"{generation:>10} {steps:>23.0f} {len(found):>12} {before:>36.0f} {force_error(models, found):>19.0f}")


if __name__ == "__main__":
    main()
