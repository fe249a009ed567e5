"""Anomalies of relaxed structures: what a table of energies would hide.

    flag            the final structure, compared with the initial one
    dissociated     a bond inside an adsorbate is broken
    desorbed        a group of adsorbate atoms is out of contact with the slab
    reconstructed   a slab atom has left a neighbor, or approached an atom that was far away
    intercalated    an adsorbate atom is surrounded by slab atoms
    overlap         two atoms are closer than any chemical bond, so the energy is an artifact of the model
    outside-domain  the calculator marks its results as outside the domain of its training data

Distances are measured in sums of covalent radii, x = d / (r_i + r_j): chemical bonds have x ≈ 0.75–1.2 (largest: H₂),
metal contacts 0.9–1.1, second neighbors in fcc 1.37; the shortest known multiple bond, of Cr₂, has 0.60. The threshold
for a broken bond is well above that for a bond, so that an activated bond (x ≈ 1.3) raises no flag. Tags distinguish
sub-surface (0), surface (1) and adsorbate (2) atoms.
"""

from dataclasses import dataclass

import numpy as np
from ase import Atoms
from ase.data import covalent_radii
from numpy.typing import NDArray

from faenet_calc.graphs.neighbors import neighbor_list
from faenet_calc.graphs.tags import ADSORBATE, TagSource, resolve_tags

OUTSIDE_DOMAIN = "outside-domain"
FLAGS = ("dissociated", "desorbed", "reconstructed", "intercalated", "overlap", OUTSIDE_DOMAIN)

_BONDED = 1.25  # x below which atoms are bonded
_BROKEN = 1.5  # x above which a former bond is broken
_TOUCHING = 1.5  # x below which an adsorbate atom is in contact with the slab
_TOGETHER = 2.0  # x below which adsorbate atoms are one group; includes hydrogen bonds
_LEFT = 1.3  # times the initial distance: a slab atom has left its neighbor
_FOUND = 0.7  # times the initial distance: a slab atom has a new neighbor
_AROUND = 1.35  # x below which slab atoms count as neighbors of an adsorbate atom
_ENCLOSED = 0.2  # length of the mean direction to these neighbors below which they surround it
_MIN_AROUND = 4
_OVERLAP = 0.6  # x below which atoms of a relaxed structure overlap
_OVERLAP_IN_MOTION = 0.5  # x below which atoms overlap in molecular dynamics; Cu at 1 TPa has about 0.7


@dataclass(frozen=True, kw_only=True, eq=False)
class _Pairs:
    """Edges of one structure, with the same image of each pair measured in another structure.

    Attributes:
        vector: [n_edges, 3] (Å) in the first structure.
        x: [n_edges] distance over the sum of covalent radii in the first structure.
        change: [n_edges] distance in the first structure over the distance in the other one.
    """

    centre: NDArray[np.int64]
    neighbor: NDArray[np.int64]
    vector: NDArray[np.float64]
    x: NDArray[np.float64]
    change: NDArray[np.float64]

    @classmethod
    def of(cls, atoms: Atoms, other: Atoms) -> "_Pairs":
        radius = covalent_radii[atoms.numbers]
        cutoff = _TOGETHER * 2 * float(radius.max())
        edges = neighbor_list(atoms.positions, atoms.cell.array, atoms.pbc, cutoff)
        here, there = (
            a.positions[edges.neighbor] + edges.shift @ a.cell.array - a.positions[edges.centre] for a in (atoms, other)
        )
        distance = np.linalg.norm(here, axis=1)
        return cls(
            centre=edges.centre,
            neighbor=edges.neighbor,
            vector=here,
            x=distance / (radius[edges.centre] + radius[edges.neighbor]),
            change=distance / np.linalg.norm(there, axis=1),
        )


def find_anomalies(initial: Atoms, final: Atoms, *, tags: TagSource = "auto", unwrap: bool = True) -> tuple[str, ...]:
    """Flags that the geometries of a relaxation raise, in the order of `FLAGS`; `relax` adds ``outside-domain``.

    Without an adsorbate only ``reconstructed`` and ``overlap`` can be raised, without a slab only ``dissociated`` and
    ``overlap``, in a bulk crystal only ``overlap``.

    Args:
        initial: The structure before.
        final: The structure after, with the same atoms in the same order.
        tags: "auto" takes the tags of ``initial``, translating or inferring them where they are not 0, 1, 2; see
            `faenet_calc.graphs.tags.resolve_tags`.
        unwrap: Atoms of ``final`` may have been wrapped into the cell: use the images nearest to their initial
            positions. False uses positions as they are, for atoms that travel more than half a cell.
    """
    resolved, _ = resolve_tags(initial, tags)
    if unwrap:
        final = _unwrapped(initial, final)
    adsorbate = resolved == ADSORBATE
    slab = ~adsorbate
    has_surface = bool((resolved > 0).any())
    before, after = _Pairs.of(initial, final), _Pairs.of(final, initial)
    raised = {
        "dissociated": _dissociated(before, adsorbate),
        "desorbed": adsorbate.any() and slab.any() and _desorbed(after, adsorbate),
        "reconstructed": has_surface and slab.any() and _reconstructed(before, after, slab),
        "intercalated": adsorbate.any() and slab.any() and _intercalated(after, adsorbate),
        "overlap": bool((after.x < _OVERLAP).any()),
    }
    return tuple(flag for flag in FLAGS if raised.get(flag))


def overlapping_pair(atoms: Atoms) -> tuple[int, int, float] | None:
    """Two atoms closer than half the sum of their covalent radii, and their distance (Å); None if there are none."""
    radius = covalent_radii[atoms.numbers]
    edges = neighbor_list(atoms.positions, atoms.cell.array, atoms.pbc, 2 * _OVERLAP_IN_MOTION * float(radius.max()))
    x = edges.distance / (radius[edges.centre] + radius[edges.neighbor])
    if len(x) == 0 or x.min() >= _OVERLAP_IN_MOTION:
        return None
    nearest = int(x.argmin())
    return int(edges.centre[nearest]), int(edges.neighbor[nearest]), float(edges.distance[nearest])


def _unwrapped(initial: Atoms, final: Atoms) -> Atoms:
    """The final structure with every atom in the image nearest to its initial position."""
    if not final.pbc.any():
        return final
    before, after = (atoms.cell.complete().scaled_positions(atoms.positions) for atoms in (initial, final))
    nearest = final.copy()
    nearest.positions -= np.where(final.pbc, np.round(after - before), 0.0) @ final.cell.array
    return nearest


def _dissociated(before: _Pairs, adsorbate: NDArray[np.bool_]) -> bool:
    inside = adsorbate[before.centre] & adsorbate[before.neighbor]
    x_after = before.x / before.change
    return bool((inside & (before.x < _BONDED) & (x_after > _BROKEN)).any())


def _desorbed(after: _Pairs, adsorbate: NDArray[np.bool_]) -> bool:
    """Whether a group of adsorbate atoms is out of contact with the slab.

    "Attached" spreads from the atoms in contact with the slab through the groups they belong to.
    """
    touching = adsorbate[after.centre] & ~adsorbate[after.neighbor] & (after.x < _TOUCHING)
    together = adsorbate[after.centre] & adsorbate[after.neighbor] & (after.x < _TOGETHER)
    centre, neighbor = after.centre[together], after.neighbor[together]
    attached = np.zeros(len(adsorbate), dtype=bool)
    attached[after.centre[touching]] = True
    while True:
        reached = centre[attached[neighbor] & ~attached[centre]]
        if len(reached) == 0:
            return bool((adsorbate & ~attached).any())
        attached[reached] = True


def _reconstructed(before: _Pairs, after: _Pairs, slab: NDArray[np.bool_]) -> bool:
    left = slab[before.centre] & slab[before.neighbor] & (before.x < _BONDED) & (before.change < 1 / _LEFT)
    found = slab[after.centre] & slab[after.neighbor] & (after.x < _BONDED) & (after.change < _FOUND)
    return bool(left.any() or found.any())


def _intercalated(after: _Pairs, adsorbate: NDArray[np.bool_]) -> bool:
    """Whether the unit vectors from an adsorbate atom to its slab neighbors cancel.

    On a surface they point down; in an octahedral or tetrahedral hole their sum vanishes.
    """
    around = adsorbate[after.centre] & ~adsorbate[after.neighbor] & (after.x < _AROUND)
    direction = after.vector[around] / np.linalg.norm(after.vector[around], axis=1, keepdims=True)
    total = np.zeros((len(adsorbate), 3))
    np.add.at(total, after.centre[around], direction)
    count = np.bincount(after.centre[around], minlength=len(adsorbate))
    mean = np.linalg.norm(total, axis=1) / np.maximum(count, 1)
    return bool(((count >= _MIN_AROUND) & (mean < _ENCLOSED)).any())
