"""A snapshot becomes a label: energy, raw forces, stress where there is one, and where it comes from."""

import hashlib
import io
import sys
from contextlib import suppress
from importlib import import_module
from typing import Any

import numpy as np
from ase import Atoms
from ase.calculators.calculator import Calculator, PropertyNotImplementedError
from ase.calculators.singlepoint import SinglePointCalculator
from ase.geometry import get_distances
from ase.io import write

from faenet_calc import __version__
from faenet_calc.errors import InputError
from faenet_calc.labelling.recipe import CalculatorConfig, Recipe
from faenet_calc.labelling.sampling import Snapshot
from faenet_calc.labelling.tasks import Task


def build_calculator(config: CalculatorConfig) -> Calculator:
    """Import and call the factory of the recipe.

    Raises:
        InputError: The path cannot be imported, its kwargs do not fit, or the call does not give an ASE calculator.
    """
    module, _, name = config.factory.rpartition(".")
    try:
        factory = getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise InputError(
            f"factory = {config.factory!r} cannot be imported ({error}); install its package or fix the path"
        ) from error
    try:
        calculator = factory(**config.kwargs)
    except TypeError as error:
        raise InputError(
            f"{config.factory} does not take kwargs = {config.kwargs} ({error}); fix kwargs in the recipe"
        ) from error
    if not hasattr(calculator, "get_property"):
        raise InputError(f"factory = {config.factory!r} gave {type(calculator).__name__}, expected an ASE calculator")
    torch = sys.modules.get("torch")
    if torch is not None and config.threads > 0:
        torch.set_num_threads(config.threads)
    return calculator


def label(snapshot: Snapshot, calculator: Calculator, task: Task, recipe: Recipe, number: int) -> Atoms | None:
    """The labelled structure, free of constraints; None if a value is not finite or a force is beyond the limit.

    Args:
        calculator: The recipe's; not called again for a snapshot that it has just computed.
        number: Of the snapshot in its task.
    """
    source = snapshot.atoms
    if source.calc is not calculator:
        source = source.copy()
        source.calc = calculator
    results: dict[str, Any] = {
        "energy": source.get_potential_energy(apply_constraint=False),
        "forces": np.array(source.get_forces(apply_constraint=False)),
    }
    if source.cell.rank == 3 and source.pbc.any():
        # A calculator without stress still gives energy and forces.
        with suppress(PropertyNotImplementedError, NotImplementedError):
            results["stress"] = np.array(source.get_stress(apply_constraint=False))
    if not all(np.isfinite(value).all() for value in results.values()):
        return None
    if np.abs(results["forces"]).max() > recipe.sampling.max_force:
        return None
    atoms = Atoms(source.numbers, positions=source.positions, cell=source.cell, pbc=source.pbc, tags=source.get_tags())
    atoms.info = _origin(snapshot, task, recipe, number)
    atoms.calc = SinglePointCalculator(atoms, **results)
    return atoms


def _origin(snapshot: Snapshot, task: Task, recipe: Recipe, number: int) -> dict[str, Any]:
    """What identifies the label; words that do not apply are ``none``."""
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
        "calculator": recipe.calculator.name,
        "generator": f"faenet-calc-{__version__}",
    }
    if recipe.explorer is not None:
        origin["explorer"] = recipe.explorer.name
    if snapshot.height is not None:
        origin["height"] = round(snapshot.height, 4)
    return origin


def to_text(atoms: Atoms) -> str:
    """The extxyz block of one labelled structure."""
    buffer = io.StringIO()
    write(buffer, atoms, format="extxyz")
    return buffer.getvalue()


def fingerprint(atoms: Atoms) -> str:
    """Equal for structures that are the same up to rotation, reflection, wrapping and order of atoms (to 1 mÅ)."""
    _, distances = get_distances(atoms.positions, cell=atoms.cell, pbc=atoms.pbc)
    numbers = np.sort(np.stack(np.meshgrid(atoms.numbers, atoms.numbers)), axis=0)
    rows = np.stack([*numbers, np.rint(distances * 1000)]).reshape(3, -1).astype(np.int64)
    rows = rows[:, np.lexsort(rows)]
    lengths = np.rint(1000 * atoms.cell.cellpar()).astype(np.int64) if atoms.pbc.any() else np.zeros(6, np.int64)
    return hashlib.sha256(rows.tobytes() + lengths.tobytes() + atoms.pbc.tobytes()).hexdigest()[:16]
