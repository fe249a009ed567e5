"""Where the repulsion acts, found by compiled code and by operators."""

import pytest
import torch
from ase import Atoms
from ase.build import add_adsorbate, bulk, fcc111, molecule

from faenet_calc.graphs.convert import to_batch
from faenet_calc.graphs.graph import AtomGraph
from faenet_calc.network.native import library, unavailable
from faenet_calc.potential import repulsion
from faenet_calc.potential.config import RepulsionConfig
from faenet_calc.potential.edge_lengths import EdgeLengths
from faenet_calc.potential.repulsion import close_contacts

CUTOFF = 5.0


def _acts(graph: AtomGraph) -> bool:
    lengths = EdgeLengths.of(graph, graph.edge_vectors())
    return close_contacts(RepulsionConfig(kind="zbl"), graph, lengths, CUTOFF) is not None


def _scaled(symbol: str, factor: float) -> Atoms:
    atoms = bulk(symbol, cubic=True)
    atoms.set_cell(factor * atoms.cell, scale_atoms=True)
    return atoms


def _carbon_monoxide(height: float) -> Atoms:
    slab = fcc111("Cu", (2, 2, 3), vacuum=8.0)
    add_adsorbate(slab, molecule("CO"), height, "ontop", mol_index=1)
    return slab


@pytest.mark.skipif(library() is None, reason=f"no compiled library: {unavailable()}")
def test_compiled_code_finds_the_repulsion_where_operators_do(monkeypatch):
    every = [_scaled("Cu", 0.80 + 0.01 * step) for step in range(25)]
    every += [_carbon_monoxide(0.6 + 0.05 * step) for step in range(30)]
    every += [Atoms("H"), Atoms("H2", [[0, 0, 0], [0, 0, 0.4]])]
    graphs = [to_batch(atoms, cutoff=CUTOFF) for atoms in every]
    graphs += [AtomGraph.batch([graphs[24], graph]) for graph in graphs]  # a structure without repulsion comes first
    compiled = [_acts(graph) for graph in graphs]
    monkeypatch.setattr(repulsion, "_compiled_scan", lambda: None)
    assert compiled == [_acts(graph) for graph in graphs]
    assert 20 < sum(compiled) < len(compiled) - 20


def test_unknown_atomic_numbers_raise():
    graph = to_batch(molecule("CO"), cutoff=CUTOFF)
    for number in (400, -1):
        with pytest.raises(IndexError):
            _acts(graph.replace(atomic_numbers=torch.tensor([number, number])))
