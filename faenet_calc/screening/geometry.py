"""Lateral geometry of slabs whose surface normal is +z and whose first two cell vectors span the surface."""

import numpy as np
from ase import Atoms
from ase.data import covalent_radii
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]

SAME_SITE_A = 0.3
"""Sites closer than this (Å) are one."""

FLAT_A2 = 1e-3
"""Triangles with a smaller lateral area (Å²) are three atoms in line at the rim of a surface."""


def lateral_distances(positions: FloatArray, other: FloatArray, cell: FloatArray) -> FloatArray:
    """[n] shortest in-plane distances (Å) from positions [n, 3] to another position [3] and its periodic images."""
    fraction = (other - positions)[:, :2] @ np.linalg.inv(cell[:2, :2])
    wrapped = (fraction - np.round(fraction)) @ cell[:2, :2]
    shifts = np.array([i * cell[0, :2] + j * cell[1, :2] for i in (-1, 0, 1) for j in (-1, 0, 1)])
    distances: FloatArray = np.linalg.norm(wrapped[:, None] + shifts, axis=2).min(axis=1)
    return distances


def triangle_areas(faces: FloatArray) -> FloatArray:
    """[n] lateral areas (Å²) of triangles [n, 3, 3]."""
    sides = faces[:, 1:, :2] - faces[:, :1, :2]
    areas: FloatArray = np.abs(np.linalg.det(sides)) / 2
    return areas


def circumcenter(face: FloatArray) -> FloatArray:
    """[3] the point at equal lateral distance from three corners; z is their mean."""
    a, b, c = face[:, :2]
    center = np.linalg.solve(2 * np.array([b - a, c - a]), np.array([b @ b - a @ a, c @ c - a @ a]))
    return np.array([*center, face[:, 2].mean()])


def hollow_kind(face: FloatArray, slab: Atoms) -> str:
    """``hcp`` (an atom right below, in the second layer) or ``fcc`` for an equilateral face [3, 3], else ``hollow``."""
    lengths = np.linalg.norm(face - np.roll(face, 1, axis=0), axis=1)
    if lengths.max() > 1.1 * lengths.min():
        return "hollow"
    center = circumcenter(face)
    depth = center[2] - slab.positions[:, 2]
    second = slab.positions[(depth > 0.5) & (depth < 1.05 * lengths.mean())]
    below = lateral_distances(second, center, slab.cell.array) < SAME_SITE_A
    return "hcp" if below.any() else "fcc"


def inside_cell(positions: FloatArray, cell: FloatArray) -> NDArray[np.bool_]:
    """[n] which positions [n, 3] lie laterally inside the cell; every triangle has exactly one image inside."""
    fraction = positions[:, :2] @ np.linalg.inv(cell[:2, :2])
    return np.asarray(((fraction > -1e-6) & (fraction < 1 - 1e-6)).all(axis=1))


def contact_lift(slab: Atoms, molecule: Atoms) -> float:
    """How far (Å) to lift the molecule so that it just touches the slab."""
    cell = slab.cell.array
    shifts = [i * cell[0] + j * cell[1] for i in range(-2, 3) for j in range(-2, 3)]
    positions = np.concatenate([slab.positions + shift for shift in shifts])
    radii = np.tile(covalent_radii[slab.numbers], len(shifts))
    lifts = [float(slab.positions[:, 2].max() - molecule.positions[:, 2].min()) - 10.0]
    for position, number in zip(molecule.positions, molecule.numbers, strict=True):
        fraction = np.linalg.solve(cell[:2, :2].T, position[:2])
        inside = (fraction - np.floor(fraction)) @ cell[:2, :2]
        lateral2 = ((positions[:, :2] - inside) ** 2).sum(axis=1)
        reach2 = (radii + covalent_radii[number]) ** 2
        near = lateral2 < reach2
        if near.any():
            lifts.append(float(np.max(positions[near, 2] + np.sqrt(reach2[near] - lateral2[near])) - position[2]))
    return max(lifts)
