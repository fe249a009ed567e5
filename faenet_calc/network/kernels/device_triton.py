"""The operators of ``device.py`` as Triton kernels, one launch each; ``device_plain.py`` says what they compute.

A program handles the edges of one node (edges are sorted by their centre), a block of edges or a block of numbers. Sums
at centres and over frames are made inside a program; sums at neighbours are atomic, so that their last bits depend on
the order of execution, as those of ``index_add`` on a GPU do. Triton is imported with this module: import it for
tensors on a GPU only. With TRITON_INTERPRET=1 the kernels run on CPU tensors, which is how they are tested. They were
compiled for GPUs of compute capability 8.0 and 9.0, and have never been run on one.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

_EDGES = 8  # edges of a node that a program handles at a time
_BLOCK = 8  # edges of a block: larger ones compile for a minute
_NUMBERS = 1024  # numbers of a block


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
    """Features of edges and of their copies in frames."""
    n_edges, n_frames, width = len(vectors), rotation.shape[1], len(bias)
    basis, own = weight.new_empty(n_edges, len(offset)), weight.new_empty(n_frames, n_edges, width)
    factors = weight.new_empty(n_edges)
    _launch(_edge_features, (triton.cdiv(n_edges, _BLOCK), n_frames), vectors)(
        *_contiguous(vectors, rotation, group, factor, offset, weight, bias),
        basis, factors, own, n_edges, n_frames, width, len(offset),
        cutoff=cutoff, power=power, block=_BLOCK, columns=_power(width), gaussians=_power(len(offset)),
    )  # fmt: skip
    return basis, factors, own


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
    """Derivatives of :func:`edge_features`."""
    n_edges, n_frames, width = len(vectors), rotation.shape[1], len(bias)
    grad_vectors, grad_factor = torch.empty_like(vectors), vectors.new_empty(n_edges)
    in_frames = vectors.new_empty(n_frames, n_edges, 3)
    _launch(_edge_features_backward, (triton.cdiv(n_edges, _BLOCK),), vectors)(
        *_contiguous(grad_basis, grad_weight, grad_own, vectors, rotation, group, factor, offset, weight, bias),
        grad_vectors, in_frames, grad_factor, n_edges, n_frames, width, len(offset),
        cutoff=cutoff, power=power, block=_BLOCK, columns=_power(width), gaussians=_power(len(offset)),
    )  # fmt: skip
    return grad_vectors, in_frames, grad_factor


def add_swish(own: Tensor, shared: Tensor) -> tuple[Tensor, Tensor]:
    """The sum q = own + shared and σ(q)."""
    q, value = torch.empty_like(own), torch.empty_like(own)
    _launch(_add_swish, (triton.cdiv(own.numel(), _NUMBERS),), own)(
        *_contiguous(own, shared), q, value, own.numel(), shared.numel(), block=_NUMBERS
    )
    return q, value


def add_swish_backward(grad_output: Tensor, q: Tensor) -> tuple[Tensor, Tensor]:
    """Derivatives of σ(q) with respect to ``own`` and ``shared``."""
    grad_q, grad_shared = torch.empty_like(q), torch.empty_like(q[0])
    size = grad_shared.numel()
    _launch(_add_swish_backward, (triton.cdiv(size, _NUMBERS),), q)(
        *_contiguous(grad_output, q), grad_q, grad_shared, size, len(q), block=_NUMBERS
    )
    return grad_q, grad_shared


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
    """Messages at every node."""
    n_nodes, width = len(nodes), nodes.shape[1] // 3
    result = nodes.new_empty(n_nodes, width)
    _launch(_node_messages, (n_nodes,), nodes)(
        *_contiguous(edges, nodes, weight, start, neighbor), result, *_sizes(edges, nodes, layer),
        scale=scale, edges=_EDGES, columns=_power(width),
    )  # fmt: skip
    return result


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
    """Derivatives of messages."""
    assert grad_edges.is_contiguous() and grad_weight.is_contiguous()
    assert grad_nodes is None or grad_nodes.is_contiguous()
    _launch(_node_messages_backward, (len(nodes),), nodes)(
        *_contiguous(grad_output, edges, nodes, weight, start, neighbor), grad_edges, grad_weight, grad_nodes,
        *_sizes(edges, nodes, layer), scale=scale, edges=_EDGES, columns=_power(nodes.shape[1] // 3),
    )  # fmt: skip


def residual(h: Tensor, u: Tensor, bias: Tensor | None, following: Tensor) -> Tensor:
    """The state h + σ(u)."""
    assert following.is_contiguous()
    result = h.new_empty(0) if bias is None else torch.empty_like(h)
    _launch(_residual, (triton.cdiv(h.numel(), _NUMBERS),), h)(
        *_contiguous(h, u, bias), following, result, h.numel(), h.shape[1], block=_NUMBERS
    )
    return result


def residual_backward(grad: Tensor, u: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
    """Derivatives grad ⊙ σ'(u) and grad + other."""
    grad_u, total = torch.empty_like(u), torch.empty_like(u)
    _launch(_residual_backward, (triton.cdiv(u.numel(), _NUMBERS),), u)(
        *_contiguous(grad, u, other), grad_u, total, u.numel(), block=_NUMBERS
    )
    return grad_u, total


def readout(
    argument: Tensor, weight: Tensor, bias: Tensor, mixing: Tensor, seed: Tensor, group: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Energies of nodes and derivatives of their weighted sum."""
    n_states, n_nodes, width = argument.shape
    energy, grad = mixing.new_empty(n_nodes), torch.empty_like(argument)
    _launch(_readout, (n_nodes,), argument)(
        *_contiguous(argument, weight, bias, mixing, seed, group), energy, grad,
        n_states, n_nodes, n_nodes // seed.shape[1], width, seed.shape[1], columns=_power(width),
    )  # fmt: skip
    return energy, grad


def _launch(kernel: Any, grid: tuple[int, ...], like: Tensor) -> Callable[..., None]:
    """The kernel with its grid, on the device of a tensor; a grid without programs is not launched."""

    def run(*arguments: object, **constants: object) -> None:
        if 0 in grid:
            return
        with torch.cuda.device_of(like):  # nothing on the CPU
            kernel[grid](*arguments, **constants)

    return run


def _contiguous(*tensors: Tensor | None) -> list[Tensor | None]:
    return [None if tensor is None else tensor.contiguous() for tensor in tensors]


def _power(size: int) -> int:
    """The width of a block that holds ``size`` columns."""
    return int(triton.next_power_of_2(size))


def _sizes(edges: Tensor, nodes: Tensor, layer: int) -> tuple[int, int, int, int, int]:
    """Numbers of atoms and edges, columns of ``edges``, the first of a layer, and F."""
    width = nodes.shape[1] // 3
    return len(nodes) // edges.shape[0], edges.shape[1], edges.shape[2], layer * width, width


# Pointers come first, then sizes, then compile-time constants. A pointer that is None is a compile-time constant too.


@triton.jit
def _slope(z):
    """σ'(z)."""
    s = tl.sigmoid(z)
    return s * (1 + z * (1 - s))


@triton.jit
def _in_frame(x, y, z, matrix, valid, column: tl.constexpr):
    """Component ``column`` of (x, y, z) @ matrix."""
    a = tl.load(matrix + column, mask=valid, other=0.0)
    b = tl.load(matrix + 3 + column, mask=valid, other=0.0)
    c = tl.load(matrix + 6 + column, mask=valid, other=0.0)
    return x * a + y * b + z * c


@triton.jit
def _directional(rx, ry, rz, weight, bias, j, used):
    """W r + b, [block, columns]."""
    p = tl.load(bias + j, mask=used, other=0.0)[None, :]
    p += rx[:, None] * tl.load(weight + 3 * j, mask=used, other=0.0)[None, :]
    p += ry[:, None] * tl.load(weight + 3 * j + 1, mask=used, other=0.0)[None, :]
    return p + rz[:, None] * tl.load(weight + 3 * j + 2, mask=used, other=0.0)[None, :]


@triton.jit
def _envelope(d, cutoff: tl.constexpr, power: tl.constexpr):
    """The envelope and its derivative."""
    x = tl.minimum(d / cutoff, 1.0)
    before = x * 0 + 1
    for _ in tl.static_range(power - 1):
        before = before * x
    a: tl.constexpr = (power + 1) * (power + 2) / 2
    b: tl.constexpr = power * (power + 2)
    c: tl.constexpr = power * (power + 1) / 2
    value = 1 - before * x * (a - b * x + c * x * x)
    return value, -before * (power * a - (power + 1) * b * x + (power + 2) * c * x * x) / cutoff


@triton.jit
def _edge_features(
    vectors, rotation, group, factor, offset, weight, bias, basis, factors, own, n_edges, n_frames, width, n_gaussians,
    cutoff: tl.constexpr, power: tl.constexpr, block: tl.constexpr, columns: tl.constexpr, gaussians: tl.constexpr,
):  # fmt: skip
    e = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    frame = tl.program_id(1)
    valid = e < n_edges
    x = tl.load(vectors + 3 * e, mask=valid, other=1.0)
    y = tl.load(vectors + 3 * e + 1, mask=valid, other=1.0)
    z = tl.load(vectors + 3 * e + 2, mask=valid, other=1.0)
    row = e * 0
    if group is not None:
        row = tl.load(group + e, mask=valid, other=0)
    matrix = rotation + (row * n_frames + frame) * 9
    real = own.dtype.element_ty
    j = tl.arange(0, columns)
    used = j < width
    p = _directional(
        _in_frame(x, y, z, matrix, valid, 0).to(real),
        _in_frame(x, y, z, matrix, valid, 1).to(real),
        _in_frame(x, y, z, matrix, valid, 2).to(real),
        weight, bias, j, used,
    )  # fmt: skip
    at = (frame * n_edges + e)[:, None] * width + j[None, :]
    tl.store(own + at, p * tl.sigmoid(p), mask=valid[:, None] & used[None, :])
    if frame == 0:
        d = tl.sqrt(x * x + y * y + z * z).to(real)
        g = tl.arange(0, gaussians)
        spacing = tl.load(offset + 1) - tl.load(offset)
        t = (d[:, None] - tl.load(offset + g, mask=g < n_gaussians, other=0.0)[None, :]) / spacing
        tl.store(
            basis + e[:, None] * n_gaussians + g[None, :],
            tl.exp(-0.5 * t * t),
            mask=valid[:, None] & (g < n_gaussians)[None, :],
        )
        u = d * 0 + 1
        if power > 0:
            u, _ = _envelope(d, cutoff, power)
        if factor is not None:
            u = u * tl.load(factor + e, mask=valid, other=0.0).to(real)
        tl.store(factors + e, u, mask=valid)


@triton.jit
def _edge_features_backward(
    grad_basis, grad_weight, grad_own, vectors, rotation, group, factor, offset, weight, bias, grad_vectors, in_frames,
    grad_factor, n_edges, n_frames, width, n_gaussians,
    cutoff: tl.constexpr, power: tl.constexpr, block: tl.constexpr, columns: tl.constexpr, gaussians: tl.constexpr,
):  # fmt: skip
    e = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    valid = e < n_edges
    x = tl.load(vectors + 3 * e, mask=valid, other=1.0)
    y = tl.load(vectors + 3 * e + 1, mask=valid, other=1.0)
    z = tl.load(vectors + 3 * e + 2, mask=valid, other=1.0)
    row = e * 0
    if group is not None:
        row = tl.load(group + e, mask=valid, other=0)
    real = grad_own.dtype.element_ty
    j = tl.arange(0, columns)
    used = j < width
    gx, gy, gz = x * 0, x * 0, x * 0
    of_weight = (x * 0).to(real)
    for frame in range(n_frames):
        matrix = rotation + (row * n_frames + frame) * 9
        p = _directional(
            _in_frame(x, y, z, matrix, valid, 0).to(real),
            _in_frame(x, y, z, matrix, valid, 1).to(real),
            _in_frame(x, y, z, matrix, valid, 2).to(real),
            weight, bias, j, used,
        )  # fmt: skip
        at = (frame * n_edges + e)[:, None] * width + j[None, :]
        slope = tl.load(grad_own + at, mask=valid[:, None] & used[None, :], other=0.0) * _slope(p)
        for i in tl.static_range(3):
            r = tl.sum(slope * tl.load(weight + 3 * j + i, mask=used, other=0.0)[None, :], axis=1).to(tl.float64)
            tl.store(in_frames + 3 * (frame * n_edges + e) + i, r, mask=valid)
            gx += r * tl.load(matrix + i, mask=valid, other=0.0)
            gy += r * tl.load(matrix + 3 + i, mask=valid, other=0.0)
            gz += r * tl.load(matrix + 6 + i, mask=valid, other=0.0)
        of_weight += tl.load(grad_weight + frame * n_edges + e, mask=valid, other=0.0)
    length = tl.sqrt(x * x + y * y + z * z)
    d = length.to(real)
    g = tl.arange(0, gaussians)
    inside = valid[:, None] & (g < n_gaussians)[None, :]
    spacing = tl.load(offset + 1) - tl.load(offset)
    t = (d[:, None] - tl.load(offset + g, mask=g < n_gaussians, other=0.0)[None, :]) / spacing
    slope = tl.load(grad_basis + e[:, None] * n_gaussians + g[None, :], mask=inside, other=0.0)
    grad_distance = -tl.sum(slope * tl.exp(-0.5 * t * t) * t, axis=1) / spacing
    u, change = d * 0 + 1, d * 0
    if power > 0:
        u, change = _envelope(d, cutoff, power)
    if factor is not None:
        change = change * tl.load(factor + e, mask=valid, other=0.0).to(real)
    grad_distance += of_weight * change
    along = tl.where(length > 0, grad_distance.to(tl.float64) / length, 0.0)
    tl.store(grad_vectors + 3 * e, gx + along * x, mask=valid)
    tl.store(grad_vectors + 3 * e + 1, gy + along * y, mask=valid)
    tl.store(grad_vectors + 3 * e + 2, gz + along * z, mask=valid)
    tl.store(grad_factor + e, (of_weight * u).to(tl.float64), mask=valid)


@triton.jit
def _add_swish(own, shared, q, value, size, per_frame, block: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    valid = i < size
    total = tl.load(own + i, mask=valid, other=0.0) + tl.load(shared + i % per_frame, mask=valid, other=0.0)
    tl.store(q + i, total, mask=valid)
    tl.store(value + i, total * tl.sigmoid(total), mask=valid)


@triton.jit
def _add_swish_backward(grad, q, grad_q, grad_shared, per_frame, n_frames, block: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    valid = i < per_frame
    total = tl.load(grad + i, mask=valid, other=0.0) * 0
    for frame in range(n_frames):
        at = frame * per_frame + i
        slope = tl.load(grad + at, mask=valid, other=0.0) * _slope(tl.load(q + at, mask=valid, other=0.0))
        tl.store(grad_q + at, slope, mask=valid)
        total += slope
    tl.store(grad_shared + i, total, mask=valid)


@triton.jit
def _node_messages(
    z_edges, nodes, weight, start, neighbor, result, n_atoms, n_edges, all_columns, first, width,
    scale: tl.constexpr, edges: tl.constexpr, columns: tl.constexpr,
):  # fmt: skip
    node = tl.program_id(0).to(tl.int64)
    frame, atom = node // n_atoms, node % n_atoms
    j = tl.arange(0, columns)
    used = j < width
    a = tl.load(nodes + node * 3 * width + j, mask=used, other=0.0)
    total = a * 0
    end = tl.load(start + atom + 1)
    for begin in range(tl.load(start + atom), end, edges):
        e = begin + tl.arange(0, edges)
        valid = e < end
        both = valid[:, None] & used[None, :]
        of_neighbor = nodes + (frame * n_atoms + tl.load(neighbor + e, mask=valid, other=0))[:, None] * 3 * width + j
        z = tl.load(z_edges + (frame * n_edges + e)[:, None] * all_columns + first + j[None, :], mask=both, other=0.0)
        z += a[None, :] + tl.load(of_neighbor + width, mask=both, other=0.0)
        x = tl.load(of_neighbor + 2 * width, mask=both, other=0.0)
        w = tl.load(weight + e, mask=valid, other=0.0)[:, None]
        total += tl.sum(w * z * tl.sigmoid(z) * x * tl.sigmoid(x), axis=0)
    tl.store(result + node * width + j, total * scale, mask=used)


@triton.jit
def _node_messages_backward(
    grad, z_edges, nodes, weight, start, neighbor, grad_edges, grad_weight, grad_nodes, n_atoms, n_edges, all_columns,
    first, width, scale: tl.constexpr, edges: tl.constexpr, columns: tl.constexpr,
):  # fmt: skip
    node = tl.program_id(0).to(tl.int64)
    frame, atom = node // n_atoms, node % n_atoms
    j = tl.arange(0, columns)
    used = j < width
    a = tl.load(nodes + node * 3 * width + j, mask=used, other=0.0)
    row = tl.load(grad + node * width + j, mask=used, other=0.0)[None, :] * scale
    total = a * 0
    end = tl.load(start + atom + 1)
    for begin in range(tl.load(start + atom), end, edges):
        e = begin + tl.arange(0, edges)
        valid = e < end
        both = valid[:, None] & used[None, :]
        of_neighbor = (frame * n_atoms + tl.load(neighbor + e, mask=valid, other=0))[:, None] * 3 * width + j[None, :]
        at = (frame * n_edges + e)[:, None] * all_columns + first + j[None, :]
        z = tl.load(z_edges + at, mask=both, other=0.0)
        z += a[None, :] + tl.load(nodes + of_neighbor + width, mask=both, other=0.0)
        x = tl.load(nodes + of_neighbor + 2 * width, mask=both, other=0.0)
        value, source = z * tl.sigmoid(z), x * tl.sigmoid(x)
        known = tl.load(grad_weight + frame * n_edges + e, mask=valid, other=0.0)
        product = tl.where(both, row * value * source, 0.0)
        tl.store(grad_weight + frame * n_edges + e, known + tl.sum(product, axis=1), mask=valid)
        weighted = row * tl.load(weight + e, mask=valid, other=0.0)[:, None]
        slope = tl.where(both, weighted * source * _slope(z), 0.0)
        tl.store(grad_edges + at, slope, mask=both)
        if grad_nodes is not None:
            total += tl.sum(slope, axis=0)
            tl.atomic_add(grad_nodes + of_neighbor + width, slope, mask=both)
            tl.atomic_add(grad_nodes + of_neighbor + 2 * width, weighted * value * _slope(x), mask=both)
    if grad_nodes is not None:
        own = grad_nodes + node * 3 * width + j
        tl.store(own, tl.load(own, mask=used, other=0.0) + total, mask=used)


@triton.jit
def _residual(h, u, bias, following, result, size, width, block: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    valid = i < size
    v = tl.load(u + i, mask=valid, other=0.0)
    state = tl.load(h + i, mask=valid, other=0.0) + v * tl.sigmoid(v)
    if bias is not None:
        tl.store(result + i, state, mask=valid)
        state += tl.load(bias + i % width, mask=valid, other=0.0)
    tl.store(following + i, state, mask=valid)


@triton.jit
def _residual_backward(grad, u, other, grad_u, total, size, block: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    valid = i < size
    g = tl.load(grad + i, mask=valid, other=0.0)
    tl.store(grad_u + i, g * _slope(tl.load(u + i, mask=valid, other=0.0)), mask=valid)
    tl.store(total + i, g + tl.load(other + i, mask=valid, other=0.0), mask=valid)


@triton.jit
def _readout(
    argument, weight, bias, mixing, seed, group, energy, grad, n_states, n_nodes, n_atoms, width, n_frames,
    columns: tl.constexpr,
):  # fmt: skip
    node = tl.program_id(0).to(tl.int64)
    frame, atom = node // n_atoms, node % n_atoms
    row = atom * 0
    if group is not None:
        row = tl.load(group + atom)
    of_frame = tl.load(seed + row * n_frames + frame)
    j = tl.arange(0, columns)
    used = j < width
    w = tl.load(weight + j, mask=used, other=0.0)
    total = of_frame * 0
    for state in range(n_states):
        at = (state * n_nodes + node) * width + j
        a = tl.load(argument + at, mask=used, other=0.0)
        mixed = tl.load(mixing + state)
        total += mixed * (tl.sum(w * a * tl.sigmoid(a), axis=0) + tl.load(bias)).to(tl.float64)
        tl.store(grad + at, (mixed * of_frame).to(w.dtype) * w * _slope(a), mask=used)
    tl.store(energy + node, total)
