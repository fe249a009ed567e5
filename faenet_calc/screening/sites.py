"""Symmetry-distinct adsorption sites of a slab in the standard form of ``surfaces.py``."""

from dataclasses import dataclass

import numpy as np
import spglib
from ase import Atoms
from ase.data import covalent_radii
from numpy.typing import NDArray
from scipy.spatial import Delaunay, QhullError

from faenet_calc.screening.geometry import (
    FLAT_A2,
    SAME_SITE_A,
    FloatArray,
    circumcenter,
    hollow_kind,
    inside_cell,
    lateral_distances,
    triangle_areas,
)

_PROBE_A = 1.3  # Å, radius of the probe: it reaches the terrace atoms of steps but not the second layer of fcc(110)
_SYMMETRY_A = 0.05  # Å, tolerance of symmetry operations: unrelaxed and gently relaxed slabs keep theirs


@dataclass(frozen=True, kw_only=True, eq=False)
class Site:
    """A place on a surface.

    Attributes:
        kind: ``top``, ``bridge``, ``longbridge``, ``hollow``, or ``fcc`` / ``hcp`` on close-packed faces.
        number: Counts symmetry-distinct sites of one kind.
        position: [3] (Å) its center; z is the mean height of its atoms.
        direction_deg: In-plane angle of a bridge, from x; 0 for other sites.
    """

    kind: str
    number: int
    position: FloatArray
    direction_deg: float = 0.0

    @property
    def name(self) -> str:
        """Kind and number, e.g. ``bridge-1``."""
        return f"{self.kind}-{self.number}"


def distinct_sites(slab: Atoms) -> list[Site]:
    """One site of every symmetry-equivalent set, ordered by kind."""
    operations = plane_symmetry(slab)
    kept: list[Site] = []
    for site in all_sites(slab):
        equal = [other for other in kept if other.kind == site.kind]
        if not any(_equivalent(site, other, slab, operations) for other in equal):
            kept.append(
                Site(kind=site.kind, number=len(equal), position=site.position, direction_deg=site.direction_deg)
            )
    return kept


def all_sites(slab: Atoms) -> list[Site]:
    """Corners (top), edges (bridges) and faces (hollows) of the triangulated surface atoms, in one cell.

    An edge shorter than 1.25 times the shortest is a ``bridge``, up to 1.75 times a ``longbridge``. A face is a
    ``hollow`` at its circumcenter; an equilateral one is called ``hcp`` with an atom right below in the second layer,
    else ``fcc``. ``number`` counts the sites of a kind.
    """
    cell = slab.cell.array
    surface = slab.positions[exposed_atoms(slab)]
    found = [("top", position, 0.0) for position in surface]
    shifts = [i * cell[0] + j * cell[1] for i in range(-2, 3) for j in range(-2, 3)]
    points = np.concatenate([surface + shift for shift in shifts])
    try:
        triangles = points[Delaunay(points[:, :2]).simplices]
    except QhullError:  # all atoms in one row: there are no faces
        triangles = np.empty((0, 3, 3))
    triangles = triangles[triangle_areas(triangles) > FLAT_A2]
    triangles = triangles[inside_cell(triangles.mean(axis=1), cell)]
    found += [(hollow_kind(face, slab), circumcenter(face), 0.0) for face in triangles]
    pairs = np.concatenate([triangles[:, [0, 1]], triangles[:, [1, 2]], triangles[:, [2, 0]]])
    lengths = np.linalg.norm(pairs[:, 0] - pairs[:, 1], axis=1)
    for pair, length in zip(pairs, lengths, strict=True):
        if length < 1.75 * lengths.min():
            x, y = (pair[1] - pair[0])[:2]
            kind = "bridge" if length < 1.25 * lengths.min() else "longbridge"
            found.append((kind, pair.mean(axis=0), float(np.degrees(np.arctan2(y, x)) % 180.0)))
    sites: list[Site] = []
    for kind, position, direction in found:
        taken = np.array([site.position for site in sites]).reshape(-1, 3)
        if (lateral_distances(taken, position, cell) > SAME_SITE_A).all():
            number = sum(other.kind == kind for other in sites)
            sites.append(Site(kind=kind, number=number, position=position, direction_deg=direction))
    return sites


def exposed_atoms(slab: Atoms) -> NDArray[np.bool_]:
    """[n_atoms] atoms that a spherical probe lowered right above them touches before it touches any other atom."""
    cell, radius = slab.cell.array, covalent_radii[slab.numbers] + _PROBE_A
    probe = slab.positions + radius[:, None] * np.array([0.0, 0.0, 1.0])
    shifts = [i * cell[0] + j * cell[1] for i in range(-2, 3) for j in range(-2, 3)]
    exposed = np.ones(len(slab), dtype=bool)
    for shift in shifts:
        distance = np.linalg.norm(probe[:, None] - (slab.positions + shift)[None], axis=2)
        exposed &= (distance > radius[None, :] - 1e-6).all(axis=1)
    return exposed


def nearest_site(slab: Atoms, position: FloatArray, sites: list[Site]) -> Site:
    """The site of the list that is laterally nearest to a position [3] (Å)."""
    distances = lateral_distances(np.array([site.position for site in sites]), position, slab.cell.array)
    return sites[int(np.argmin(distances))]


def plane_symmetry(slab: Atoms) -> list[tuple[FloatArray, FloatArray]]:
    """Symmetry operations of a slab that keep its upper side up: (rotation [3, 3], translation [3]), fractional."""
    structure = (slab.cell.array, slab.cell.scaled_positions(slab.positions), slab.numbers)
    found = spglib.get_symmetry(structure, symprec=_SYMMETRY_A)
    identity = [(np.eye(3), np.zeros(3))]
    if found is None:
        return identity
    height = float(slab.cell.array[2, 2])
    operations = []
    for rotation, translation in zip(found["rotations"], found["translations"], strict=True):
        keeps_normal = rotation[2, 2] == 1 and not rotation[2, :2].any() and not rotation[:2, 2].any()
        lift = abs((translation[2] + 0.5) % 1.0 - 0.5) * height
        if keeps_normal and lift < 0.1:
            operations.append((rotation.astype(float), translation))
    return operations or identity


def _equivalent(site: Site, other: Site, slab: Atoms, operations: list[tuple[FloatArray, FloatArray]]) -> bool:
    cell = slab.cell.array
    fraction = slab.cell.scaled_positions(site.position[None])[0]
    if abs(site.position[2] - other.position[2]) > SAME_SITE_A:
        return False
    images = np.array([rotation @ fraction + translation for rotation, translation in operations]) @ cell
    return bool((lateral_distances(images, other.position, cell) < SAME_SITE_A).any())
