"""Tags of catalysis data sets from slab geometry: 0 sub-surface, 1 surface, 2 adsorbate.

Tags are part of the input of some models (upstream's OC20 networks even delete the atoms with tag 0). ASE's slab
builders use the same array for something else, layer numbers counted from the top with 0 for adsorbates, so a slab that
comes from ``ase.build`` must be translated, not passed on.

The rules: the surface normal is the direction with the widest vacuum. A *fragment* is a set of non-metal atoms joined
by covalent bonds. A fragment is an adsorbate if it has no part in the lower half of the slab and is of a kind that the
lower half does not contain (atoms coordinated by metal as in the lower half stay with the slab); so is a layer on top
that holds less than half the atoms of any other layer. Of the slab, the atoms near the top and those whose neighbors
are mostly below are its surface.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from ase import Atoms
from ase.data import covalent_radii
from numpy.typing import ArrayLike, NDArray

from faenet_calc.errors import InputError
from faenet_calc.graphs.neighbors import NeighborList, neighbor_list

SUBSURFACE, SURFACE, ADSORBATE = 0, 1, 2
TagSource = Literal["auto", "atoms"] | ArrayLike | Callable[[Atoms], ArrayLike]

Tags = NDArray[np.int64]
Mask = NDArray[np.bool_]

# H, the noble gases and the elements right of the metalloid line, with B, Si, As and Te on the slab's side.
NONMETALS = np.array([1, 2, 6, 7, 8, 9, 10, 15, 16, 17, 18, 34, 35, 36, 53, 54, 86])
_VACUUM = 5.0  # Å without atoms along a direction make a surface
_BOND = 1.25  # times the sum of covalent radii
_LATTICE_SITE = 0.6  # share of the metal neighbors in the lower half that makes a lattice site
_SURFACE_DEPTH = 2.0  # Å below the topmost slab atom that are surface whatever their neighbors, as OC20 has it
_ADATOM = 1.0  # Å, an adatom is at least this far above the layer below
_LEAN = -0.08  # mean rise of the bonds below which an atom is open upwards
_LAYER = 0.6  # Å, atoms this close in height belong to one layer
_SHELL = 1.3  # times the sum of covalent radii: neighbors that make up an atom's coordination in the slab


def infer_tags(atoms: Atoms) -> Tags:
    """Infer tags [n_atoms] from the geometry alone, without the existing tags.

    All atoms of bulk structures and of clusters with metal atoms have tag 0, those of molecules tag 2.
    """
    vacuum = [_vacuum(atoms, axis) for axis in range(3)]
    nonmetal = np.isin(atoms.numbers, NONMETALS)
    if min(vacuum) >= _VACUUM:
        return np.full(len(atoms), ADSORBATE if nonmetal.all() else SUBSURFACE, dtype=np.int64)
    if max(vacuum) < _VACUUM:
        return np.zeros(len(atoms), dtype=np.int64)
    slab = _Slab.of(atoms, int(np.argmax(vacuum)), nonmetal)
    adsorbate = _adsorbate_fragments(slab)
    adsorbate |= _partial_top_layers(slab, adsorbate)
    tags = np.zeros(len(atoms), dtype=np.int64)
    tags[_surface(slab, ~adsorbate)] = SURFACE
    tags[adsorbate] = ADSORBATE
    return tags


def resolve_tags(atoms: Atoms, how: TagSource = "auto") -> tuple[Tags, str | None]:
    """Determine the tags of a structure, with a message if they differ from those of the atoms.

    Args:
        atoms: The structure.
        how: ``"atoms"`` takes ``atoms.get_tags()`` as they are; ``"auto"`` takes them if they look like tags of
            catalysis data and otherwise translates ASE's layer numbers or infers them from geometry; an array or a
            function of the atoms gives them.

    Raises:
        InputError: If the tags have a wrong length or are not all 0, 1 or 2.
    """
    if isinstance(how, str):
        if how not in ("auto", "atoms"):
            raise InputError(f'tags={how!r}, expected "auto", "atoms", an array or a function of the atoms')
        given = np.asarray(atoms.get_tags())
        return _automatic(atoms, given) if how == "auto" else (_checked(atoms, given, "atoms.get_tags()"), None)
    if callable(how):
        return _checked(atoms, how(atoms), "the tags function's result"), None
    return _checked(atoms, how, "the tags array"), None


def _automatic(atoms: Atoms, given: NDArray[Any]) -> tuple[Tags, str | None]:
    if _is_ase_layers(atoms, given):
        translated = np.select([given == 0, given == 1], [ADSORBATE, SURFACE], SUBSURFACE).astype(np.int64)
        return translated, (
            "the tags of the atoms are ASE's layer numbers (0 adsorbate, 1 top layer, …); they were translated to "
            f"{_summary(translated)}. Set atoms.set_tags(...) or give tags= to decide yourself."
        )
    if given.any() and np.isin(given, (SUBSURFACE, SURFACE, ADSORBATE)).all():
        return given.astype(np.int64), None
    inferred = infer_tags(atoms)
    reason = "no tags" if not given.any() else f"tags {sorted(set(given.tolist()))} that are not all 0, 1 or 2"
    return inferred, (
        f"the atoms have {reason}; inferred from geometry: {_summary(inferred)}. Set atoms.set_tags(...) or give tags= "
        "to decide yourself."
    )


def _is_ase_layers(atoms: Atoms, given: NDArray[Any]) -> bool:
    """Whether tags are layer numbers 1..n counted from the top, with 0 for adsorbates above.

    The order in height decides: in catalysis data the highest tag is on top, in ASE's numbering the lowest.
    """
    layers, adsorbate = np.unique(given[given > 0]), given == 0
    if not np.array_equal(layers, np.arange(1, len(layers) + 1)) or len(layers) + adsorbate.any() < 2:
        return False
    vacuum = [_vacuum(atoms, axis) for axis in range(3)]
    if not layers.any() or max(vacuum) < _VACUUM or min(vacuum) >= _VACUUM:
        return False
    height = _heights(atoms, int(np.argmax(vacuum)))
    means = [height[given == layer].mean() for layer in layers]
    falling = bool(np.all(np.diff(means) < 0))
    return falling and (not adsorbate.any() or bool(height[adsorbate].mean() > means[0]))


def _checked(atoms: Atoms, tags: Any, name: str) -> Tags:
    array = np.asarray(tags)
    if array.shape != (len(atoms),):
        raise InputError(f"{name} has shape {array.shape}, expected one tag for each of the {len(atoms)} atoms")
    wrong = np.flatnonzero(~np.isin(array, (SUBSURFACE, SURFACE, ADSORBATE)))
    if len(wrong):
        raise InputError(
            f"{name} has {array[wrong[0]]} for atom {wrong[0]} ({atoms.symbols[wrong[0]]}); expected 0 (sub-surface), "
            '1 (surface) or 2 (adsorbate). tags="auto" translates ASE\'s layer numbers.'
        )
    return array.astype(np.int64)


def _summary(tags: Tags) -> str:
    words = ("sub-surface", "surface", "adsorbate")
    return ", ".join(f"{int((tags == tag).sum())} {word}" for tag, word in enumerate(words))


@dataclass(frozen=True, kw_only=True, eq=False)
class _Slab:
    """A structure with one surface normal.

    Attributes:
        numbers: [n_atoms].
        height: [n_atoms] (Å) along the normal, from the lowest atom, not cut by the cell's boundary.
        nonmetal: [n_atoms].
        edges: Pairs that may be bonded or coordinated.
        ratio: [n_edges] distance over the sum of covalent radii.
        rise: [n_edges] cosine between the edge and the normal.
    """

    numbers: NDArray[np.int64]
    height: NDArray[np.float64]
    nonmetal: Mask
    edges: NeighborList
    ratio: NDArray[np.float64]
    rise: NDArray[np.float64]

    @classmethod
    def of(cls, atoms: Atoms, axis: int, nonmetal: Mask) -> "_Slab":
        radius = covalent_radii[atoms.numbers]
        cell, pbc = atoms.cell.array, np.asarray(atoms.pbc) & (np.arange(3) != axis)
        normal = _normal(atoms, axis)
        height = _heights(atoms, axis)
        # Positions with the slab in one piece along the normal, so that this direction needs no images.
        lifted = atoms.positions + (height - atoms.positions @ normal)[:, None] * _along(atoms, axis, normal)
        edges = neighbor_list(lifted, cell, pbc, 2 * _SHELL * float(radius.max()))
        vector = lifted[edges.neighbor] + edges.shift @ cell - lifted[edges.centre]
        return cls(
            numbers=np.asarray(atoms.numbers),
            height=height,
            nonmetal=nonmetal,
            edges=edges,
            ratio=edges.distance / (radius[edges.centre] + radius[edges.neighbor]),
            rise=vector @ normal / edges.distance,
        )


def _adsorbate_fragments(slab: _Slab) -> Mask:
    """[n_atoms] non-metal fragments without part in the lower half, of a kind that is not found there."""
    metal_height = slab.height[~slab.nonmetal] if not slab.nonmetal.all() else slab.height
    middle = 0.5 * (metal_height.min() + metal_height.max())
    low = slab.height < middle
    bonded = (slab.ratio < _BOND) & slab.nonmetal[slab.edges.centre] & slab.nonmetal[slab.edges.neighbor]
    fragment = _components(len(slab.numbers), slab.edges.centre[bonded], slab.edges.neighbor[bonded])
    members = [np.flatnonzero((fragment == label) & slab.nonmetal) for label in np.unique(fragment[slab.nonmetal])]
    kinds_below = {_formula(slab, atoms) for atoms in members if low[atoms].any()}
    adsorbate = np.zeros(len(slab.numbers), dtype=bool)
    for atoms in members:
        if not low[atoms].any() and _formula(slab, atoms) not in kinds_below:
            adsorbate[atoms] = True
    adsorbate &= ~_sits_like_below(slab, low)
    # Elements that the lower half lacks are foreign even when they hang on the slab's own non-metal network.
    foreign = slab.nonmetal & ~low & ~np.isin(slab.numbers, np.unique(slab.numbers[low]))
    return adsorbate | foreign


def _sits_like_below(slab: _Slab, low: Mask) -> Mask:
    """[n_atoms] atoms with nearly as many metal neighbors as their element has in the lower half: lattice sites."""
    to_metal = (slab.ratio < _BOND) & ~slab.nonmetal[slab.edges.neighbor]
    count = np.bincount(slab.edges.centre[to_metal], minlength=len(slab.numbers))
    alike = np.zeros(len(slab.numbers), dtype=bool)
    for number in np.unique(slab.numbers[low & slab.nonmetal]):
        mine = slab.numbers == number
        alike |= mine & (count >= max(_LATTICE_SITE * np.median(count[mine & low]), 1))
    return alike


def _partial_top_layers(slab: _Slab, adsorbate: Mask) -> Mask:
    """[n_atoms] a layer on top of the slab with less than half the atoms of any other: adatoms of the slab's kind.

    In a compound the layer stays with the slab if the slab's formula is simpler with it than without.
    """
    body = np.flatnonzero(~adsorbate)
    order = body[np.argsort(slab.height[body])]
    layers = np.split(order, np.flatnonzero(np.diff(slab.height[order]) > _LAYER) + 1)
    partial = np.zeros(len(slab.numbers), dtype=bool)
    if len(layers) < 3:
        return partial
    full = min(len(layer) for layer in layers[:-1])
    top = layers[-1]
    with_top, without = (_formula_units(slab.numbers[atoms]) for atoms in (body, np.setdiff1d(body, top)))
    compound = len(np.unique(slab.numbers[body])) > 1
    if compound and with_top > without:
        return partial
    if len(top) < 0.5 * full and slab.height[top].min() - slab.height[layers[-2]].max() > _ADATOM:
        partial[top] = True
    return partial


def _surface(slab: _Slab, body: Mask) -> Mask:
    """[n_atoms] slab atoms at the top, and those in the upper half that miss neighbors upwards."""
    height = np.where(body, slab.height, -np.inf)
    top, bottom = height.max(), slab.height[body].min()
    inside = (slab.ratio < _SHELL) & body[slab.edges.neighbor]
    n_atoms = len(slab.numbers)
    count = np.bincount(slab.edges.centre[inside], minlength=n_atoms)
    lean = np.bincount(slab.edges.centre[inside], weights=slab.rise[inside], minlength=n_atoms) / np.maximum(count, 1)
    exposed = (lean < _LEAN) & (slab.height > 0.5 * (top + bottom))
    return body & ((height > top - _SURFACE_DEPTH) | exposed)


def _components(n_atoms: int, centre: NDArray[np.int64], neighbor: NDArray[np.int64]) -> NDArray[np.int64]:
    """[n_atoms] the lowest index of the atoms that each atom is connected to."""
    label = np.arange(n_atoms)
    while True:
        lower = label.copy()
        np.minimum.at(lower, centre, label[neighbor])
        if np.array_equal(lower, label):
            return label
        label = lower


def _formula(slab: _Slab, atoms: NDArray[np.int64]) -> tuple[int, ...]:
    return tuple(sorted(slab.numbers[atoms].tolist()))


def _formula_units(numbers: NDArray[np.int64]) -> int:
    return int(np.gcd.reduce(np.unique(numbers, return_counts=True)[1]))


def _normal(atoms: Atoms, axis: int) -> NDArray[np.float64]:
    """[3] unit normal of the plane of the other two lattice vectors, on the side of this axis."""
    first, second = (atoms.cell.array[(axis + step) % 3] for step in (1, 2))
    normal: NDArray[np.float64] = np.cross(first, second)
    length = np.linalg.norm(normal)
    if length == 0:
        normal, length = np.eye(3)[axis], np.float64(1.0)
    own = atoms.cell.array[axis] @ normal
    return normal / length * (-1.0 if own < 0 else 1.0)


def _along(atoms: Atoms, axis: int, normal: NDArray[np.float64]) -> NDArray[np.float64]:
    """[3] direction of the axis, scaled to rise by 1 Å along the normal."""
    vector = atoms.cell.array[axis]
    return vector / (vector @ normal) if atoms.pbc[axis] else normal


def _heights(atoms: Atoms, axis: int) -> NDArray[np.float64]:
    """[n_atoms] (Å) along the normal; a periodic axis is cut in the middle of its largest gap."""
    normal = _normal(atoms, axis)
    height: NDArray[np.float64] = atoms.positions @ normal
    if atoms.pbc[axis]:
        period = float(atoms.cell.array[axis] @ normal)
        start, _ = _gap(height, period)
        height = (height - start) % period
        height = np.where(height > period - 1e-9, 0.0, height)
    return height


def _gap(height: NDArray[np.float64], period: float) -> tuple[float, float]:
    """Where the largest gap of periodic heights ends, and its size (Å)."""
    wrapped = np.sort(height % period)
    gaps = np.append(wrapped[1:], wrapped[0] + period) - wrapped
    largest = int(np.argmax(gaps))
    return float(wrapped[(largest + 1) % len(wrapped)]), float(gaps[largest])


def empty_directions(atoms: Atoms) -> list[int]:
    """The periodic directions (0, 1, 2) along which 5 Å or more are without atoms."""
    return [axis for axis in range(3) if atoms.pbc[axis] and _vacuum(atoms, axis) >= _VACUUM]


def _vacuum(atoms: Atoms, axis: int) -> float:
    """(Å) the widest empty range along an axis; infinite without periodicity."""
    if not atoms.pbc[axis] or len(atoms) == 0:
        return np.inf
    normal = _normal(atoms, axis)
    return _gap(atoms.positions @ normal, float(atoms.cell.array[axis] @ normal))[1]
