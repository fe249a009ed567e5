"""How well the spread over frames predicts force errors.

    python benchmarks/frame_spread.py metals-m metals-s [--data labels.extxyz] [--limit 200]

`forces_frame_std` is compared with the norm of the force error on structures of unseen systems (the validation set of
datasets/metals-v1, or every n-th of them), for all atoms, for adsorbate atoms, and for the worst atom of each structure
(largest spread against largest error):

rank_correlation      Spearman correlation; 0 without any relation.
error_over_spread     Median ratio: factor that converts a spread into an error.
worst_tenth_found     Fraction of the 10 % largest errors found among the 10 % largest spreads; 0.1 by chance.
error_by_fifth        Mean error (meV/Å) in each fifth of the atoms, ordered by spread.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from heldout_errors import VALIDATION
from numpy.typing import NDArray
from rows import Row, model_words, rounded, show
from scipy.stats import spearmanr

from faenet_calc import FAENetCalculator
from faenet_calc.data.formats import Record, read_records
from faenet_calc.graphs.tags import ADSORBATE

Floats = NDArray[np.float64]


def agreement(spread: Floats, error: Floats) -> Row:
    """Measures of agreement between spreads [n] and errors [n] (eV/Å)."""
    tenth = max(1, len(error) // 10)
    widest, worst = (set(np.argsort(-values)[:tenth].tolist()) for values in (spread, error))
    fifths = np.array_split(error[np.argsort(spread)], 5)
    return {
        "n": len(error),
        "rank_correlation": float(spearmanr(spread, error).statistic),
        "error_over_spread": float(np.median(error / np.maximum(spread, np.finfo(float).tiny))),
        "worst_tenth_found": len(widest & worst) / tenth,
        "error_by_fifth": [1e3 * float(part.mean()) for part in fifths],
    }


def spreads_and_errors(calc: FAENetCalculator, records: Sequence[Record]) -> list[tuple[Floats, Floats]]:
    """Spread of the force on each atom and norm of its error, [n_atoms] (eV/Å), for every structure."""
    atoms = [record.atoms for record in records]
    predicted = calc.predict(atoms, properties=("energy", "forces", "forces_frame_std"))
    return [
        (found["forces_frame_std"], np.linalg.norm(found["forces"] - record.results["forces"], axis=1))
        for record, found in zip(records, predicted, strict=True)
    ]


def main() -> None:
    """Print one row per model and kind of atom."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", metavar="MODEL")
    parser.add_argument("--data", type=Path, default=VALIDATION)
    parser.add_argument("--limit", type=int, help="maximum number of structures, taken evenly")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    records = list(read_records(arguments.data))
    if unlabelled := sum("forces" not in record.results for record in records):
        raise SystemExit(
            f"{unlabelled} of {len(records)} structures of {arguments.data} have no forces; label them first"
        )
    if arguments.limit is not None and arguments.limit < len(records):
        records = [records[i] for i in np.linspace(0, len(records) - 1, arguments.limit).astype(int)]
    for name in arguments.models:
        found = spreads_and_errors(FAENetCalculator(name, device="cpu", frames="all"), records)
        spread, error = (np.concatenate(part) for part in zip(*found, strict=True))
        adsorbate = np.concatenate([record.atoms.get_tags() == ADSORBATE for record in records])
        worst = np.array([(a.max(), b.max()) for a, b in found])
        cases = {
            "atoms": (spread, error),
            "atoms of adsorbates": (spread[adsorbate], error[adsorbate]),
            "worst atom of a structure": (worst[:, 0], worst[:, 1]),
        }
        for case, values in cases.items():
            if not len(values[0]):
                continue
            show({"benchmark": "frame_spread", **model_words(name), "case": case, **rounded(agreement(*values))})


if __name__ == "__main__":
    main()
