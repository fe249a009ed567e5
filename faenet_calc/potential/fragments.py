"""Fragments: molecules out of reach of everything else, whose energy is that of the free molecule.

The frames of a structure belong to all of it: a molecule far above a slab would be seen in the frames of the slab, and
two molecules in one box in frames that they share. A fragment c is a part of a structure that edges below ``SOLID``
connect and that is not periodic. Its energy in the frames of the structure is replaced by that in its own,

    E = Σ_f w_f E_f + Σ_c w_c (Σ_g v_g E_c,g − Σ_f w_f E_c,f),

f frames of the structure, g pair frames of the fragment, E_c energy of the fragment alone. Nothing else is new: the
terms are further frames of the structure, of negative weight where they are subtracted, in which the network sees a
part of the atoms. Beyond the cutoff w_c = 1: the energies of separate molecules add up exactly. With lengths in units
of the cutoff r_c, y limited to [0, 1] and g the smooth step,

    w_c = isolation · connection
    isolation = g(1 − |y|₈),  y_e = (1 − d_e) / (1 − SOLID),       e edges from c to other atoms and images
    connection = m τ(L) / det(L + M),  t_e = g((SOLID − d_e) / (SOLID − BONDED)),  e edges in c

The isolation vanishes before another atom comes so close that it belongs to the fragment. The connection vanishes when
the fragment falls apart and is 1 while edges below ``BONDED`` hold it together: L is the Laplacian of the conductances
t / (1 − t) between the groups of atoms that such edges join, τ(L) = det L without a row and column, M the diagonal of
their numbers of atoms and m the sum. For two groups of a and b atoms, connection = c / (c + 1 / (1/a + 1/b)). Where the
set of atoms of a fragment changes, its weight vanishes with two derivatives, and the energy stays smooth.
"""

import ctypes
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from faenet_calc.frames import open_directions
from faenet_calc.frames.config import FrameMode
from faenet_calc.frames.frames import Frames, Parts, build_frames, frames_of_molecule
from faenet_calc.frames.pair import smooth_step
from faenet_calc.graphs.graph import AtomGraph, moved_to
from faenet_calc.network.native import Library, library
from faenet_calc.potential.config import PotentialConfig

SOLID = 0.8
"""Edges below this fraction of the cutoff make atoms one fragment."""
BONDED = 0.65
"""Edges below this fraction of the cutoff hold a fragment together."""
_NORM = 8  # of y: nearly the largest, so that the width of the transition hardly depends on the number of edges


@dataclass(frozen=True, kw_only=True, eq=False)
class Fragment:
    """A part of one structure of a batch.

    Attributes:
        structure: Its number.
        atoms: [n] int64, ascending.
        image: [n, 3] int64 lattice images of the atoms in which the fragment is in one piece.
        edges: [m] int64 edges between its atoms, ascending.
        weight: [] from 0 to 1, differentiable in positions and cell.
    """

    structure: int
    atoms: Tensor
    image: Tensor
    edges: Tensor
    weight: Tensor


def frames_with_fragments(
    config: PotentialConfig,
    graph: AtomGraph,
    mode: FrameMode,
    *,
    squared: Tensor | None = None,
    generator: torch.Generator | None = None,
) -> Frames:
    """Frames of the structures of a batch and of their fragments.

    Fragments have frames of their own where frames belong to the lattice or to pairs of atoms, in all modes that are
    smooth for molecules (not in ``one`` and ``stochastic``).

    Args:
        config: Of the potential.
        graph: The structures.
        mode: Number and choice of frames.
        squared: [n_edges] (Å²) squared lengths of the edges, if they are known.
        generator: For stochastic frames.
    """
    frames = build_frames(graph, config.frames, mode, vacuum=config.model.cutoff, generator=generator)
    if config.frames.kind != "lattice" or mode in ("one", "stochastic"):
        return frames
    found = find_fragments(graph, config.model.cutoff, squared)
    if not found:
        return frames
    extended = _extended(frames, graph, found, proper=config.frames.proper)
    return extended if config.frames.differentiable else extended.detach()


def find_fragments(graph: AtomGraph, cutoff: float, squared: Tensor | None = None) -> list[Fragment]:
    """The fragments of a batch with weights above zero whose frames are not those of their structure anyway.

    Args:
        graph: The structures.
        cutoff: (Å).
        squared: [n_edges] (Å²) squared lengths of the edges, if they are known.
    """
    host, solid = graph.on_host, (SOLID * cutoff) ** 2
    if squared is None or squared.device.type != "cpu":
        squared = host.edge_vectors().detach().square().sum(dim=1)
    n_candidates, component, image = components(host, squared, solid)
    if not n_candidates:
        return []
    is_free = (open_directions.openness(host, cutoff) == 1.0).all(axis=1)
    if is_free.all() and host.n_graphs == 1 and bool((component == component[0]).all()):
        return []
    consistent = (image[host.neighbor] - image[host.centre] == host.shift).all(dim=1)
    inner = consistent & (component[host.centre] == component[host.neighbor])
    atoms_of, edges_of = _groups(component), _groups(component[host.centre])
    n_atoms, found = host.atoms_per_graph.tolist(), list[Fragment]()
    _, bonded_to, _ = components(host, squared, (BONDED * cutoff) ** 2)
    for number, atoms in atoms_of.items():
        structure = int(host.graph_of_atom[atoms[0]])
        alone = len(atoms) == n_atoms[structure] and is_free[structure]
        if number < 0 or len(atoms) == 1 or alone:
            continue
        edges = edges_of[number]
        inside, outside = edges[inner[edges]], edges[~inner[edges]]
        weight = _isolation(graph, outside[squared[outside] < cutoff**2], cutoff)
        groups = bonded_to[atoms]
        if bool((groups != groups[0]).any()):
            weight = weight * _connection(graph, inside[squared[inside] < solid], atoms, groups, cutoff)
        if float(weight.detach()) > 0.0:
            found.append(Fragment(structure=structure, atoms=atoms, image=image[atoms], edges=inside, weight=weight))
    return found


def components(graph: AtomGraph, squared: Tensor, limit: float) -> tuple[int, Tensor, Tensor]:
    """Connected components of the edges below a length.

    Args:
        graph: On the CPU.
        squared: [n_edges] (Å²) squared lengths of the edges.
        limit: (Å²) square of the length.

    Returns:
        tuple: The number of atoms in components that have several atoms and are not periodic; [n_atoms] the component
        of every atom, the number of one of its atoms or -1 in periodic ones; and [n_atoms, 3] int64 lattice images of
        the atoms in which every component is in one piece.
    """
    compiled = library()
    if compiled is None:
        return components_in_python(graph, squared, limit)
    n = graph.n_atoms
    component, image = graph.centre.new_empty(n), graph.centre.new_empty(n, 3)
    inputs = graph.centre.contiguous(), graph.neighbor.contiguous(), graph.shift.contiguous(), squared.double()
    found = _function(compiled)(
        n, graph.n_edges, *(x.data_ptr() for x in inputs), limit, component.data_ptr(), image.data_ptr()
    )
    if found < 0:
        raise MemoryError(f"no memory for the components of {n} atoms")
    return found, component, image


@cache
def _function(compiled: Library) -> Any:
    function = compiled.function("components")
    function.restype = ctypes.c_int64
    function.argtypes = (*[ctypes.c_int64] * 2, *[ctypes.c_void_p] * 4, ctypes.c_double, *[ctypes.c_void_p] * 2)
    return function


def components_in_python(graph: AtomGraph, squared: Tensor, limit: float) -> tuple[int, Tensor, Tensor]:
    """The same without compiled code, by walking along the edges."""
    short = torch.nonzero(squared < limit)[:, 0]
    centre, neighbor, shift = (x[short].tolist() for x in (graph.centre, graph.neighbor, graph.shift))
    edges: list[list[int]] = [[] for _ in range(graph.n_atoms)]
    for edge, atom in enumerate(centre):
        edges[atom].append(edge)
    component, image = [-1] * graph.n_atoms, [(0, 0, 0)] * graph.n_atoms
    found = 0
    for first in range(graph.n_atoms):
        if component[first] >= 0:
            continue
        component[first], members, periodic = first, [first], False
        for atom in members:  # grows
            for edge in edges[atom]:
                there = tuple(a + b for a, b in zip(image[atom], shift[edge], strict=True))
                if component[neighbor[edge]] < 0:
                    component[neighbor[edge]], image[neighbor[edge]] = first, there
                    members.append(neighbor[edge])
                periodic |= image[neighbor[edge]] != there
        if periodic:
            for atom in members:
                component[atom], image[atom] = graph.n_atoms, (0, 0, 0)
        elif len(members) > 1:
            found += len(members)
    numbers = torch.tensor(component)
    return found, torch.where(numbers == graph.n_atoms, -1, numbers), torch.tensor(image)


def _groups(numbers: Tensor) -> dict[int, Tensor]:
    """Indices of equal numbers, ascending."""
    order = torch.argsort(numbers, stable=True)
    values, counts = torch.unique_consecutive(numbers[order], return_counts=True)
    return dict(zip(values.tolist(), order.split(counts.tolist()), strict=True))


def _distances(graph: AtomGraph, edges: Tensor) -> Tensor:
    """[n] (Å) lengths of some edges, differentiable in positions and cell."""
    edges = moved_to(edges, graph.positions.device)
    some = graph.replace(centre=graph.centre[edges], neighbor=graph.neighbor[edges], shift=graph.shift[edges])
    return torch.linalg.vector_norm(some.edge_vectors(), dim=1)


def _isolation(graph: AtomGraph, edges: Tensor, cutoff: float) -> Tensor:
    """[] from 1 without edges to the outside to 0 if one of them is solid.

    Args:
        graph: The structures.
        edges: [n] to other atoms and images within the cutoff.
        cutoff: (Å).
    """
    if not len(edges):
        return graph.positions.new_ones(())
    closeness = ((1 - _distances(graph, edges) / cutoff) / (1 - SOLID)).clamp(0.0, 1.0)
    return smooth_step((1 - torch.linalg.vector_norm(closeness, ord=_NORM)).clamp(0.0, 1.0))


def _connection(graph: AtomGraph, edges: Tensor, atoms: Tensor, groups: Tensor, cutoff: float) -> Tensor:
    """[] from 1 for a fragment that is held together to 0 for one that has come apart.

    Args:
        graph: The structures.
        edges: [m] solid edges of the fragment.
        atoms: [n] its atoms, ascending.
        groups: [n] numbers of the groups in which bonded edges join them.
        cutoff: (Å).
    """
    device, positions = graph.positions.device, graph.positions
    _, group, mass = torch.unique(groups, return_inverse=True, return_counts=True)
    host = graph.on_host
    one, other = (group[torch.searchsorted(atoms, ends[edges])] for ends in (host.centre, host.neighbor))
    between = torch.nonzero(one != other)[:, 0]
    stretch = (_distances(graph, edges[between]) / cutoff - BONDED) / (SOLID - BONDED)
    smallest = torch.finfo(positions.dtype).eps
    stretch = stretch.clamp(smallest, 1 - smallest)
    rows, columns = (moved_to(ends[between], device) for ends in (one, other))
    conductance = positions.new_zeros(len(mass), len(mass)).index_put(
        (rows, columns), smooth_step(1 - stretch) / smooth_step(stretch), accumulate=True
    )
    return connection(conductance, moved_to(mass, device, positions.dtype))


def connection(conductance: Tensor, mass: Tensor) -> Tensor:
    """[] the connection of groups of ``mass`` [k] atoms with conductances [k, k] between them, from 0 to 1."""
    trees = _log_determinant(conductance[1:, 1:], conductance[1:, 0])
    return (mass.sum().log() + trees - _log_determinant(conductance, mass)).exp()


def _log_determinant(conductance: Tensor, ground: Tensor) -> Tensor:
    """[] log det of a Laplacian plus a diagonal, by elimination that only adds positive numbers.

    Conductances of very different size would cancel in a decomposition of the matrix.

    Args:
        conductance: [k, k] between nodes; the diagonal is not used.
        ground: [k] the diagonal that is added.
    """
    total = ground.new_zeros(())
    while len(ground):
        links = conductance[0, 1:]
        pivot = ground[0] + links.sum()
        total = total + pivot.log()
        share = links / pivot
        conductance = conductance[1:, 1:] + links[:, None] * share
        ground = ground[1:] + ground[0] * share
    return total


def _extended(frames: Frames, graph: AtomGraph, found: list[Fragment], *, proper: bool) -> Frames:
    """The frames of structures and of their fragments."""
    device = graph.positions.device
    rotations, weights, structures, of_frame = [frames.rotation], [frames.weight], [frames.graph], [frames.graph]
    for number, fragment in enumerate(found, start=graph.n_graphs):
        atoms, image = moved_to(fragment.atoms, device), moved_to(fragment.image, device, graph.cell.dtype)
        positions = graph.positions[atoms] + image @ graph.cell[fragment.structure]
        rotation, share = frames_of_molecule(positions, proper=proper)
        of_structure = torch.nonzero(frames.graph == fragment.structure)[:, 0]
        rotations += [rotation, frames.rotation[of_structure]]
        weights += [fragment.weight * share, -fragment.weight * frames.weight[of_structure]]
        n = len(share) + len(of_structure)
        structures.append(frames.graph.new_full((n,), fragment.structure))
        of_frame.append(frames.graph.new_full((n,), number))
    return Frames(
        rotation=torch.cat(rotations),
        graph=torch.cat(structures),
        weight=torch.cat(weights),
        parts=_parts(graph, found, frames.n_frames, torch.cat(of_frame)),
    )


def _parts(graph: AtomGraph, found: list[Fragment], n_whole: int, of_frame: Tensor) -> Parts:
    """Structures and fragments as one batch."""
    host, start = graph.on_host, graph.n_atoms
    atom, edge, member = [torch.arange(start)], [torch.arange(graph.n_edges)], [host.graph_of_atom]
    centre, neighbor = [host.centre], [host.neighbor]
    for number, fragment in enumerate(found, start=graph.n_graphs):
        atom.append(fragment.atoms)
        edge.append(fragment.edges)
        member.append(torch.full_like(fragment.atoms, number))
        for ends, of_all in ((centre, host.centre), (neighbor, host.neighbor)):
            ends.append(start + torch.searchsorted(fragment.atoms, of_all[fragment.edges]))
        start += len(fragment.atoms)
    atoms, edges = torch.cat(atom), torch.cat(edge)
    structure = torch.tensor([*range(graph.n_graphs), *(fragment.structure for fragment in found)])
    batch = AtomGraph(
        positions=host.positions.detach()[atoms],
        atomic_numbers=host.atomic_numbers[atoms],
        tags=host.tags[atoms],
        cell=host.cell.detach()[structure],
        pbc=host.pbc[structure],
        graph_of_atom=torch.cat(member),
        centre=torch.cat(centre),
        neighbor=torch.cat(neighbor),
        shift=host.shift[edges],
    )
    device = graph.positions.device
    return Parts(
        graph=batch.to(device=device, dtype=graph.positions.dtype),
        atom=moved_to(atoms, device),
        edge=moved_to(edges, device),
        of_frame=of_frame,
        n_whole=n_whole,
    )
