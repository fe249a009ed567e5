"""Lengths of edges and the elements at their ends, for tables of pairs of elements."""

from typing import NamedTuple

import torch
from torch import Tensor

from faenet_calc import elements
from faenet_calc.graphs.graph import AtomGraph


class EdgeLengths(NamedTuple):
    """Squared lengths (Å²) of edges and the pair of elements at their ends, Z₁ (MAX_Z + 1) + Z₂, [n_edges] each."""

    squared: Tensor
    pair: Tensor

    @classmethod
    def of(cls, graph: AtomGraph, vectors: Tensor) -> "EdgeLengths":
        """From edge vectors [n_edges, 3] (Å); without gradient."""
        vectors = vectors.detach()
        first = (graph.atomic_numbers * (elements.MAX_Z + 1)).index_select(0, graph.centre)
        pair = first.add_(graph.atomic_numbers.index_select(0, graph.neighbor))
        return cls(torch.linalg.vecdot(vectors, vectors), pair)
