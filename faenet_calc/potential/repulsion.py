"""Short-range repulsion: a ZBL pair energy that replaces the network where atoms overlap.

A network is trained on sensible structures; where atoms overlap or crowd it has arbitrary minima, or explodes. With
g(t) = t³ (10 − 15 t + 6 t²), t limited to [0, 1], a smooth step, and every range of distances given as [inner, outer]:

- The crowding of an atom is u_i = Σ_j c_ij, where c_ij is g over a range of distances: 0 at the outer end, 1 at the
  inner end. Messages of the network between i and j are multiplied by w_ij = s_i s_j, where s_i falls smoothly from 1
  at u_i ≤ 0.4 to 0 at u_i ≥ 1. A crowded atom is thus removed from the network: it keeps the energy of an isolated
  atom, and others do not see it.
- The pair energy of Ziegler, Biersack and Littmark (ZBL) is multiplied by z_ij + (1 − z_ij) (1 − w_ij) c_ij, where z_ij
  is g over another range: it acts on pairs that overlap, and on pairs that were removed from the network.

Ranges are fractions of a length that belongs to the two elements. With a third of [inner, outer] between them, z has
[inner + third, outer] and c has [inner, outer − third], in units of a short bond; so ZBL is switched on first. For two
metals c has [crowding_inner, crowding_outer], in units of the distance of neighbors in close-packed metals, such that a
single short bond is left alone and twelve neighbors count together.

Everything is twice continuously differentiable, local, extensive and independent of the order of atoms. Structures
without pairs inside these ranges are not affected at all.

Symbols: a screening length (Å), φ universal screening function, Z nuclear charges.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import torch
from ase.units import Bohr, Hartree
from torch import Tensor

from faenet_calc import elements
from faenet_calc.frames.frames import FramedGraph
from faenet_calc.graphs.graph import AtomGraph
from faenet_calc.potential.config import RepulsionConfig

_COULOMB = Hartree * Bohr  # e² / (4π ε0) (eV Å)
_SCREENING = ((0.18175, 3.19980), (0.50986, 0.94229), (0.28022, 0.40290), (0.02817, 0.20162))  # φ = Σ c exp(−b x)
_TOLERATED = 0.4  # crowding of an atom that leaves the network as it is
_PACKED_PER_SINGLE = 1.13  # metallic radius / single-bond radius, for metals without a known metallic radius
_NONMETALS = ("H", "He", "B", "C", "N", "O", "F", "Ne", "Si", "P", "S", "Cl", "Ar", "Ge", "As", "Se", "Br", "Kr", "Te",
              "I", "Xe")  # fmt: skip


@dataclass(frozen=True, kw_only=True, eq=False)
class CloseContacts:
    """The edges of a batch that are short enough for the repulsion to act.

    Attributes:
        close: [n_edges] bool.
        zbl_range: [n_edges, 2] (Å), inner and outer end.
        crowding_range: [n_edges, 2] (Å), inner and outer end.
    """

    close: Tensor
    zbl_range: Tensor
    crowding_range: Tensor

    def energies(self, graph: AtomGraph, vectors: Tensor) -> Tensor:
        """[n_atoms] (eV) ZBL energy of every atom, half of each of its pairs; differentiable in edge vectors (Å)."""
        edges = torch.nonzero(self.close)[:, 0]
        centre, neighbor = graph.centre[edges], graph.neighbor[edges]
        charges = torch.stack([graph.atomic_numbers[centre], graph.atomic_numbers[neighbor]], dim=1).to(vectors.dtype)
        distance = torch.linalg.vector_norm(vectors[edges], dim=1)
        overlapping = _inside(distance, self.zbl_range[edges])
        removed = (1 - self.message_weights(vectors, graph)[edges]) * _inside(distance, self.crowding_range[edges])
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
        close, limits = self.close, self.crowding_range
        if isinstance(edges, FramedGraph):
            close, limits, n_nodes = close[edges.edge_of_copy], limits[edges.edge_of_copy], edges.n_nodes
        else:
            n_nodes = edges.n_atoms
        chosen = torch.nonzero(close)[:, 0]
        per_pair = _inside(torch.linalg.vector_norm(vectors[chosen], dim=1), limits[chosen])
        crowding = per_pair.new_zeros(n_nodes).index_add(0, edges.centre[chosen], per_pair)
        switch = 1 - _smooth_step((crowding - _TOLERATED) / (1 - _TOLERATED))
        return switch[edges.centre] * switch[edges.neighbor]


def _inside(distance: Tensor, limits: Tensor) -> Tensor:
    """From 0 at the outer end of a range [n, 2] to 1 at its inner end."""
    inner, outer = limits.unbind(dim=1)
    return _smooth_step((outer - distance) / (outer - inner))


def _smooth_step(t: Tensor) -> Tensor:
    """g(t): from 0 at t = 0 to 1 at t = 1, twice continuously differentiable."""
    t = t.clamp(0, 1)
    return t**3 * (10 - 15 * t + 6 * t**2)


def close_contacts(config: RepulsionConfig, graph: AtomGraph, vectors: Tensor) -> CloseContacts | None:
    """Find the edges that are short enough for the repulsion to act; None if there are none."""
    if config.kind == "none":
        return None
    first, second = (graph.atomic_numbers.index_select(0, end) for end in (graph.centre, graph.neighbor))
    reach = _squared_reach(config).to(vectors.device).index_select(0, first * (elements.MAX_Z + 1) + second)
    close = vectors.detach().square().sum(dim=1) < reach
    if not bool(close.any()):
        return None
    zbl, crowding = switching_ranges(config, torch.stack([first, second], dim=1))
    return CloseContacts(close=close, zbl_range=zbl.to(vectors), crowding_range=crowding.to(vectors))


@lru_cache(maxsize=8)
def _squared_reach(config: RepulsionConfig) -> Tensor:
    """[119 * 119] (Å²) squared distance below which the repulsion acts, for every pair of elements."""
    every = torch.arange(elements.MAX_Z + 1)
    zbl, crowding = switching_ranges(config, torch.cartesian_prod(every, every))
    return torch.maximum(zbl[:, 1], crowding[:, 1]).square()


def switching_ranges(config: RepulsionConfig, numbers: Tensor) -> tuple[Tensor, Tensor]:
    """Inner and outer ends (Å) of the ranges of ZBL [n, 2] and of crowding [n, 2] for pairs of elements [n, 2]."""
    third = (config.outer - config.inner) / 3
    bond = bond_length(numbers)[:, None]
    zbl = bond * bond.new_tensor([config.inner + third, config.outer])
    crowding = bond * bond.new_tensor([config.inner, config.outer - third])
    radii = _radii()
    packed = radii.packed.to(numbers.device)[numbers].sum(dim=1, keepdim=True)
    metals = ~radii.nonmetal.to(numbers.device)[numbers].any(dim=1, keepdim=True)
    return zbl, torch.where(metals, packed * bond.new_tensor([config.crowding_inner, config.crowding_outer]), crowding)


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

    Two nonmetals or two metals take the smallest of their radii for single, double and triple bonds. A metal and a
    nonmetal, which rarely form multiple bonds, take the mean of this and of the sum of their single-bond radii.

    Args:
        numbers: [n, 2] atomic numbers.
    """
    radii = _radii()
    single, shortest, nonmetal = (x.to(numbers.device) for x in (radii.single, radii.shortest, radii.nonmetal))
    alike = nonmetal[numbers[:, 0]] == nonmetal[numbers[:, 1]]
    short = shortest[numbers].sum(dim=1)
    return torch.where(alike, short, 0.5 * (short + single[numbers].sum(dim=1)))


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
