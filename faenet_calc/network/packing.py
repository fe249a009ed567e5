"""The weights of a FAENet in the form that the compiled engine reads.

Widths are padded with zeros to whole panels of the engine's matrix products. The part of the edge embedding that
depends on the distance alone is tabulated as a cubic spline.
"""

import ctypes
import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from faenet_calc.network.faenet import FAENet
from faenet_calc.network.layers import EdgeNodeLinear, FeedForward, Interaction

INTERVALS = 1024
"""Of the spline for the radial part: its error is below the rounding of float32."""


class CWeights(ctypes.Structure):
    """``Weights`` of ``native/fused.h``."""

    sizes = ("kinds", "hidden", "filters", "directional", "feed_forward", "output", "layers", "intervals", "power")
    numbers = ("cutoff", "message_scale", "output_bias")
    arrays = (
        "atom_states", "direction_weight", "direction_bias", "radial", "edge_weight", "filter_weight", "node_weight",
        "node_bias", "up_weight", "up_bias", "in_weight", "in_bias", "out_weight", "out_bias", "output_weight",
        "output_hidden_bias", "energy_weight", "mixing",
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
        config = model.config
        sizes, arrays = _arrays(model, panel)
        structure = CWeights(
            **sizes,
            layers=config.interactions,
            intervals=INTERVALS,
            power=config.envelope_power,
            cutoff=config.cutoff,
            message_scale=1.0 / math.sqrt(config.mean_neighbors),
            output_bias=float(model.output_block.lin2.bias),
            **{name: array.data_ptr() for name, array in arrays.items()},
        )
        return cls(hidden=sizes["hidden"], output=sizes["output"], arrays=arrays, structure=structure)


def _arrays(model: FAENet, panel: int) -> tuple[dict[str, int], dict[str, Tensor]]:
    """Widths and weights, padded to whole panels, by the names of ``native/fused.h``."""

    def wide(width: int) -> int:
        return -(-width // panel) * panel

    config = model.config
    hidden, filters = wide(config.hidden_channels), wide(config.filters)
    directional, output = wide(config.filters // 2), wide(config.hidden_channels // 2)
    feed_forward = wide(config.feed_forward)
    embedding = model.edge_embedding
    blocks = [block for block in model.interaction_blocks if isinstance(block, Interaction)]
    assert embedding.lin_e2 is not None and model.mlp_skip_co is not None
    own = embedding.lin_e1.out_features
    node_weights, node_biases, filter_weights = [], [], []
    for block in blocks:
        assert isinstance(block.lin_geom, EdgeNodeLinear)
        for_edge, for_neighbor, for_centre = block.lin_geom.weight.split(block.lin_geom.widths, dim=1)
        filter_weights.append(_padded(for_edge, filters, filters))
        parts = (for_centre, for_neighbor, block.lin_down.weight)
        node_weights.append(torch.cat([_padded(part, filters, hidden) for part in parts]))
        biases = (block.lin_geom.bias, torch.zeros_like(block.lin_geom.bias), block.lin_down.bias)
        node_biases.append(torch.cat([_padded(bias, filters) for bias in biases]))
    feed_forward_blocks = [block for block in model.feed_forward_blocks if isinstance(block, FeedForward)]
    head = model.output_block
    arrays = {
        "atom_states": _padded(_atom_states(model), None, hidden),
        "direction_weight": _padded(embedding.lin_e1.weight.t(), None, directional),
        "direction_bias": _padded(embedding.lin_e1.bias, directional),
        "radial": _radial_spline(model, filters),
        "edge_weight": _padded(embedding.lin_e2.weight[:, :own], filters, directional),
        "filter_weight": torch.stack(filter_weights),
        "node_weight": torch.stack(node_weights),
        "node_bias": torch.stack(node_biases),
        "up_weight": torch.stack([_padded(block.lin_up.weight, hidden, filters) for block in blocks]),
        "up_bias": torch.stack([_padded(block.lin_up.bias, hidden) for block in blocks]),
        "in_weight": _stacked([_padded(block.lin_in.weight, feed_forward, hidden) for block in feed_forward_blocks]),
        "in_bias": _stacked([_padded(block.lin_in.bias, feed_forward) for block in feed_forward_blocks]),
        "out_weight": _stacked([_padded(block.lin_out.weight, hidden, feed_forward) for block in feed_forward_blocks]),
        "out_bias": _stacked([_padded(block.lin_out.bias, hidden) for block in feed_forward_blocks]),
        "output_weight": _padded(head.lin1.weight, output, hidden),
        "output_hidden_bias": _padded(head.lin1.bias, output),
        "energy_weight": _padded(head.lin2.weight[0], output),
        "mixing": model.mlp_skip_co.weight[0].clone(),
    }
    sizes = {
        "kinds": len(arrays["atom_states"]),
        "hidden": hidden,
        "filters": filters,
        "directional": directional,
        "feed_forward": feed_forward,
        "output": output,
    }
    return sizes, {name: array.contiguous() for name, array in arrays.items()}


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


def _radial_spline(model: FAENet, width: int) -> Tensor:
    """[INTERVALS + 1, 2, width] values and slopes × spacing of the distance's part of the edge embedding."""
    embedding, cutoff = model.edge_embedding, model.config.cutoff
    assert embedding.lin_e2 is not None and embedding.lin_e12 is not None
    outer = embedding.lin_e2.weight[:, embedding.lin_e1.out_features :].double()
    inner, inner_bias = embedding.lin_e12.weight.double(), embedding.lin_e12.bias.double()
    outer_bias, offset = embedding.lin_e2.bias.double(), model.distance_expansion.offset.double()

    spacing, width_of_basis = cutoff / INTERVALS, offset[1] - offset[0]
    knots = torch.linspace(0.0, cutoff, INTERVALS + 1, dtype=torch.float64)
    scaled = (knots[:, None] - offset) / width_of_basis
    basis = torch.exp(-0.5 * scaled.square())
    z, slope_z = basis @ inner.t() + inner_bias, (-scaled / width_of_basis * basis) @ inner.t()
    sigmoid = torch.sigmoid(z)
    values = (z * sigmoid) @ outer.t() + outer_bias
    slopes = (sigmoid * (1 + z * (1 - sigmoid)) * slope_z) @ outer.t()
    return _padded(torch.stack([values, slopes * spacing], dim=1).float(), None, None, width)
