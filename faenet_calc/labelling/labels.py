"""Labels: a snapshot with its energy, raw forces, stress (if periodic) and origin."""

import hashlib
import io
from contextlib import suppress
from typing import Any

import numpy as np
from ase import Atoms
from ase.calculators.calculator import PropertyNotImplementedError
from ase.calculators.singlepoint import SinglePointCalculator
from ase.geometry import get_distances
from ase.io import write

from faenet_calc import __version__
from faenet_calc.labelling.calculators import Calculators
from faenet_calc.labelling.recipe import Recipe
from faenet_calc.labelling.sampling import Snapshot
from faenet_calc.labelling.tasks import Task


def label(snapshot: Snapshot, calculators: Calculators, task: Task, recipe: Recipe, number: int) -> Atoms | None:
    """The labelled structure without constraints; None if a value is not finite or a force exceeds the limit.

    Args:
        calculators: Those of the recipe. The labelling one is not called again for a snapshot it has just computed.
        number: Index of the snapshot in its task.
    """
    calculator = calculators.labels.calculator
    source = snapshot.atoms
    if source.calc is not calculator:
        source = source.copy()
        source.calc = calculator
    results: dict[str, Any] = {
        "energy": source.get_potential_energy(apply_constraint=False),
        "forces": np.array(source.get_forces(apply_constraint=False)),
    }
    if source.cell.rank == 3 and source.pbc.any():
        # A calculator without stress still labels energy and forces.
        with suppress(PropertyNotImplementedError, NotImplementedError):
            results["stress"] = np.array(source.get_stress(apply_constraint=False))
    if not all(np.isfinite(value).all() for value in results.values()):
        return None
    if np.abs(results["forces"]).max() > recipe.sampling.max_force:
        return None
    atoms = Atoms(source.numbers, positions=source.positions, cell=source.cell, pbc=source.pbc, tags=source.get_tags())
    atoms.info = _origin(snapshot, calculators, task, recipe, number)
    atoms.calc = SinglePointCalculator(atoms, **results)
    return atoms


def _origin(snapshot: Snapshot, calculators: Calculators, task: Task, recipe: Recipe, number: int) -> dict[str, Any]:
    """Where a label comes from; entries that do not apply are ``none``.

    Digests are those of the model files that were loaded, whatever the recipe calls them.
    """
    origin: dict[str, Any] = {
        "system": task.system,
        "split": task.split,
        "kind": task.kind,
        "how": snapshot.how,
        "metal": "none" if task.substrate is None else "-".join(task.substrate.symbols),
        "facet": task.facet or "none",
        "cell_size": "x".join(map(str, task.size)) or "none",
        "adsorbate": task.molecule or "none",
        "site": snapshot.site,
        "task": task.index,
        "snapshot": number,
        "seed": task.seed,
        "recipe": f"{recipe.name}:sha256-{recipe.digest()}",
        "calculator": calculators.labels.name,
        "generator": f"faenet-calc-{__version__}",
    }
    if calculators.labels.sha256:
        origin["calculator_sha256"] = calculators.labels.short_sha256
    if recipe.explorer is not None:
        origin["explorer"] = calculators.explores.name
        if calculators.explores.sha256:
            origin["explorer_sha256"] = calculators.explores.short_sha256
    if snapshot.height is not None:
        origin["height"] = round(snapshot.height, 4)
    return origin


def to_text(atoms: Atoms) -> str:
    """The extxyz block of one labelled structure."""
    buffer = io.StringIO()
    write(buffer, atoms, format="extxyz")
    return buffer.getvalue()


def fingerprint(atoms: Atoms) -> str:
    """A digest that is equal for structures equal up to rotation, reflection, wrapping and atom order (to 1 mÅ)."""
    _, distances = get_distances(atoms.positions, cell=atoms.cell, pbc=atoms.pbc)
    numbers = np.sort(np.stack(np.meshgrid(atoms.numbers, atoms.numbers)), axis=0)
    rows = np.stack([*numbers, np.rint(distances * 1000)]).reshape(3, -1).astype(np.int64)
    rows = rows[:, np.lexsort(rows)]
    lengths = np.rint(1000 * atoms.cell.cellpar()).astype(np.int64) if atoms.pbc.any() else np.zeros(6, np.int64)
    return hashlib.sha256(rows.tobytes() + lengths.tobytes() + atoms.pbc.tobytes()).hexdigest()[:16]
