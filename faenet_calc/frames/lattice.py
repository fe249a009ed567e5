"""Frames attached to a lattice with two or three periodic directions.

The axes belong to the cell, not to the atoms. One cell vector is singled out; with the other two in cyclic order after
it, e1 points along the first of them, e2 lies in their plane, and e3 is perpendicular to it (for slabs the surface
normal) on the side of the vector singled out. The axes do not change when atoms move, are wrapped or replicated, there
is no eigenvalue crossing, and the axes of a reflected structure are the reflected axes.

Which cell vector is singled out depends on the open directions of the structure (see ``open_directions``), not on the
order of the cell vectors: the open one of a slab, c in bulk crystals. With vacuum along a, b or c and any periodicity
flags, a slab therefore has the same frames. In mode ``all`` the set of frames also stays the same if cell vectors
change sign (left-handed cells included), if the cell is repeated, and if the vector along the vacuum is sheared. Not
covered are swapped or otherwise combined in-plane vectors and other cells of a bulk crystal; mode ``exact`` makes those
differences small.

In bulk crystals no axis is special. Except in mode ``one``, every frame is therefore repeated with its axes in cyclic
order: the three directions of a cubic cell are equivalent, and cubic crystals stay cubic.
"""

import functools
import itertools
import math

import torch
from torch import Tensor


def lattice_axes(cell: Tensor, special: Tensor, *, proper: bool = False) -> Tensor:
    """Axes of lattices with at least two periodic directions.

    Args:
        cell: [n_graphs, 3, 3] (Å), rows are lattice vectors.
        special: [n_graphs] int64, the cell vector singled out.
        proper: Right-handed axes. Otherwise e3 points to the side of the special vector, so that the axes of a
            left-handed cell are left-handed and a reflected structure has the reflected axes. A cell without that
            vector has right-handed axes.

    Returns:
        [n_graphs, 3, 3], columns e1, e2, e3; differentiable in the cell.
    """
    rows = torch.arange(len(cell), device=cell.device)
    first, second = cell[rows, (special + 1) % 3], cell[rows, (special + 2) % 3]
    e1 = first / torch.linalg.vector_norm(first, dim=1, keepdim=True)
    normal = torch.linalg.cross(first, second, dim=1)
    normal = normal / torch.linalg.vector_norm(normal, dim=1, keepdim=True)
    e2 = torch.linalg.cross(normal, e1, dim=1)
    left_handed = torch.zeros_like(special, dtype=torch.bool) if proper else _height(cell, special, normal) < 0
    e3 = torch.where(left_handed[:, None], -normal, normal)
    return torch.stack([e1, e2, e3], dim=2)


def has_handedness(cell: Tensor, special: Tensor) -> Tensor:
    """[n_graphs] bool: the special vector exists and lies outside the plane of the other two."""
    rows = torch.arange(len(cell), device=cell.device)
    normal = torch.linalg.cross(cell[rows, (special + 1) % 3], cell[rows, (special + 2) % 3], dim=1)
    return _height(cell, special, normal / torch.linalg.vector_norm(normal, dim=1, keepdim=True)).abs() > 1e-6


def _height(cell: Tensor, special: Tensor, normal: Tensor) -> Tensor:
    """[n_graphs] (Å) component of the special cell vector along the unit normal; without gradient."""
    rows = torch.arange(len(cell), device=cell.device)
    return torch.linalg.vecdot(cell[rows, special], normal).detach()


@functools.lru_cache(maxsize=8)
def sign_flips(proper: bool) -> Tensor:
    """[8 or 4, 3, 3] diagonal sign matrices, those with determinant +1 only if ``proper``; float64 on the CPU."""
    signs = torch.tensor(list(itertools.product([1.0, -1.0], repeat=3)), dtype=torch.float64)
    kept = signs[signs.prod(dim=1) > 0] if proper else signs
    return torch.diag_embed(kept)


@functools.lru_cache(maxsize=1)
def cyclic_orders() -> Tensor:
    """[3, 3, 3] rotations that exchange the axes in cyclic order, the identity first; float64 on the CPU."""
    turn = torch.tensor([[0.0, 0, 1], [1, 0, 0], [0, 1, 0]], dtype=torch.float64)
    return torch.stack([torch.eye(3, dtype=torch.float64), turn, turn @ turn])


def sign_flips_like(values: Tensor, proper: bool) -> Tensor:
    """:func:`sign_flips` with the dtype and on the device of ``values``."""
    return _moved_sign_flips(proper, values.dtype, values.device)


@functools.lru_cache(maxsize=8)
def _moved_sign_flips(proper: bool, dtype: torch.dtype, device: torch.device) -> Tensor:
    return sign_flips(proper).to(device=device, dtype=dtype)


@functools.lru_cache(maxsize=8)
def slab_group(proper: bool) -> Tensor:
    """[40 or 20, 3, 3] rotations about z by multiples of 36° with sign flips.

    Five-fold symmetry is not crystallographic: the first in-plane harmonic that a lattice and this group share is the
    20th (square) or 30th (hexagonal).
    """
    turns = torch.stack([rotation_about_z(torch.tensor(k * math.pi / 5, dtype=torch.float64)) for k in range(5)])
    return (turns[:, None] @ sign_flips(proper)[None]).reshape(-1, 3, 3)


@functools.lru_cache(maxsize=8)
def icosahedral_group(proper: bool) -> Tensor:
    """[120 or 60, 3, 3] the icosahedral group in the orientation that contains the sign flips.

    Generated from the sign flips, the three-fold rotation about (1, 1, 1) and a five-fold rotation about a vertex.
    """
    golden = (1 + math.sqrt(5)) / 2
    axis = torch.tensor([0.0, 1.0, golden], dtype=torch.float64)
    axis = axis / torch.linalg.vector_norm(axis)
    cross = torch.tensor([[0, -axis[2], axis[1]], [axis[2], 0, -axis[0]], [-axis[1], axis[0], 0]], dtype=torch.float64)
    angle = 2 * math.pi / 5
    five = torch.eye(3, dtype=torch.float64) + math.sin(angle) * cross + (1 - math.cos(angle)) * cross @ cross
    elements = list(sign_flips(proper))
    frontier = elements
    while frontier:
        products = [g @ generator for g in frontier for generator in (cyclic_orders()[1], five)]
        frontier = []
        for product in products:
            if not any(torch.allclose(product, known, atol=1e-9) for known in elements):
                elements.append(product)
                frontier.append(product)
    return torch.stack(elements)


def rotation_about_z(angle: Tensor) -> Tensor:
    """[3, 3] rotation by ``angle`` (rad)."""
    cos, sin, zero, one = torch.cos(angle), torch.sin(angle), torch.zeros_like(angle), torch.ones_like(angle)
    return torch.stack([cos, -sin, zero, sin, cos, zero, zero, zero, one]).reshape(3, 3)


def random_rotation(generator: torch.Generator) -> Tensor:
    """[3, 3] a uniformly random rotation, from a random unit quaternion (float64, CPU)."""
    w, x, y, z = torch.nn.functional.normalize(torch.randn(4, generator=generator, dtype=torch.float64), dim=0)
    return torch.stack(
        [
            1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y),
            2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x),
            2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y),
        ]
    ).reshape(3, 3)  # fmt: skip


def random_turn_about_z(generator: torch.Generator) -> Tensor:
    """[3, 3] a uniformly random rotation about z (float64, CPU)."""
    return rotation_about_z(2 * math.pi * torch.rand((), generator=generator, dtype=torch.float64))


def random_flip(generator: torch.Generator, proper: bool) -> Tensor:
    """[3, 3] one of the sign flips (float64, CPU)."""
    flips = sign_flips(proper)
    return flips[int(torch.randint(len(flips), (), generator=generator))]
