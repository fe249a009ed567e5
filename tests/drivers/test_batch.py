"""Many structures at once: the same results as one by one, and no structure harms another."""

import threading

import numpy as np
import pytest
import torch
from ase import Atoms
from ase.build import bulk, fcc111
from ase.calculators.emt import EMT
from ase.constraints import FixAtoms, FixBondLength, FixCartesian

from faenet_calc import FAENetCalculator, relax, relax_batch, run_md, run_md_batch
from faenet_calc.errors import InputError
from faenet_calc.network.engine import engine_for
from faenet_calc.potential.network_pass import bytes_per_edge_copy
from faenet_calc.potential.predictor import Predictor
from faenet_calc.simulate.trajectory import read_snapshots


def slabs(count=4):
    """Rattled copper slabs of two sizes, each with other constraints."""
    made = []
    for seed in range(count):
        atoms = fcc111("Cu", (2, 2, 3) if seed % 2 else (2, 1, 3), vacuum=6.0)
        atoms.rattle(0.1, seed=seed)
        made.append(atoms)
    fixed = FixAtoms(mask=made[0].get_tags() == 3)
    constraints = [fixed, FixCartesian([0, 1], mask=(True, False, True)), FixBondLength(0, 1)]
    for atoms, constraint in zip(made, constraints, strict=False):
        atoms.set_constraint(constraint)
    return made


@pytest.fixture(scope="module")
def calc(emt_potential):
    return FAENetCalculator(emt_potential)


@pytest.mark.parametrize("optimizer", ["FIRE", "LBFGS", "BFGS"])
def test_results_equal_those_of_relax(calc, optimizer):
    alone = [relax(atoms, calc, optimizer=optimizer, fmax=0.02) for atoms in slabs()]
    together = relax_batch(slabs(), calc, optimizer=optimizer, fmax=0.02)
    for one, other in zip(alone, together, strict=True):
        assert other.converged and other.error is None
        assert other.n_steps == one.n_steps
        assert other.energy == pytest.approx(one.energy, abs=1e-6)
        assert np.allclose(other.atoms.positions, one.atoms.positions, atol=1e-5)
    assert np.array_equal(together[0].atoms.positions[:2], slabs()[0].positions[:2])  # FixAtoms holds


def test_cells_are_relaxed_too(calc):
    crystals = [bulk("Cu", a=a, cubic=True) for a in (3.5, 3.7)]
    alone = [relax(atoms, calc, relax_cell=True, fmax=0.01) for atoms in crystals]
    together = relax_batch(crystals, calc, optimizer="LBFGS", relax_cell=True, fmax=0.01)
    for one, other in zip(alone, together, strict=True):
        assert other.converged
        assert np.allclose(other.atoms.cell, one.atoms.cell, atol=1e-5)
    assert not np.allclose(together[0].atoms.cell, crystals[0].cell, atol=1e-3)


def test_predictions_are_shared(calc, monkeypatch):
    sizes, predict = [], Predictor.predict

    def counted(self, structures, properties, **options):
        graphs = list(structures)
        sizes.append(len(graphs))
        return predict(self, graphs, properties, **options)

    monkeypatch.setattr(Predictor, "predict", counted)
    relax_batch(slabs(), calc, fmax=0.05)
    assert max(sizes) == 4
    sizes.clear()
    relax_batch(slabs(), calc, fmax=0.05, batch_size=2)
    assert max(sizes) == 2


@pytest.fixture
def threads():
    """Two torch threads, whatever the machine has."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield 2
    torch.set_num_threads(before)


def test_groups_of_threads_give_the_same_results(calc, threads, monkeypatch):
    used, predict = set(), Predictor.predict

    def counted(self, structures, properties, **options):
        used.add((threading.get_ident(), torch.get_num_threads()))
        return predict(self, structures, properties, **options)

    monkeypatch.setattr(Predictor, "predict", counted)
    together = relax_batch(slabs(8), calc, fmax=0.02)
    assert 1 <= len(used) <= threads and {n for _, n in used} == {1}
    assert threading.get_ident() not in {thread for thread, _ in used}
    assert torch.get_num_threads() == threads
    torch.set_num_threads(1)
    for one, other in zip(relax_batch(slabs(8), calc, fmax=0.02), together, strict=True):
        assert other.converged and other.n_steps == one.n_steps
        assert other.energy == pytest.approx(one.energy, abs=1e-6)


def test_the_memory_of_compiled_code_allows_large_batches(calc):
    graphs, wanted = calc.source.graphs(slabs(1)[0], reuse=False), ("energy", "forces")
    potential = calc.predictor.committee.members[0]
    with_gradients = graphs[0].n_edges * bytes_per_edge_copy(potential.config.model, torch.float32, gradient=True)
    in_torch = FAENetCalculator(potential, dtype="float64").predictor
    assert in_torch.memory_of(graphs, wanted) >= 2 * with_gradients
    assert calc.predictor.memory_of(graphs, (*wanted, "forces_uncertainty")) >= with_gradients, "it needs autograd"
    if engine_for(potential.model) is not None:
        assert calc.predictor.memory_of(graphs, wanted) < in_torch.memory_of(graphs, wanted) / 4


def test_one_frame_first_ends_at_the_same_minimum(emt_potential):
    calc = FAENetCalculator(emt_potential, frames="all")
    plain = relax_batch(slabs(2), calc, optimizer="LBFGS", fmax=0.01)
    staged = relax_batch(slabs(2), calc, optimizer="LBFGS", fmax=0.01, one_frame_first=True)
    for one, other in zip(plain, staged, strict=True):
        assert other.converged and other.n_steps <= one.n_steps
        assert other.energy == pytest.approx(one.energy, abs=1e-4)


def poisoned():
    """Good structures around ones that cannot be computed or relaxed."""
    good = slabs(2)
    overlapping = fcc111("Cu", (2, 2, 3), vacuum=6.0)
    overlapping.positions[1] = overlapping.positions[0]
    nan = fcc111("Cu", (2, 2, 3), vacuum=6.0)
    nan.positions[3, 0] = np.nan
    unknown = fcc111("Au", (2, 2, 3), vacuum=6.0)
    return [good[0], overlapping, nan, unknown, Atoms(), "not a structure", good[1]]


def test_poison_harms_nobody(calc):
    found = relax_batch(poisoned(), calc, fmax=0.05, steps=200)
    expected = relax_batch(slabs(2), calc, fmax=0.05, steps=200)
    for one, other in ((found[0], expected[0]), (found[-1], expected[1])):
        assert one.converged and one.error is None
        assert one.energy == pytest.approx(other.energy, abs=1e-9)
    for index, word in ((2, "nan"), (3, "Au"), (4, "no atoms"), (5, "str")):
        assert found[index].error is not None and word.lower() in found[index].error.lower()
        assert not found[index].converged
    assert found[1].error is not None or not found[1].converged or "overlap" in found[1].anomalies


def test_a_failing_batch_is_computed_one_by_one(calc, monkeypatch):
    predict = Predictor.predict

    def fails_together(self, structures, properties, **options):
        graphs = list(structures)
        if len(graphs) > 1:
            raise RuntimeError("a batch kernel failed")
        return predict(self, graphs, properties, **options)

    expected = relax_batch(slabs(2), calc)
    monkeypatch.setattr(Predictor, "predict", fails_together)
    found = relax_batch(slabs(2), calc)
    assert [one.energy for one in found] == pytest.approx([one.energy for one in expected], abs=1e-9)


def test_trajectories_resume(calc, tmp_path):
    expected = relax_batch(slabs(2), calc, fmax=0.01)
    relax_batch(slabs(2), calc, fmax=0.01, steps=3, trajectories=tmp_path)
    assert len(read_snapshots(tmp_path / "0.traj")) == 4
    refused = relax_batch(slabs(2), calc, fmax=0.01, trajectories=tmp_path)
    assert all("exists" in one.error for one in refused)
    resumed = relax_batch(slabs(2), calc, fmax=0.01, trajectories=tmp_path, resume=True)
    for one, other in zip(expected, resumed, strict=True):
        assert other.converged
        assert other.energy == pytest.approx(one.energy, abs=1e-3)


def test_results_are_reported_as_they_finish(calc):
    seen = []
    results = relax_batch(slabs(3), calc, on_result=lambda index, result: seen.append((index, result)))
    assert sorted(index for index, _ in seen) == [0, 1, 2]
    assert all(results[index] is result for index, result in seen)


def test_other_calculators_are_refused():
    with pytest.raises(InputError, match="EMT"):
        relax_batch(slabs(1), EMT())
    with pytest.raises(InputError, match="list"):
        relax_batch(slabs(1)[0], EMT())


@pytest.mark.parametrize("ensemble", ["nve", "nvt-langevin"])
def test_dynamics_equal_those_of_run_md(calc, ensemble):
    options = {"ensemble": ensemble, "temperature_K": 300, "timestep_fs": 2.0, "steps": 20, "interval": 5}
    alone = [run_md(atoms, calc, seed=7 + index, **options) for index, atoms in enumerate(slabs(3))]
    together = run_md_batch(slabs(3), calc, seed=7, **options)
    for one, other in zip(alone, together, strict=True):
        assert other.n_steps == 20
        assert np.allclose(other.atoms.positions, one.atoms.positions, atol=1e-6)
        assert np.allclose(other.energies, one.energies, atol=1e-6)
    assert not np.allclose(together[0].atoms.get_momenta(), together[2].atoms.get_momenta())


def test_an_exploding_replica_stops_alone(calc):
    hot = slabs(2)
    hot[0].set_momenta(np.full((len(hot[0]), 3), 300.0) * np.random.default_rng(0).normal(size=(len(hot[0]), 3)))
    with pytest.warns(UserWarning, match="stopped"):
        stopped, fine = run_md_batch(hot, calc, steps=10, check_interval=1, max_temperature_K=1e9)
    assert isinstance(stopped, Exception) or stopped.stopped_because is not None
    assert fine.stopped_because is None and fine.n_steps == 10
