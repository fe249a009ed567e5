"""The parts of FAENet (L2, assembled in ``faenet.py``): embeddings, interactions, output blocks, force decoders.

Parameter names follow upstream's state dicts, so that their weights load key by key.

| symbol | here |
|---|---|
| h_i, h_j | ``h`` [n_nodes, H], looked up at ``centre`` and ``neighbor`` |
| e_ij | ``e`` [n_edges, F] |
| f_ij | ``filters`` [n_edges, F] |
| r_ij, d_ij | ``vectors`` [n_edges, 3], ``distances`` [n_edges] |
| σ | ``act`` |
"""

import math
from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch_geometric.nn import GraphNorm

from faenet_calc import elements
from faenet_calc.config import Activation, AtomEmbeddingConfig, DecoderConfig, ModelConfig
from faenet_calc.frames import FramedGraph

Act = Callable[[Tensor], Tensor]


def activation(name: Activation) -> Act:
    """The activation function of a name ("swish" is silu)."""
    return cast(Act, getattr(functional, "silu" if name == "swish" else name))


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


class EdgeEmbedding(nn.Module):
    """e = σ(MLP(r ‖ RBF(d))) (paper Eq. 6): a directional part per frame and a radial part shared by all frames.

    The paper's ablations change the directional part (r, or spherical harmonics of it) or leave out the radial one.
    """

    def __init__(self, config: ModelConfig, filters: int, act: Act) -> None:
        super().__init__()
        self.act = act
        self.features = config.edge_features
        directional = {"r_and_distance": 3, "r": 3, "harmonics": 15, "all": 18}[self.features]
        has_radial = self.features in ("r_and_distance", "all")
        width = filters // 2 if has_radial else filters
        self.lin_e1 = nn.Linear(directional, width)
        self.lin_e12 = nn.Linear(config.gaussians, filters - width) if has_radial else None
        self.lin_e2 = nn.Linear(filters, filters) if config.atoms.second_layer else None

    def radial(self, basis: Tensor) -> Tensor | None:
        """[n_edges, F - F//2] the part that depends on distances [n_edges, G] alone, once per edge."""
        return None if self.lin_e12 is None else self.lin_e12(basis)

    def forward(self, vectors: Tensor, distances: Tensor, radial: Tensor | None) -> Tensor:
        """[n_edge_copies, F] from in-frame vectors, their lengths and the radial part."""
        if self.features in ("r_and_distance", "r"):
            directional = vectors
        else:
            harmonics = real_harmonics(vectors, distances)
            directional = harmonics if self.features == "harmonics" else torch.cat([vectors, harmonics], dim=1)
        part = self.lin_e1(directional)
        e = self.act(part if radial is None else torch.cat([part, radial], dim=1))
        return e if self.lin_e2 is None else self.act(self.lin_e2(e))


class EdgeNodeLinear(nn.Linear):
    """Linear map of [e, h_j, h_i], with the node parts computed once per node if ``split``.

    W [e, h_j, h_i] + b = W_e e + (W_j h)[neighbor] + (W_i h + b)[centre]: the same function with fewer operations.
    """

    def __init__(self, edge_channels: int, node_channels: int, out_channels: int, *, split: bool) -> None:
        super().__init__(edge_channels + 2 * node_channels, out_channels)
        self.widths, self.split = [edge_channels, node_channels, node_channels], split

    def on_edges(self, e: Tensor, h: Tensor, neighbor: Tensor, centre: Tensor) -> Tensor:
        """[n_edges, out] from edges [n_edges, F] and nodes [n_nodes, H]."""
        if not self.split:
            return self(torch.cat([e, h.index_select(0, neighbor), h.index_select(0, centre)], dim=1))
        for_edge, for_neighbor, for_centre = self.weight.split(self.widths, dim=1)
        of_neighbor = functional.linear(h, for_neighbor).index_select(0, neighbor)
        of_centre = functional.linear(h, for_centre, self.bias).index_select(0, centre)
        return torch.addmm(of_neighbor + of_centre, e, for_edge.t())


class Interaction(nn.Module):
    """One interaction block: Δh_i = MLP(Σ_j x_j ⊙ f_ij) (paper Eq. 7).

    ``message`` chooses the filter f, the source x and the update:

    | kind | f | x | Δ |
    |---|---|---|---|
    | simple | e | h | σ(lin_h m) |
    | edge_filter | σ(lin_geom e) | h | σ(lin_h m) |
    | base | σ(lin_geom[e, h_j, h_i]) | h | σ(lin_h m) |
    | updownscale | σ(lin_geom e) | σ(lin_down h) | σ(lin_up m) |
    | updownscale_base | σ(lin_geom[e, h_j, h_i]) | σ(lin_down h) | σ(lin_up m) |
    | updown_local_env | lin_geom e | σ(lin_down h) | lin_up[m, Σ_j e] |
    | attention | h_i·(e ⊙ h_j) / √F, one number per edge | lin_h h | m |
    """

    def __init__(self, config: ModelConfig, act: Act) -> None:
        super().__init__()
        self.kind, self.act = config.message, act
        hidden, filters = config.hidden_channels, edge_width(config)
        updown = "updown" in self.kind
        self.scale = 1.0 / math.sqrt(config.mean_neighbors)
        self.graph_norm = GraphNorm(filters if updown else hidden) if config.graph_norm else None
        self.lin_geom: nn.Linear | None = None
        if self.kind == "base":
            self.lin_geom = EdgeNodeLinear(filters, hidden, hidden, split=config.split_filter)
        elif self.kind == "updownscale_base":
            self.lin_geom = EdgeNodeLinear(filters, hidden, filters, split=config.split_filter)
        elif self.kind in ("updownscale", "updown_local_env"):
            self.lin_geom = nn.Linear(filters, filters)
        elif self.kind == "edge_filter":
            self.lin_geom = nn.Linear(filters, hidden)
        if updown:
            self.lin_down = nn.Linear(hidden, filters)
            self.lin_up = nn.Linear(2 * filters if self.kind == "updown_local_env" else filters, hidden)
        else:
            self.lin_h = nn.Linear(hidden, hidden)
        self.other_mlp = nn.Linear(hidden, hidden) if config.extra_layer else None

    def forward(self, h: Tensor, e: Tensor, cutoff: Tensor | None, framed: FramedGraph) -> Tensor:
        """Δh [n_nodes, H] from nodes h [n_nodes, H], edges e [n_edge_copies, F] and the envelope [n_edge_copies, 1]."""
        source = self._source(h).index_select(0, framed.neighbor)
        message = source * self._filter(h, e, framed)
        total = self._gather(message, cutoff, framed)
        if self.graph_norm is not None:
            total = self.act(self.graph_norm(total, framed.frame_of_node, framed.n_frames))
        if self.kind == "updown_local_env":
            update = self.lin_up(torch.cat([total, self._gather(e, cutoff, framed)], dim=1))
        elif self.kind == "attention":
            update = total
        else:
            update = self.act((self.lin_up if "updown" in self.kind else self.lin_h)(total))
        return update if self.other_mlp is None else self.act(self.other_mlp(update))

    def _source(self, h: Tensor) -> Tensor:
        if "updown" in self.kind:
            return self.act(self.lin_down(h))
        return self.lin_h(h) if self.kind == "attention" else h

    def _filter(self, h: Tensor, e: Tensor, framed: FramedGraph) -> Tensor:
        if self.kind == "simple":
            return e
        if self.kind == "attention":
            ends = h.index_select(0, framed.centre) * h.index_select(0, framed.neighbor)
            return (ends * e).sum(dim=1, keepdim=True) / math.sqrt(e.shape[1])
        if isinstance(self.lin_geom, EdgeNodeLinear):
            return self.act(self.lin_geom.on_edges(e, h, framed.neighbor, framed.centre))
        assert self.lin_geom is not None
        filters = self.lin_geom(e)
        return filters if self.kind == "updown_local_env" else self.act(filters)

    def _gather(self, message: Tensor, cutoff: Tensor | None, framed: FramedGraph) -> Tensor:
        """Scaled sum of messages at their centres, [n_nodes, F]."""
        weighted = message if cutoff is None else message * cutoff
        total = message.new_zeros(framed.n_nodes, message.shape[1]).index_add(0, framed.centre, weighted)
        return total if self.scale == 1.0 else total * self.scale


def edge_width(config: ModelConfig) -> int:
    """Width of the edge embedding: H where edges multiply atom states directly, F elsewhere."""
    return config.hidden_channels if config.message in ("simple", "attention") else config.filters


class AtomOutput(nn.Module):
    """y_i = lin2 σ(lin1 h_i), optionally weighted by α(h_i) (paper, "Output Block")."""

    def __init__(self, hidden: int, weighted: bool, act: Act) -> None:
        super().__init__()
        self.act = act
        self.lin1 = nn.Linear(hidden, hidden // 2)
        self.lin2 = nn.Linear(hidden // 2, 1)
        self.w_lin = nn.Linear(hidden, 1) if weighted else None

    def forward(self, h: Tensor, alpha: Tensor | None) -> Tensor:
        """[n_nodes] from atom states [n_nodes, H] and optional weights [n_nodes]."""
        y = self.lin2(self.act(self.lin1(h)))[:, 0]
        if self.w_lin is not None:
            y = y * self.w_lin(h)[:, 0]
        return y if alpha is None else y * alpha


class _Act(nn.Module):
    def __init__(self, act: Act) -> None:
        super().__init__()
        self.act = act

    def forward(self, x: Tensor) -> Tensor:
        return self.act(x)


class ForceDecoder(nn.Module):
    """Direct forces in the frame, [n_nodes, 3] from the final atom states (paper, Φ²)."""

    def __init__(self, config: DecoderConfig, hidden: int, act: Act) -> None:
        super().__init__()
        width, self.kind = config.channels, config.kind

        def norm(size: int) -> list[nn.Module]:
            if config.norm == "batch":
                return [nn.BatchNorm1d(size)]
            return [nn.LayerNorm(size)] if config.norm == "layer" else [nn.Identity()]

        def layer(n_in: int, n_out: int) -> nn.Sequential:
            return nn.Sequential(nn.Linear(n_in, n_out), *norm(n_out), _Act(act))

        def head(n_in: int) -> nn.Sequential:
            return nn.Sequential(nn.Linear(n_in, width), *norm(width), _Act(act), nn.Linear(width, 3))

        if self.kind == "simple":
            self.model = nn.Sequential(nn.Linear(hidden, width), _Act(act), nn.Linear(width, 3))
        elif self.kind == "mlp":
            self.model = head(hidden)
        elif self.kind == "res":
            self.mlp_1, self.mlp_2, self.mlp_3 = layer(hidden, hidden), layer(hidden, hidden), head(hidden)
        else:
            self.mlp_1, self.mlp_2, self.mlp_3 = layer(hidden, width), layer(width, width), layer(width, hidden)
            self.mlp_4 = head(hidden)

    def forward(self, h: Tensor) -> Tensor:
        """[n_nodes, 3]."""
        if self.kind in ("simple", "mlp"):
            return cast(Tensor, self.model(h))
        if self.kind == "res":
            return cast(Tensor, self.mlp_3(self.mlp_2(self.mlp_1(h)) + h))
        return cast(Tensor, self.mlp_4(self.mlp_3(self.mlp_2(self.mlp_1(h))) + h))
