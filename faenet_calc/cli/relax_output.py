"""The output file of `faenet-calc relax`, complete after every structure, from which a run can be resumed."""

import hashlib
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ase import Atoms

from faenet_calc.errors import InputError, counted
from faenet_calc.graphs.reading import InputStructure, read_structures
from faenet_calc.graphs.writing import write_structures

if TYPE_CHECKING:
    from faenet_calc.simulate import RelaxResult

_KEY = "relax_key"
_WRITING_SHARE = 0.1  # of the time: very large files are not rewritten after every structure


def task_key(item: InputStructure, settings: dict[str, Any]) -> str:
    """A digest of a structure and of the settings that decide where it relaxes to."""
    atoms = item.atoms
    digest = hashlib.sha256(json.dumps([item.name, settings], sort_keys=True).encode())
    for array in (atoms.numbers, atoms.positions, atoms.cell.array, atoms.pbc):
        digest.update(array.tobytes())
    return f"sha256:{digest.hexdigest()[:16]}"


class RelaxOutput:
    """Relaxed structures in the order of the input, written as they finish.

    Args:
        path: The file; None keeps nothing.
        keys: From :func:`task_key`, one per input structure.
        resume: Start from the structures that are in the file.

    Attributes:
        n_saved: Structures in the file.
    """

    def __init__(self, path: Path | None, keys: list[str], *, resume: bool) -> None:
        self.path = path
        self.n_saved = 0
        self._keys = keys
        self._finished: dict[str, Atoms] = {}
        self._next_write = 0.0
        self._changed = False
        if resume and path is not None and path.exists():
            self._finished = self._read(path)
            self.n_saved = len(self._finished)

    def finished(self, key: str, *, fmax: float, steps: int) -> "RelaxResult | None":
        """The stored result of a structure that needs no more steps; None if it has to be relaxed."""
        from faenet_calc.simulate import RelaxResult

        atoms = self._finished.get(key)
        if atoms is None or "relax_error" in atoms.info:
            return None
        reached, n_steps = float(atoms.info["relax_fmax"]), int(atoms.info["relax_steps"])
        if reached > fmax and n_steps < steps:
            return None
        return RelaxResult(
            atoms=atoms,
            energy=float(atoms.get_potential_energy()),
            converged=reached <= fmax,
            n_steps=n_steps,
            fmax=reached,
            wall_s=0.0,
            anomalies=tuple(str(atoms.info.get("anomalies", "")).split()),
            why=atoms.info.get("why"),
        )

    def add(self, key: str, item: InputStructure, result: "RelaxResult") -> None:
        """Store a result, and write the file unless that was done recently in terms of what it costs."""
        atoms = result.atoms
        atoms.info |= {
            "source": item.name,
            _KEY: key,
            "relax_converged": result.converged,
            "relax_steps": result.n_steps,
            "relax_fmax": result.fmax,
        }
        if result.anomalies:
            atoms.info["anomalies"] = " ".join(result.anomalies)
        if result.why is not None:
            atoms.info["why"] = result.why
        if result.error is not None:
            atoms.info["relax_error"] = result.error
        self._finished[key] = atoms
        self._changed = True
        if time.monotonic() >= self._next_write:
            self.write()

    def write(self) -> None:
        """Write all results so far, atomically, unless the file has them."""
        if self.path is None or not self._changed:
            return
        start = time.monotonic()
        # dict.fromkeys: a structure that was given twice is written once.
        ordered = [self._finished[key] for key in dict.fromkeys(self._keys) if key in self._finished]
        write_structures(self.path, ordered, overwrite=True)
        self.n_saved = len(ordered)
        self._changed = False
        self._next_write = time.monotonic() + (time.monotonic() - start) / _WRITING_SHARE

    def _read(self, path: Path) -> dict[str, Atoms]:
        found = {str(item.atoms.info.get(_KEY)): item.atoms for item in read_structures(path, check=False)}
        if unknown := [key for key in found if key not in self._keys]:
            raise InputError(
                f"{path} has {counted(len(unknown), 'structure')} from other inputs, another model or other settings; "
                "resume with the arguments of the interrupted run, or choose another output"
            )
        return found
