"""The self-test of a potential: a table of laws, numbers and verdicts."""

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np
import torch
from ase import Atoms, units
from ase.build import bulk, make_supercell

from faenet_calc import elements
from faenet_calc.errors import InputError
from faenet_calc.graphs.convert import infer_tags
from faenet_calc.potential.potential import Potential
from faenet_calc.testing import laws
from faenet_calc.testing.repulsion import approach_curve, compression_curve, dimer_curve


@dataclass(frozen=True, kw_only=True)
class CheckRow:
    """One law on one structure.

    Attributes:
        law: What was tested.
        structure: On what.
        value: What was found.
        limit: What is allowed; None for a row that only informs.
        unit: Of value and limit.
        promised: False for conservation of energy by a model that declares a direct head for its forces.
    """

    law: str
    structure: str
    value: float
    limit: float | None
    unit: str
    promised: bool = True

    @property
    def holds(self) -> bool:
        """Whether the value is finite and within the limit."""
        return bool(np.isfinite(self.value)) and (self.limit is None or self.value <= self.limit)

    @property
    def passed(self) -> bool:
        """Whether the law holds, or is not promised and the value at least finite."""
        return self.holds or (not self.promised and bool(np.isfinite(self.value)))

    @property
    def verdict(self) -> str:
        """A word or two for the table."""
        if not self.passed:
            return "FAIL"
        if not self.holds:
            return "broken, not promised"
        return "info" if self.limit is None else "pass"


@dataclass(frozen=True, kw_only=True)
class CheckReport:
    """All rows of a self-test."""

    rows: tuple[CheckRow, ...]

    @property
    def passed(self) -> bool:
        """Whether every row passed."""
        return all(row.passed for row in self.rows)

    def table(self) -> str:
        """The rows as text, one line each."""
        lines = [f"{'law':<38}{'structure':<20}{'found':>10}{'limit':>10}  {'unit':<12}verdict"]
        for row in self.rows:
            limit = "" if row.limit is None else f"{row.limit:.1e}"
            lines.append(f"{row.law:<38}{row.structure:<20}{row.value:>10.1e}{limit:>10}  {row.unit:<12}{row.verdict}")
        failed = sum(not row.passed for row in self.rows)
        lines.append(f"{len(self.rows)} rows, {failed} failed")
        if any(row.passed and not row.holds for row in self.rows):
            lines.append("forces are a direct prediction, not the gradient of the energy: they do not conserve it")
        return "\n".join(lines)

    def to_json(self) -> str:
        """The rows as a JSON object."""
        return json.dumps(
            {
                "passed": self.passed,
                "rows": [asdict(row) | {"holds": row.holds, "passed": row.passed} for row in self.rows],
            }
        )


def check_potential(
    potential: Potential,
    structures: Mapping[str, Atoms] | Sequence[Atoms] | Atoms | None = None,
    *,
    nve_steps: int = 200,
) -> CheckReport:
    """Test a potential against the laws that an energy surface obeys, in float64.

    Args:
        potential: Any potential; a float64 copy is tested, and its difference from the original is a row.
        structures: Structures of supported elements, named or not; None chooses some of the trained elements.
        nve_steps: Steps of 1 fs of the drift test; 0 leaves it out.
    """
    chosen = _suitable_structures(potential) if structures is None else _named(structures)
    if not chosen:
        raise InputError("check_potential was given no structures; pass at least one or None")
    if potential.needs_tags:
        for atoms in chosen.values():
            atoms.set_tags(infer_tags(atoms))
    exact = laws.in_float64(potential)
    rows: list[CheckRow] = []
    for name, atoms in chosen.items():
        rows += _symmetry_rows(exact, name, atoms)
        rows += _derivative_rows(exact, name, atoms)
        rows += _round_off_rows(potential, exact, name, atoms)
        rows += _description_rows(exact, name, atoms)
    batch = laws.batch_deviation(exact, list(chosen.values()))
    rows.append(_row("batch = each alone", f"{len(chosen)} structures", batch.energy_per_atom, 1e-9, "eV/atom"))
    rows.append(_row("cutoff step", "dimer", cutoff_step(exact), 1e-6, "eV"))
    rows += _repulsion_rows(exact, chosen)
    if nve_steps:
        largest = max(chosen, key=lambda key: len(chosen[key]))
        drift = nve_drift(exact, chosen[largest], steps=nve_steps)
        law, promised = f"NVE drift, {nve_steps} fs at 300 K", exact.config.forces != "direct"
        rows.append(_row(law, largest, drift, 1e-3, "eV/atom/ps", promised=promised))
    return CheckReport(rows=tuple(_worst_of_each_law(rows)))


def _worst_of_each_law(rows: list[CheckRow]) -> list[CheckRow]:
    """One row per law, in order: that of the structure with the largest value."""
    worst: dict[str, CheckRow] = {}
    for row in rows:
        known = worst.get(row.law)
        if known is None or not row.value <= known.value:
            worst[row.law] = row
    return list(worst.values())


def _row(law: str, structure: str, value: float, limit: float | None, unit: str, *, promised: bool = True) -> CheckRow:
    return CheckRow(law=law, structure=structure, value=float(value), limit=limit, unit=unit, promised=promised)


def _named(structures: Mapping[str, Atoms] | Sequence[Atoms] | Atoms) -> dict[str, Atoms]:
    """Copies of a user's structures by name; formula and position in the list where there is none."""
    if isinstance(structures, Mapping):
        return {name: atoms.copy() for name, atoms in structures.items()}
    many = [structures] if isinstance(structures, Atoms) else structures
    return {f"{atoms.get_chemical_formula()} [{index}]": atoms.copy() for index, atoms in enumerate(many)}


def _suitable_structures(potential: Potential) -> dict[str, Atoms]:
    """Shipped structures made of trained (or else supported) elements; a crystal and a dimer where none fits."""
    known = set(potential.config.trained_elements or potential.supported_elements)
    fitting = {name: atoms for name, atoms in laws.structures().items() if set(atoms.numbers.tolist()) <= known}
    if fitting:
        return fitting
    element = elements.symbol(max(known))
    crystal = bulk(element, "fcc", a=4.0, cubic=True)
    crystal.rattle(0.05, seed=0)
    return {f"fcc {element}": crystal, f"{element}2": Atoms([element] * 2, [[0, 0, 0], [0, 0, 2.5]])}


def _symmetry_rows(exact: Potential, name: str, atoms: Atoms) -> list[CheckRow]:
    rows = []
    for law, function in (
        ("rotation", laws.rotation_deviation),
        ("reflection", laws.reflection_deviation),
        ("translation", laws.translation_deviation),
        ("permutation", laws.permutation_deviation),
        ("periodic images and wrapping", laws.wrapping_deviation),
    ):
        if law.startswith("periodic") and not atoms.pbc.any():
            continue
        found = function(exact, atoms)
        rows.append(_row(f"{law}: energy", name, found.energy_per_atom, 1e-9, "eV/atom"))
        rows.append(_row(f"{law}: forces", name, found.forces, 1e-8, "eV/Å"))
    if atoms.pbc.any():
        along_a, along_b = (2 if periodic else 1 for periodic in atoms.pbc[:2])
        found = laws.supercell_deviation(exact, atoms, (along_a, along_b, 1))
        rows.append(_row("supercell: energy", name, found.energy_per_atom, 1e-9, "eV/atom"))
    return rows


def _derivative_rows(exact: Potential, name: str, atoms: Atoms) -> list[CheckRow]:
    rows = [_row("gradient forces = -dE/dx", name, laws.force_deviation(exact, atoms), 1e-6, "eV/Å")]
    if atoms.pbc.any() and atoms.cell.rank == 3:
        rows.append(_row("stress = dE/dε / V", name, laws.stress_deviation(exact, atoms), 1e-7, "eV/Å³"))
    if exact.model.decoder is not None:
        both = exact.evaluate(exact.graph(atoms), forces="both").detach()
        assert both.direct_forces is not None and both.gradient_forces is not None
        gap = (both.direct_forces - both.gradient_forces).abs().mean()
        limit = 1e-6 if exact.config.forces == "direct" else None
        rows.append(_row("direct - gradient forces, mean", name, float(gap), limit, "eV/Å", promised=False))
    return rows


def _round_off_rows(potential: Potential, exact: Potential, name: str, atoms: Atoms) -> list[CheckRow]:
    if potential.dtype == torch.float64:
        return []
    kind = laws.own_forces(potential)
    narrow = potential.predict(atoms, ("energy", "forces"), forces=kind)
    wide = exact.predict(atoms, ("energy", "forces"), forces=kind)
    assert narrow.forces is not None and wide.forces is not None
    # Rounding moves atoms by some 1e-7 Å, and what that changes grows with the forces: where these are beyond 1 eV/Å,
    # as on structures far from what a model knows, the rows count relative to the largest.
    steep = max(1.0, float(wide.forces.abs().max()))
    energy = float((narrow.energy - wide.energy).abs().max()) / len(atoms) / steep
    forces = float((narrow.forces - wide.forces).abs().max()) / steep
    return [
        _row("float32 - float64: energy", name, energy, 1e-5, "eV/atom"),
        _row("float32 - float64: forces", name, forces, 1e-4, "eV/Å"),
    ]


def _description_rows(exact: Potential, name: str, atoms: Atoms) -> list[CheckRow]:
    """What remains of frame dependence: pure model error, for information."""
    if "energy_frame_std" not in exact.capabilities.properties():
        return []
    spread = exact.predict(atoms, ("energy", "energy_frame_std")).energy_frame_std
    assert spread is not None
    rows = [_row("spread over frames: energy", name, float(spread[0]) / len(atoms), None, "eV/atom")]
    energy = float(exact.predict(atoms, ("energy",)).energy[0])
    if atoms.pbc[:2].all():
        other = make_supercell(atoms, [[1, 1, 0], [-1, 1, 0], [0, 0, 1]])
        difference = float(exact.predict(other, ("energy",)).energy[0]) / 2 - energy
        rows.append(_row("other description of the cell", name, abs(difference) / len(atoms), None, "eV/atom"))
    elif not atoms.pbc.any() and len(atoms) > 1:
        boxed = atoms.copy()
        boxed.center(vacuum=exact.cutoff)
        boxed.pbc = True
        difference = float(exact.predict(boxed, ("energy",)).energy[0]) - energy
        rows.append(_row("molecule in a box - free", name, abs(difference) / len(atoms), 1e-6, "eV/atom"))
    return rows


def _repulsion_rows(exact: Potential, chosen: Mapping[str, Atoms]) -> list[CheckRow]:
    """Rises of the energy where atoms that are pushed together must repel; for information without repulsion."""
    limit = None if exact.config.repulsion.kind == "none" else 0.05
    present = {int(z) for atoms in chosen.values() for z in atoms.numbers}
    symbols = [elements.symbol(z) for z in exact.config.trained_elements or sorted(present)]
    rows = [
        _row("repulsion of pairs from 0.2 Å", f"{first}-{second}", dimer_curve(exact, first, second).rise, limit, "eV")
        for first, second in itertools.combinations_with_replacement(symbols, 2)
    ]
    for name, atoms in chosen.items():
        if not atoms.pbc[:2].all():
            continue
        if atoms.cell[2, 2] > np.ptp(atoms.positions[:, 2]) + exact.cutoff:
            for symbol in [symbol for symbol in ("H", "C", "N", "O") if symbol in symbols]:
                rise = approach_curve(exact, atoms, symbol).rise
                rows.append(_row("repulsion above a surface atom", f"{symbol} on {name}", rise, limit, "eV"))
        elif atoms.pbc.all() and len(set(atoms.numbers)) == 1:
            rows.append(_row("repulsion in compressed cells", name, compression_curve(exact, atoms).rise, limit, "eV"))
    return rows


def cutoff_step(potential: Potential, step: float = 1e-6) -> float:
    """(eV) jump of the energy when an atom of a dimer crosses the cutoff."""
    known = potential.config.trained_elements or potential.supported_elements
    pair = [elements.symbol(known[-1])] * 2
    inside, outside = (
        Atoms(pair, [[0, 0, 0], [0, 0, potential.cutoff + sign * step]], tags=[1, 2]) for sign in (-1, 1)
    )
    energy = potential.predict([inside, outside], ("energy",)).energy
    return float((energy[0] - energy[1]).abs())


def nve_drift(potential: Potential, atoms: Atoms, *, steps: int, timestep_fs: float = 1.0, seed: int = 0) -> float:
    """(eV/atom/ps) drift of the total energy in a short velocity-Verlet run at 300 K, own forces."""
    rng = np.random.default_rng(seed)
    moving = atoms.copy()
    mass = moving.get_masses()[:, None]
    velocity = rng.normal(size=(len(mass), 3)) * np.sqrt(units.kB * 300 / mass)
    dt = timestep_fs * units.fs
    energy, forces = laws.energy_and_forces(potential, moving)
    totals = []
    for _ in range(steps):
        velocity = velocity + 0.5 * dt * forces / mass
        moving.positions += dt * velocity
        energy, forces = laws.energy_and_forces(potential, moving)
        velocity = velocity + 0.5 * dt * forces / mass
        totals.append(energy + 0.5 * float((mass * velocity**2).sum()))
    slope = np.polyfit(np.arange(steps) * timestep_fs / 1000.0, totals, 1)[0]
    return abs(float(slope)) / len(atoms)
