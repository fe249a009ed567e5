"""FAENetCalculator: results, caching, what is computed, settings, copies."""

import copy
import json
import multiprocessing
import pickle
import threading
import warnings

import numpy as np
import pytest
import torch
from ase import Atoms
from ase.build import bulk, fcc111, molecule
from ase.calculators.calculator import PropertyNotImplementedError
from ase.calculators.fd import calculate_numerical_forces, calculate_numerical_stress
from ase.constraints import FixAtoms

from faenet_calc import FAENetCalculator, build_potential, progress
from faenet_calc.errors import InputError
from faenet_calc.potential import potential
from faenet_calc.potential.checkpoint import save_potential

SMALL = {"hidden_channels": 64, "filters": 32, "interactions": 2, "gaussians": 16, "cutoff": 4.0}


def build(preset="modern-s", dtype="float64", **settings):
    return build_potential(preset, dtype=dtype, **{**SMALL, **settings})


@pytest.fixture(scope="module")
def gradient_potential():
    return build()


@pytest.fixture(scope="module")
def direct_potential():
    return build(forces="direct")


@pytest.fixture
def slab():
    atoms = fcc111("Cu", (2, 2, 2), vacuum=6.0, periodic=True)
    atoms.symbols[-1] = "Pd"
    atoms.rattle(0.1, seed=1)
    return atoms


@pytest.fixture
def count_evaluations(monkeypatch):
    """Properties and gradient mode of every evaluation."""
    calls = []
    original = potential.Potential.run

    def run(self, graph, request, **kwargs):
        calls.append((set(request.properties), request.gradient))
        return original(self, graph, request, **kwargs)

    monkeypatch.setattr(potential.Potential, "run", run)
    return calls


@pytest.mark.parametrize("structure", ["slab", "bulk", "molecule"])
def test_forces_and_stress_are_derivatives(gradient_potential, slab, structure):
    atoms = {"slab": slab, "bulk": bulk("Cu", cubic=True), "molecule": molecule("H2O")}[structure]
    atoms.rattle(0.05, seed=2)
    atoms.calc = FAENetCalculator(gradient_potential)
    np.testing.assert_allclose(atoms.get_forces(), calculate_numerical_forces(atoms, eps=1e-4), atol=1e-6)
    assert np.abs(atoms.get_forces()).max() > 1e-4
    if structure != "molecule":
        np.testing.assert_allclose(atoms.get_stress(), calculate_numerical_stress(atoms, eps=1e-5), atol=1e-7)
        assert np.abs(atoms.get_stress()).max() > 1e-5


def test_direct_forces_fail_the_derivative_test(direct_potential, slab):
    slab.calc = FAENetCalculator(direct_potential)
    assert np.abs(slab.get_forces() - calculate_numerical_forces(slab, eps=1e-4)).max() > 1e-3


def test_results_have_ases_types(gradient_potential, slab):
    calc = slab.calc = FAENetCalculator(gradient_potential)
    wanted = ["energy", "forces", "energies", "stress", "torque", "energy_frame_std", "forces_frame_std"]
    calc.calculate(slab, wanted)
    shapes = {name: np.shape(value) for name, value in calc.results.items()}
    n = len(slab)
    assert shapes == {
        **{"energy": (), "free_energy": (), "energy_frame_std": (), "energies": (n,), "forces": (n, 3)},
        **{"forces_frame_std": (n,), "stress": (6,), "torque": (3,)},
    }
    assert isinstance(calc.results["energy"], float)
    assert all(np.asarray(value).dtype == np.float64 for value in calc.results.values())
    assert slab.get_potential_energy(force_consistent=True) == slab.get_potential_energy()
    assert slab.get_potential_energies().sum() == pytest.approx(slab.get_potential_energy(), abs=1e-10)


def test_only_what_is_asked_is_computed(gradient_potential, slab, count_evaluations):
    calc = slab.calc = FAENetCalculator(gradient_potential)
    slab.get_potential_energy()
    assert count_evaluations == [({"energy"}, False)]
    slab.get_forces()
    slab.get_potential_energy()
    slab.get_forces()
    assert [call[0] for call in count_evaluations] == [{"energy"}, {"energy", "forces"}]
    slab.get_stress()
    slab.get_forces()
    assert [call[0] for call in count_evaluations][2:] == [{"energy", "forces", "stress"}]
    assert "energies" not in calc.results


@pytest.mark.parametrize("change", ["positions", "cell", "pbc", "numbers", "tags"])
def test_changes_are_noticed(slab, change):
    changes = {
        "positions": lambda: slab.positions.__setitem__((0, 2), slab.positions[0, 2] + 1e-3),
        "cell": lambda: slab.set_cell(slab.cell * 1.001),
        "pbc": lambda: slab.set_pbc([True, True, False]),
        "numbers": lambda: slab.symbols.__setitem__(0, "Pt"),
        "tags": lambda: slab.set_tags([0] * 4 + [1] * 3 + [2]),
    }
    slab.set_tags([0] * 4 + [1] * 4)
    calc = slab.calc = FAENetCalculator(build(atoms={"tag_channels": 8}))
    before = slab.get_forces()
    assert calc.check_state(slab) == []
    changes[change]()
    assert calc.check_state(slab) == [change]
    fresh = FAENetCalculator(calc.predictor.committee.members[0])
    np.testing.assert_array_equal(slab.get_forces(), fresh.get_property("forces", slab))
    if change != "pbc":  # the vacuum is wider than the cutoff: nothing changes but the question
        assert np.abs(slab.get_forces() - before).max() > 1e-9


def test_charges_and_magnetic_moments_change_nothing(gradient_potential, slab, count_evaluations):
    slab.calc = FAENetCalculator(gradient_potential)
    slab.get_forces()
    slab.set_initial_magnetic_moments([1.0] * len(slab))
    slab.set_initial_charges([0.1] * len(slab))
    slab.get_forces()
    assert len(count_evaluations) == 1


def test_results_are_copies(gradient_potential, slab):
    slab.calc = FAENetCalculator(gradient_potential)
    forces = slab.get_forces()
    kept = forces.copy()
    forces += 1.0
    np.testing.assert_array_equal(slab.get_forces(), kept)


def test_no_history_is_kept(gradient_potential, slab):
    calc = slab.calc = FAENetCalculator(gradient_potential)
    slab.get_stress()
    assert not any(isinstance(value, torch.Tensor) for value in calc.results.values())


def test_potentials_in_training_can_be_used(slab):
    """A potential whose weights want gradients gives the same numbers and keeps no history."""
    training = build().requires_grad_(True)
    calc = FAENetCalculator(training)
    np.testing.assert_array_equal(
        calc.get_property("forces", slab), FAENetCalculator(build()).get_property("forces", slab)
    )
    assert all(parameter.grad is None and parameter.requires_grad for parameter in training.parameters())


def test_float32_energies_come_as_float64(slab):
    double, single = build(), build(dtype="float32")
    slab.calc = FAENetCalculator(single)
    other = slab.copy()
    other.calc = FAENetCalculator(double)
    assert slab.calc.info["dtype"] == "float32"
    assert slab.get_potential_energy() == pytest.approx(other.get_potential_energy(), abs=1e-5)
    wide = FAENetCalculator(single, dtype="float64")
    assert wide.info["dtype"] == "float64" and single.dtype == torch.float32
    assert wide.get_property("energy", slab) == pytest.approx(other.get_potential_energy(), abs=1e-10)


def test_same_input_same_number(gradient_potential, slab):
    energies = {FAENetCalculator(gradient_potential).get_property("energy", slab) for _ in range(3)}
    assert len(energies) == 1


def test_stochastic_frames_follow_the_seed(gradient_potential, slab):
    def sequence(seed):
        calc = FAENetCalculator(gradient_potential, frames="stochastic", seed=seed)
        energies = []
        for step in range(4):
            atoms = slab.copy()
            atoms.positions[0, 0] += 1e-9 * step
            energies.append(calc.get_property("energy", atoms))
        return energies

    assert sequence(3) == sequence(3)
    assert sequence(3) != sequence(4)
    assert len(set(sequence(3))) == 4


def test_stochastic_energy_and_forces_belong_together(gradient_potential, slab):
    calc = FAENetCalculator(gradient_potential, frames="stochastic", seed=0)
    energy = calc.get_property("energy", slab)
    calc.get_property("forces", slab)
    assert calc.results["energy"] == energy
    calc.reset()
    energy = calc.get_property("energy", slab)
    calc.predict([slab, slab])  # draws of its own, in between
    calc.get_property("forces", slab)
    assert calc.results["energy"] == energy
    again = FAENetCalculator(gradient_potential, frames="stochastic", seed=0)
    again.get_property("energy", slab)
    again.reset()
    np.testing.assert_array_equal(again.get_property("forces", slab), calc.results["forces"])


@pytest.mark.parametrize("frames", ["one", "all", "exact"])
def test_frames_are_passed_on(gradient_potential, slab, frames):
    calc = FAENetCalculator(gradient_potential, frames=frames)
    expected = gradient_potential.predict(slab, frames=frames)
    assert calc.get_property("energy", slab) == pytest.approx(float(expected.energy), abs=1e-12)
    assert calc.info["frames"] == [frames]


def test_net_force_and_torque_are_removed_from_direct_forces(direct_potential):
    water = molecule("H2O")
    water.rattle(0.1, seed=0)
    raw = FAENetCalculator(direct_potential, remove_net_force=False).get_property("forces", water)
    balanced = FAENetCalculator(direct_potential).get_property("forces", water)
    arm = water.positions - water.positions.mean(axis=0)
    assert np.abs(raw.sum(axis=0)).max() > 1e-3 and np.abs(np.cross(arm, raw).sum(axis=0)).max() > 1e-3
    np.testing.assert_allclose(balanced.sum(axis=0), 0.0, atol=1e-12)
    np.testing.assert_allclose(np.cross(arm, balanced).sum(axis=0), 0.0, atol=1e-12)


def test_net_force_is_a_mean_over_all_atoms_before_constraints(direct_potential, slab):
    raw = FAENetCalculator(direct_potential, remove_net_force=False).get_property("forces", slab)
    slab.set_constraint(FixAtoms(range(4)))
    slab.calc = FAENetCalculator(direct_potential)
    np.testing.assert_allclose(slab.get_forces(apply_constraint=False), raw - raw.mean(axis=0), atol=1e-12)
    np.testing.assert_allclose(slab.get_forces()[4:], (raw - raw.mean(axis=0))[4:], atol=1e-12)
    assert not slab.get_forces()[:4].any()


def test_models_of_free_atoms_keep_their_net_force(slab):
    free_only = build(forces="direct", forces_on_free_atoms_only=True)
    raw = FAENetCalculator(free_only, remove_net_force=False).get_property("forces", slab)
    np.testing.assert_array_equal(FAENetCalculator(free_only).get_property("forces", slab), raw)
    forced = FAENetCalculator(free_only, remove_net_force=True).get_property("forces", slab)
    np.testing.assert_allclose(forced.sum(axis=0), 0.0, atol=1e-12)


def test_the_skin_changes_no_bit(gradient_potential, slab):
    with_skin, without = FAENetCalculator(gradient_potential, skin=0.6), FAENetCalculator(gradient_potential, skin=0)
    rng = np.random.default_rng(0)
    for _ in range(25):
        slab.positions += rng.normal(scale=0.03, size=slab.positions.shape)
        np.testing.assert_array_equal(with_skin.get_property("forces", slab), without.get_property("forces", slab))
    assert without.n_neighbor_rebuilds == 25
    assert 1 < with_skin.n_neighbor_rebuilds < 15


def test_what_the_energy_means(slab):
    energy = {"kind": "adsorption", "reference": "clean slab and gas", "level_of_theory": "RPBE (VASP)"}
    calc = FAENetCalculator(build(energy=energy, trained_elements=(29, 46), name="mine"))
    assert (calc.energy_kind, calc.energy_reference, calc.level_of_theory) == tuple(energy.values())
    assert calc.trained_elements == ("Cu", "Pd") and "Og" in calc.supported_elements
    assert json.loads(json.dumps(calc.info))["names"] == ["mine"]
    assert json.loads(json.dumps(calc.todict()))["checkpoint"] == "mine"


def test_checkpoints_are_loaded_by_path(gradient_potential, slab, tmp_path):
    path = save_potential(gradient_potential, tmp_path / "a.safetensors")
    for given in (path, str(path)):
        calc = FAENetCalculator(given, dtype="float64", device="cpu")
        expected = FAENetCalculator(gradient_potential).get_property("energy", slab)
        assert calc.get_property("energy", slab) == expected
    assert FAENetCalculator(path).info["dtype"] == "float32"


def test_deepcopy_and_pickle(gradient_potential, slab):
    slab.calc = FAENetCalculator(gradient_potential)
    forces = slab.get_forces()
    for twin in (copy.deepcopy(slab), pickle.loads(pickle.dumps(slab))):
        np.testing.assert_array_equal(twin.get_forces(), forces)
        twin.positions[0] += 0.1
        assert np.abs(twin.get_forces() - forces).max() > 1e-4
    np.testing.assert_array_equal(slab.get_forces(), forces)


def test_stochastic_state_survives_a_pickle(gradient_potential, slab):
    calc = FAENetCalculator(gradient_potential, frames="stochastic", seed=1)
    calc.get_property("energy", slab)
    twin = pickle.loads(pickle.dumps(calc))
    moved = slab.copy()
    moved.positions[0] += 1e-9
    assert twin.get_property("energy", moved) == calc.get_property("energy", moved)


def _energy_of(atoms):
    torch.set_num_threads(1)
    return atoms.get_potential_energy()


def test_worker_processes(gradient_potential, slab):
    slab.calc = FAENetCalculator(gradient_potential)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        (energy,) = pool.map(_energy_of, [slab])
    assert energy == pytest.approx(slab.get_potential_energy(), abs=1e-12)


@pytest.mark.parametrize("shared", ["potential", "calculator"])
def test_threads(gradient_potential, slab, shared):
    rng = np.random.default_rng(0)
    images = []
    for _ in range(12):
        image = slab.copy()
        image.positions += rng.normal(scale=0.05, size=image.positions.shape)
        images.append(image)
    expected = [result["forces"] for result in FAENetCalculator(gradient_potential).predict(images, batch_size=1)]
    calc = FAENetCalculator(gradient_potential)
    for image in images:
        image.calc = calc if shared == "calculator" else FAENetCalculator(gradient_potential)
    found = [None] * len(images)

    def work(indices):
        for index in indices:
            found[index] = images[index].get_forces()

    threads = [threading.Thread(target=work, args=(range(start, len(images), 3),)) for start in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)


def test_predict_equals_one_by_one(gradient_potential, slab):
    calc = FAENetCalculator(gradient_potential)
    structures = [slab, molecule("H2O"), bulk("Cu"), Atoms("Cu"), slab.repeat((2, 1, 1))]
    expected = [{name: calc.get_property(name, one) for name in ("energy", "forces")} for one in structures]
    calls = calc.n_neighbor_rebuilds
    for batch_size in ("auto", 2):
        results = calc.predict(structures, batch_size=batch_size)
        for found, reference in zip(results, expected, strict=True):
            assert set(found) == {"energy", "free_energy", "forces"}
            assert found["energy"] == pytest.approx(reference["energy"], abs=1e-10)
            np.testing.assert_allclose(found["forces"], reference["forces"], atol=1e-10)
    assert calc.n_neighbor_rebuilds == calls
    assert calc.predict([]) == []


def test_predict_cuts_batches_by_memory(gradient_potential, slab, count_evaluations):
    calc = FAENetCalculator(gradient_potential)
    assert len(calc.predict([slab] * 3, ["energy"])) == 3
    assert len(count_evaluations) == 1
    calc.predictor.memory_bytes = 1
    assert len(calc.predict([slab] * 3, ["energy"])) == 3
    assert len(count_evaluations) == 4


def test_predict_shows_progress(gradient_potential, slab, capsys, monkeypatch):
    calc = FAENetCalculator(gradient_potential)
    calc.predict([slab], ["energy"], progress=True)
    assert capsys.readouterr().err == ""  # short tasks leave no line in a log
    monkeypatch.setattr(progress, "_LOG_INTERVAL_S", 0.0)
    calc.predict([slab], ["energy"], progress=True)
    assert "1/1" in capsys.readouterr().err


def test_tags_are_taken_inferred_and_kept(slab):
    needs = build(atoms={"tag_channels": 8})
    slab.set_tags([0] * 4 + [1] * 3 + [2])
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        own = FAENetCalculator(needs).get_property("energy", slab)
    assert seen == []
    bare = slab.copy()
    bare.set_tags(0)
    calc = FAENetCalculator(needs)
    with pytest.warns(UserWarning, match="inferred from geometry: 4 sub-surface, 4 surface"):
        inferred = calc.get_property("energy", bare)
    bare.positions[0] += 1e-3
    calc.get_property("energy", bare)  # said once: a second warning would be an error here
    given = FAENetCalculator(needs, tags=[0] * 4 + [1] * 4).get_property("energy", slab)
    called = FAENetCalculator(needs, tags=lambda atoms: [0] * 4 + [1] * 4).get_property("energy", slab)
    assert inferred == pytest.approx(given, abs=1e-12) and given == called
    assert abs(own - given) > 1e-6
    assert FAENetCalculator(needs, tags="atoms").get_property("energy", slab) == own


def test_tags_do_not_change_along_a_run():
    """An atom that leaves the surface in small steps keeps its tag: the energy must not jump."""
    needs = build(atoms={"tag_channels": 8})
    atoms = fcc111("Cu", (2, 2, 3), vacuum=8.0, periodic=True)
    atoms.set_tags(0)
    calc = FAENetCalculator(needs)
    with pytest.warns(UserWarning, match="inferred"):
        calc.get_property("energy", atoms)
    kept = calc.source._kept_tags.tags.copy()
    for _ in range(12):
        atoms.positions[-1, 2] += 0.2
        calc.get_property("energy", atoms)
        calc.predict([fcc111("Cu", (2, 2, 3), vacuum=8.0, periodic=True)], ["energy"])  # another structure in between
    np.testing.assert_array_equal(calc.source._kept_tags.tags, kept)
    fresh = FAENetCalculator(needs)
    with pytest.warns(UserWarning, match="1 adsorbate"):
        fresh.get_property("energy", atoms)


def test_models_without_tags_do_not_ask_for_them(gradient_potential, slab):
    slab.set_tags(7)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        FAENetCalculator(gradient_potential).get_property("energy", slab)


def test_set_is_refused(gradient_potential):
    with pytest.raises(TypeError, match="skin cannot be changed afterwards; make a new FAENetCalculator"):
        FAENetCalculator(gradient_potential).set(skin=1.0)


def test_ase_keywords(gradient_potential, slab):
    FAENetCalculator(gradient_potential, label="x", atoms=slab)
    assert np.isfinite(slab.get_potential_energy())


def test_unavailable_properties_say_why(gradient_potential, direct_potential, slab):
    cases = [
        (FAENetCalculator(direct_potential), slab, "stress", "the forces are direct.*forces='gradient'"),
        (FAENetCalculator(gradient_potential), molecule("H2O"), "stress", "here the structure is not periodic"),
        (FAENetCalculator(gradient_potential, frames="one"), slab, "energy_frame_std", "a single frame has no spread"),
        (FAENetCalculator(gradient_potential), slab, "energy_var", "needs a committee; give a list or glob"),
        (FAENetCalculator(gradient_potential), slab, "dipole", "known are energy, energies"),
        (FAENetCalculator(build(forces="none")), slab, "forces", "trained on energies only"),
    ]
    for calc, atoms, name, message in cases:
        with pytest.raises(PropertyNotImplementedError, match=message):
            calc.get_property(name, atoms)
    assert "stress" not in FAENetCalculator(direct_potential).implemented_properties
    flat = slab.copy()
    flat.set_pbc([True, True, False])
    flat.cell[2] = 0
    with pytest.raises(PropertyNotImplementedError, match="volume of 0 Å³"):
        FAENetCalculator(gradient_potential).get_property("stress", flat)
    with pytest.raises(PropertyNotImplementedError, match="structure 1: stress is not available"):
        FAENetCalculator(gradient_potential).predict([slab, molecule("H2O")], ["stress"])
    assert FAENetCalculator(direct_potential, forces="gradient").get_property("stress", slab).shape == (6,)


def test_models_that_delete_atoms_say_so(slab):
    rewired = build(graph={"rewiring": "remove-tag-0"})
    slab.set_tags([0] * 4 + [1] * 4)
    calc = slab.calc = FAENetCalculator(rewired)
    assert calc.info["deletes_subsurface_atoms"] and calc.info["needs_tags"]
    with pytest.warns(UserWarning, match=r"deletes sub-surface atoms \(tag 0\), here 4 of 8.*FixAtoms"):
        forces = slab.get_forces()
    assert not forces[:4].any() and np.abs(forces[4:]).max() > 1e-4
    slab.set_tags(0)
    with pytest.raises(InputError, match="only tag-0"), pytest.warns(UserWarning, match="here 8 of 8"):
        FAENetCalculator(rewired, tags="atoms").get_property("energy", slab)
