"""Embeddings of atoms and edges.

| symbol | here |
|---|---|
| h_i⁰ | [n_atoms, H] of :class:`AtomEmbedding` |
| r_ij, d_ij | ``vectors`` [n_edges, 3], ``distances`` [n_edges] |
| e_ij | [n_edges, F], in blocks of columns: :class:`EdgeStates` |
| σ | ``act`` |
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from faenet_calc import elements
from faenet_calc.network.config import AtomEmbeddingConfig, ModelConfig
from faenet_calc.network.messages import Act, gather_sum


class GaussianBasis(nn.Module):
    """Gaussians on an even grid from 0 to the cutoff: exp(-(d - μ)² / 2Δμ²)."""

    offset: Tensor

    def __init__(self, cutoff: float, n_gaussians: int) -> None:
        super().__init__()
        self.register_buffer("offset", torch.linspace(0.0, cutoff, n_gaussians))

    def forward(self, distances: Tensor) -> Tensor:
        """[n, G] from distances [n] (Å)."""
        width = self.offset[1] - self.offset[0]
        return torch.exp(-0.5 * ((distances[:, None] - self.offset) / width).square())


def envelope(distances: Tensor, cutoff: float, power: int) -> Tensor:
    """Polynomial cutoff of Gasteiger et al. (DimeNet, 2020), zero with two derivatives at the cutoff.

    u(x) = 1 - (p+1)(p+2)/2 x^p + p(p+2) x^(p+1) - p(p+1)/2 x^(p+2),  x = d / cutoff.
    """
    x = (distances / cutoff).clamp(max=1.0)
    p = power
    return 1 - x.pow(p) * ((p + 1) * (p + 2) / 2 - p * (p + 2) * x + p * (p + 1) / 2 * x.square())


class ElementProperties(nn.Module):
    """Physical properties, period and group of every element, stored with the weights (upstream's ``phys_emb``)."""

    properties: Tensor
    period: Tensor
    group: Tensor

    def __init__(self, config: AtomEmbeddingConfig) -> None:
        super().__init__()
        rows = config.n_elements + 1
        if config.properties == "upstream":
            table = torch.zeros(rows, len(elements.UPSTREAM_PROPERTY_NAMES))
            known = torch.tensor(elements.upstream_properties()).float()[:rows]
            table[: len(known)] = known
            self.register_buffer("properties", table)
        elif config.properties == "modern":
            self.register_buffer("properties", torch.tensor(elements.properties()).float()[:rows])
        self.register_buffer("period", torch.tensor(elements.period()).long()[:rows])
        self.register_buffer("group", torch.tensor(elements.group()).long()[:rows])


class AtomEmbedding(nn.Module):
    """h⁰ = MLP(Z ‖ tag ‖ properties ‖ period ‖ group) (paper, "Embedding Block")."""

    def __init__(self, config: AtomEmbeddingConfig, hidden: int, act: Act) -> None:
        super().__init__()
        self.act = act
        pg, tag = config.group_period_channels, config.tag_channels
        self.uses_properties = config.properties != "none"
        self.phys_emb = ElementProperties(config)
        n_properties = self.phys_emb.properties.shape[1] if self.uses_properties else 0
        self.phys_lin = (
            nn.Linear(n_properties, config.properties_channels)
            if self.uses_properties and config.properties_channels
            else None
        )
        width = config.properties_channels if self.phys_lin is not None else n_properties
        number_channels = hidden - tag - width - 2 * pg
        if number_channels < 1:
            raise ValueError(
                f"hidden_channels={hidden} leaves {number_channels} channels for the atomic number after tag ({tag}), "
                f"properties ({width}) and 2 x group/period ({pg}); raise hidden_channels or lower the others"
            )
        self.emb = nn.Embedding(config.n_elements + 1, number_channels)
        self.tag_embedding = nn.Embedding(3, tag) if tag else None
        self.period_embedding = nn.Embedding(8, pg) if pg else None
        self.group_embedding = nn.Embedding(20, pg) if pg else None
        self.lin = nn.Linear(hidden, hidden)
        self.lin_2 = nn.Linear(hidden, hidden) if config.second_layer else None

    def forward(self, numbers: Tensor, tags: Tensor) -> Tensor:
        """[n_atoms, H] from atomic numbers [n_atoms] and tags [n_atoms]."""
        parts = [self.emb(numbers)]
        if self.tag_embedding is not None:
            parts.append(self.tag_embedding(tags))
        if self.uses_properties:
            known = self.phys_emb.properties[numbers]
            parts.append(known if self.phys_lin is None else self.phys_lin(known))
        if self.period_embedding is not None and self.group_embedding is not None:
            parts.append(self.period_embedding(self.phys_emb.period[numbers]))
            parts.append(self.group_embedding(self.phys_emb.group[numbers]))
        h = self.act(self.lin(torch.cat(parts, dim=1)))
        return h if self.lin_2 is None else self.act(self.lin_2(h))


def real_harmonics(vectors: Tensor, distances: Tensor) -> Tensor:
    """[n, 15] real spherical harmonics l = 1, 2, 3 of directions, each l normalised to unit mean square."""
    x, y, z = (vectors / distances[:, None].clamp(min=1e-9)).unbind(dim=1)
    s3, s5, s15, s7 = math.sqrt(3), math.sqrt(5), math.sqrt(15), math.sqrt(7)
    s35, s105, s21 = math.sqrt(35 / 8), math.sqrt(105), math.sqrt(21 / 8)
    return torch.stack(
        [
            s3 * x, s3 * y, s3 * z,
            s15 * x * y, s15 * y * z, s5 * (3 * z * z - 1) / 2, s15 * x * z, s15 * (x * x - y * y) / 2,
            s35 * y * (3 * x * x - y * y), s105 * x * y * z, s21 * y * (5 * z * z - 1), s7 * z * (5 * z * z - 3) / 2,
            s21 * x * (5 * z * z - 1), s105 * z * (x * x - y * y) / 2, s35 * x * (x * x - 3 * y * y),
        ],
        dim=1,
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True, eq=False)
class EdgeStates:
    """e [n_edge_copies, F] in two blocks of columns; the second depends on distances alone and has fewer rows.

    Attributes:
        own: [n_edge_copies, ...] the columns that differ from copy to copy.
        shared: [n_distances, ...] the columns after them, or None.
        row: [n_edge_copies] row of ``shared`` for each copy.
    """

    own: Tensor
    shared: Tensor | None = None
    row: Tensor | None = None

    def whole(self) -> Tensor:
        """[n_edge_copies, F]."""
        if self.shared is None or self.row is None:
            return self.own
        return torch.cat([self.own, self.shared.index_select(0, self.row)], dim=1)

    def linear(self, weight: Tensor, bias: Tensor, *looked_up: tuple[Tensor, Tensor]) -> Tensor:
        """[n_edge_copies, out] W e + b + Σ values[index] for pairs (values, index), each block once per row."""
        terms = list(looked_up)
        if self.shared is not None and self.row is not None:
            weight, for_shared = weight.split([self.own.shape[1], self.shared.shape[1]], dim=1)
            terms.append((functional.linear(self.shared, for_shared), self.row))
        if not terms:
            return functional.linear(self.own, weight, bias)
        (values, index), *others = terms
        return gather_sum((values + bias, index), *others).addmm_(self.own, weight.t())


class EdgeEmbedding(nn.Module):
    """e = σ(MLP(r ‖ RBF(d))) (paper Eq. 6): a directional part per frame and a radial part shared by all frames.

    The paper's ablations change the directional part (r, or spherical harmonics of it) or leave out the radial one.
    """

    def __init__(self, config: ModelConfig, filters: int, channels: int, act: Act) -> None:
        super().__init__()
        self.act = act
        self.features = config.edge_features
        directional = {"r_and_distance": 3, "r": 3, "harmonics": 15, "all": 18}[self.features]
        has_radial = self.features in ("r_and_distance", "all")
        width = filters // 2 if has_radial else filters
        self.lin_e1 = nn.Linear(directional, width)
        self.lin_e12 = nn.Linear(config.gaussians, filters - width) if has_radial else None
        self.lin_e2 = nn.Linear(filters, channels) if config.atoms.second_layer else None

    def forward(self, vectors: Tensor, distances: Tensor, basis: Tensor, row: Tensor | None) -> EdgeStates:
        """States of edge copies.

        Args:
            vectors: [n_edge_copies, 3] (Å) in their frames.
            distances: [n_distances] (Å).
            basis: [n_distances, G] Gaussians of the distances.
            row: [n_edge_copies] row of ``distances`` for each copy; None where they are already per copy.
        """
        if self.features in ("r_and_distance", "r"):
            directional = vectors
        else:
            harmonics = real_harmonics(vectors, distances if row is None else distances.index_select(0, row))
            directional = harmonics if self.features == "harmonics" else torch.cat([vectors, harmonics], dim=1)
        own, shared = self.act(self.lin_e1(directional)), None
        if self.lin_e12 is not None:
            shared = self.act(self.lin_e12(basis))
            if row is None:
                own, shared = torch.cat([own, shared], dim=1), None
        e = EdgeStates(own=own, shared=shared, row=row)
        return e if self.lin_e2 is None else EdgeStates(own=self.act(e.linear(self.lin_e2.weight, self.lin_e2.bias)))
