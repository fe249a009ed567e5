"""Metrics against arithmetic by hand; sums over batches; thresholds; groups; symmetry metrics with a control."""

import numpy as np
import pytest
import torch
from small_set import write_small_set

from faenet_calc.data.dataset import collate, open_dataset
from faenet_calc.potential.potential import build_potential
from faenet_calc.potential.prediction import Prediction
from faenet_calc.training.assessment import assess
from faenet_calc.training.batches import epoch_batches, shares
from faenet_calc.training.metrics import MetricSums, batch_metrics
from faenet_calc.training.symmetry import symmetry_metrics


@pytest.fixture
def dataset(tmp_path):
    return open_dataset(write_small_set(tmp_path / "a.extxyz", 7), cutoff=4.0, cache_dir=tmp_path / "cache")


def predict(batch, energy_error, force_error):
    return Prediction(
        graph_of_atom=batch.graph.graph_of_atom, energy=batch.energy + energy_error, forces=batch.forces + force_error
    )


def test_errors_by_hand(dataset):
    batch = collate([dataset[i] for i in range(3)])
    means = batch_metrics(predict(batch, torch.tensor([0.01, -0.03, 0.0]), 0.02), batch).means()
    assert means["energy_mae"] == pytest.approx(0.04 / 3)
    assert means["energy_within"] == pytest.approx(2 / 3)
    assert means["energy_forces_within"] == pytest.approx(2 / 3)
    assert [means["forces_mae"], means["forces_rmse"]] == pytest.approx([0.02, 0.02])
    assert means["forces_l2"] == pytest.approx(0.02 * 3**0.5)
    n_atoms = batch.graph.atoms_per_graph
    assert means["energy_mae_per_atom"] == pytest.approx(float((torch.tensor([0.01, 0.03, 0.0]) / n_atoms).mean()))


def test_a_large_force_error_fails_efwt_but_not_ewt(dataset):
    batch = collate([dataset[i] for i in range(3)])
    error = torch.zeros_like(batch.forces)
    error[0, 1] = 0.031
    means = batch_metrics(predict(batch, 0.0, error), batch).means()
    assert (means["energy_within"], means["energy_forces_within"]) == (1.0, pytest.approx(2 / 3))


def test_groups_by_element_tag_and_freedom(dataset):
    batch = collate([dataset[0], dataset[1]])
    oxygen = (batch.graph.atomic_numbers == 8)[:, None]
    means = batch_metrics(predict(batch, 0.0, torch.where(oxygen, 0.5, 0.0)), batch).means()
    assert means["forces_mae[O]"] == means["forces_mae[adsorbate]"] == pytest.approx(0.5)
    assert means["forces_mae[Cu]"] == means["forces_mae[Pd]"] == 0.0
    assert means["forces_mae[free]"] > means["forces_mae"]
    fixed_wrong = torch.where(batch.free[:, None], 0.0, 3.0)
    assert batch_metrics(predict(batch, 0.0, fixed_wrong), batch, free_atoms_only=True).means()["forces_mae"] == 0.0


def test_sums_of_batches_are_the_sums_of_the_whole(dataset):
    whole = batch_metrics(*_with_error(dataset, range(7))).means()
    parts = MetricSums()
    for members in (range(2), range(2, 7)):
        parts.merge(batch_metrics(*_with_error(dataset, members)))
    assert parts.means() == pytest.approx(whole)


def _with_error(dataset, members):
    batch = collate([dataset[i] for i in members])
    return predict(batch, 0.01 * (1 + batch.index), 0.1 * batch.graph.atomic_numbers[:, None]), batch


def test_assessment_does_not_depend_on_batching(dataset):
    potential = build_potential("modern-s", cutoff=4.0, dtype="float64")
    whole = assess(potential, dataset, np.arange(7), records=True)
    single = assess(potential, dataset, np.arange(7), records=True, batch_size=1)
    assert single.metrics == pytest.approx(whole.metrics, rel=1e-9)
    assert [r.index for r in single.records] == list(range(7))
    assert [r.predicted_energy for r in single.records] == pytest.approx([r.predicted_energy for r in whole.records])


def test_symmetry_metrics_see_a_broken_symmetry(dataset):
    exact = symmetry_metrics(build_potential("modern-s", cutoff=4.0), dataset, np.arange(3))
    broken = build_potential("modern-s", cutoff=4.0, frames={"kind": "none"})
    control = symmetry_metrics(broken, dataset, np.arange(3))
    assert max(exact.rot_i, exact.refl_i, exact.f_rot_e, exact.f_refl_e) < 1e-5
    assert min(control.rot_i, control.refl_i, control.f_rot_e, control.f_refl_e) > 1e-3


def test_every_structure_is_in_one_batch_and_batches_are_balanced():
    costs = np.random.default_rng(0).integers(10, 500, 103).astype(float)
    batches = epoch_batches(costs, 8, seed=1, epoch=0)
    assert sorted(np.concatenate(batches).tolist()) == list(range(103))
    assert {len(batch) for batch in batches} <= {7, 8}
    loads = np.array([costs[batch].sum() for batch in batches if len(batch) == 8])
    at_random = np.array([costs[np.random.default_rng(s).permutation(103)[:8]].sum() for s in range(50)])
    assert loads.std() < 0.6 * at_random.std()
    again, other = epoch_batches(costs, 8, seed=1, epoch=0), epoch_batches(costs, 8, seed=1, epoch=1)
    assert all((a == b).all() for a, b in zip(batches, again, strict=True))
    assert any(set(a) != set(b) for a, b in zip(batches, other, strict=True))


def test_shares_are_balanced_and_never_empty():
    costs = np.array([100.0, 1, 1, 1, 50, 50])
    parts = shares(np.arange(6), costs, 2)
    assert sorted(np.concatenate(parts).tolist()) == list(range(6))
    assert abs(costs[parts[0]].sum() - costs[parts[1]].sum()) <= 3
    assert all(len(part) for part in shares(np.arange(3), np.array([9.0, 1, 1]), 3))
