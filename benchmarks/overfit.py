"""Training error after fitting sixteen structures.

    python benchmarks/overfit.py [--epochs 1500]

Rattled Cu and Pd slabs, some with oxygen, with EMT energies and forces; errors of the averaged weights on the training
set.
Rows are JSON with the keys benchmark, case, metric, value and unit.
"""

import argparse
import json
import tempfile
from pathlib import Path

import numpy as np
from ase.build import add_adsorbate, fcc111
from ase.calculators.emt import EMT
from ase.calculators.singlepoint import SinglePointCalculator
from ase.io import write

from faenet_calc.training.config_file import read_config
from faenet_calc.training.loop import train


def write_structures(path: Path) -> None:
    """Write sixteen slabs of two or three layers."""
    random, structures = np.random.default_rng(0), []
    for number in range(16):
        atoms = fcc111("Cu" if number % 2 else "Pd", (1, 1 + number % 2, 2 + number % 3 // 2), vacuum=6.0)
        if number % 3 == 0:
            add_adsorbate(atoms, "O", 1.4, "fcc")
        atoms.info, atoms.pbc = {}, True
        atoms.rattle(0.05, rng=random)
        atoms.calc = EMT()
        energy, forces = atoms.get_potential_energy(), atoms.get_forces()
        atoms.calc = SinglePointCalculator(atoms, energy=energy, forces=forces)
        structures.append(atoms)
    write(path, structures)


def main() -> None:
    """Train and print the errors."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=1500)
    epochs = parser.parse_args().epochs
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_structures(folder / "sixteen.extxyz")
        settings = [
            f"data.train=[{folder / 'sixteen.extxyz'}]", "data.val_fraction=0", f"data.cache_dir={folder / 'cache'}",
            f"run.out_dir={folder / 'run'}", f"run.max_epochs={epochs}", "run.validate_every=100",
            "run.tensorboard=false", "model.cutoff=4.0", "model.hidden_channels=64", "model.filters=64",
            "model.interactions=2", "frames.training=one", "loss.energy=5", "optim.lr=4e-3", "optim.batch_size=8",
            "optim.weight_decay=0",
        ]  # fmt: skip
        result = train(read_config("", settings))
    last, case = result.state.history[-1], f"16 slabs, {epochs} epochs, {result.state.elapsed_s:.0f} s"
    for metric, unit in (("energy_mae_per_atom", "meV/atom"), ("forces_mae", "meV/Å")):
        print(
            json.dumps(
                {"benchmark": "overfit", "case": case, "metric": metric, "value": 1e3 * last[metric], "unit": unit}
            )
        )


if __name__ == "__main__":
    main()
