"""The benchmark of properties: EMT agrees with itself, and known numbers come out."""

import json

import numpy as np
import properties as benchmark
import pytest
from ase import Atoms
from ase.calculators.emt import EMT
from ase.calculators.morse import MorsePotential
from rows import Rows

from faenet_calc import FAENetCalculator
from faenet_calc.labelling import load_recipe

RECIPE = """
name: small
tasks: 1
calculator: {factory: ase.calculators.emt.EMT}
metals: [{symbol: Cu, crystal: fcc, a: 3.65}]
slabs: [{crystal: fcc, facet: "111", sizes: [[2, 2, 3]]}]
adsorbates: [O]
gas: [CO]
"""


class Model(EMT):
    """EMT that claims to be a model; ``factor`` scales its energies and all that follows from them."""

    def __init__(self, trained=("Cu", "C", "O"), factor=1.0):
        super().__init__()
        self.trained_elements, self.factor = trained, factor

    def calculate(self, *args, **kwargs):
        super().calculate(*args, **kwargs)
        for name in ("energy", "free_energy", "forces", "stress"):
            if name in self.results:
                self.results[name] = self.factor * self.results[name]


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    path = tmp_path_factory.mktemp("recipe") / "small.yaml"
    path.write_text(RECIPE)
    return load_recipe(path)


@pytest.fixture(scope="module")
def reference(recipe, tmp_path_factory):
    path = tmp_path_factory.mktemp("reference") / "properties.jsonl"
    benchmark.run_reference(recipe, EMT(), path)
    return path


def test_known_numbers_of_emt(reference):
    (crystal,) = Rows(reference).of("bulk")
    assert crystal["a"] == pytest.approx(3.590, abs=0.002)
    assert crystal["bulk_modulus_GPa"] == pytest.approx(134, abs=2)
    assert crystal["c"] is None
    (elastic,) = Rows(reference).of("elastic")
    constants = elastic["values"]
    # The bulk modulus of a cubic crystal is (C11 + 2 C12) / 3; a stable one has C11 > C12 and C44 > 0.
    assert (constants["C11"] + 2 * constants["C12"]) / 3 == pytest.approx(crystal["bulk_modulus_GPa"], rel=0.02)
    assert constants["C11"] > constants["C12"] and constants["C44"] > 0
    (clean,) = Rows(reference).of("clean")
    assert 0 < clean["values"]["(111)"] < clean["values"]["(100)"] < clean["values"]["(110)"]
    (gas,), (surface,) = (Rows(reference).of(kind) for kind in ("gas", "surface"))
    assert len(gas["frequencies"]) == 1
    assert len(surface["frequencies"]) == 3
    # Three-fold site: two of the modes are degenerate.
    assert surface["frequencies"][0] == pytest.approx(surface["frequencies"][1], abs=2)


def test_frequency_of_a_known_curvature():
    # Morse: V'' = 2 ε (ρ0 / r0)² at its minimum; ω = sqrt(V'' / μ).
    atoms = Atoms("N2", positions=[[0, 0, 0], [0, 0, 1.1]])
    calc = MorsePotential(epsilon=9.9, rho0=3.0, r0=1.1, rcut1=8.0, rcut2=9.0)
    found = benchmark.frequencies(atoms, calc, [0, 1])
    curvature = 2 * 9.9 * (3.0 / 1.1) ** 2
    expected = np.sqrt(curvature / (14.007 / 2)) * 521.47  # sqrt(eV/Å²/u) in cm⁻¹
    assert max(found) == pytest.approx(expected, rel=0.01)
    assert benchmark.is_linear(atoms)


def test_the_reference_agrees_with_itself(recipe, reference, capsys):
    summary = benchmark.compare(recipe, Model(), Rows(reference))
    for metric, count in (
        ("lattice_error_A", 1),
        ("bulk_modulus_error_GPa", 1),
        ("elastic_error_GPa", 3),
        ("vacancy_error_eV", 1),
        ("clean_error_J_per_m2", 3),
        ("gas_frequency_error_per_cm", 1),
        ("surface_frequency_error_per_cm", 3),
    ):
        assert summary[metric]["n"] == count
        assert summary[metric]["largest"] < 0.01
    assert len([json.loads(line) for line in capsys.readouterr().out.splitlines()]) == 6


def test_a_stiffer_model_is_seen(recipe, reference):
    # Four times the energy: minima stay, the modulus is four times and frequencies are twice as large.
    summary = benchmark.compare(recipe, Model(factor=4.0), Rows(reference))
    assert summary["lattice_error_A"]["largest"] < 2e-3
    assert summary["bulk_modulus_error_GPa"]["percent_of_mean"] == pytest.approx(300, rel=0.03)
    for metric in ("elastic_error_GPa", "vacancy_error_eV", "clean_error_J_per_m2"):
        assert summary[metric]["percent_of_mean"] == pytest.approx(300, rel=0.03)
    assert summary["gas_frequency_error_per_cm"]["percent_of_mean"] == pytest.approx(100, rel=0.05)


def test_elements_outside_of_the_model_are_left_out(recipe, reference):
    summary = benchmark.compare(recipe, Model(trained=("Cu",)), Rows(reference))
    assert summary["outside_trained_elements"] == ["CO", "O on Cu(111)"]
    assert "gas_frequency_error_per_cm" not in summary


def test_a_trained_model_has_the_lattice_of_its_reference(recipe, reference, emt_potential):
    summary = benchmark.compare(recipe, FAENetCalculator(emt_potential), Rows(reference))
    assert 0 < summary["lattice_error_A"]["largest"] < 0.05
    assert summary["bulk_modulus_error_GPa"]["percent_of_mean"] < 30


def test_a_stopped_reference_run_goes_on(recipe, reference, tmp_path):
    lines = reference.read_text().splitlines(keepends=True)
    path = tmp_path / "properties.jsonl"
    path.write_text("".join(lines[:-1]))
    again = benchmark.run_reference(recipe, EMT(), path)
    assert [row["name"] for row in again.rows[1:]] == [row["name"] for row in Rows(reference).rows[1:]]
    assert path.read_text().startswith("".join(lines[:-1]))
