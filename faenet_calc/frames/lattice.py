"""Frames attached to a lattice of two or three periodic directions.

The axes belong to the cell, not to the atoms: e1 along the first periodic cell vector, e3 along the normal of the first
two, e2 = e3 × e1. They do not move when atoms move, are wrapped or replicated, and there is no eigenvalue to cross.
"""

import functools
import itertools
import math

import torch
from torch import Tensor


def lattice_axes(cell: Tensor, pbc: Tensor) -> Tensor:
    """Right-handed axes of lattices with at least two periodic directions.

    Args:
        cell: [n, 3, 3] (Å), rows are lattice vectors.
        pbc: [n, 3] bool, at least two True in each row.

    Returns:
        [n, 3, 3], columns e1, e2, e3; differentiable in the cell.
    """
    periodic_first = torch.argsort((~pbc).long(), dim=1, stable=True)
    rows = torch.arange(len(cell), device=cell.device)
    first, second = cell[rows, periodic_first[:, 0]], cell[rows, periodic_first[:, 1]]
    e1 = first / torch.linalg.vector_norm(first, dim=1, keepdim=True)
    normal = torch.linalg.cross(first, second, dim=1)
    e3 = normal / torch.linalg.vector_norm(normal, dim=1, keepdim=True)
    return torch.stack([e1, torch.linalg.cross(e3, e1, dim=1), e3], dim=2)


def is_slab(positions: Tensor, cell: Tensor, pbc: Tensor, vacuum: float) -> bool:
    """Whether one structure leaves an empty layer of at least ``vacuum`` (Å) along its third axis.

    Decided from fractional coordinates modulo one, so that it does not depend on the periodic image of an atom.
    """
    if not bool(pbc.all()):
        return True
    height = torch.linalg.det(cell).abs() / torch.linalg.vector_norm(torch.linalg.cross(cell[0], cell[1], dim=0))
    fraction = torch.linalg.solve(cell.T, positions.T)[2] % 1.0
    ordered = torch.sort(fraction).values
    gaps = torch.diff(ordered, append=ordered[:1] + 1.0)
    return bool(gaps.max() * height >= vacuum)


@functools.lru_cache(maxsize=8)
def sign_flips(proper: bool) -> Tensor:
    """[8 or 4, 3, 3] diagonal sign matrices, those with determinant +1 only if ``proper``; float64 on the CPU."""
    signs = torch.tensor(list(itertools.product([1.0, -1.0], repeat=3)), dtype=torch.float64)
    kept = signs[signs.prod(dim=1) > 0] if proper else signs
    return torch.diag_embed(kept)


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
    cyclic = torch.tensor([[0.0, 0, 1], [1, 0, 0], [0, 1, 0]], dtype=torch.float64)
    axis = torch.tensor([0.0, 1.0, golden], dtype=torch.float64)
    axis = axis / torch.linalg.vector_norm(axis)
    cross = torch.tensor([[0, -axis[2], axis[1]], [axis[2], 0, -axis[0]], [-axis[1], axis[0], 0]], dtype=torch.float64)
    angle = 2 * math.pi / 5
    five = torch.eye(3, dtype=torch.float64) + math.sin(angle) * cross + (1 - math.cos(angle)) * cross @ cross
    elements = list(sign_flips(proper))
    frontier = elements
    while frontier:
        products = [g @ generator for g in frontier for generator in (cyclic, five)]
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
