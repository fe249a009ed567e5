"""Lattice and elastic constants, vacancies, surface energies and vibrations of a model against those of the reference.

    python benchmarks/properties.py compare MODEL
    PYTHONPATH=scripts python benchmarks/properties.py reference -o properties.jsonl

Metals of catalysis-v1: `--recipe datasets/catalysis-v1/recipes/crystals.yaml`, and for `compare` besides
`--reference benchmarks/data/catalysis-properties.jsonl`.

`compare` needs only the model (float64, for finite differences) and uses the properties whose elements the model was
trained on. The reference values are stored in benchmarks/data/metals-properties.jsonl (`--reference` selects another
file). `reference` computes such a file with the labelling calculator of the recipe
(datasets/metals-v1/recipes/reference-driven.yaml: nequix and chgnet), one line per property; an interrupted run is
resumed.

bulk     Metals of the recipe: the cell is relaxed and scaled by ±2 % in seven steps; lattice constants (Å) and bulk
         modulus (GPa) from a Birch–Murnaghan fit. For hcp, c/a is kept at its relaxed value.
elastic  Elastic constants (GPa) of the same metals from the stress under strains of ±0.5 % of the relaxed cell, atoms
         at fixed fractional coordinates; C13 and C33 for hcp only.
vacancy  Formation energy (eV) of a vacancy in a 2 × 2 × 2 (fcc) or 3 × 3 × 3 (bcc) conventional cell or in a 3 × 3 × 2
         cell (hcp), relaxed at the lattice constants of each calculator.
clean    Surface energies (J/m²) of (111), (100) and (110) (fcc), (110) and (100) (bcc) or (0001) (hcp), slabs of seven
         layers, relaxed at the lattice constants of each calculator.
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
from ase.build import bcc100, bcc110, bulk, fcc100, fcc110, fcc111, hcp0001
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
ELASTIC_STRAIN, LAYERS, VACUUM_A = 0.005, 7, 8.0
JOULE_PER_M2 = units.kJ / 1000 / units.m**2
ELASTIC = {"C11": (0, 0), "C12": (0, 1), "C44": (3, 3)}  # places in Voigt notation
ELASTIC_HCP = {**ELASTIC, "C13": (0, 2), "C33": (2, 2)}
FACETS = {"(111)": fcc111, "(100)": fcc100, "(110)": fcc110}
FACETS_BCC = {"(110)": bcc110, "(100)": bcc100}
UNITS = {"elastic": "GPa", "vacancy": "eV", "clean": "J_per_m2"}
MOLECULES = ("H2", "N2", "CO", "NO", "OH", "CO2", "H2O", "HCN", "NH3", "CH4", "CH2O")
SURFACES = ("Cu", "Pt")
ADSORBATES = {"H": ("fcc", 0.9), "O": ("fcc", 1.2), "CO": ("ontop", 1.9)}  # site and height (Å)


def items(recipe: Recipe) -> Iterator[tuple[str, str]]:
    """Kind and name of all items, for the systems of the recipe."""
    metals = {metal.symbol for metal in recipe.metals}
    for kind in ("bulk", *UNITS):
        yield from ((kind, metal.symbol) for metal in recipe.metals)
    yield from (("gas", name) for name in MOLECULES if name in recipe.gas)
    for metal in SURFACES:
        if metal in metals:
            yield from (("surface", f"{name} on {metal}(111)") for name in ADSORBATES if name in recipe.adsorbates)


def structure(recipe: Recipe, kind: str, name: str) -> Atoms:
    """Initial structure of an item."""
    pure = {substrate.name: substrate for substrate in substrates(recipe)[0]}
    if kind in ("bulk", *UNITS):
        if pure[name].crystal == "bcc":
            return bulk(name, "bcc", a=pure[name].a, cubic=True)
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
    if kind in UNITS:
        crystal = relax(atoms, calc, relax_cell=True, fmax=FMAX, steps=100)
        found, converged = METAL_PROPERTIES[kind](crystal.atoms, calc)
        return {"converged": crystal.converged and converged, "values": found}
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


def is_cubic(crystal: Atoms) -> bool:
    """Whether the cell is the conventional one of a cubic crystal; the others here are hexagonal."""
    return bool(np.ptp(crystal.cell.lengths()) < 1e-2 * crystal.cell.lengths()[0])


def is_bcc(crystal: Atoms) -> bool:
    """Whether a cubic crystal is body-centred: two atoms in its conventional cell instead of four."""
    return is_cubic(crystal) and len(crystal) == 2


def elastic_constants(crystal: Atoms, calc: Calculator) -> tuple[Row, bool]:
    """Elastic constants (GPa) of a relaxed crystal in Voigt notation."""
    matrix = np.zeros((6, 6))
    for column, (i, j) in enumerate(((0, 0), (1, 1), (2, 2), (1, 2), (0, 2), (0, 1))):
        for sign in (1, -1):
            strain = np.zeros((3, 3))
            # The engineering shear strain counts both off-diagonal elements.
            strain[i, j] = strain[j, i] = sign * ELASTIC_STRAIN / (1 if i == j else 2)
            strained = crystal.copy()
            strained.set_cell(crystal.cell.array @ (np.eye(3) + strain), scale_atoms=True)
            matrix[:, column] += sign * calc.get_property("stress", strained) / (2 * ELASTIC_STRAIN)
    places = ELASTIC if is_cubic(crystal) else ELASTIC_HCP
    return {name: float(matrix[place] / GPA) for name, place in places.items()}, True


def vacancy(crystal: Atoms, calc: Calculator) -> tuple[Row, bool]:
    """Formation energy (eV) of a vacancy."""
    full = crystal.repeat((3, 3, 2) if not is_cubic(crystal) else (3, 3, 3) if is_bcc(crystal) else (2, 2, 2))
    without = full[1:]
    relaxed = relax(without, calc, fmax=FMAX, steps=200)
    energy = relaxed.energy - len(without) / len(full) * calc.get_property("energy", full)
    return {"vacancy": float(energy)}, relaxed.converged


def surface_energies(crystal: Atoms, calc: Calculator) -> tuple[Row, bool]:
    """Surface energies (J/m²) by facet."""
    symbol, lengths, size = crystal.get_chemical_symbols()[0], crystal.cell.lengths(), (1, 1, LAYERS)
    if is_cubic(crystal):
        facets = FACETS_BCC if is_bcc(crystal) else FACETS
        slabs = {name: build(symbol, size, a=lengths[0], vacuum=VACUUM_A) for name, build in facets.items()}
    else:
        slabs = {"(0001)": hcp0001(symbol, size, a=lengths[0], c=lengths[2], vacuum=VACUUM_A)}
    per_atom = calc.get_property("energy", crystal) / len(crystal)
    found, converged = {}, True
    for name, surface in slabs.items():
        relaxed = relax(surface, calc, fmax=FMAX, steps=200)
        area = float(np.linalg.norm(np.cross(*surface.cell.array[:2])))
        found[name] = float((relaxed.energy - len(surface) * per_atom) / (2 * area) / JOULE_PER_M2)
        converged = converged and relaxed.converged
    return found, converged


METAL_PROPERTIES = {"elastic": elastic_constants, "vacancy": vacancy, "clean": surface_energies}


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
        keys = ("a", "c", "bulk_modulus_GPa", "values", "frequencies")
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
    if kind in UNITS:
        for key, value in true["values"].items():
            yield f"{kind}_error_{UNITS[kind]}", found["values"][key] - value, value
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
