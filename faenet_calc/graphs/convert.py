"""Conversion between structures and graphs.

Accepts ``ase.Atoms``, pymatgen structures and molecules, PyG ``Data``/``Batch`` and ``AtomGraph``. Edges are
found in float64 for every dtype of the graph. Positions are cast to that dtype without wrapping or centring, so float32
graphs lose precision thousands of Å from the origin.
"""

import sys
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from ase import Atoms
from numpy.typing import ArrayLike, NDArray

from faenet_calc.errors import InputError
from faenet_calc.graphs.graph import AtomGraph
from faenet_calc.graphs.neighbors import (
    NeighborList,
    VerletList,
    axis_heights,
    neighbor_list,
    neighbor_tensors,
    searches_on_device,
)
from faenet_calc.graphs.tags import infer_tags, resolve_tags

__all__ = ["as_atoms", "infer_tags", "resolve_tags", "to_atoms", "to_batch", "to_graph", "validate"]

MIN_DISTANCE = 0.3  # Å; closer atoms are treated as an input error
_MIN_HEIGHT = 1e-3  # Å; a lattice vector rising less than this out of the plane of the others makes a singular cell
_LISTED = 5  # maximum number of atoms, pairs or sites listed in a message


def to_graph(
    structure: Any,
    *,
    cutoff: float,
    dtype: torch.dtype = torch.float64,
    device: torch.device | str | None = None,
    max_neighbors: int | None = None,
    tags: ArrayLike | None = None,
    neighbors: VerletList | None = None,
) -> AtomGraph:
    """Convert one structure to a graph; a PyG batch or a graph of several structures stays a batch.

    Args:
        structure: ase.Atoms, a pymatgen (I)Structure, Slab or (I)Molecule, PyG data, or an AtomGraph, which keeps its
            edges and is only moved. PyG data with ``edge_index`` keeps its edges too.
        cutoff: (Å).
        dtype: Type of positions and cell.
        device: Device of the tensors.
        max_neighbors: Maximum number of nearest neighbors per atom, see
            :func:`~faenet_calc.graphs.neighbors.keep_nearest`.
        tags: [n_atoms], replaces the tags of the structure.
        neighbors: A Verlet list to reuse between calls; its cutoff and ``max_neighbors`` must equal those given here.

    Raises:
        InputError: For a structure that cannot be computed, see :func:`validate`.
    """
    if neighbors is not None and (neighbors.cutoff, neighbors.max_neighbors) != (float(cutoff), max_neighbors):
        raise ValueError(
            f"{neighbors.cutoff=}, {neighbors.max_neighbors=}; expected the {cutoff=} and {max_neighbors=} of the graph"
        )
    if _is_instance(structure, "torch_geometric.data.data", "BaseData"):
        structure = _from_pyg(structure, cutoff, max_neighbors)
    if isinstance(structure, AtomGraph):
        graph = structure
        _check_graph(graph)
        if tags is not None:
            graph = graph.replace(tags=_tag_tensor(tags, graph.n_atoms).to(graph.tags.device))
        return graph.to(device=device, dtype=dtype)
    atoms = as_atoms(structure)
    _check_geometry(atoms)
    if neighbors is None:
        edges = neighbor_list(atoms.positions, atoms.cell.array, atoms.pbc, cutoff, max_neighbors=max_neighbors)
    else:
        edges = neighbors.update(atoms.positions, atoms.cell.array, atoms.pbc, atoms.numbers)
    _check_overlap(atoms, edges)
    if cutoff < MIN_DISTANCE:
        validate(atoms)
    return AtomGraph(
        positions=torch.as_tensor(atoms.positions, dtype=torch.float64).clone(),
        atomic_numbers=torch.as_tensor(atoms.numbers, dtype=torch.int64).clone(),
        tags=_tag_tensor(atoms.get_tags() if tags is None else tags, len(atoms)),
        cell=torch.as_tensor(atoms.cell.array, dtype=torch.float64).clone()[None],
        pbc=torch.as_tensor(np.asarray(atoms.pbc), dtype=torch.bool).clone()[None],
        graph_of_atom=torch.zeros(len(atoms), dtype=torch.int64),
        centre=torch.from_numpy(edges.centre),
        neighbor=torch.from_numpy(edges.neighbor),
        shift=torch.from_numpy(edges.shift),
    ).to(device=device, dtype=dtype)


def to_batch(
    structures: Any,
    *,
    cutoff: float,
    dtype: torch.dtype = torch.float64,
    device: torch.device | str | None = None,
    max_neighbors: int | None = None,
    tags: Any = None,
) -> AtomGraph:
    """Convert one structure or a sequence of structures to a batch; each as in :func:`to_graph`.

    Args:
        structures: One structure or a sequence of structures.
        cutoff: (Å).
        dtype: Type of positions and cell.
        device: Device of the tensors.
        max_neighbors: Maximum number of nearest neighbors per atom.
        tags: [n_atoms] for one structure, a sequence of such arrays for several; None uses the tags of the structures.

    Raises:
        InputError: If a structure cannot be computed; the message gives its index.
    """
    if not _is_sequence(structures):
        return to_graph(structures, cutoff=cutoff, dtype=dtype, device=device, max_neighbors=max_neighbors, tags=tags)
    if tags is not None and len(tags) != len(structures):
        raise InputError(f"tags for {len(tags)} structures came with {len(structures)} structures; give one array each")
    graphs = []
    for index, structure in enumerate(structures):
        own = None if tags is None else tags[index]
        try:
            graphs.append(to_graph(structure, cutoff=cutoff, dtype=dtype, max_neighbors=max_neighbors, tags=own))
        except InputError as error:
            raise InputError(f"structure {index}: {error}" if len(structures) > 1 else str(error)) from error
    return AtomGraph.batch(graphs).to(device=device)


def to_atoms(graph: AtomGraph) -> list[Atoms]:
    """Convert the structures of a batch to ase.Atoms (numbers, positions, cell, pbc, tags)."""
    return [
        Atoms(
            numbers=one.atomic_numbers.cpu().numpy(),
            positions=one.positions.detach().cpu().double().numpy(),
            cell=one.cell[0].detach().cpu().double().numpy(),
            pbc=one.pbc[0].cpu().numpy(),
            tags=one.tags.cpu().numpy(),
        )
        for one in graph.split()
    ]


def validate(structure: Any) -> None:
    """Check that a structure can be computed, as :func:`to_graph` does.

    Raises:
        InputError: For an empty structure, NaN or infinite positions or cell, a missing or singular cell in a periodic
            direction, atoms closer than 0.3 Å (periodic images included).
    """
    atoms = as_atoms(structure)
    _check_geometry(atoms)
    _check_overlap(atoms, neighbor_list(atoms.positions, atoms.cell.array, atoms.pbc, MIN_DISTANCE))


def _check_geometry(atoms: Atoms) -> None:
    if len(atoms) == 0:
        raise InputError("the structure has no atoms")
    finite = np.isfinite(atoms.positions)
    if not finite.all():
        wrong = np.flatnonzero(~finite.all(axis=1))
        raise InputError(f"NaN or infinite positions of {_name_atoms(atoms, wrong)}; expected finite numbers (Å)")
    _check_cell(np.asarray(atoms.cell.array, dtype=np.float64).tobytes(), np.asarray(atoms.pbc, dtype=bool).tobytes())


@lru_cache(maxsize=64)  # the cell is the same at every step of a simulation
def _check_cell(cell_bytes: bytes, pbc_bytes: bytes) -> None:
    """Check the cell [3, 3] (float64) and the periodicity [3] (bool) of a structure; errors are not kept."""
    cell, pbc = np.frombuffer(cell_bytes).reshape(3, 3), np.frombuffer(pbc_bytes, dtype=bool)
    if not np.isfinite(cell).all():
        raise InputError(f"NaN or infinite numbers in the cell {cell.tolist()}; expected lengths (Å)")
    lengths = np.linalg.norm(cell, axis=1)
    flat = np.flatnonzero(axis_heights(cell, pbc) < _MIN_HEIGHT)
    if len(flat):
        kinds = [
            f"axis {axis} {'has length 0' if lengths[axis] == 0 else 'lies in the span of others'}" for axis in flat
        ]
        raise InputError(
            f"singular cell {cell.tolist()} with pbc={pbc.tolist()}: {', '.join(kinds)}. "
            "Set a cell vector for every periodic direction or switch pbc off there (atoms.pbc = ...)."
        )
    short = np.flatnonzero(pbc & (lengths < MIN_DISTANCE))
    if len(short):  # the neighbor search would find millions of images
        raise InputError(
            f"overlapping atoms: the periodic axis {short[0]} is only {lengths[short[0]]:.3g} Å long, so every atom is "
            f"closer than {MIN_DISTANCE} Å to its own image. Is the cell in the right unit (Å)?"
        )


def _check_graph(graph: AtomGraph) -> None:
    if graph.n_atoms == 0:
        raise InputError("the structure has no atoms")
    wrong = torch.nonzero(~torch.isfinite(graph.positions).all(dim=1)).flatten().tolist()
    if wrong or not bool(torch.isfinite(graph.cell).all()):
        what = f"positions of the batch's atoms {wrong[:_LISTED]}" if wrong else "numbers in the cell"
        raise InputError(f"NaN or infinite {what}; expected finite numbers (Å)")


def _check_overlap(atoms: Atoms, edges: NeighborList) -> None:
    close = np.flatnonzero((edges.distance < MIN_DISTANCE) & (edges.centre <= edges.neighbor))
    if not len(close):
        return
    close = close[np.argsort(edges.distance[close], kind="stable")]
    pairs = []
    for edge in close[:_LISTED]:
        i, j, image = int(edges.centre[edge]), int(edges.neighbor[edge]), edges.shift[edge]
        where = f" in image {tuple(image.tolist())}" if image.any() else ""
        pairs.append(f"{atoms.symbols[i]}{i}–{atoms.symbols[j]}{j}{where} {edges.distance[edge]:.3f} Å")
    more = f" and {len(close) - _LISTED} more" if len(close) > _LISTED else ""
    raise InputError(
        f"overlapping atoms, closer than {MIN_DISTANCE} Å: {', '.join(pairs)}{more}. Look for duplicated atoms, a cell "
        "that is too small, or coordinates in the wrong unit."
    )


def _name_atoms(atoms: Atoms, indices: NDArray[np.intp]) -> str:
    names = ", ".join(f"{index} ({atoms.symbols[index]})" for index in indices[:_LISTED])
    more = f" and {len(indices) - _LISTED} more" if len(indices) > _LISTED else ""
    return f"{'atom' if len(indices) == 1 else 'atoms'} {names}{more}"


def as_atoms(structure: Any) -> Atoms:
    """Return ase.Atoms unchanged and convert a pymatgen structure or molecule to ase.Atoms.

    Raises:
        InputError: For other types and for partially occupied sites.
    """
    if isinstance(structure, Atoms):
        return structure
    if _is_instance(structure, "pymatgen.core.structure", "SiteCollection"):
        return _from_pymatgen(structure)
    if isinstance(structure, list | tuple):
        advice = "Use relax_batch, run_md_batch or calc.predict for several structures."
    else:
        advice = "Read files with ase.io.read."
    raise InputError(
        f"a structure is of type {type(structure).__module__}.{type(structure).__qualname__}; expected ase.Atoms, a "
        f"pymatgen Structure or Molecule, PyG Data with pos and atomic_numbers, or an AtomGraph. {advice}"
    )


def _from_pymatgen(structure: Any) -> Atoms:
    disordered = [index for index, site in enumerate(structure) if not site.is_ordered]
    if disordered:
        raise InputError(f"sites {disordered[:_LISTED]} are partially occupied; expected one element on every site")
    lattice = getattr(structure, "lattice", None)
    tags = structure.site_properties.get("tags")
    return Atoms(
        numbers=[site.specie.Z for site in structure],
        positions=np.array(structure.cart_coords, dtype=np.float64).reshape(-1, 3),
        cell=None if lattice is None else lattice.matrix,
        pbc=False if lattice is None else lattice.pbc,
        tags=None if tags is None else [int(tag or 0) for tag in tags],
    )


def _from_pyg(data: Any, cutoff: float, max_neighbors: int | None) -> AtomGraph:
    """Convert PyG data; edges are built if the data has none."""
    if getattr(data, "edge_index", None) is not None or getattr(data, "pos", None) is None:
        return AtomGraph.from_pyg(data)
    bare = data.clone()
    bare.edge_index = torch.zeros(2, 0, dtype=torch.int64, device=data.pos.device)
    if getattr(data, "cell", None) is not None and getattr(data, "pbc", None) is None:
        # Without flags a cell means periodic in all directions, as in upstream's data; a zero cell means a molecule.
        cells = torch.as_tensor(data.cell).reshape(-1, 3, 3)
        bare.pbc = (cells != 0).any(-1).any(-1)[:, None].expand(-1, 3)
    bare.cell_offsets = torch.zeros(0, 3, dtype=torch.int64, device=data.pos.device)
    graph = AtomGraph.from_pyg(bare)
    if data.pos.device.type == "cuda" and searches_on_device():
        return AtomGraph.batch([with_edges(member, cutoff, max_neighbors) for member in graph.split()])
    built = [to_graph(a, cutoff=cutoff, max_neighbors=max_neighbors) for a in to_atoms(graph)]
    return AtomGraph.batch(built).to(device=data.pos.device, dtype=data.pos.dtype)


def with_edges(
    graph: AtomGraph, cutoff: float, max_neighbors: int | None = None, *, on_device: bool | None = None
) -> AtomGraph:
    """The graph of one structure with the edges of its positions, found on their device.

    Args:
        graph: One structure; its edges are not used.
        cutoff: (Å).
        max_neighbors: As in :func:`to_graph`.
        on_device: As in :func:`~faenet_calc.graphs.neighbors.neighbor_tensors`.

    Raises:
        InputError: For a structure that cannot be computed, see :func:`validate`.
    """
    (atoms,) = to_atoms(graph.on_host)
    _check_geometry(atoms)
    edges = neighbor_tensors(
        graph.positions, graph.cell[0], atoms.pbc, cutoff, max_neighbors=max_neighbors, on_device=on_device
    )
    if cutoff < MIN_DISTANCE or bool((edges.distance < MIN_DISTANCE).any()):
        validate(atoms)
    return graph.replace(centre=edges.centre, neighbor=edges.neighbor, shift=edges.shift)


def _tag_tensor(tags: ArrayLike, n_atoms: int) -> torch.Tensor:
    array = np.asarray(tags)
    if array.shape != (n_atoms,):
        raise InputError(f"tags of shape {array.shape}, expected one for each of the {n_atoms} atoms")
    return torch.as_tensor(array, dtype=torch.int64).clone()


def _is_sequence(structures: Any) -> bool:
    """Whether this is a sequence of structures; Atoms, pymatgen structures and PyG batches are single inputs."""
    return isinstance(structures, Sequence) and not (
        isinstance(structures, str | Atoms)
        or _is_instance(structures, "pymatgen.core.structure", "SiteCollection")
        or _is_instance(structures, "torch_geometric.data.data", "BaseData")
    )


def _is_instance(value: Any, module: str, name: str) -> bool:
    """``isinstance`` without importing the module: a value of the class exists only if the module is loaded."""
    loaded = sys.modules.get(module)
    kind = getattr(loaded, name, None)
    return kind is not None and isinstance(value, kind)
