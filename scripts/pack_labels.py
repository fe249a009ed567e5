"""Round and compress labels to one shard of a data set, and print its entry for manifest.yaml.

    python scripts/pack_labels.py labels/mixed/labels.extxyz [labels/more.extxyz …] -o datasets/NAME/SHARD.extxyz.xz
    python scripts/pack_labels.py labels/mixed/labels.extxyz --part train -o datasets/NAME/mixed.extxyz.xz

--part takes only the structures of one split: `test` those that a recipe held out, `val` all structures of 4 % of the
other systems, chosen by a digest of their names, `train` the rest.

Positions are rounded to 1e-5 Å, forces to 1e-4 eV/Å and energies to 1e-5 eV, at most a hundredth of the error of a good
model. Order and origin of the labels are kept.
"""

import argparse
import hashlib
import io
import lzma
from pathlib import Path

import numpy as np
from ase import Atoms
from ase.calculators.singlepoint import SinglePointCalculator
from ase.io import read, write

from faenet_calc.files import sha256_of

DIGITS = {"energy": 5, "forces": 4, "stress": 7}
POSITION_DIGITS, CELL_DIGITS = 5, 6
VALIDATION = 0.04
"""Share of the systems."""


def part_of(atoms: Atoms) -> str:
    """The split of a structure, the same for all structures of a system: ``train``, ``val`` or ``test``."""
    if atoms.info["split"] == "heldout":
        return "test"
    digest = hashlib.sha256(str(atoms.info["system"]).encode()).digest()
    return "val" if int.from_bytes(digest[:4], "big") < VALIDATION * 2**32 else "train"


def rounded(atoms: Atoms) -> Atoms:
    """A copy with rounded numbers and the same origin."""
    copy = Atoms(
        atoms.numbers,
        positions=atoms.positions.round(POSITION_DIGITS),
        cell=atoms.cell.array.round(CELL_DIGITS),
        pbc=atoms.pbc,
        tags=atoms.get_tags(),
        info=atoms.info,
    )
    known = {key: value for key, value in atoms.calc.results.items() if key in DIGITS}
    copy.calc = SinglePointCalculator(copy, **{key: np.round(value, DIGITS[key]) for key, value in known.items()})
    return copy


def main() -> None:
    """Read, round, compress, print the manifest entry."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--part", choices=("train", "val", "test"))
    parser.add_argument("-o", "--out", type=Path, required=True)
    arguments = parser.parse_args()
    text, count = io.StringIO(), 0
    for file in arguments.files:
        part = arguments.part
        structures = [rounded(atoms) for atoms in read(file, ":") if part is None or part_of(atoms) == part]
        write(text, structures, format="extxyz")
        count += len(structures)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_bytes(lzma.compress(text.getvalue().encode(), preset=9 | lzma.PRESET_EXTREME))
    print(f"  - file: {arguments.out.name}\n    sha256: {sha256_of(arguments.out)}\n    structures: {count}")


if __name__ == "__main__":
    main()
