"""AtomGraph, the batch of atomic structures that every later stage takes.

Conventions of the whole package:

- A graph value is always a batch; a single structure is a batch of one.
- Rows of ``cell`` are lattice vectors (Å).
- An edge has a centre ``i`` and a neighbor ``j`` in the image ``shift``:
  ``edge_vector = r_j + shift @ cell - r_i``. Upstream calls this ``pos[src] - pos[dst]`` with src = j, dst = i.
- Edges are sorted by centre; messages flow from neighbor to centre.
- Energies eV, lengths Å, forces eV/Å; stress = (1/|V|) dE/dε in eV/Å³, ASE's sign and Voigt order.

>>> import torch
>>> chain = AtomGraph(
...     positions=torch.tensor([[0.0, 0, 0]]), atomic_numbers=torch.tensor([29]), tags=torch.tensor([0]),
...     cell=2.5 * torch.eye(3)[None], pbc=torch.tensor([[True, False, False]]), graph_of_atom=torch.tensor([0]),
...     centre=torch.tensor([0, 0]), neighbor=torch.tensor([0, 0]), shift=torch.tensor([[-1, 0, 0], [1, 0, 0]]))
>>> chain.edge_vectors().tolist()
[[-2.5, 0.0, 0.0], [2.5, 0.0, 0.0]]
"""

import dataclasses
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor

from faenet_calc.errors import InputError

if TYPE_CHECKING:
    from torch_geometric.data import Batch


@dataclass(frozen=True, kw_only=True, eq=False)
class AtomGraph:
    """A batch of atomic structures with their edges.

    Attributes:
        positions: [n_atoms, 3] (Å).
        atomic_numbers: [n_atoms] int64.
        tags: [n_atoms] int64; 0 sub-surface, 1 surface, 2 adsorbate.
        cell: [n_graphs, 3, 3] (Å), rows are lattice vectors; zero rows where there is none.
        pbc: [n_graphs, 3] bool.
        graph_of_atom: [n_atoms] int64, ascending.
        centre: [n_edges] int64, ascending.
        neighbor: [n_edges] int64.
        shift: [n_edges, 3] int64, lattice image of the neighbor.
    """

    positions: Tensor
    atomic_numbers: Tensor
    tags: Tensor
    cell: Tensor
    pbc: Tensor
    graph_of_atom: Tensor
    centre: Tensor
    neighbor: Tensor
    shift: Tensor

    def __post_init__(self) -> None:
        n_atoms, n_graphs, n_edges = self.n_atoms, self.n_graphs, self.n_edges
        expected = {
            "positions": (n_atoms, 3),
            "atomic_numbers": (n_atoms,),
            "tags": (n_atoms,),
            "cell": (n_graphs, 3, 3),
            "pbc": (n_graphs, 3),
            "graph_of_atom": (n_atoms,),
            "neighbor": (n_edges,),
            "shift": (n_edges, 3),
        }
        for name, shape in expected.items():
            if getattr(self, name).shape != shape:
                raise ValueError(f"AtomGraph.{name} has shape {tuple(getattr(self, name).shape)}, expected {shape}")

    @property
    def n_atoms(self) -> int:
        """Number of atoms in the batch."""
        return self.positions.shape[0]

    @property
    def n_graphs(self) -> int:
        """Number of structures in the batch."""
        return self.cell.shape[0]

    @property
    def n_edges(self) -> int:
        """Number of directed edges in the batch."""
        return self.centre.shape[0]

    @property
    def graph_of_edge(self) -> Tensor:
        """[n_edges] index of the structure of each edge."""
        return self.graph_of_atom[self.centre]

    @property
    def atoms_per_graph(self) -> Tensor:
        """[n_graphs] int64."""
        return counts(self.graph_of_atom, self.n_graphs)

    @property
    def edges_per_graph(self) -> Tensor:
        """[n_graphs] int64."""
        return counts(self.graph_of_edge, self.n_graphs)

    @cached_property
    def on_host(self) -> "AtomGraph":
        """The same graph on the CPU, for decisions in Python; a graph that came from there does not wait for a device.

        Kept by :meth:`to` and :meth:`with_leaves`.
        """
        return self if self.positions.device.type == "cpu" else self.to(device="cpu")

    @cached_property
    def kept(self) -> dict[str, Any]:
        """Values that were derived from this graph, by name. Shared with :meth:`with_leaves`."""
        return {}

    @property
    def volume(self) -> Tensor:
        """[n_graphs] (Å³), positive for left-handed cells too."""
        return torch.linalg.det(self.cell).abs()

    def edge_vectors(self) -> Tensor:
        """[n_edges, 3] (Å): r_j + shift @ cell - r_i, differentiable in positions and cell."""
        difference = self.positions.index_select(0, self.neighbor) - self.positions.index_select(0, self.centre)
        shift = self.shift.to(self.cell.dtype)
        if self.n_graphs == 1:
            return difference + shift @ self.cell[0]
        images = torch.einsum("ek,ekx->ex", shift, self.cell.index_select(0, self.graph_of_edge))
        return difference + images

    def pairs(self) -> tuple[Tensor, Tensor]:
        """Undirected edges: [n_edges] the pair of each edge, and [n_pairs] one edge of each pair.

        An edge (i, j, shift) and its reverse (j, i, -shift) are one pair; an edge without a reverse is its own pair.
        """
        reach = int(self.shift.abs().max()) if self.n_edges else 0
        base, n = 2 * reach + 1, self.n_atoms

        def key(i: Tensor, j: Tensor, shift: Tensor) -> Tensor:
            a, b, c = (shift + reach).unbind(dim=1)
            return (((i * n + j) * base + a) * base + b) * base + c

        forth, back = key(self.centre, self.neighbor, self.shift), key(self.neighbor, self.centre, -self.shift)
        unique, pair_of_edge = torch.unique(torch.minimum(forth, back), return_inverse=True)
        edges = torch.arange(self.n_edges, device=self.centre.device)
        edge_of_pair = torch.full_like(unique, self.n_edges).scatter_reduce_(0, pair_of_edge, edges, "amin")
        return pair_of_edge, edge_of_pair

    def sum_over_atoms(self, per_atom: Tensor) -> Tensor:
        """Sum a per-atom quantity [n_atoms, ...] over each structure; returns [n_graphs, ...]."""
        if self.n_graphs == 1:
            return per_atom.sum(dim=0, keepdim=True)
        return per_atom.new_zeros(self.n_graphs, *per_atom.shape[1:]).index_add(0, self.graph_of_atom, per_atom)

    def to(self, *, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> Self:
        """Move the graph to a device and cast it; ``dtype`` applies to positions and cell only."""
        same_device = device is None or torch.device(device) == self.positions.device
        if same_device and dtype in (None, self.positions.dtype):
            return self

        def move(tensor: Tensor) -> Tensor:
            return moved_to(tensor, device, dtype if tensor.is_floating_point() else None)

        moved = type(self)(**{f.name: move(getattr(self, f.name)) for f in dataclasses.fields(self)})
        if self.positions.device.type == "cpu" or "on_host" in self.__dict__:
            moved.__dict__["on_host"] = self.on_host
        return moved

    def replace(self, **changes: Tensor) -> Self:
        """Return a copy with some tensors replaced, e.g. new positions with the same edges."""
        return dataclasses.replace(self, **changes)

    def with_leaves(self, **leaves: Tensor) -> Self:
        """Return a copy with some tensors replaced by others of the same values, with respect to which to derive."""
        copy = dataclasses.replace(self, **leaves)
        copy.__dict__["kept"] = self.kept
        if self.positions.device.type != "cpu":
            copy.__dict__["on_host"] = self.on_host
        return copy

    @classmethod
    def batch(cls, graphs: "Sequence[AtomGraph]") -> "AtomGraph":
        """Concatenate graphs to one batch."""
        if not graphs:
            raise InputError("batch of 0 structures, expected at least one")
        if len(graphs) == 1:
            return graphs[0]
        atom_offsets = _offsets([g.n_atoms for g in graphs])
        graph_offsets = _offsets([g.n_graphs for g in graphs])
        joined = {
            name: torch.cat([getattr(g, name) for g in graphs])
            for name in ("positions", "atomic_numbers", "tags", "cell", "pbc", "shift")
        }
        return cls(
            **joined,
            graph_of_atom=torch.cat([g.graph_of_atom + o for g, o in zip(graphs, graph_offsets, strict=True)]),
            centre=torch.cat([g.centre + o for g, o in zip(graphs, atom_offsets, strict=True)]),
            neighbor=torch.cat([g.neighbor + o for g, o in zip(graphs, atom_offsets, strict=True)]),
        )

    def split(self) -> "list[AtomGraph]":
        """Split the batch into graphs of one structure each."""
        graphs = []
        atom_end = edge_end = 0
        for index, (n_atoms, n_edges) in enumerate(
            zip(self.atoms_per_graph.tolist(), self.edges_per_graph.tolist(), strict=True)
        ):
            atoms, edges = slice(atom_end, atom_end + n_atoms), slice(edge_end, edge_end + n_edges)
            graphs.append(
                AtomGraph(
                    positions=self.positions[atoms],
                    atomic_numbers=self.atomic_numbers[atoms],
                    tags=self.tags[atoms],
                    cell=self.cell[index : index + 1],
                    pbc=self.pbc[index : index + 1],
                    graph_of_atom=torch.zeros_like(self.graph_of_atom[atoms]),
                    centre=self.centre[edges] - atom_end,
                    neighbor=self.neighbor[edges] - atom_end,
                    shift=self.shift[edges],
                )
            )
            atom_end, edge_end = atom_end + n_atoms, edge_end + n_edges
        return graphs

    def keep_atoms(self, kept: Tensor) -> "AtomGraph":
        """Remove the atoms where ``kept`` [n_atoms] is False, and their edges."""
        new_index = torch.cumsum(kept.long(), 0) - 1
        edges = kept[self.centre] & kept[self.neighbor]
        return AtomGraph(
            positions=self.positions[kept],
            atomic_numbers=self.atomic_numbers[kept],
            tags=self.tags[kept],
            cell=self.cell,
            pbc=self.pbc,
            graph_of_atom=self.graph_of_atom[kept],
            centre=new_index[self.centre[edges]],
            neighbor=new_index[self.neighbor[edges]],
            shift=self.shift[edges],
        )

    def to_pyg(self) -> "Batch":
        """Convert to a PyG ``Batch`` with upstream's field names; rows of ``edge_index`` are [neighbor, centre]."""
        from torch_geometric.data import Batch, Data

        return Batch.from_data_list(
            [
                Data(
                    pos=g.positions,
                    atomic_numbers=g.atomic_numbers,
                    tags=g.tags,
                    natoms=g.n_atoms,
                    cell=g.cell,
                    pbc=g.pbc,
                    edge_index=torch.stack([g.neighbor, g.centre]),
                    cell_offsets=g.shift,
                    neighbors=g.n_edges,
                )
                for g in self.split()
            ]
        )

    @classmethod
    def from_pyg(cls, data: Any) -> "AtomGraph":
        """Convert a PyG ``Data`` or ``Batch`` with the field names and edges of upstream.

        Needs ``pos``, ``atomic_numbers`` (or ``z``) and ``edge_index`` ([neighbor, centre] rows). ``batch``, ``tags``,
        ``cell``, ``cell_offsets`` and ``pbc`` are read where present; without ``pbc``, a structure that has a cell and
        ``cell_offsets`` counts as periodic in all directions.
        """
        pos, numbers = _field(data, "pos"), _field(data, "atomic_numbers", "z")
        edge_index = _field(data, "edge_index")
        if pos is None or numbers is None or edge_index is None:
            raise InputError(
                f"PyG data has the fields {sorted(data.keys())}; needed are pos, atomic_numbers (or z) and edge_index. "
                "Give ase.Atoms instead to have the edges built."
            )
        batch = _field(data, "batch")
        graph_of_atom = torch.zeros(len(pos), dtype=torch.long, device=pos.device) if batch is None else batch
        n_graphs = int(graph_of_atom.max()) + 1 if len(graph_of_atom) else 1
        cell, offsets, tags, pbc = (_field(data, name) for name in ("cell", "cell_offsets", "tags", "pbc"))
        periodic = cell is not None and offsets is not None
        if pbc is None:
            pbc = torch.full((n_graphs, 3), periodic, dtype=torch.bool, device=pos.device)
        neighbor, centre = edge_index
        order = torch.argsort(centre, stable=True)
        shift = offsets if offsets is not None else torch.zeros(len(centre), 3, device=pos.device)
        return cls(
            positions=pos,
            atomic_numbers=numbers.long(),
            tags=torch.zeros_like(graph_of_atom) if tags is None else tags.long(),
            cell=(pos.new_zeros(n_graphs, 3, 3) if cell is None else cell.to(pos.dtype).reshape(n_graphs, 3, 3)),
            pbc=pbc.bool().reshape(n_graphs, 3),
            graph_of_atom=graph_of_atom,
            centre=centre[order].long(),
            neighbor=neighbor[order].long(),
            shift=shift[order].round().long(),
        )


def moved_to(tensor: Tensor, device: torch.device | str | None, dtype: torch.dtype | None = None) -> Tensor:
    """``tensor.to(device, dtype)`` without waiting for a CUDA device that the tensor is copied to.

    CUDA copies pageable memory to a buffer of its own before it returns; pinned memory must not be written to until the
    copy is complete.
    """
    waits = tensor.device.type != "cpu" or device is None or torch.device(device).type not in ("cuda", "meta")
    return tensor.to(device=device, dtype=dtype, non_blocking=not waits)


def counts(index: Tensor, size: int) -> Tensor:
    """[size] int64, how often each number occurs in ``index``; unlike ``bincount`` without waiting for a device."""
    return index.new_zeros(size).index_add_(0, index, torch.ones_like(index))


def _offsets(sizes: list[int]) -> list[int]:
    return list(itertools.accumulate(sizes[:-1], initial=0))


def _field(data: Any, *names: str) -> Tensor | None:
    for name in names:
        value = getattr(data, name, None)
        if value is not None:
            return torch.as_tensor(value)
    return None
