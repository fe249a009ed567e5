"""Several potentials as one calculator."""

import numpy as np
import pytest
from ase.build import fcc111

from faenet_calc import FAENetCalculator, build_potential
from faenet_calc.errors import InputError
from faenet_calc.potential.checkpoint import save_potential

SMALL = {"hidden_channels": 64, "filters": 32, "interactions": 2, "gaussians": 16}


def build(seed, cutoff=4.0, **settings):
    return build_potential("modern-s", seed=seed, dtype="float64", cutoff=cutoff, **SMALL, **settings)


@pytest.fixture(scope="module")
def members():
    return [build(0), build(1), build(2, cutoff=4.5)]


@pytest.fixture
def slab():
    atoms = fcc111("Cu", (2, 2, 2), vacuum=6.0, periodic=True)
    atoms.rattle(0.1, seed=1)
    return atoms


def test_averages_and_population_variance(members, slab):
    committee = FAENetCalculator(members)
    committee.calculate(slab, ["energy", "forces", "stress", "energies"])
    results = committee.results
    single = [FAENetCalculator(member) for member in members]
    energies = np.array([calc.get_property("energy", slab) for calc in single])
    forces = np.array([calc.get_property("forces", slab) for calc in single])
    stress = np.array([calc.get_property("stress", slab) for calc in single])
    np.testing.assert_allclose(results["energy_comm"], energies, atol=1e-12)
    np.testing.assert_allclose(results["forces_comm"], forces, atol=1e-12)
    assert results["forces_comm"].shape == (3, len(slab), 3)
    for name, values in (("energy", energies), ("forces", forces), ("stress", stress)):
        np.testing.assert_allclose(results[name], values.mean(axis=0), atol=1e-12)
        np.testing.assert_allclose(
            results[f"{name}_var"], ((values - values.mean(axis=0)) ** 2).mean(axis=0), atol=1e-12
        )
    assert isinstance(results["energy_var"], float) and results["energy_var"] > 1e-8
    assert results["energies"].sum() == pytest.approx(results["energy"])
    assert committee.info["n_members"] == 3 and committee.info["cutoff"] == 4.5


def test_committee_properties_can_be_asked_for(members, slab):
    committee = FAENetCalculator(members[:2])
    assert committee.get_property("forces_var", slab).shape == (len(slab), 3)
    assert {"energy_comm", "energy_var", "forces_comm", "forces_var"} <= set(committee.implemented_properties)
    (result,) = committee.predict([slab], ["energy_var"])
    assert set(result) == {"energy", "free_energy", "energy_comm", "energy_var"}


def test_lists_globs_and_paths(members, slab, tmp_path):
    for number, member in enumerate(members):
        save_potential(member, tmp_path / f"m-{number}.safetensors")
    expected = FAENetCalculator(members).get_property("energy", slab)
    given = [
        str(tmp_path / "m-*.safetensors"),
        [tmp_path / f"m-{number}.safetensors" for number in range(3)],
        [str(tmp_path / "m-0.safetensors"), str(tmp_path / "m-[12].safetensors")],
    ]
    for checkpoint in given:
        committee = FAENetCalculator(checkpoint, dtype="float64", device="cpu")
        assert committee.info["n_members"] == 3
        assert committee.get_property("energy", slab) == pytest.approx(expected, abs=1e-12)


def test_neighbor_lists_are_shared_by_equal_cutoffs(members, slab):
    same, mixed = FAENetCalculator(members[:2]), FAENetCalculator(members)
    for calc, expected in ((same, 1), (mixed, 2)):
        calc.get_property("forces", slab)
        assert calc.n_neighbor_rebuilds == expected


def test_elements_are_those_of_all(slab):
    committee = FAENetCalculator([build(0, trained_elements=(1, 29)), build(1, trained_elements=(29, 46))])
    assert committee.trained_elements == ("Cu",)


def test_one_direct_member_has_no_stress():
    committee = FAENetCalculator([build(0), build(1, forces="direct")])
    assert "stress" not in committee.implemented_properties
    assert committee.info["forces"] == ["gradient", "direct"]


@pytest.mark.parametrize(
    ("checkpoint", "message"),
    [
        ([], "expected None"),
        (3.5, "expected None"),
        ("nothing-here-*.safetensors", "no file matches the pattern 'nothing-here-"),
        ("nothing-here", "neither a file nor the name of a shipped model"),
    ],
)
def test_bad_checkpoints(checkpoint, message):
    with pytest.raises(InputError, match=message):
        FAENetCalculator(checkpoint)


def test_members_must_mean_the_same_energy():
    other = build(1, energy={"kind": "adsorption"})
    with pytest.raises(
        InputError, match=r"must predict the same energy: member 0 says .*total.* member 1 says .*adsorption"
    ):
        FAENetCalculator([build(0), other])
