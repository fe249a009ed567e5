"""Short-range repulsion: a ZBL pair energy that replaces the network where atoms overlap.

A network is trained on sensible structures; where atoms overlap or crowd it has arbitrary minima, or explodes. With
g(t) = t³ (10 − 15 t + 6 t²), t limited to [0, 1], a smooth step, and every range of distances given as [inner, outer]:

- Messages of the network between i and j are multiplied by w_ij = s_i s_j. The switch s_i is a product of two smooth
  steps from 1 to 0: in the overlap u_i = Σ_j o_ij from 0.4 to 1, and in the crowding n_i = Σ_j m_ij of metal atoms from
  crowding_start to crowding_end. An atom that overlaps or is crowded is thus removed from the network: it keeps the
  energy of an isolated atom, and others do not see it.
- The pair energy of Ziegler, Biersack and Littmark (ZBL) is multiplied by z_ij + (1 − z_ij) (1 − w_ij) c_ij: it acts on
  pairs that overlap, and on close pairs that were removed from the network.

The functions o, m, z and c of the distance are g over different ranges: 0 at the outer end, 1 at the inner end. In
units of a short bond between the two elements and with a third of [inner, outer] between them, z has [inner + third,
outer] and o has [inner, outer − third], so that ZBL is switched on first. In units of the distance of neighbors in
close-packed metals, m has [0.6, 1] and, for two metals, c has [0.7, 0.92]; otherwise c is o. An fcc metal whose lattice
constant is smaller by 9 % has n = 1.0, by 13 % 2.4; in labelled slabs, hot ones included, n is at most 1.8.

Everything is twice continuously differentiable, local, extensive and independent of the order of atoms. Structures
without overlapping pairs and crowded atoms are not affected at all.

Symbols: a screening length (Å), φ universal screening function, Z nuclear charges.
"""

import ctypes
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any, NamedTuple

import torch
from ase.units import Bohr, Hartree
from torch import Tensor

from faenet_calc import elements
from faenet_calc.frames.frames import FramedGraph
from faenet_calc.graphs.graph import AtomGraph
from faenet_calc.network.native import library
from faenet_calc.potential.config import RepulsionConfig
from faenet_calc.potential.edge_lengths import EdgeLengths

_COULOMB = Hartree * Bohr  # e² / (4π ε0) (eV Å)
_SCREENING = ((0.18175, 3.19980), (0.50986, 0.94229), (0.28022, 0.40290), (0.02817, 0.20162))  # φ = Σ c exp(−b x)
_OVERLAP = (0.4, 1.0)  # of an atom: the network as it is, and without this atom
_CROWDING_RANGE = (0.6, 1.0)  # of m, in units of the distance of neighbors in close-packed metals
_REMOVED_RANGE = (0.7, 0.92)  # of c for two metals, in the same units
_SOFT_METALS = 0.85
_PACKED_PER_SINGLE = 1.13  # metallic radius / single-bond radius, for metals without a known metallic radius
_NONMETALS = ("H", "He", "B", "C", "N", "O", "F", "Ne", "Si", "P", "S", "Cl", "Ar", "Ge", "As", "Se", "Br", "Kr", "Te",
              "I", "Xe")  # fmt: skip


class SwitchingRanges(NamedTuple):
    """Inner and outer ends (Å) of the ranges of z, o, c and m for pairs of elements, [n, 2] each."""

    zbl: Tensor
    overlap: Tensor
    removed: Tensor
    crowding: Tensor


@dataclass(frozen=True, kw_only=True, eq=False)
class CloseContacts:
    """Where the repulsion acts in a batch.

    Attributes:
        config: Of the repulsion.
        ranges: Of every edge.
    """

    config: RepulsionConfig
    ranges: SwitchingRanges

    def energies(self, graph: AtomGraph, vectors: Tensor) -> Tensor:
        """[n_atoms] (eV) ZBL energy of every atom, half of each of its pairs; differentiable in edge vectors (Å)."""
        reach = torch.maximum(self.ranges.zbl[:, 1], self.ranges.removed[:, 1])
        edges = torch.nonzero(vectors.detach().square().sum(dim=1) < reach**2)[:, 0]
        centre, neighbor = graph.centre[edges], graph.neighbor[edges]
        charges = torch.stack([graph.atomic_numbers[centre], graph.atomic_numbers[neighbor]], dim=1).to(vectors.dtype)
        distance = torch.linalg.vector_norm(vectors[edges], dim=1)
        overlapping = _inside(distance, self.ranges.zbl[edges])
        removed = (1 - self.message_weights(vectors, graph)[edges]) * _inside(distance, self.ranges.removed[edges])
        pair = zbl_energy(distance, charges) * (overlapping + (1 - overlapping) * removed)
        return pair.new_zeros(graph.n_atoms).index_add(0, centre, 0.5 * pair)

    def gradient(self, graph: AtomGraph, vectors: Tensor) -> Tensor:
        """[n_edges, 3] (eV/Å) derivative of the ZBL energy with respect to edge vectors."""
        with torch.enable_grad():
            leaf = vectors.detach().requires_grad_()
            (gradient,) = torch.autograd.grad(self.energies(graph, leaf).sum(), leaf)
        return gradient

    def forces(self, graph: AtomGraph, vectors: Tensor) -> Tensor:
        """[n_atoms, 3] (eV/Å) ZBL forces, for potentials whose own forces are not a gradient."""
        gradient = self.gradient(graph, vectors)
        forces = torch.zeros_like(graph.positions).index_add(0, graph.centre, gradient)
        return forces.index_add(0, graph.neighbor, -gradient)

    def message_weights(self, vectors: Tensor, edges: AtomGraph | FramedGraph) -> Tensor:
        """[n_edges] s_i s_j of every edge, differentiable in edge vectors (Å).

        Args:
            vectors: [n_edges, 3] (Å).
            edges: The graph, or the graph copied into frames with one vector per copy.
        """
        if isinstance(edges, FramedGraph):
            overlap, crowding = (limits[edges.edge_of_copy] for limits in (self.ranges.overlap, self.ranges.crowding))
            n_nodes = edges.n_nodes
        else:
            overlap, crowding, n_nodes = self.ranges.overlap, self.ranges.crowding, edges.n_atoms
        distance = torch.linalg.vector_norm(vectors, dim=1)
        allowed = (self.config.crowding_start, self.config.crowding_end)
        switch = vectors.new_ones(n_nodes)
        for limits, (start, end) in ((overlap, _OVERLAP), (crowding, allowed)):
            total = distance.new_zeros(n_nodes).index_add(0, edges.centre, _inside(distance, limits))
            switch = switch * (1 - _smooth_step((total - start) / (end - start)))
        return switch[edges.centre] * switch[edges.neighbor]


def _inside(distance: Tensor, limits: Tensor) -> Tensor:
    """From 0 at the outer end of a range [n, 2] to 1 at its inner end."""
    inner, outer = limits.unbind(dim=1)
    return _smooth_step((outer - distance) / (outer - inner))


def _smooth_step(t: Tensor) -> Tensor:
    """g(t): from 0 at t = 0 to 1 at t = 1, twice continuously differentiable."""
    t = t.clamp(0, 1)
    return t**3 * (10 - 15 * t + 6 * t**2)


def close_contacts(
    config: RepulsionConfig, graph: AtomGraph, lengths: EdgeLengths, cutoff: float
) -> CloseContacts | None:
    """Find out where the repulsion acts; None if nowhere.

    Args:
        config: Of the repulsion.
        graph: The structures.
        lengths: Of the edges.
        cutoff: Of the edges (Å).
    """
    if config.kind == "none":
        return None
    every, outer = _ranges_of_all_pairs(config, cutoff, lengths.squared.dtype, lengths.squared.device)
    if not _acts(graph, lengths, outer, config.crowding_start):
        return None
    ranges = SwitchingRanges(*(table.index_select(0, lengths.pair) for table in every))
    return CloseContacts(config=config, ranges=ranges)


def _acts(graph: AtomGraph, lengths: EdgeLengths, limits: Tensor, crowding_start: float) -> bool:
    """Whether a pair is within its range of z, or an atom is crowded; ``limits`` as in :func:`_ranges_of_all_pairs`."""
    squared, pair, scan = lengths.squared, lengths.pair, _compiled_scan()
    if scan is not None and squared.device.type == "cpu" and squared.dtype == torch.float64:
        inputs = [x.contiguous() for x in (squared, pair, graph.centre, limits)]
        found: int = scan(len(squared), len(limits), *(x.data_ptr() for x in inputs), crowding_start)
        if found < 0:
            raise IndexError(f"atomic numbers {graph.atomic_numbers.unique().tolist()}, expected 0 to {elements.MAX_Z}")
        return bool(found)
    of_edges = limits.index_select(0, pair)
    distance = squared.sqrt()
    crowded = distance.new_zeros(graph.n_atoms).index_add(0, graph.centre, _inside(distance, of_edges[:, 1:]))
    return bool((distance < of_edges[:, 0]).any() | (crowded > crowding_start).any())


@cache
def _compiled_scan() -> Any:
    """``contacts_act`` of ``native/examine.c``; None without the compiled library."""
    found = library()
    if found is None:
        return None
    scan = found.function("contacts_act")
    scan.argtypes = (*[ctypes.c_int64] * 2, *[ctypes.c_void_p] * 4, ctypes.c_double)
    return scan


def relative_distances(config: RepulsionConfig, graph: AtomGraph, distance: Tensor) -> Tensor:
    """[n_edges] distances (Å) in units of a short bond of the two elements, as ``config.outer`` is."""
    return distance / _ranges_of_edges(config, graph, torch.inf, distance).zbl[:, 1] * config.outer


def crowding(config: RepulsionConfig, graph: AtomGraph, distance: Tensor, cutoff: float) -> Tensor:
    """[n_atoms] crowding n_i of every atom, from distances (Å) of the edges within a cutoff (Å)."""
    limits = _ranges_of_edges(config, graph, cutoff, distance).crowding
    return distance.new_zeros(graph.n_atoms).index_add(0, graph.centre, _inside(distance, limits))


def _ranges_of_edges(config: RepulsionConfig, graph: AtomGraph, cutoff: float, like: Tensor) -> SwitchingRanges:
    every, _ = _ranges_of_all_pairs(config, cutoff, like.dtype, like.device)
    pair = graph.atomic_numbers[graph.centre] * (elements.MAX_Z + 1) + graph.atomic_numbers[graph.neighbor]
    return SwitchingRanges(*(table.index_select(0, pair) for table in every))


@lru_cache(maxsize=8)
def _ranges_of_all_pairs(
    config: RepulsionConfig, cutoff: float, dtype: torch.dtype, device: torch.device
) -> tuple[SwitchingRanges, Tensor]:
    """The ranges of every pair of elements, [119 * 119, 2] each, and those that tell whether they matter.

    The latter are [119 * 119, 3]: the outer end of z, and both ends of m.
    """
    every = torch.arange(elements.MAX_Z + 1)
    ranges = switching_ranges(config, torch.cartesian_prod(every, every))
    ranges = ranges._replace(crowding=ranges.crowding.clamp(max=cutoff))
    ranges = SwitchingRanges(*(table.to(device=device, dtype=dtype) for table in ranges))
    return ranges, torch.cat([ranges.zbl[:, 1:], ranges.crowding], dim=1)


def switching_ranges(config: RepulsionConfig, numbers: Tensor) -> SwitchingRanges:
    """The ranges (Å) for pairs of elements [n, 2]."""
    third = (config.outer - config.inner) / 3
    bond, radii = bond_length(numbers)[:, None], _radii()
    packed = radii.packed.to(numbers.device)[numbers].sum(dim=1, keepdim=True)
    metals = ~radii.nonmetal.to(numbers.device)[numbers].any(dim=1, keepdim=True)
    overlap = bond * bond.new_tensor([config.inner, config.outer - third])
    return SwitchingRanges(
        zbl=bond * bond.new_tensor([config.inner + third, config.outer]),
        overlap=overlap,
        removed=torch.where(metals, packed * bond.new_tensor(_REMOVED_RANGE), overlap),
        crowding=torch.where(metals, packed * bond.new_tensor(_CROWDING_RANGE), bond.new_tensor([-2.0, -1.0])),
    )


def zbl_energy(distance: Tensor, charges: Tensor) -> Tensor:
    """[n] (eV) energy of bare pairs: Z₁ Z₂ e² / (4π ε0 d) · φ(d / a).

    Args:
        distance: [n] (Å).
        charges: [n, 2] nuclear charges.
    """
    a = 0.8854 * Bohr / charges.pow(0.23).sum(dim=1)
    x = distance / a
    screening = sum(c * torch.exp(-b * x) for c, b in _SCREENING)
    return _COULOMB * charges.prod(dim=1) / distance * screening


def bond_length(numbers: Tensor) -> Tensor:
    """[n] (Å) length of a short bond between two elements, from Pyykkö's covalent radii.

    Two nonmetals take the sum of their smallest radii (for single, double and triple bonds). Pairs with a metal, which
    rarely form multiple bonds, take the mean of this and of the sum of their single-bond radii; for two metals 0.85 of
    it, because their bonds are soft and hot slabs have pairs below the mean.

    Args:
        numbers: [n, 2] atomic numbers.
    """
    radii = _radii()
    single, shortest, nonmetal = (x.to(numbers.device) for x in (radii.single, radii.shortest, radii.nonmetal))
    short, mean = shortest[numbers].sum(dim=1), 0.5 * (shortest + single)[numbers].sum(dim=1)
    n_nonmetals = nonmetal[numbers].sum(dim=1)
    return torch.where(n_nonmetals == 2, short, torch.where(n_nonmetals == 1, mean, _SOFT_METALS * mean))


class _Radii(NamedTuple):
    """[119] by atomic number: radii (Å), and whether the element is a nonmetal."""

    single: Tensor
    shortest: Tensor
    packed: Tensor
    nonmetal: Tensor


@lru_cache(maxsize=1)
def _radii() -> _Radii:
    def column(name: str) -> Tensor:
        return torch.tensor(elements.raw_properties()[:, elements.PROPERTY_NAMES.index(name)]) / 100  # pm

    single = column("covalent_radius_pyykko")
    multiple = torch.stack([column("covalent_radius_pyykko_double"), column("covalent_radius_pyykko_triple")])
    metallic = column("metallic_radius_c12")
    nonmetal = torch.zeros(len(single), dtype=torch.bool)
    nonmetal[[elements.atomic_number(symbol) for symbol in _NONMETALS]] = True
    return _Radii(
        single=single,
        shortest=torch.minimum(single, multiple.nan_to_num(torch.inf).amin(dim=0)),
        packed=torch.where(metallic.isnan(), _PACKED_PER_SINGLE * single, metallic),
        nonmetal=nonmetal,
    )
