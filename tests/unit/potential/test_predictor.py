"""Predictor: order, batches under the memory budget, running out of memory, committees; and Capabilities."""

import pytest
import torch
from ase.build import bulk, molecule

from faenet_calc.errors import InputError
from faenet_calc.potential.committee import Committee
from faenet_calc.potential.potential import Potential, build_potential
from faenet_calc.potential.predictor import Predictor

SMALL = {"hidden_channels": 64, "filters": 16, "interactions": 1, "gaussians": 8, "cutoff": 4.0}


def build(seed=0, **settings):
    return build_potential("modern-s", seed=seed, dtype="float64", **(SMALL | settings))


@pytest.fixture
def structures():
    crystal = bulk("Cu", cubic=True)
    crystal.rattle(0.1, seed=0)
    return [crystal, molecule("H2O"), bulk("Pd"), molecule("CO2"), crystal.repeat((2, 1, 1))]


def test_predictions_come_in_order_and_do_not_depend_on_the_batches(structures):
    potential = build()
    graphs = [potential.graph(atoms) for atoms in structures]
    expected = [potential.predict(atoms, ("energy", "forces")) for atoms in structures]
    for settings in ({}, {"memory_bytes": 1}):
        predictor = Predictor(potential, **settings)
        for batch_size in ("auto", 2):
            found = list(predictor.predict(iter(graphs), ["forces"], batch_size=batch_size))
            for one, reference in zip(found, expected, strict=True):
                torch.testing.assert_close(one.energy, reference.energy, rtol=0, atol=1e-12)
                torch.testing.assert_close(one.forces, reference.forces, rtol=0, atol=1e-12)


def test_batches_fill_the_budget(structures):
    graphs = [build().graph(atoms) for atoms in structures]

    def sizes(memory_bytes):
        predictor = Predictor(build(), frames="all", memory_bytes=memory_bytes)
        return [batch.n_graphs for batch in predictor.predict_batches(graphs, ["energy"])]

    assert sizes(None) == [5] and sizes(1) == [1] * 5
    assert sum(sizes(1_000_000)) == 5 and 1 < len(sizes(1_000_000)) < 5


def test_running_out_of_memory_halves_the_budget(structures, monkeypatch):
    potential, run, tried = build(), Potential.run, []

    def small_machine(self, graph, request, *, memory_bytes, **options):
        tried.append((graph.n_graphs, memory_bytes))
        if graph.n_graphs > 2:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 99 bytes")
        return run(self, graph, request, memory_bytes=memory_bytes, **options)

    graphs = [potential.graph(atoms) for atoms in structures]
    expected = [float(one.energy) for one in Predictor(potential).predict(graphs, ["energy"])]
    monkeypatch.setattr(Potential, "run", small_machine)
    predictor = Predictor(potential, memory_bytes=1 << 30)
    assert [float(one.energy) for one in predictor.predict(graphs, ["energy"])] == pytest.approx(expected)
    assert [size for size, _ in tried] == [5, 3, 2, 1, 2]
    assert predictor.memory_bytes == 1 << 28

    def broken(*_, **__):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory")

    monkeypatch.setattr(Potential, "run", broken)
    with pytest.raises(RuntimeError, match="can't allocate"):
        predictor.predict_one(graphs[0], ["energy"])
    monkeypatch.setattr(Potential, "run", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        predictor.predict_one(graphs[0], ["energy"])


def test_a_committee_averages(structures):
    members = [build(0), build(1, cutoff=4.5)]
    predictor = Predictor(Committee(members))
    assert predictor.committee.graph_of_member == (0, 1)
    graphs = [[member.graph(atoms) for member in members] for atoms in structures]
    single = [[float(member.predict(atoms, ("energy",)).energy) for member in members] for atoms in structures]
    for found, energies in zip(predictor.predict(graphs, ["energy_var"]), single, strict=True):
        values = torch.tensor(energies, dtype=torch.float64)
        assert found.energy_comm[0].tolist() == pytest.approx(energies)
        assert float(found.energy) == pytest.approx(float(values.mean()))
        assert float(found.energy_var) == pytest.approx(float(values.var(correction=0)))


def test_capabilities_answer_once():
    decoder = {"kind": "mlp", "channels": 8, "norm": "layer"}
    direct = build(forces="direct", decoder=decoder).capabilities
    assert direct.force_kinds == ("gradient", "direct")
    assert "stress" in direct.properties("gradient") and "stress" not in direct.properties("direct")
    assert "separate output" in direct.missing("direct")["stress"]
    assert direct.request(["stress", "forces"]).forces == "direct"
    gradient = build().capabilities
    with pytest.raises(InputError, match="has no force decoder"):
        gradient.request(["forces"], "direct")
    assert "energy_frame_std" in gradient.properties() and "energy_frame_std" not in gradient.properties(frames="one")
    energies_only = build(forces="none").capabilities.properties()
    assert "energies" in energies_only and not {"forces", "stress", "forces_frame_std"} & set(energies_only)
    assert "energies" not in build(jumping="concat_energies").capabilities.properties()
    assert not gradient.request(["energy", "energies"]).gradient and gradient.request(None).gradient
