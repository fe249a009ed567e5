"""Reference potential of the shipped models as an ASE calculator (development only, not installed).

Labels come from Nequix (nequix-oam-1, MIT). Its training data mix PBE and PBE+U: Fe, Co, Ni, Mo and W have a Hubbard
term exactly when O is present. Energies of structures in which O meets one of them are therefore on another
total-energy scale (O on Ni(111): +15 eV). For these structures only, the *interaction* of metal and molecules is taken
from CHGNet 0.3.0 (modified BSD), whose training energies were corrected for this difference:

    E = E_N(metal) + E_N(molecules) + [E_C(all) − E_C(metal) − E_C(molecules)]

so that slabs, bulk and the gas-phase limit stay on Nequix's scale. A single O atom has no meaningful energy in either
potential and is replaced by half an O2 molecule; several single atoms that meet such a metal together with O have none
either and should be left out of recipes.

Both potentials need fully periodic cells (Nequix ignores the cell otherwise). Non-periodic directions are made periodic
with vacuum larger than the cutoffs.
"""

import warnings
from typing import Any, ClassVar

import numpy as np
from ase import Atoms
from ase.calculators.calculator import Calculator, all_changes
from ase.stress import full_3x3_to_voigt_6_stress

from faenet_calc.memory import keep_freed_memory

HUBBARD_METALS = frozenset({26, 27, 28, 42, 74})  # Fe, Co, Ni, Mo, W
NONMETALS = (1, 6, 7, 8, 16, 17)
OXYGEN = 8
VACUUM_A = 9.0  # more than the larger of the two cutoffs (6 Å)
O2_BOND_A = 1.233


class MetalsReference(Calculator):
    """Nequix, with CHGNet's metal–molecule interaction where O meets Fe, Co, Ni, Mo or W.

    Args:
        model: Name of the Nequix weights, read from ~/.cache/nequix/models/NAME.nqx or downloaded by nequix.
        in_parts: Evaluate the tensor products in chunks (`fast_nequix.py`), about 2.5 times faster on a CPU.
    """

    implemented_properties: ClassVar[list[str]] = ["energy", "free_energy", "forces", "stress"]

    def __init__(self, model: str = "nequix-oam-1", *, in_parts: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        keep_freed_memory()
        warnings.filterwarnings("ignore", category=UserWarning)
        import fast_nequix
        from chgnet.model.dynamics import CHGNetCalculator
        from nequix.calculator import NequixCalculator

        self._nequix = NequixCalculator(model_name=model, backend="torch", use_kernel=False)
        if in_parts:
            fast_nequix.speed_up(self._nequix.model)
        self._chgnet = CHGNetCalculator(use_device="cpu", on_isolated_atoms="ignore")
        pair = Atoms("O2", positions=[[0, 0, 0], [0, 0, O2_BOND_A]])
        self._lone_oxygen = (_run(self._nequix, pair)[0] - _run(self._chgnet, pair)[0]) / 2

    def calculate(self, atoms: Atoms | None = None, properties: Any = None, system_changes: Any = all_changes) -> None:
        """Energy (eV), forces (eV/Å) and, with three cell vectors, stress (eV/Å³)."""
        super().calculate(atoms, properties, system_changes)
        numbers = set(self.atoms.numbers)
        if OXYGEN in numbers and numbers & HUBBARD_METALS:
            energy, forces, virial = self._composite(self.atoms)
        else:
            energy, forces, virial = _run(self._nequix, self.atoms)
        self.results = {"energy": energy, "free_energy": energy, "forces": forces}
        if self.atoms.cell.rank == 3:
            self.results["stress"] = virial / self.atoms.get_volume()

    def _composite(self, atoms: Atoms) -> tuple[float, np.ndarray, np.ndarray]:
        molecules = np.isin(atoms.numbers, NONMETALS)
        energy, forces, virial = _run(self._chgnet, atoms)
        forces = forces.copy()
        for part in (~molecules, molecules):
            if part.sum() == 1 and molecules[part].all():
                energy += self._lone_oxygen
                continue
            subsystem = _bare(atoms, part)
            for sign, calculator in ((1, self._nequix), (-1, self._chgnet)):
                part_energy, part_forces, part_virial = _run(calculator, subsystem)
                energy += sign * part_energy
                forces[part] += sign * part_forces
                virial = virial + sign * part_virial
        return energy, forces, virial


def _bare(atoms: Atoms, mask: np.ndarray | slice = slice(None)) -> Atoms:
    return Atoms(atoms.numbers[mask], positions=atoms.positions[mask], cell=atoms.cell, pbc=atoms.pbc)


def _run(calculator: Calculator, atoms: Atoms) -> tuple[float, np.ndarray, np.ndarray]:
    """Energy, forces [n, 3] and stress times volume [6] of the structure made periodic with vacuum."""
    closed = _bare(atoms)
    if not closed.pbc.all():
        for axis in np.flatnonzero(~closed.pbc):
            _open_up(closed, axis)
        closed.pbc = True
    calculator.calculate(closed, ["energy", "forces", "stress"], all_changes)
    results = calculator.results
    stress = np.asarray(results["stress"], dtype=float)
    voigt = full_3x3_to_voigt_6_stress(stress) if stress.shape == (3, 3) else stress
    return (
        float(results["energy"]),
        np.asarray(results["forces"], dtype=float)[: len(closed)],
        voigt * closed.get_volume(),
    )


def _open_up(atoms: Atoms, axis: int) -> None:
    """Give a non-periodic axis a cell vector (normal to the others if it has none) that separates images."""
    cell = np.array(atoms.cell)
    others = [cell[(axis + 1) % 3], cell[(axis + 2) % 3]]
    direction = cell[axis] if cell[axis].any() else np.cross(*others)
    if not direction.any():
        direction = np.eye(3)[axis]
    direction = direction / np.linalg.norm(direction)
    cell[axis] = direction * max(np.linalg.norm(cell[axis]), np.ptp(atoms.positions @ direction) + VACUUM_A)
    atoms.set_cell(cell)
