"""Fit the uncertainty and the domain of a checkpoint to training data, and write both into the file.

    python scripts/fit_uncertainty.py metals-m datasets/metals-v1:train --held-out datasets/metals-v1:val
    python scripts/fit_uncertainty.py copper-s datasets/metals-v1:train --only Cu H C O \
        --where adsorbate=none,H,C,O,OH,CO,H2,O2,CO2,H2O
    python scripts/fit_uncertainty.py metals-direct datasets/metals-v1/{mixed,mixed-strong-rattle,gas-*}.extxyz.xz \
        --held-out datasets/metals-v1:val
    python scripts/fit_uncertainty.py co2-ni100 visible.extxyz.xz
    python scripts/fit_uncertainty.py runs/mine/best.safetensors train.extxyz --held-out val.extxyz

MODEL is a shipped name, whose sha256 is written anew, or a checkpoint. Weights and predictions stay as they are. --only
keeps structures of these elements, --where those whose info has one of the values. Without --held-out a tenth of the
structures is held out for the calibration.
"""

import argparse
import hashlib
from pathlib import Path

import numpy as np
import torch
from ase.data import atomic_numbers

from faenet_calc import load_potential
from faenet_calc.data.dataset import GraphDataset, open_dataset
from faenet_calc.potential import shipped
from faenet_calc.potential.checkpoint import save_potential
from faenet_calc.potential.potential import Potential
from faenet_calc.training.uncertainty import MAX_STRUCTURES, fit_uncertainty


def chosen(dataset: GraphDataset, only: list[str] | None, where: str | None) -> np.ndarray:
    """Indices of the structures that have no other elements and one of the values ("KEY=VALUE,VALUE,…")."""
    indices = np.arange(len(dataset))
    if only:
        foreign = np.ones(119, dtype=bool)
        foreign[[atomic_numbers[symbol] for symbol in only]] = False
        indices = np.flatnonzero(dataset.compositions()[:, foreign].sum(axis=1) == 0)
    if where:
        key, _, values = where.partition("=")
        kept = [index for index in indices.tolist() if str(dataset.info(index).get(key)) in values.split(",")]
        indices = np.array(kept, dtype=int)
    return indices


def main() -> None:
    """Fit, save, hash."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", metavar="MODEL")
    parser.add_argument("train", nargs="+", metavar="DATA")
    parser.add_argument("--held-out", nargs="+", metavar="DATA")
    parser.add_argument("--only", nargs="+", metavar="ELEMENT")
    parser.add_argument("--where", metavar="KEY=VALUE,…")
    parser.add_argument("--max-structures", type=int, default=MAX_STRUCTURES)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    potential = load_potential(arguments.model, device="cpu")

    def open_files(files: list[str]) -> GraphDataset:
        return open_dataset(files, cutoff=potential.cutoff, max_neighbors=potential.config.graph.max_neighbors)

    train = open_files(arguments.train)
    train_indices = chosen(train, arguments.only, arguments.where)
    if arguments.held_out:
        held_out = open_files(arguments.held_out)
        held_out_indices = chosen(held_out, arguments.only, arguments.where)
    else:
        shuffled = np.random.default_rng(arguments.seed).permutation(train_indices)
        held_out, tenth = train, max(1, len(shuffled) // 10)
        held_out_indices, train_indices = np.sort(shuffled[:tenth]), np.sort(shuffled[tenth:])
    fitted: Potential = fit_uncertainty(
        potential,
        (train, train_indices),
        (held_out, held_out_indices),
        max_structures=arguments.max_structures,
        seed=arguments.seed,
    )
    is_shipped = arguments.model in shipped.names()
    path = shipped.path(arguments.model) if is_shipped else Path(arguments.model)
    save_potential(fitted, path)
    if is_shipped:
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        path.with_name("sha256").write_text(f"{digest}  {path.name}\n")
    print(f"{path}: {path.stat().st_size / 1e6:.2f} MB, {fitted.config.domain}")


if __name__ == "__main__":
    main()
