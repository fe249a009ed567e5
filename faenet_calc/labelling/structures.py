"""Initial structures: bulk cells, tagged slabs, free clusters, adsorption sites and adsorbates on them.

Periodic boundary conditions are TTT for bulk, TTF for slabs and FFF for clusters and molecules. Tags are 0 sub-surface,
1 surface, 2 adsorbate.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from ase import Atoms
from ase.build import bcc100, bcc110, bulk, fcc100, fcc110, fcc111, fcc211, hcp0001
from ase.cluster import Icosahedron, Octahedron
from ase.data import atomic_numbers, covalent_radii
from ase.geometry import get_distances
from ase.neighborlist import neighbor_list
from numpy.typing import NDArray
from scipy.spatial import Delaunay, QhullError

from faenet_calc.graphs.tags import ADSORBATE
from faenet_calc.labelling.adsorbates import random_rotation, upright
from faenet_calc.screening.geometry import (
    FLAT_A2,
    SAME_SITE_A,
    FloatArray,
    circumcenter,
    contact_lift,
    hollow_kind,
    inside_cell,
    lateral_distances,
    triangle_areas,
)

_BUILDERS: dict[str, Callable[..., Atoms]] = {
    "fcc111": fcc111,
    "fcc100": fcc100,
    "fcc110": fcc110,
    "fcc211": fcc211,
    "hcp0001": hcp0001,
    "bcc110": bcc110,
    "bcc100": bcc100,
}
_CLUSTERS: dict[int, Callable[..., Atoms]] = {
    13: lambda symbol, a: Icosahedron(symbol, 2, a),
    19: lambda symbol, a: Octahedron(symbol, 3, latticeconstant=a),
    38: lambda symbol, a: Octahedron(symbol, 4, cutoff=1, latticeconstant=a),
    44: lambda symbol, a: Octahedron(symbol, 4, latticeconstant=a),
    55: lambda symbol, a: Icosahedron(symbol, 3, a),
}
_CLUSTER_BOX_A = 10.0  # vacuum around a cluster
_APART_A = 0.7  # adsorbates in one cell are this much farther apart than bonded atoms, if there is room
_DRAWS = 12  # of the place of a further adsorbate
_NEIGHBORS = {"fcc": 12, "hcp": 12, "bcc": 8}
_REACH = {"fcc": 1.15, "hcp": 1.15, "bcc": 1.07}  # of nearest neighbors, also in strained slabs


@dataclass(frozen=True, kw_only=True)
class Substrate:
    """A metal or random binary alloy on a lattice.

    Attributes:
        name: ``Pt`` or ``CuPd``, as in held-out rules.
        symbols: One or two elements.
        crystal: ``fcc``, ``hcp`` or ``bcc``.
        a: Lattice constant (Å).
        c: Second lattice constant of hcp (Å).
        fraction: Atomic fraction of the second element.
    """

    name: str
    symbols: tuple[str, ...]
    crystal: str
    a: float
    c: float | None = None
    fraction: float = 0.0

    @property
    def label(self) -> str:
        """``Pt``, or with the composition ``Cu75Pd25``."""
        if len(self.symbols) == 1:
            return self.symbols[0]
        percent = round(100 * self.fraction)
        return f"{self.symbols[0]}{100 - percent}{self.symbols[1]}{percent}"

    @property
    def nearest(self) -> float:
        """Nearest-neighbor distance of the ideal lattice (Å); the shorter of the two for hcp."""
        if self.c is not None:
            return min(self.a, math.sqrt(self.a**2 / 3 + self.c**2 / 4))
        return self.a * (math.sqrt(0.5) if self.crystal == "fcc" else math.sqrt(0.75))


@dataclass(frozen=True, kw_only=True)
class Site:
    """An adsorption site: its kind and position (Å), whose z is the mean z of its surface atoms."""

    kind: str
    position: tuple[float, float, float]


def bulk_cell(substrate: Substrate, rng: np.random.Generator, description: str = "conventional") -> Atoms:
    """A small periodic crystal.

    Args:
        substrate: The metal or alloy.
        rng: Random generator for the arrangement of an alloy and the vectors of a supercell.
        description: ``conventional``: 4 (fcc), 4 (bcc) or 4 (hcp) atoms, ``primitive``: 1, 1 or 2 atoms, both twice as
            many for an alloy; ``supercell``: the conventional cell doubled along two vectors, to one of which another
            one is added or not.
    """
    lattice: dict[str, Any] = {"a": substrate.a}
    if substrate.c is not None:
        lattice["c"] = substrate.c
    elif description != "primitive":
        lattice["cubic"] = True
    atoms = bulk(substrate.symbols[0], substrate.crystal, **lattice)
    repeat = {"fcc": (1, 1, 1), "bcc": (2, 1, 1), "hcp": (1, 2, 1)}[substrate.crystal]
    if description == "primitive":
        repeat = (1, 1, 1)
    atoms = atoms.repeat(repeat if len(substrate.symbols) == 1 else (2 * repeat[0], repeat[1], repeat[2]))
    if description == "supercell":
        atoms = atoms.repeat([(2, 2, 1), (2, 1, 2), (1, 2, 2)][rng.integers(3)])
        cell = np.array(atoms.cell)
        first, second = rng.permutation(3)[:2]
        cell[first] += rng.integers(-1, 2) * cell[second]
        atoms.set_cell(cell)
    atoms.set_tags(0)
    _mix(atoms, substrate, rng)
    return atoms


def disordered(atoms: Atoms, closest: float, rng: np.random.Generator) -> Atoms:
    """A copy of a cell with atoms in random places, pushed apart like spheres with diameters of ``closest`` ± 15 % (Å).

    The spheres do not overlap unless the cell is too dense for them.
    """
    copy = atoms.copy()
    copy.set_scaled_positions(rng.random((len(copy), 3)))
    radii = closest * rng.uniform(0.425, 0.575, len(copy))
    for _ in range(200):
        first, second, vectors = neighbor_list("ijD", copy, 2 * radii.max())
        lengths = np.linalg.norm(vectors, axis=1)
        overlap = radii[first] + radii[second] - lengths
        touching = overlap > 0
        if not touching.any():
            break
        push = np.zeros_like(copy.positions)
        np.add.at(push, first[touching], -(overlap / lengths / 2)[touching, None] * vectors[touching])
        copy.positions += push + rng.normal(0, 1e-3, push.shape)
    return copy


def cluster(substrate: Substrate, n_atoms: int, rng: np.random.Generator) -> Atoms:
    """A free icosahedron or (truncated) octahedron in a random orientation, in a box without periodicity."""
    shape = _CLUSTERS[n_atoms](substrate.symbols[0], substrate.nearest * math.sqrt(2))
    atoms = Atoms(shape.numbers, positions=shape.positions @ random_rotation(rng).T)
    atoms.center(vacuum=_CLUSTER_BOX_A)
    count = np.bincount(neighbor_list("i", atoms, 1.15 * substrate.nearest), minlength=len(atoms))
    atoms.set_tags((count < 12).astype(int))
    _mix(atoms, substrate, rng)
    return atoms


def with_defect(atoms: Atoms, rng: np.random.Generator) -> Atoms:
    """A slab that lacks a surface atom or has an adatom of one of its elements."""
    surface = np.flatnonzero(atoms.get_tags() == 1)
    chosen = int(rng.choice(surface))
    if rng.random() < 0.5 and len(surface) > 1:
        return atoms[np.arange(len(atoms)) != chosen]
    adatom = Atoms(atoms.numbers[[chosen]], positions=[(0.0, 0.0, 0.0)], tags=[1])
    found = [site for site in sites(atoms) if site.kind != "ontop"] or list(sites(atoms))
    adatom.positions[0, :2] = found[rng.integers(len(found))].position[:2]
    adatom.positions[0, 2] += contact_lift(atoms, adatom)
    return atoms + adatom


def slab(substrate: Substrate, facet: str, size: tuple[int, ...], vacuum: float, rng: np.random.Generator) -> Atoms:
    """A slab with its surface along +z, periodic in the plane only.

    Args:
        substrate: The metal or alloy.
        facet: For example ``fcc111``.
        size: ``(n1, n2, layers)`` of ASE's builders.
        vacuum: Vacuum above and below (Å); it matters only if z is made periodic.
        rng: Random generator for the arrangement of an alloy.
    """
    lattice = {"a": substrate.a} if substrate.c is None else {"a": substrate.a, "c": substrate.c}
    atoms = _BUILDERS[facet](substrate.symbols[0], size, vacuum=vacuum, **lattice)
    atoms = Atoms(atoms.numbers, positions=atoms.positions, cell=atoms.cell, pbc=(True, True, False))
    atoms.set_tags(_surface(atoms, substrate).astype(int))
    _mix(atoms, substrate, rng)
    return atoms


def _surface(atoms: Atoms, substrate: Substrate) -> NDArray[np.bool_]:
    """Mask of atoms in the upper half that lack two or more nearest neighbors [n_atoms]."""
    reach = _REACH[substrate.crystal] * substrate.nearest
    count = np.bincount(neighbor_list("i", atoms, reach), minlength=len(atoms))
    z = atoms.positions[:, 2]
    upper: NDArray[np.bool_] = (count <= _NEIGHBORS[substrate.crystal] - 2) & (z > (z.min() + z.max()) / 2)
    return upper


def _mix(atoms: Atoms, substrate: Substrate, rng: np.random.Generator) -> None:
    if len(substrate.symbols) == 2:
        count = min(max(round(substrate.fraction * len(atoms)), 1), len(atoms) - 1)
        chosen = rng.choice(len(atoms), size=count, replace=False)
        atoms.numbers[chosen] = atomic_numbers[substrate.symbols[1]]


def sites(atoms: Atoms) -> tuple[Site, ...]:
    """High-symmetry sites of a tagged slab: corners, edges and faces of the triangulated surface atoms.

    Above a cluster, they are the places of its surface atoms and the middles of neighboring ones, both ``cluster``.

    A corner is ``ontop``; an edge shorter than 1.25 times the shortest one is ``bridge``, a longer one ``longbridge``.
    The circumcenter of a face is ``hollow`` or, for an equilateral triangle, ``hcp`` (above an atom of the second
    layer) or ``fcc``.
    """
    surface = atoms.positions[atoms.get_tags() == 1]
    if not atoms.pbc.any():
        upper = surface[surface[:, 2] > np.median(surface[:, 2])]
        gaps = np.linalg.norm(upper[:, None] - upper, axis=2)
        first, second = np.nonzero(np.triu(gaps < 1.2 * gaps[gaps > 0].min(), k=1))
        return tuple(
            Site(kind="cluster", position=_triple(position))
            for position in (*upper, *((upper[first] + upper[second]) / 2))
        )
    cell = np.asarray(atoms.cell)
    grid = [(i, j) for i in range(-2, 3) for j in range(-2, 3)]
    points = np.concatenate([surface + i * cell[0] + j * cell[1] for i, j in grid])
    found = [Site(kind="ontop", position=_triple(position)) for position in surface]
    try:
        triangles = points[Delaunay(points[:, :2]).simplices]
    except QhullError:  # a single row of atoms has no faces
        return tuple(found)
    triangles = triangles[triangle_areas(triangles) > FLAT_A2]
    pairs = np.concatenate([triangles[:, [0, 1]], triangles[:, [1, 2]], triangles[:, [2, 0]]])
    length = np.linalg.norm(pairs[:, 0] - pairs[:, 1], axis=1)
    centers = np.array([circumcenter(face) for face in triangles])
    inside = inside_cell(centers, cell)
    hollows = [
        (hollow_kind(face, atoms), center) for face, center in zip(triangles[inside], centers[inside], strict=True)
    ]
    shortest = length.min()
    bridges = [
        ("bridge" if size < 1.25 * shortest else "longbridge", pair.mean(axis=0))
        for pair, size, inside in zip(pairs, length, inside_cell(pairs.mean(axis=1), cell), strict=True)
        if size < 1.75 * shortest and inside
    ]
    for kind, position in hollows + bridges:
        if np.all(lateral_distances(np.array([site.position for site in found]), position, cell) > SAME_SITE_A):
            found.append(Site(kind=kind, position=_triple(position)))
    return tuple(found)


def _triple(position: FloatArray) -> tuple[float, float, float]:
    x, y, z = (float(value) for value in position)
    return x, y, z


def place(atoms: Atoms, name: str, site: Site, height: float, tilt: float | None, rng: np.random.Generator) -> Atoms:
    """The slab with an adsorbate at a site.

    Args:
        atoms: The slab.
        name: The adsorbate.
        site: Where to place it.
        height: Height above contact (Å). At contact, the closest pair of atoms is at the sum of its covalent radii.
        tilt: Largest angle from upright (degrees); None for any orientation.
        rng: Random generator for orientation and lateral displacement.
    """
    adsorbate = upright(name)
    if tilt is None:
        adsorbate.positions = adsorbate.positions @ random_rotation(rng).T
    else:
        adsorbate.rotate(rng.uniform(0, tilt), "x")
        adsorbate.rotate(rng.uniform(0, 360), "z")
    adsorbate.positions[:, :2] += np.asarray(site.position)[:2] + rng.normal(0, 0.05, size=2)
    adsorbate.positions[:, 2] += contact_lift(atoms, adsorbate) + height
    return atoms + adsorbate


def place_further(atoms: Atoms, name: str, height: float, tilt: float, rng: np.random.Generator) -> Atoms:
    """A slab with one more adsorbate: the first of a few random places that is clear of the others, or the clearest."""
    found = sites(atoms)
    bound = np.flatnonzero(atoms.get_tags() == ADSORBATE)
    best, most = atoms, -np.inf
    for _ in range(_DRAWS):
        drawn = place(atoms, name, found[rng.integers(len(found))], height, tilt, rng)
        clear = _clearance(drawn, np.arange(len(atoms), len(drawn)), bound)
        if clear > most:
            best, most = drawn, clear
        if most > _APART_A:
            break
    return best


def place_below(atoms: Atoms, symbol: str, rng: np.random.Generator) -> Atoms:
    """A slab with an atom below its surface: the clearest of a few random places below sites."""
    found = sites(atoms)
    drawn = []
    for _ in range(_DRAWS):
        position = np.array(found[rng.integers(len(found))].position) - [0.0, 0.0, rng.uniform(0.6, 2.2)]
        drawn.append(atoms + Atoms(symbol, positions=[position], tags=[ADSORBATE]))
    others = np.arange(len(atoms))
    return max(drawn, key=lambda one: _clearance(one, np.array([len(atoms)]), others))


def _clearance(atoms: Atoms, some: NDArray[np.int64], others: NDArray[np.int64]) -> float:
    """How much (Å) the closest pair of two groups of atoms is farther apart than the sum of its covalent radii."""
    if not len(others):
        return math.inf
    _, distances = get_distances(atoms.positions[some], atoms.positions[others], cell=atoms.cell, pbc=atoms.pbc)
    radii = covalent_radii[atoms.numbers]
    return float((distances - radii[some][:, None] - radii[others]).min())


def turned_over(atoms: Atoms, substrate: Substrate) -> Atoms:
    """A clean slab reflected in its middle plane, with tags for the new upper surface."""
    turned = atoms.copy()
    turned.positions[:, 2] = _mirrored(atoms, atoms.positions[:, 2])
    turned.set_tags(_surface(turned, substrate).astype(int))
    return turned


def with_both_sides(above: Atoms, below: Atoms) -> Atoms:
    """A slab with adsorbates on both sides.

    Args:
        above: The slab with an adsorbate.
        below: The same slab after `turned_over`, with an adsorbate.
    """
    bound = below.get_tags() == ADSORBATE
    slab, adsorbate = below[~bound], below[bound]
    adsorbate.positions[:, 2] = _mirrored(slab, adsorbate.positions[:, 2])
    both = above + adsorbate
    tags = both.get_tags()
    tags[: len(slab)] = np.maximum(tags[: len(slab)], slab.get_tags())
    both.set_tags(tags)
    return both


def _mirrored(slab: Atoms, z: FloatArray) -> FloatArray:
    """Heights reflected in the middle plane of the slab."""
    heights = slab.positions[:, 2]
    mirrored: FloatArray = heights.min() + heights.max() - z
    return mirrored
