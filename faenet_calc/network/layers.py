"""Interaction blocks, output blocks and force decoders of FAENet.

Parameter names follow upstream's state dicts, so that their weights load key by key.

| symbol | here |
|---|---|
| h_i, h_j | ``h`` [n_nodes, H], looked up at ``centre`` and ``neighbor`` |
| e_ij | ``e`` [n_edges, F], as :class:`~faenet_calc.network.embeddings.EdgeStates` |
| f_ij | ``filters`` [n_edges, F] |
| σ | ``act`` |
"""

import math
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from faenet_calc.frames.frames import FramedGraph
from faenet_calc.graphs.graph import counts
from faenet_calc.network.config import DecoderConfig, ModelConfig
from faenet_calc.network.embeddings import EdgeStates
from faenet_calc.network.messages import Act, swish, swish_messages


class EdgeNodeLinear(nn.Linear):
    """Linear map of [e, h_j, h_i], with the node parts computed once per node if ``split``.

    W [e, h_j, h_i] + b = W_e e + (W_j h)[neighbor] + (W_i h + b)[centre]: the same function with fewer operations.
    """

    def __init__(self, edge_channels: int, node_channels: int, out_channels: int, *, split: bool) -> None:
        super().__init__(edge_channels + 2 * node_channels, out_channels)
        self.widths, self.split = [edge_channels, node_channels, node_channels], split

    def on_edges(self, e: EdgeStates, h: Tensor, neighbor: Tensor, centre: Tensor) -> Tensor:
        """[n_edges, out] from edges [n_edges, F] and nodes [n_nodes, H]."""
        if not self.split:
            return self(torch.cat([e.whole(), h.index_select(0, neighbor), h.index_select(0, centre)], dim=1))
        for_edge, for_neighbor, for_centre = self.weight.split(self.widths, dim=1)
        of_neighbor, of_centre = functional.linear(h, for_neighbor), functional.linear(h, for_centre)
        return e.linear(for_edge, self.bias, (of_centre, centre), (of_neighbor, neighbor))


class GraphNorm(nn.Module):
    """Cai et al. (2021), over the nodes of each frame: weight · o / √(<o²> + ε) + bias, o = x - mean_scale · <x>."""

    def __init__(self, channels: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))
        self.mean_scale = nn.Parameter(torch.ones(channels))

    def forward(self, x: Tensor, framed: FramedGraph) -> Tensor:
        """[n_nodes, F] normalised nodes."""
        frame = framed.frame_of_node
        size = counts(frame, framed.n_frames).clamp(min=1).to(x.dtype)[:, None]
        mean = framed.sum_over_nodes(x) / size
        o = x - mean.index_select(0, frame) * self.mean_scale
        deviation = (framed.sum_over_nodes(o.square()) / size + self.eps).sqrt()
        return self.weight * o / deviation.index_select(0, frame) + self.bias


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
        hidden, filters, edge = config.hidden_channels, message_width(config), edge_width(config)
        updown = "updown" in self.kind
        self.scale = 1.0 / math.sqrt(config.mean_neighbors)
        self.graph_norm = GraphNorm(filters if updown else hidden) if config.graph_norm else None
        self.lin_geom: nn.Linear | None = None
        if self.kind == "base":
            self.lin_geom = EdgeNodeLinear(edge, hidden, hidden, split=config.split_filter)
        elif self.kind == "updownscale_base":
            self.lin_geom = EdgeNodeLinear(edge, hidden, filters, split=config.split_filter)
        elif self.kind in ("updownscale", "updown_local_env"):
            self.lin_geom = nn.Linear(edge, filters)
        elif self.kind == "edge_filter":
            self.lin_geom = nn.Linear(edge, hidden)
        if updown:
            self.lin_down = nn.Linear(hidden, filters)
            self.lin_up = nn.Linear(filters + edge if self.kind == "updown_local_env" else filters, hidden)
        else:
            self.lin_h = nn.Linear(hidden, hidden)
        self.other_mlp = nn.Linear(hidden, hidden) if config.extra_layer else None

    def forward(self, h: Tensor, e: EdgeStates, cutoff: Tensor | None, framed: FramedGraph) -> Tensor:
        """Δh [n_nodes, H] from nodes h [n_nodes, H], edges e and the envelope [n_edge_copies, 1]."""
        total = self._messages(h, e, cutoff, framed)
        if self.graph_norm is not None:
            total = self.act(self.graph_norm(total, framed))
        if self.kind == "updown_local_env":
            update = self.lin_up(torch.cat([total, self._gather(e.whole(), cutoff, framed)], dim=1))
        elif self.kind == "attention":
            update = total
        else:
            update = self.act((self.lin_up if "updown" in self.kind else self.lin_h)(total))
        return update if self.other_mlp is None else self.act(self.other_mlp(update))

    def _messages(self, h: Tensor, e: EdgeStates, cutoff: Tensor | None, framed: FramedGraph) -> Tensor:
        """Σ_j x_j ⊙ f_ij at every node, [n_nodes, F]."""
        source = self._source(h)
        if self.kind == "simple":
            filters = e.whole()
        elif self.kind == "attention":
            ends = h.index_select(0, framed.centre) * h.index_select(0, framed.neighbor)
            filters = (ends * e.whole()).sum(dim=1, keepdim=True) / math.sqrt(h.shape[1])
        else:
            z = self._filter_argument(h, e, framed)
            if self.kind != "updown_local_env" and self.act is swish:
                return self._scaled(swish_messages(z, source, cutoff, framed.centre, framed.neighbor))
            filters = z if self.kind == "updown_local_env" else self.act(z)
        return self._gather(source.index_select(0, framed.neighbor) * filters, cutoff, framed)

    def _source(self, h: Tensor) -> Tensor:
        if "updown" in self.kind:
            return self.act(self.lin_down(h))
        return self.lin_h(h) if self.kind == "attention" else h

    def _filter_argument(self, h: Tensor, e: EdgeStates, framed: FramedGraph) -> Tensor:
        """[n_edge_copies, F] what lin_geom gives."""
        assert self.lin_geom is not None
        if isinstance(self.lin_geom, EdgeNodeLinear):
            return self.lin_geom.on_edges(e, h, framed.neighbor, framed.centre)
        return e.linear(self.lin_geom.weight, self.lin_geom.bias)

    def _gather(self, message: Tensor, cutoff: Tensor | None, framed: FramedGraph) -> Tensor:
        """Scaled sum of messages at their centres, [n_nodes, F]."""
        weighted = message if cutoff is None else message * cutoff
        return self._scaled(message.new_zeros(framed.n_nodes, message.shape[1]).index_add(0, framed.centre, weighted))

    def _scaled(self, total: Tensor) -> Tensor:
        return total if self.scale == 1.0 else total * self.scale


class FeedForward(nn.Module):
    """Δh_i = lin_out σ(lin_in h_i), an atom by itself; zero until it is trained."""

    def __init__(self, hidden: int, width: int, act: Act) -> None:
        super().__init__()
        self.act = act
        self.lin_in = nn.Linear(hidden, width)
        self.lin_out = nn.Linear(width, hidden)

    def forward(self, h: Tensor) -> Tensor:
        """Δh [n_nodes, H] from nodes h [n_nodes, H]."""
        return cast(Tensor, self.lin_out(self.act(self.lin_in(h))))


def message_width(config: ModelConfig) -> int:
    """Width of the messages: H where edges multiply atom states directly, F elsewhere."""
    return config.hidden_channels if config.message in ("simple", "attention") else config.filters


def edge_width(config: ModelConfig) -> int:
    """Width of the edge embedding: its own or that of the messages."""
    return config.edge_channels or message_width(config)


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

    def features(self, h: Tensor, alpha: Tensor | None) -> Tensor:
        """[n_nodes, H / 2] what ``lin2`` multiplies, weights of the atoms included."""
        features: Tensor = self.act(self.lin1(h))
        if self.w_lin is not None:
            features = features * self.w_lin(h)
        return features if alpha is None else features * alpha[:, None]


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
