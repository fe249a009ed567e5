"""Adsorbates on sites: the initial structures of a screening."""

import hashlib
import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from ase import Atoms
from ase.data import covalent_radii

from faenet_calc.graphs.neighbors import neighbor_list
from faenet_calc.graphs.tags import ADSORBATE
from faenet_calc.screening.adsorbates import Adsorbate
from faenet_calc.screening.geometry import SAME_SITE_A, FloatArray, contact_lift, lateral_distances
from faenet_calc.screening.sites import Site, all_sites, distinct_sites
from faenet_calc.screening.surfaces import Slab

_CLASH = 1.4  # times the sum of covalent radii: closer than this, separate adsorbates would react


@dataclass(frozen=True, kw_only=True, eq=False)
class Configuration:
    """An adsorbate at a site, before relaxation.

    Attributes:
        key: Unique in a screening and stable from run to run.
        slab, adsorbate: Their names.
        site: Name of the initial site.
        orientation: ``upright`` or ``bidentate`` and the rotation about the surface normal, e.g. ``upright-90``.
        coverage: Number of adsorbates in the cell.
        atoms: Slab atoms first, in their order, then the adsorbates.
    """

    key: str
    slab: str
    adsorbate: str
    site: str
    orientation: str
    coverage: int
    atoms: Atoms


def configurations(
    slab: Slab,
    adsorbate: Adsorbate,
    *,
    rotations: int = 2,
    height_A: float = 0.1,
    coverage: int = 1,
    sites: Sequence[Site] | None = None,
) -> list[Configuration]:
    """Enumerate the adsorbate on every symmetry-distinct site, in every orientation, without clashes.

    Args:
        slab: Clean slab in the standard form.
        adsorbate: What to place.
        rotations: Orientations about the surface normal of an adsorbate that is not axial, in steps of 180°/rotations.
        height_A: Distance (Å) above contact, where the first pair of atoms is at the sum of its covalent radii.
        coverage: Number of adsorbates in the cell, placed on equivalent sites as far apart as possible.
        sites: Sites to occupy; None for all symmetry-distinct ones.
    """
    found = []
    for site in distinct_sites(slab.atoms) if sites is None else sites:
        for orientation, molecule in _orientations(adsorbate, site, rotations):
            placed = _place(slab.atoms, molecule, _spread(slab.atoms, site, coverage), height_A)
            if placed is None or _clashes(placed, len(slab.atoms), len(molecule)):
                continue
            found.append(
                Configuration(
                    key=_key(slab.name, adsorbate.name, site.name, orientation, coverage, placed),
                    slab=slab.name,
                    adsorbate=adsorbate.name,
                    site=site.name,
                    orientation=orientation,
                    coverage=coverage,
                    atoms=placed,
                )
            )
    return found


def enumerate_all(
    slabs: Sequence[Slab],
    adsorbates: Sequence[Adsorbate],
    *,
    rotations: int = 2,
    height_A: float = 0.1,
    coverages: Sequence[int] = (1,),
) -> list[Configuration]:
    """All configurations of every slab with every adsorbate."""
    found = []
    for slab in slabs:
        sites = distinct_sites(slab.atoms)
        for adsorbate, coverage in itertools.product(adsorbates, coverages):
            settings = {"rotations": rotations, "height_A": height_A, "coverage": coverage}
            found += configurations(slab, adsorbate, sites=sites, **settings)  # type: ignore[arg-type]
    return found


def _orientations(adsorbate: Adsorbate, site: Site, rotations: int) -> Iterator[tuple[str, Atoms]]:
    """Names and geometries; rotations start along the direction of a bridge."""
    angles = np.arange(rotations) * 180.0 / rotations
    for angle in angles[:1] if adsorbate.is_axial else angles:
        yield f"upright-{angle:.0f}", _turned(adsorbate.upright(), site.direction_deg + angle)
    lying = adsorbate.bidentate()
    if lying is not None:
        for angle in angles:
            yield f"bidentate-{angle:.0f}", _turned(lying, site.direction_deg + angle)


def _turned(molecule: Atoms, angle_deg: float) -> Atoms:
    turned = molecule.copy()
    turned.rotate(angle_deg, "z", center=(0, 0, 0))
    return turned


def _spread(slab: Atoms, site: Site, coverage: int) -> list[FloatArray]:
    """Positions of a site and of further sites of its kind and height, each as far from the others as possible.

    Empty if the cell has fewer such sites than ``coverage``.
    """
    if coverage == 1:
        return [site.position]
    candidates = np.array(
        [
            other.position
            for other in all_sites(slab)
            if other.kind == site.kind and abs(other.position[2] - site.position[2]) < 0.3
        ]
    )
    chosen = [site.position]
    nearest = lateral_distances(candidates, site.position, slab.cell.array)
    while len(chosen) < coverage:
        far = int(np.argmax(nearest))
        if nearest[far] < SAME_SITE_A:
            return []
        chosen.append(candidates[far])
        nearest = np.minimum(nearest, lateral_distances(candidates, candidates[far], slab.cell.array))
    return chosen


def _place(slab: Atoms, molecule: Atoms, positions: list[FloatArray], height_A: float) -> Atoms | None:
    """The slab with copies of a molecule above positions; None if there are not enough positions."""
    if not positions:
        return None
    placed = slab.copy()
    for position in positions:
        copy = molecule.copy()
        copy.positions[:, :2] += position[:2]
        copy.positions[:, 2] += contact_lift(slab, copy) + height_A
        copy.set_tags(ADSORBATE)
        placed += copy
    # Room for the adsorbate: the vacuum above the highest atom stays what it was above the slab.
    added = float(placed.positions[:, 2].max() - slab.positions[:, 2].max())
    placed.cell[2, 2] += max(added, 0.0)
    return placed


def _clashes(placed: Atoms, n_slab: int, n_molecule: int) -> bool:
    """Whether an adsorbate is too close to another one or to a periodic image of itself."""
    radius = covalent_radii[placed.numbers]
    edges = neighbor_list(placed.positions, placed.cell.array, placed.pbc, 2 * float(radius.max()))
    molecule = (np.arange(len(placed)) - n_slab) // n_molecule
    both = (edges.centre >= n_slab) & (edges.neighbor >= n_slab)
    other = (molecule[edges.centre] != molecule[edges.neighbor]) | edges.shift.any(axis=1)
    close = edges.distance < _CLASH * (radius[edges.centre] + radius[edges.neighbor])
    return bool((both & other & close).any())


def _key(slab: str, adsorbate: str, site: str, orientation: str, coverage: int, atoms: Atoms) -> str:
    """A readable key that is safe as a file name, with a digest of the structure."""
    content = [atoms.numbers.tobytes(), np.round(atoms.positions, 4).tobytes(), np.round(atoms.cell.array, 4).tobytes()]
    digest = hashlib.sha256(b"".join(content)).hexdigest()[:8]
    words = [slab, adsorbate, site, orientation, *([f"x{coverage}"] if coverage > 1 else []), digest]
    return "_".join(re.sub(r"[^A-Za-z0-9.-]+", "-", word).strip("-") for word in words)
