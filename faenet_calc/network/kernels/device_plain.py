"""The operators of ``device.py`` in PyTorch operations: what they compute, and the fallback where Triton is missing.

Copies are ordered by frame, then by edge or atom: copy (c, e) of edge e in frame c has the row c · n_edges + e.

| symbol | here |
|---|---|
| k | number of frames of every structure |
| r, d | edge vector in a frame and its length (Å) |
| μ, Δμ | ``offset`` [G], the centres of the Gaussians, and their distance (Å) |
| u(d) | envelope of power p: 1 - x^p (a - b x + c x²), x = d / cutoff; 1 if p = 0 |
| w_ij | ``weight`` [n_edges], factor · u(d) |
| σ(z) | z s, s = 1 / (1 + e^-z);  σ'(z) = s (1 + z (1 - s)) |
"""

import torch
from torch import Tensor
from torch.nn import functional

silu_backward = torch.ops.aten.silu_backward


def edge_features(
    vectors: Tensor,
    rotation: Tensor,
    group: Tensor | None,
    factor: Tensor | None,
    offset: Tensor,
    weight: Tensor,
    bias: Tensor,
    cutoff: float,
    power: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Features of edges and of their copies in frames, in the dtype of ``weight``.

    Args:
        vectors: [n_edges, 3] float64 (Å).
        rotation: [n_groups, k, 3, 3] float64.
        group: [n_edges] row of ``rotation`` of each edge; None if there is one row.
        factor: [n_edges] float64 factors of the messages; None for 1.
        offset: [G] (Å).
        weight: [B, 3] of the directional part.
        bias: [B] of the directional part.
        cutoff: (Å).
        power: Exponent of the envelope; 0 for none.

    Returns:
        tuple: Gaussians [n_edges, G], message weights [n_edges], directional part σ(W r + b) [k, n_edges, B].
    """
    dtype = weight.dtype
    distance = torch.linalg.vector_norm(vectors, dim=1).to(dtype)
    basis = torch.exp(-0.5 * ((distance[:, None] - offset) / (offset[1] - offset[0])).square())
    smooth = _envelope(distance, cutoff, power)[0]
    own = functional.silu(functional.linear(_in_frames(vectors, rotation, group).to(dtype), weight, bias))
    return basis, smooth if factor is None else smooth * factor.to(dtype), own


def edge_features_backward(
    grad_basis: Tensor,
    grad_weight: Tensor,
    grad_own: Tensor,
    vectors: Tensor,
    rotation: Tensor,
    group: Tensor | None,
    factor: Tensor | None,
    offset: Tensor,
    weight: Tensor,
    bias: Tensor,
    cutoff: float,
    power: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Derivatives of :func:`edge_features`.

    Args:
        grad_basis: [n_edges, G].
        grad_weight: [k, n_edges], of the message weights of every copy.
        grad_own: [k, n_edges, B].
        vectors: As in :func:`edge_features`, like all that follow.
        rotation: [n_groups, k, 3, 3].
        group: [n_edges] or None.
        factor: [n_edges] or None.
        offset: [G].
        weight: [B, 3].
        bias: [B].
        cutoff: (Å).
        power: Exponent.

    Returns:
        tuple: With respect to vectors [n_edges, 3], to vectors in their frames [k, n_edges, 3], and to factors
        [n_edges]; float64.
    """
    dtype, wide = weight.dtype, vectors.dtype
    length = torch.linalg.vector_norm(vectors, dim=1)
    distance = length.to(dtype)
    width = offset[1] - offset[0]
    scaled = (distance[:, None] - offset) / width
    grad_distance = -(grad_basis * torch.exp(-0.5 * scaled.square()) * scaled).sum(dim=1) / width
    smooth, slope = _envelope(distance, cutoff, power)
    of_weight = grad_weight.sum(dim=0)
    grad_distance = grad_distance + of_weight * (slope if factor is None else slope * factor.to(dtype))
    argument = functional.linear(_in_frames(vectors, rotation, group).to(dtype), weight, bias)
    in_frames = (silu_backward(grad_own, argument) @ weight).to(wide)
    turned = rotation[0] if group is None else rotation.index_select(0, group).transpose(0, 1)
    pattern = "kej,kij->ei" if group is None else "kej,keij->ei"
    along = torch.where(length > 0, grad_distance.to(wide) / length, 0.0)
    return torch.einsum(pattern, in_frames, turned) + along[:, None] * vectors, in_frames, (of_weight * smooth).to(wide)


def add_swish(own: Tensor, shared: Tensor) -> tuple[Tensor, Tensor]:
    """The sum q = own + shared and σ(q), [k, n_edges, F], from [k, n_edges, F] and [n_edges, F]."""
    q = own + shared
    return q, functional.silu(q)


def add_swish_backward(grad_output: Tensor, q: Tensor) -> tuple[Tensor, Tensor]:
    """Derivatives of σ(q) with respect to ``own`` [k, n_edges, F] and ``shared`` [n_edges, F]."""
    grad_q = silu_backward(grad_output, q)
    return grad_q, grad_q.sum(dim=0)


def node_messages(
    edges: Tensor,
    nodes: Tensor,
    weight: Tensor,
    start: Tensor,
    centre: Tensor,
    neighbor: Tensor,
    layer: int,
    scale: float,
) -> Tensor:
    """Messages m_i = scale · Σ_j w_ij σ(x_j) ⊙ σ(a_i + b_j + z_ij) at every node, [k · n_atoms, F].

    Args:
        edges: [k, n_edges, L · F], z of all layers.
        nodes: [k · n_atoms, 3 F], a, b and x.
        weight: [n_edges].
        start: [n_atoms + 1] first edge of each atom.
        centre: [n_edges], ascending.
        neighbor: [n_edges].
        layer: Which F columns of ``edges``.
        scale: Factor.
    """
    z, source, _ = _arguments(edges, nodes, centre, neighbor, layer)
    rows = functional.silu(z) * functional.silu(source) * weight[:, None]
    a = nodes.view(z.shape[0], -1, nodes.shape[1])[..., : z.shape[2]]
    return (torch.zeros_like(a).index_add_(1, centre, rows) * scale).flatten(0, 1)


def node_messages_backward(
    grad_output: Tensor,
    edges: Tensor,
    nodes: Tensor,
    weight: Tensor,
    start: Tensor,
    centre: Tensor,
    neighbor: Tensor,
    layer: int,
    scale: float,
    grad_edges: Tensor,
    grad_weight: Tensor,
    grad_nodes: Tensor | None,
) -> None:
    """Derivatives of <grad_output, m>.

    Args:
        grad_output: [k · n_atoms, F].
        edges: As in :func:`node_messages`, like all that follow.
        nodes: [k · n_atoms, 3 F].
        weight: [n_edges].
        start: [n_atoms + 1].
        centre: [n_edges].
        neighbor: [n_edges].
        layer: Which F columns of ``edges`` and ``grad_edges``.
        scale: Factor.
        grad_edges: [k, n_edges, L · F]; the columns of the layer are written.
        grad_weight: [k, n_edges]; added to.
        grad_nodes: [k · n_atoms, 3 F]; added to, unless None.
    """
    z, source, per_frame = _arguments(edges, nodes, centre, neighbor, layer)
    n_frames, _, width = z.shape
    rows = grad_output.view(n_frames, -1, width).index_select(1, centre) * scale
    value, x = functional.silu(z), functional.silu(source)
    grad_weight += (rows * value * x).sum(dim=2)
    rows = rows * weight[:, None]
    grad_z = silu_backward(rows * x, z)
    grad_edges[..., layer * width : (layer + 1) * width] = grad_z
    if grad_nodes is not None:
        a, b, c = grad_nodes.view(per_frame).split(width, dim=2)
        a.index_add_(1, centre, grad_z)
        b.index_add_(1, neighbor, grad_z)
        c.index_add_(1, neighbor, silu_backward(rows * value, source))


def residual(h: Tensor, u: Tensor, bias: Tensor | None, following: Tensor) -> Tensor:
    """The state h + σ(u), [n, H].

    It is written to ``following``, with ``bias`` [H] added if there is one; without a bias nothing is returned.
    """
    state = h + functional.silu(u)
    following.copy_(state if bias is None else state + bias)
    return h.new_empty(0) if bias is None else state


def residual_backward(grad: Tensor, u: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
    """Derivatives grad ⊙ σ'(u) and grad + other, [n, H]."""
    return silu_backward(grad, u), grad + other


def readout(
    argument: Tensor, weight: Tensor, bias: Tensor, mixing: Tensor, seed: Tensor, group: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Energies E_n = Σ_s mixing_s (weight · σ(argument_sn) + bias) of nodes and derivatives of Σ_n seed_n E_n.

    Args:
        argument: [n_states, k · n_atoms, D].
        weight: [D].
        bias: [1].
        mixing: [n_states] float64.
        seed: [n_groups, k] float64.
        group: [n_atoms] row of ``seed`` for each atom; None if there is one row.

    Returns:
        tuple: Energies [k · n_atoms] float64 and the derivatives with respect to ``argument``.
    """
    outputs = functional.silu(argument) @ weight + bias
    k = seed.shape[1]
    per_node = seed[0][:, None] if group is None else seed.index_select(0, group).t()
    per_node = per_node.expand(k, argument.shape[1] // k).reshape(-1)
    factor = (mixing[:, None] * per_node).to(argument.dtype)
    return mixing @ outputs.to(mixing.dtype), silu_backward(factor[..., None] * weight, argument)


def _in_frames(vectors: Tensor, rotation: Tensor, group: Tensor | None) -> Tensor:
    """[k, n_edges, 3] vectors in their frames."""
    if group is None:
        return vectors @ rotation[0]
    return torch.einsum("ei,ekij->kej", vectors, rotation.index_select(0, group))


def _envelope(distance: Tensor, cutoff: float, power: int) -> tuple[Tensor, Tensor]:
    """The envelope [n_edges] and its derivative (1/Å)."""
    if power == 0:
        return torch.ones_like(distance), torch.zeros_like(distance)
    x, p = (distance / cutoff).clamp(max=1.0), power
    a, b, c = (p + 1) * (p + 2) / 2, p * (p + 2), p * (p + 1) / 2
    value = 1 - x.pow(p) * (a - b * x + c * x.square())
    return value, -x.pow(p - 1) * (p * a - (p + 1) * b * x + (p + 2) * c * x.square()) / cutoff


def _arguments(
    edges: Tensor, nodes: Tensor, centre: Tensor, neighbor: Tensor, layer: int
) -> tuple[Tensor, Tensor, tuple[int, int, int]]:
    """Arguments of σ for filters and sources, [k, n_edges, F], and the shape of the nodes with frames apart."""
    n_frames, width = edges.shape[0], nodes.shape[1] // 3
    shape = (n_frames, nodes.shape[0] // n_frames, 3 * width)
    a, b, x = nodes.view(shape).split(width, dim=2)
    z = edges[..., layer * width : (layer + 1) * width] + a.index_select(1, centre) + b.index_select(1, neighbor)
    return z, x.index_select(1, neighbor), shape
