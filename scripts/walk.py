"""Functions of the package that run during ``atoms.get_potential_energy()``, in call order.

    python scripts/walk.py [--model MODEL] [--forces]      (or: make walk)

Prints one line per function the first time it is called, indented by call depth, and the totals. The structure is CO
on a 12-atom Cu(111) slab. An earlier call with another calculator loads the modules and compiles the kernels, so that
only the work of the prediction is listed; module bodies, class bodies and comprehensions are left out.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from ase import Atoms
from ase.build import add_adsorbate, fcc111, molecule

import faenet_calc
from faenet_calc import FAENetCalculator

PACKAGE = Path(faenet_calc.__file__).resolve().parent


class CallRecorder:
    """Profile function (see ``sys.setprofile``) that records calls of functions of the package.

    Attributes:
        calls: number of calls of each (file, function), in the order of first calls.
        depth: call depth of each (file, function) at its first call, counting functions of the package only.
    """

    def __init__(self) -> None:
        self.calls: Counter[tuple[str, str]] = Counter()
        self.depth: dict[tuple[str, str], int] = {}
        self._open: list[FrameType] = []

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        """Record the start or the end of a call."""
        code = frame.f_code
        path = Path(code.co_filename)
        if event not in ("call", "return") or not path.is_relative_to(PACKAGE) or code.co_name.startswith("<"):
            return
        if event == "return":
            if self._open and self._open[-1] is frame:
                self._open.pop()
            return
        key = path.relative_to(PACKAGE).as_posix(), code.co_qualname
        self.depth.setdefault(key, len(self._open))
        self.calls[key] += 1
        self._open.append(frame)


def record(function: Callable[[], object]) -> CallRecorder:
    """Call a function and return the recorded calls."""
    recorder = CallRecorder()
    sys.setprofile(recorder)
    try:
        function()
    finally:
        sys.setprofile(None)
    return recorder


def structure(model: str | None) -> Atoms:
    """CO on Cu(111) with a new calculator."""
    atoms = fcc111("Cu", (2, 2, 3), vacuum=8.0)
    add_adsorbate(atoms, molecule("CO"), 1.9, "ontop", mol_index=1)
    atoms.calc = FAENetCalculator(model, device="cpu")
    return atoms


def main() -> None:
    """Print the walk and its totals."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="shipped name or path (default: the default model)")
    parser.add_argument("--forces", action="store_true", help="walk through get_forces() instead")
    arguments = parser.parse_args()

    def predict(atoms: Atoms) -> object:
        return atoms.get_forces() if arguments.forces else atoms.get_potential_energy()

    predict(structure(arguments.model))
    atoms = structure(arguments.model)
    walk = record(lambda: predict(atoms))
    for (file, function), n_calls in walk.calls.items():
        print(f"{n_calls:5d}  {'  ' * walk.depth[file, function]}{file}:{function}")
    files = {file for file, _ in walk.calls}
    print(f"{len(walk.calls)} functions in {len(files)} files, {walk.calls.total()} calls")


if __name__ == "__main__":
    main()
