"""Losses against arithmetic by hand, and the two variants of the conservation term."""

import dataclasses

import pytest
import torch
from small_set import write_small_set

from faenet_calc.data.dataset import collate, open_dataset
from faenet_calc.errors import InputError
from faenet_calc.potential.potential import build_potential
from faenet_calc.potential.prediction import Prediction
from faenet_calc.training.config import LossConfig
from faenet_calc.training.loss import Loss


@pytest.fixture
def batch(tmp_path):
    dataset = open_dataset(write_small_set(tmp_path / "a.extxyz", 4), cutoff=4.0, cache_dir=tmp_path / "cache")
    return collate([dataset[i] for i in range(4)])


def shifted(batch, energy_error, force_error):
    forces = batch.forces + torch.tensor(force_error, dtype=torch.float64)
    return Prediction(graph_of_atom=batch.graph.graph_of_atom, energy=batch.energy + energy_error, forces=forces)


def value(config, batch, prediction, forces="gradient"):
    loss = Loss(config, forces)
    terms = loss.terms(prediction, batch, loss.counts(batch))
    return float(loss.total(terms)), {name: float(term) for name, term in terms.items()}


@pytest.mark.parametrize(
    ("kind", "energy", "forces"),
    [
        ("mae", 0.2, (0.3 + 0.4) / 3),
        ("mse", 0.04, (0.09 + 0.16) / 3),
        ("l2", 0.2, 0.5),
        ("huber", 0.2 - 0.05, (0.3 + 0.4 - 0.1) / 3),
    ],
)
def test_kinds_by_hand(batch, kind, energy, forces):
    config = LossConfig(energy=2.0, forces=3.0, energy_kind=kind, forces_kind=kind, per_atom=False, huber_delta=0.1)
    total, terms = value(config, batch, shifted(batch, 0.2, [0.3, 0.0, -0.4]))
    assert terms == pytest.approx({"energy": energy, "forces": forces})
    assert total == pytest.approx(2 * energy + 3 * forces)


def test_energy_per_atom(batch):
    config = LossConfig(energy=1.0, forces=0.0, per_atom=True)
    expected = float((0.6 / batch.graph.atoms_per_graph).mean())
    assert value(config, batch, shifted(batch, 0.6, [0.0] * 3))[0] == pytest.approx(expected)


def test_only_free_atoms_count(batch):
    config = LossConfig(energy=0.0, forces=1.0, forces_kind="mae", free_atoms_only=True)
    prediction = shifted(batch, 0.0, [0.0] * 3)
    fixed_wrong = torch.where(batch.free[:, None], batch.forces, batch.forces + 7.0)
    assert value(config, batch, dataclasses.replace(prediction, forces=fixed_wrong))[0] == 0.0
    everywhere = dataclasses.replace(config, free_atoms_only=False)
    assert value(everywhere, batch, dataclasses.replace(prediction, forces=fixed_wrong))[0] > 1.0


def test_forces_on_adsorbates_count_as_often_as_asked(batch):
    tags = torch.zeros_like(batch.graph.tags)
    tags[:3] = 2
    batch = dataclasses.replace(batch, graph=batch.graph.replace(tags=tags))
    wrong = torch.where(tags[:, None] == 2, batch.forces + 1.0, batch.forces)
    prediction = dataclasses.replace(shifted(batch, 0.0, [0.0] * 3), forces=wrong)
    config = LossConfig(energy=0.0, forces=1.0, forces_kind="mae", adsorbate_weight=4.0)
    others = len(tags) - 3
    assert value(config, batch, prediction)[0] == pytest.approx(12 / (12 + others))
    assert value(dataclasses.replace(config, adsorbate_weight=1.0), batch, prediction)[0] == pytest.approx(
        3 / (3 + others)
    )
    with pytest.raises(InputError, match=r"every term of the loss .* has weight 0"):
        value(dataclasses.replace(config, forces=0.0), batch, prediction)


def test_missing_labels_do_not_count(batch):
    energy, forces = batch.energy.clone(), batch.forces.clone()
    energy[0], forces[:2] = torch.nan, torch.nan
    partial = dataclasses.replace(batch, energy=energy, forces=forces)
    config = LossConfig(energy=1.0, forces=1.0, energy_kind="mae", forces_kind="mae", per_atom=False)
    total, _ = value(config, partial, shifted(batch, 0.5, [0.25] * 3))
    assert total == pytest.approx(0.5 + 0.25)


def test_l2_has_a_finite_gradient_at_zero_error(batch):
    predicted = batch.forces.clone().requires_grad_()
    loss = Loss(LossConfig(energy=0.0, forces=1.0, forces_kind="l2"), "gradient")
    prediction = Prediction(graph_of_atom=batch.graph.graph_of_atom, energy=batch.energy, forces=predicted)
    loss.total(loss.terms(prediction, batch, loss.counts(batch))).backward()
    assert torch.isfinite(predicted.grad).all()


def test_parts_of_a_batch_add_up(batch):
    """The loss of a batch in two parts, with the counts of the whole, is the loss of the whole."""
    potential = build_potential("modern-s", cutoff=4.0, dtype="float64")
    loss = Loss(LossConfig(), "gradient")
    counts = loss.counts(batch)
    whole = loss.total(loss.terms(loss.predict(potential, batch, "one"), batch, counts))
    graphs, ends = batch.graph.split(), torch.cumsum(batch.graph.atoms_per_graph, 0)
    from faenet_calc.graphs.graph import AtomGraph

    middle = int(ends[1])
    first = dataclasses.replace(
        batch, graph=AtomGraph.batch(graphs[:2]), energy=batch.energy[:2], forces=batch.forces[:middle],
        stress=batch.stress[:2], free=batch.free[:middle], index=batch.index[:2],
    )  # fmt: skip
    second = dataclasses.replace(
        batch, graph=AtomGraph.batch(graphs[2:]), energy=batch.energy[2:], forces=batch.forces[middle:],
        stress=batch.stress[2:], free=batch.free[middle:], index=batch.index[2:],
    )  # fmt: skip
    parts = [loss.total(loss.terms(loss.predict(potential, part, "one"), part, counts)) for part in (first, second)]
    assert float(sum(parts).detach()) == pytest.approx(float(whole.detach()), rel=1e-12)


@pytest.mark.parametrize("target", ["detached", "full"])
def test_conservation_reaches_the_energy_only_in_the_full_variant(batch, target):
    """The output block feeds only the energy: it learns from -dE/dx if that is not a constant."""
    potential = build_potential("modern-s", cutoff=4.0, forces="direct").requires_grad_(True)
    config = LossConfig(energy=0.0, forces=0.0, conservation=1.0, conservation_target=target)
    loss = Loss(config, "direct")
    loss.total(loss.terms(loss.predict(potential, batch, "one"), batch, loss.counts(batch))).backward()
    decoder = next(potential.model.decoder.parameters()).grad
    head = potential.model.output_block.lin1.weight.grad
    assert decoder is not None and float(decoder.abs().max()) > 0
    assert (head is not None and float(head.abs().max()) > 0) == (target == "full")


@pytest.mark.parametrize(("kind", "expected"), [("l2", 5.0), ("mse", 25.0 / 3)])
def test_rotation_is_the_torque_per_atom(batch, kind, expected):
    config = LossConfig(energy=0.0, forces=0.0, rotation=1.0, rotation_kind=kind)
    n_atoms = float(batch.graph.atoms_per_graph[1])
    torque = torch.zeros(batch.graph.n_graphs, 3, dtype=torch.float64)
    torque[1] = n_atoms * torch.tensor([3.0, 0.0, 4.0])
    turned = dataclasses.replace(shifted(batch, 0.0, [0.0] * 3), torque=torque)
    assert value(config, batch, turned)[0] == pytest.approx(expected / batch.graph.n_graphs)


def test_training_on_the_torque_makes_it_smaller(batch):
    """Random weights, fixed frames: a few steps on this term alone."""
    potential = build_potential("modern-s", cutoff=4.0, dtype="float64").requires_grad_(True)
    loss = Loss(LossConfig(energy=0.0, forces=0.0, rotation=1.0), "gradient")
    optimizer = torch.optim.Adam(potential.parameters(), lr=1e-3)
    found = []
    for _ in range(10):
        optimizer.zero_grad()
        total = loss.total(loss.terms(loss.predict(potential, batch, "one"), batch, loss.counts(batch)))
        total.backward()
        optimizer.step()
        found.append(float(total.detach()))
    assert found[-1] < 0.7 * found[0]


def test_conservation_vanishes_where_direct_forces_are_the_gradient(batch):
    config = LossConfig(energy=0.0, forces=0.0, conservation=1.0)
    prediction = shifted(batch, 0.0, [0.0] * 3)
    same = dataclasses.replace(prediction, direct_forces=batch.forces, gradient_forces=batch.forces)
    other = dataclasses.replace(same, direct_forces=batch.forces + 0.1)
    assert value(config, batch, same, "direct")[0] == 0.0
    assert value(config, batch, other, "direct")[0] == pytest.approx(0.1 * 3**0.5)
