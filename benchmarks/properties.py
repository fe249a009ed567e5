"""Lattice constants, bulk moduli and vibrations of a model against those of the reference.

    python benchmarks/properties.py compare MODEL
    PYTHONPATH=scripts python benchmarks/properties.py reference -o properties.jsonl

`compare` needs only the model (float64, for finite differences) and uses the properties whose elements the model was
trained on. The reference values are stored in benchmarks/data/metals-properties.jsonl (`--reference` selects another
file). `reference` computes such a file with the labelling calculator of the recipe
(datasets/metals-v1/recipes/reference-driven.yaml: nequix and chgnet), one line per property; an interrupted run is
resumed.

bulk     Metals of the recipe: the cell is relaxed and scaled by ±2 % in seven steps; lattice constants (Å) and bulk
         modulus (GPa) from a Birch–Murnaghan fit. For hcp, c/a is kept at its relaxed value.
gas      Frequencies (cm⁻¹) of molecules, without translations and rotations.
surface  Frequencies of H, O (fcc hollow) and CO (on top) on Cu(111) and Pt(111), 2 × 2 × 3 slabs with the lowest layer
         fixed; slab atoms are kept at rest, so that an adsorbate of n atoms has 3n modes.

Frequencies are from central differences of ±0.01 Å around the minimum of each calculator (0.01 eV/Å) and are compared
in ascending order, with imaginary ones as negative numbers.
"""

import argparse
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from ase import Atoms, units
from ase.calculators.calculator import Calculator
from ase.constraints import FixAtoms
from ase.eos import EquationOfState
from ase.vibrations import Vibrations
from rows import Row, Rows, model_words, rounded, show

from faenet_calc import FAENetCalculator, relax
from faenet_calc.labelling import Recipe, load_recipe
from faenet_calc.labelling.adsorbates import gas_molecule, upright
from faenet_calc.labelling.calculators import build_calculator
from faenet_calc.labelling.structures import Substrate, bulk_cell, sites, slab
from faenet_calc.labelling.tasks import substrates
from faenet_calc.units import GPA

RECIPE = Path(__file__).parents[1] / "datasets" / "metals-v1" / "recipes" / "reference-driven.yaml"
REFERENCE = Path(__file__).parent / "data" / "metals-properties.jsonl"
FMAX, STRAIN, POINTS, DISPLACEMENT_A = 0.01, 0.02, 7, 0.01
MOLECULES = ("H2", "N2", "CO", "NO", "OH", "CO2", "H2O", "HCN", "NH3", "CH4", "CH2O")
SURFACES = ("Cu", "Pt")
ADSORBATES = {"H": ("fcc", 0.9), "O": ("fcc", 1.2), "CO": ("ontop", 1.9)}  # site and height (Å)


def items(recipe: Recipe) -> Iterator[tuple[str, str]]:
    """Kind and name of all items, for the systems of the recipe."""
    metals = {metal.symbol for metal in recipe.metals}
    yield from (("bulk", metal.symbol) for metal in recipe.metals)
    yield from (("gas", name) for name in MOLECULES if name in recipe.gas)
    for metal in SURFACES:
        if metal in metals:
            yield from (("surface", f"{name} on {metal}(111)") for name in ADSORBATES if name in recipe.adsorbates)


def structure(recipe: Recipe, kind: str, name: str) -> Atoms:
    """Initial structure of an item."""
    pure = {substrate.name: substrate for substrate in substrates(recipe)[0]}
    if kind == "bulk":
        return bulk_cell(pure[name], np.random.default_rng(0))
    if kind == "gas":
        return gas_molecule(name)
    adsorbate, _, metal = name.removesuffix("(111)").partition(" on ")
    return adsorbed(pure[metal], adsorbate, recipe.vacuum_A)


def adsorbed(substrate: Substrate, adsorbate: str, vacuum: float) -> Atoms:
    """Slab with an upright adsorbate exactly at its site."""
    surface = slab(substrate, "fcc111", (2, 2, 3), vacuum, np.random.default_rng(0))
    z = surface.positions[:, 2]
    surface.set_constraint(FixAtoms(mask=z < z.min() + 0.5))
    kind, height = ADSORBATES[adsorbate]
    site = next(found for found in sites(surface) if found.kind == kind)
    added = upright(adsorbate)
    x, y, z_site = site.position
    added.positions += (x, y, z_site + height)
    return surface + added


def measure(recipe: Recipe, kind: str, name: str, calc: Calculator) -> Row:
    """Properties of one item."""
    atoms = structure(recipe, kind, name)
    if kind == "bulk":
        return bulk_numbers(atoms, calc)
    relaxed = relax(atoms, calc, fmax=FMAX, steps=300)
    if kind == "gas":
        found = frequencies(relaxed.atoms, calc, list(range(len(atoms))))
        # Rotations and translations are the smallest: five of a linear molecule, six of others.
        kept = 3 * len(atoms) - (5 if is_linear(relaxed.atoms) else 6)
        values = sorted(found, key=abs)[-kept:]
    else:
        values = frequencies(relaxed.atoms, calc, np.flatnonzero(atoms.get_tags() == 2).tolist())
    return {"converged": relaxed.converged, "frequencies": sorted(values)}


def bulk_numbers(atoms: Atoms, calc: Calculator) -> Row:
    """Lattice constants (Å; c None for cubic crystals) and bulk modulus (GPa)."""
    relaxed = relax(atoms, calc, relax_cell=True, fmax=FMAX, steps=100)
    volumes, energies = [], []
    for scale in 1 + np.linspace(-STRAIN, STRAIN, POINTS):
        scaled = relaxed.atoms.copy()
        scaled.set_cell(scaled.cell * scale, scale_atoms=True)
        volumes.append(scaled.get_volume())
        energies.append(calc.get_property("energy", scaled))
    volume, _, modulus = EquationOfState(volumes, energies, eos="birchmurnaghan").fit()
    lengths = relaxed.atoms.cell.lengths() * (volume / relaxed.atoms.get_volume()) ** (1 / 3)
    c = None if np.ptp(atoms.cell.lengths()) < 1e-6 else float(lengths[2])
    return {"converged": relaxed.converged, "a": float(lengths[0]), "c": c, "bulk_modulus_GPa": float(modulus / GPA)}


def is_linear(atoms: Atoms) -> bool:
    """Whether all atoms lie on a line."""
    return bool(np.linalg.matrix_rank(atoms.positions - atoms.positions[0], tol=0.01) < 2)


def frequencies(atoms: Atoms, calc: Calculator, indices: list[int]) -> list[float]:
    """All 3n frequencies (cm⁻¹) of some atoms, imaginary ones as negative numbers."""
    atoms = atoms.copy()
    atoms.calc = calc
    with tempfile.TemporaryDirectory() as folder:
        vibrations = Vibrations(atoms, indices=indices, delta=DISPLACEMENT_A, name=str(Path(folder) / "vib"))
        vibrations.run()
        energies = vibrations.get_energies()
    return [float(e.real - e.imag) / units.invcm for e in energies]


def run_reference(recipe: Recipe, calc: Calculator, path: Path | None) -> Rows:
    """Measure all items missing in the file."""
    words = {"recipe": recipe.name, "calculator": recipe.calculator.name}
    rows = Rows(path, {"row": "header", **words})
    done = {(row["row"], row["name"]) for row in rows.rows[1:]}
    for kind, name in items(recipe):
        if (kind, name) not in done:
            rows.append({"row": kind, "name": name, **rounded(measure(recipe, kind, name, calc))})
            show(rows.rows[-1])
    return rows


def compare(recipe: Recipe, calc: Any, reference: Rows) -> Row:
    """Measure with a model, print a row for each item, and summarize."""
    trained, left_out = set(calc.trained_elements), []
    errors: dict[str, list[tuple[float, float]]] = {}  # metric → (error, true value)
    for row in reference.rows[1:]:
        kind, name = row["row"], row["name"]
        if trained and not set(structure(recipe, kind, name).symbols) <= trained:
            left_out.append(name)
            continue
        found = measure(recipe, kind, name, calc)
        for metric, error, true in differences(kind, found, row):
            errors.setdefault(metric, []).append((error, true))
        keys = ("a", "c", "bulk_modulus_GPa", "frequencies")
        pairs = {key: [found[key], row[key]] for key in keys if found.get(key) is not None}
        numbers = {**pairs, "converged": [found["converged"], row["converged"]]}
        show({"benchmark": "properties", "kind": kind, "name": name, **rounded(numbers)})
    summary: Row = {"benchmark": "properties", "summary": True, "outside_trained_elements": left_out}
    for metric, pairs_of in errors.items():
        size, true = np.abs(np.array(pairs_of)).T
        # Not the mean of percentages: soft modes are close to zero.
        percent = 100 * size.sum() / true.sum()
        parts = {"mean": float(size.mean()), "largest": float(size.max()), "percent_of_mean": float(percent)}
        summary[metric] = {**rounded(parts, 4), "n": len(size)}
    return summary


def differences(kind: str, found: Row, true: Row) -> Iterator[tuple[str, float, float]]:
    """Metric, error and reference value of every number of an item."""
    if kind == "bulk":
        for key in ("a", "c"):
            if true[key] is not None:
                yield "lattice_error_A", found[key] - true[key], true[key]
        yield "bulk_modulus_error_GPa", found["bulk_modulus_GPa"] - true["bulk_modulus_GPa"], true["bulk_modulus_GPa"]
        return
    for ours, theirs in zip(found["frequencies"], true["frequencies"], strict=True):
        yield f"{kind}_frequency_error_per_cm", ours - theirs, theirs


def main() -> None:
    """Run one command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    phases = parser.add_subparsers(dest="phase", required=True)
    first, second = phases.add_parser("reference"), phases.add_parser("compare")
    first.add_argument("-o", "--out", type=Path, required=True)
    second.add_argument("model")
    second.add_argument("--reference", type=Path, default=REFERENCE)
    for phase in (first, second):
        phase.add_argument("--recipe", type=Path, default=RECIPE)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    recipe = load_recipe(arguments.recipe)
    if arguments.phase == "reference":
        run_reference(recipe, build_calculator(recipe.calculator, trust_code=True), arguments.out)
    else:
        calc = FAENetCalculator(arguments.model, device="cpu", dtype="float64")
        show({**compare(recipe, calc, Rows(arguments.reference)), **model_words(arguments.model)})


if __name__ == "__main__":
    main()
