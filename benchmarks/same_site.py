"""Comparison of the adsorption sites at which two relaxations end.

Equivalent sites are the same site: every symmetry of the ideal slab (rotations, mirrors and in-plane translations that
map all layers, including species, onto themselves) is tried. Both conditions must hold under the same symmetry:

- The binding atom (the non-H atom of the reference that is nearest to the metal; H only if there is no other) and an
  atom of the same element in the other structure are less than 0.5 Å apart in the plane. Neighboring high-symmetry
  sites are further apart (bridge and hollow of Cu(111): 0.74 Å). All layers are mapped, so fcc and hcp hollows differ.
- They bind to the same slab atoms. Distances are measured in sums of covalent radii, x = d / (r_i + r_j): an atom with
  x < 1.2 in one structure must have x < 1.45 in the other. The two limits keep a site whose third neighbor is close to
  the limit from differing from itself. Bonds are compared by element, so that equivalent atoms (the O of HCOO) may be
  swapped, while upright and flat molecules differ.
"""

from dataclasses import dataclass
from itertools import product

import numpy as np
from ase import Atoms
from ase.data import covalent_radii
from ase.geometry import get_distances
from numpy.typing import NDArray

LATERAL_A = 0.5
BONDED, NOT_FAR = 1.2, 1.45
ADSORBATE = 2
_TOLERANCE_A = 0.05
FloatArray = NDArray[np.float64]
Bonds = set[tuple[int, int]]


@dataclass(frozen=True, kw_only=True, eq=False)
class Symmetry:
    """In fractional coordinates of the plane: ``f @ turn + shift`` [2]; slab atom i moves to where ``image[i]`` was."""

    turn: NDArray[np.int64]
    shift: FloatArray
    image: NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class SiteMatch:
    """Result of comparing two final structures.

    Attributes:
        lateral_A: In-plane distance (Å) of the binding atoms under the best symmetry.
        same_bonds: Whether the same slab atoms are bound under that symmetry.
    """

    lateral_A: float
    same_bonds: bool

    @property
    def same(self) -> bool:
        """Whether both conditions hold."""
        return self.same_bonds and self.lateral_A < LATERAL_A


def symmetries(slab: Atoms) -> list[Symmetry]:
    """Symmetries of an ideal slab whose first two cell vectors are periodic and lie in the plane."""
    cell = slab.cell.array[:2, :2]
    metric = cell @ cell.T
    fractional, z = _fractional(slab.positions, cell), slab.positions[:, 2]
    first = np.flatnonzero((slab.numbers == slab.numbers[0]) & (np.abs(z - z[0]) < _TOLERANCE_A))
    found = []
    for entries in product((-1, 0, 1), repeat=4):
        turn = np.array(entries).reshape(2, 2)
        if abs(round(np.linalg.det(turn))) != 1 or not np.allclose(turn @ metric @ turn.T, metric, rtol=1e-3):
            continue
        turned = fractional @ turn
        for target in first:
            shift = fractional[target] - turned[0]
            apart = _lateral((turned + shift)[:, None], fractional[None], cell)
            fits = (apart < _TOLERANCE_A) & (np.abs(z[:, None] - z[None]) < _TOLERANCE_A)
            fits &= slab.numbers[:, None] == slab.numbers[None]
            if fits.any(axis=1).all():
                found.append(Symmetry(turn=turn, shift=shift, image=fits.argmax(axis=1)))
    return found


def match_sites(start: Atoms, reference: Atoms, other: Atoms) -> SiteMatch:
    """Compare the ends of two relaxations from ``start``, whose slab is ideal and whose adsorbate has tag 2."""
    adsorbate = start.get_tags() == ADSORBATE
    cell = start.cell.array[:2, :2]
    binding = _binding_atom(reference, adsorbate)
    here = _fractional(reference.positions[binding : binding + 1], cell)
    partners = _eligible(start, adsorbate)
    there = _fractional(other.positions[partners[start.numbers[partners] == start.numbers[binding]]], cell)
    (bonded, near), (bonded_other, near_other) = (_bonds(atoms, adsorbate) for atoms in (reference, other))
    best = SiteMatch(lateral_A=np.inf, same_bonds=False)
    for symmetry in symmetries(start[~adsorbate]):
        apart = float(_lateral(there @ symmetry.turn + symmetry.shift, here, cell).min())
        same = bonded <= _moved(near_other, symmetry) and _moved(bonded_other, symmetry) <= near
        if (same, -apart) > (best.same_bonds, -best.lateral_A):
            best = SiteMatch(lateral_A=apart, same_bonds=same)
    return best


def _moved(bonds: Bonds, symmetry: Symmetry) -> Bonds:
    return {(number, int(symmetry.image[index])) for number, index in bonds}


def _eligible(atoms: Atoms, adsorbate: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Adsorbate atoms that may bind: all but H, unless there is only H."""
    heavy = adsorbate & (atoms.numbers != 1)
    return np.flatnonzero(heavy if heavy.any() else adsorbate)


def _reduced(atoms: Atoms, adsorbate: NDArray[np.bool_]) -> tuple[NDArray[np.int64], FloatArray]:
    """Eligible atoms [n] and their distances to slab atoms in sums of covalent radii [n, n_slab]."""
    chosen, slab = _eligible(atoms, adsorbate), np.flatnonzero(~adsorbate)
    _, distance = get_distances(atoms.positions[chosen], atoms.positions[slab], cell=atoms.cell, pbc=atoms.pbc)
    radius = covalent_radii[atoms.numbers]
    return chosen, distance / (radius[chosen][:, None] + radius[slab][None])


def _binding_atom(atoms: Atoms, adsorbate: NDArray[np.bool_]) -> int:
    chosen, x = _reduced(atoms, adsorbate)
    return int(chosen[x.min(axis=1).argmin()])


def _bonds(atoms: Atoms, adsorbate: NDArray[np.bool_]) -> tuple[Bonds, Bonds]:
    """(element, slab atom) of bonded pairs and of pairs that are not far apart."""
    chosen, x = _reduced(atoms, adsorbate)
    bonded, near = (
        {(int(atoms.numbers[chosen[i]]), int(j)) for i, j in np.argwhere(x < limit)} for limit in (BONDED, NOT_FAR)
    )
    return bonded, near


def _fractional(positions: FloatArray, cell: FloatArray) -> FloatArray:
    return np.asarray(np.linalg.solve(cell.T, positions[:, :2].T).T, dtype=np.float64)


def _lateral(one: FloatArray, other: FloatArray, cell: FloatArray) -> FloatArray:
    """Shortest distances (Å) in the plane between broadcast fractional positions [..., 2]."""
    difference = one - other
    difference = difference - np.round(difference)
    images = np.array(list(product((-1, 0, 1), repeat=2)))
    vectors = (difference[..., None, :] + images) @ cell
    distances: FloatArray = np.sqrt(np.square(vectors).sum(axis=-1)).min(axis=-1)
    return distances
