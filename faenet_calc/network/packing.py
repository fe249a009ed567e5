"""The weights of a FAENet in the form that the compiled engine reads.

Widths are padded with zeros to whole panels of the engine's matrix products. What depends on the distance of an edge
alone is tabulated as a cubic spline: a part of the edge embedding or, where the embedding has one layer, of the filters
of every interaction. Directional features of edges, functions of three numbers, depend on each other linearly: those
that the others give to within rounding are left out. Kinds of messages that leave out a part of the filter have zeros
in its place.
"""

import ctypes
import math
from dataclasses import dataclass

import numpy as np
import scipy.linalg
import torch
from torch import Tensor
from torch.nn import functional

from faenet_calc.network.faenet import FAENet
from faenet_calc.network.layers import EdgeNodeLinear, FeedForward, Interaction, edge_width

MESSAGES = ("edge_filter", "base", "updownscale", "updownscale_base")
"""Kinds of messages of the form Σ_j x_j ⊙ σ(W [e, h_j, h_i])."""

JUMPING = ("none", "add", "concat", "concat_energies")
"""Jumping connections that are sums over the states of atoms."""

DIRECTIONAL_TOLERANCE = 1e-7
"""Relative error of directional features that are linear combinations of others."""

_FEWEST_INTERVALS = 1024
_INTERVALS_PER_GAUSSIAN = 16  # the error of the spline is then below 2e-7 of its values


class CWeights(ctypes.Structure):
    """``Weights`` of ``native/fused.h``."""

    sizes = (
        "kinds", "hidden", "filters", "edge", "directional", "feed_forward", "output", "layers", "intervals", "power",
        "second_layer", "active_source", "graph_norm", "extra_layer", "weighted", "first_read",
    )  # fmt: skip
    numbers = ("cutoff", "message_scale", "output_bias", "head_bias", "norm_epsilon")
    arrays = (
        "atom_states", "kind_factor", "direction_weight", "direction_bias", "radial", "edge_weight", "filter_weight",
        "node_weight", "node_bias", "norm_weight", "norm_bias", "norm_mean_scale", "up_weight", "up_bias",
        "extra_weight", "extra_bias", "in_weight", "in_bias", "out_weight", "out_bias", "output_weight",
        "output_hidden_bias", "energy_weight", "head_weight", "mixing",
    )  # fmt: skip
    _fields_ = (
        *((name, ctypes.c_int64) for name in sizes),
        *((name, ctypes.c_double) for name in numbers),
        *((name, ctypes.c_void_p) for name in arrays),
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class PackedWeights:
    """Weights as a C structure.

    Attributes:
        hidden: Padded width of the atom states.
        output: Padded width of the output block.
        arrays: Tensors that the structure points to, by name.
        structure: Valid as long as this object exists.
    """

    hidden: int
    output: int
    arrays: dict[str, Tensor]
    structure: CWeights

    @classmethod
    @torch.no_grad()
    def of(cls, model: FAENet, panel: int) -> "PackedWeights":
        """Pack the weights of a model for products with panels of this many columns."""
        config, head = model.config, model.output_block
        sizes, arrays = _arrays(model, panel)
        norm = _blocks(model)[0].graph_norm if config.interactions else None
        structure = CWeights(
            **sizes,
            layers=config.interactions,
            intervals=_intervals(model),
            power=config.envelope_power,
            second_layer=config.atoms.second_layer,
            active_source=_has_own_source(model),
            graph_norm=config.graph_norm,
            extra_layer=config.extra_layer,
            weighted=head.w_lin is not None,
            first_read=first_read(model),
            cutoff=config.cutoff,
            message_scale=1.0 / math.sqrt(config.mean_neighbors),
            output_bias=float(head.lin2.bias.detach()),
            head_bias=0.0 if head.w_lin is None else float(head.w_lin.bias.detach()),
            norm_epsilon=0.0 if norm is None else norm.eps,
            **{name: array.data_ptr() for name, array in arrays.items()},
        )
        return cls(hidden=sizes["hidden"], output=sizes["output"], arrays=arrays, structure=structure)


def first_read(model: FAENet) -> int:
    """The first of the states 0 to ``interactions`` that the output block reads."""
    return model.config.interactions if model.config.jumping == "none" else 0


def _blocks(model: FAENet) -> list[Interaction]:
    return [block for block in model.interaction_blocks if isinstance(block, Interaction)]


def _has_own_source(model: FAENet) -> bool:
    """Whether messages carry σ(lin_down h) instead of h."""
    return "updown" in model.config.message


def _intervals(model: FAENet) -> int:
    """Number of intervals of the splines, by the width of the Gaussians."""
    return max(_FEWEST_INTERVALS, _INTERVALS_PER_GAUSSIAN * (model.config.gaussians - 1))


def _arrays(model: FAENet, panel: int) -> tuple[dict[str, int], dict[str, Tensor]]:
    """Widths and weights, padded to whole panels, by the names of ``native/fused.h``."""

    def wide(width: int) -> int:
        return -(-width // panel) * panel

    config = model.config
    hidden, output = wide(config.hidden_channels), wide(config.hidden_channels // 2)
    filters = wide(config.filters if _has_own_source(model) else config.hidden_channels)
    embedding, head, blocks = model.edge_embedding, model.output_block, _blocks(model)
    own, used = embedding.lin_e1.out_features, DirectionalBasis.of(model)
    directional, feed_forward = wide(len(used.features)), wide(config.feed_forward)
    edge = wide(edge_width(config)) if config.atoms.second_layer else directional
    parts = [_filter_parts(block, config.hidden_channels) for block in blocks]
    of_edges = [for_edge if config.atoms.second_layer else used.weights(for_edge[:, :own]) for for_edge, *_ in parts]
    node_weights, node_biases = [], []
    for (_, for_neighbor, for_centre, bias), block in zip(parts, blocks, strict=True):
        source, source_bias = torch.eye(config.hidden_channels), torch.zeros(config.hidden_channels)
        if _has_own_source(model):
            source, source_bias = block.lin_down.weight, block.lin_down.bias
        weights = (for_centre, for_neighbor, source)
        node_weights.append(torch.cat([_padded(weight, filters, hidden) for weight in weights]))
        node_biases.append(torch.cat([_padded(b, filters) for b in (bias, torch.zeros_like(bias), source_bias)]))
    ups = [block.lin_up if _has_own_source(model) else block.lin_h for block in blocks]
    extras = [block.other_mlp for block in blocks if block.other_mlp is not None]
    norms = [block.graph_norm for block in blocks if block.graph_norm is not None]
    feed_forward_blocks = [block for block in model.feed_forward_blocks if isinstance(block, FeedForward)]
    no_weight = torch.zeros(0)
    arrays = {
        "atom_states": _padded(_atom_states(model), None, hidden),
        "kind_factor": _kind_factors(model),
        "direction_weight": _padded(embedding.lin_e1.weight[used.features].t(), None, directional),
        "direction_bias": _padded(embedding.lin_e1.bias[used.features], directional),
        "radial": _radial_splines(model, [for_edge for for_edge, *_ in parts], filters, edge),
        "edge_weight": no_weight
        if embedding.lin_e2 is None
        else _padded(used.weights(embedding.lin_e2.weight[:, :own]), edge, directional),
        "filter_weight": _stacked([_padded(weight, filters, edge) for weight in of_edges]),
        "node_weight": _stacked(node_weights),
        "node_bias": _stacked(node_biases),
        "norm_weight": _stacked([_padded(norm.weight, filters) for norm in norms]),
        "norm_bias": _stacked([_padded(norm.bias, filters) for norm in norms]),
        "norm_mean_scale": _stacked([_padded(norm.mean_scale, filters) for norm in norms]),
        "up_weight": _stacked([_padded(up.weight, hidden, filters) for up in ups]),
        "up_bias": _stacked([_padded(up.bias, hidden) for up in ups]),
        "extra_weight": _stacked([_padded(extra.weight, hidden, hidden) for extra in extras]),
        "extra_bias": _stacked([_padded(extra.bias, hidden) for extra in extras]),
        "in_weight": _stacked([_padded(block.lin_in.weight, feed_forward, hidden) for block in feed_forward_blocks]),
        "in_bias": _stacked([_padded(block.lin_in.bias, feed_forward) for block in feed_forward_blocks]),
        "out_weight": _stacked([_padded(block.lin_out.weight, hidden, feed_forward) for block in feed_forward_blocks]),
        "out_bias": _stacked([_padded(block.lin_out.bias, hidden) for block in feed_forward_blocks]),
        "output_weight": _padded(head.lin1.weight, output, hidden),
        "output_hidden_bias": _padded(head.lin1.bias, output),
        "energy_weight": _padded(head.lin2.weight[0], output),
        "head_weight": no_weight if head.w_lin is None else _padded(head.w_lin.weight[0], hidden),
        "mixing": torch.ones(config.interactions + 1) if model.mlp_skip_co is None else model.mlp_skip_co.weight[0],
    }
    sizes = {
        "kinds": len(arrays["atom_states"]),
        "hidden": hidden,
        "filters": filters,
        "edge": edge,
        "directional": directional,
        "feed_forward": feed_forward,
        "output": output,
    }
    return sizes, {name: array.contiguous().clone() for name, array in arrays.items()}


@dataclass(frozen=True, kw_only=True, eq=False)
class DirectionalBasis:
    """Directional features σ(W r + b) of an edge that give all others.

    Attributes:
        features: [n_used] int64, rows of W.
        combination: [n_used, n_features] float64; features = used features @ combination for every r within the cutoff.
    """

    features: Tensor
    combination: Tensor

    @classmethod
    def of(cls, model: FAENet) -> "DirectionalBasis":
        """Choose features by a QR decomposition with pivoting of their values at random points."""
        linear, cutoff = model.edge_embedding.lin_e1, model.config.cutoff
        weight, bias = linear.weight.double(), linear.bias.double()
        n = len(bias)
        generator = torch.Generator().manual_seed(0)
        directions = torch.randn(16 * n, 3, dtype=torch.float64, generator=generator)
        distances = cutoff * torch.rand(16 * n, 1, dtype=torch.float64, generator=generator)
        points = distances * functional.normalize(directions)
        values = functional.silu(points @ weight.t() + bias)
        upper, order = scipy.linalg.qr(values[: 8 * n].numpy(), mode="r", pivoting=True)
        size = np.abs(np.diag(upper))
        rank = max(1, int((size > DIRECTIONAL_TOLERANCE * size[0]).sum()))
        combination = torch.zeros(rank, n, dtype=torch.float64)
        solved = scipy.linalg.solve_triangular(upper[:rank, :rank], upper[:rank])
        combination[:, torch.from_numpy(order).long()] = torch.from_numpy(solved)
        features = torch.from_numpy(order[:rank].astype(np.int64))
        error = (values[:, features] @ combination - values)[8 * n :].square().mean().sqrt()
        if error > DIRECTIONAL_TOLERANCE * values.square().mean().sqrt():
            return cls(features=torch.arange(n), combination=torch.eye(n, dtype=torch.float64))
        return cls(features=features, combination=combination)

    def weights(self, weight: Tensor) -> Tensor:
        """[n_out, n_used] weights of the used features from those [n_out, n_features] of all."""
        return (weight.double() @ self.combination.t()).float()


def _filter_parts(block: Interaction, hidden: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Weights of the edge, of its neighbor and of its centre in the argument of a filter, and the bias."""
    linear = block.lin_geom
    assert linear is not None
    if isinstance(linear, EdgeNodeLinear):
        for_edge, for_neighbor, for_centre = linear.weight.split(linear.widths, dim=1)
        return for_edge, for_neighbor, for_centre, linear.bias
    nothing = linear.weight.new_zeros(linear.out_features, hidden)
    return linear.weight, nothing, nothing, linear.bias


def _padded(values: Tensor, *sizes: int | None) -> Tensor:
    """The same values with zeros after them, up to these sizes; None keeps a size."""
    missing = [0 if size is None else size - have for size, have in zip(sizes, values.shape, strict=True)]
    return functional.pad(values, [amount for size in reversed(missing) for amount in (0, size)])


def _stacked(arrays: list[Tensor]) -> Tensor:
    return torch.stack(arrays) if arrays else torch.empty(0)


def _atom_states(model: FAENet) -> Tensor:
    """[n_kinds, H] first states of all elements, for each tag if there are tags."""
    config = model.config.atoms
    n_tags = 3 if config.tag_channels else 1
    numbers = torch.arange(config.n_elements + 1).repeat_interleave(n_tags)
    return model.atom_embedding(numbers, torch.arange(n_tags).repeat(config.n_elements + 1))


def _kind_factors(model: FAENet) -> Tensor:
    """[n_kinds] weights of the energies of atoms from their first states."""
    states = _atom_states(model)
    return torch.ones(len(states)) if model.w_lin is None else model.w_lin(states)[:, 0]


def _radial_splines(model: FAENet, filter_weights: list[Tensor], filters: int, edge: int) -> Tensor:
    """Values and slopes × spacing of what depends on the distance alone.

    Returns:
        Tensor: [n_intervals + 1, 2, edge] of the edge embedding's second layer; without one [n_interactions,
            n_intervals + 1, 2, filters] of the filters.
    """
    embedding, cutoff, n_intervals = model.edge_embedding, model.config.cutoff, _intervals(model)
    assert embedding.lin_e12 is not None
    own = embedding.lin_e1.out_features
    inner, inner_bias = embedding.lin_e12.weight.double(), embedding.lin_e12.bias.double()
    offset = model.distance_expansion.offset.double()

    spacing, width_of_basis = cutoff / n_intervals, offset[1] - offset[0]
    knots = torch.linspace(0.0, cutoff, n_intervals + 1, dtype=torch.float64)
    scaled = (knots[:, None] - offset) / width_of_basis
    basis = torch.exp(-0.5 * scaled.square())
    z, slope_z = basis @ inner.t() + inner_bias, (-scaled / width_of_basis * basis) @ inner.t()
    sigmoid = torch.sigmoid(z)
    radial = torch.stack([z * sigmoid, sigmoid * (1 + z * (1 - sigmoid)) * slope_z * spacing], dim=1)
    if embedding.lin_e2 is None:
        tables = [_padded((radial @ w[:, own:].double().t()).float(), None, None, filters) for w in filter_weights]
        return _stacked(tables)
    table = radial @ embedding.lin_e2.weight[:, own:].double().t()
    table[:, 0] += embedding.lin_e2.bias.double()
    return _padded(table.float(), None, None, edge)
