"""Labelled graphs and batches of them.

    dataset = open_dataset(["run.extxyz"], cutoff=5.0)      # graphs are built once and kept on disk
    batch = collate([dataset[i] for i in (0, 5, 7)])

Geometry and labels are float64 on the CPU; the training loop moves batches to its device.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from faenet_calc.data.cache import META, Arrays, CacheSettings, open_arrays, open_cache
from faenet_calc.data.splits import Split, split_dataset
from faenet_calc.graphs.graph import AtomGraph

THEORY_KEYS = ("level_of_theory", "calculator")  # words of a file that say where its labels come from

__all__ = ["GraphDataset", "LabelledBatch", "LabelledGraph", "Split", "collate", "open_dataset", "split_dataset"]


@dataclass(frozen=True, kw_only=True, eq=False)
class LabelledGraph:
    """One structure with its labels.

    Attributes:
        graph: float64 geometry with edges, on the CPU.
        energy: (eV) or None.
        forces: [n_atoms, 3] (eV/Å), NaN for atoms without a label, or None.
        stress: [3, 3] (eV/Å³) or None.
        free: [n_atoms] bool, False for constrained atoms.
        index: Position in the data set; ``GraphDataset.info(index)`` has the metadata of the structure.
    """

    graph: AtomGraph
    energy: float | None
    forces: Tensor | None
    stress: Tensor | None
    free: Tensor
    index: int = 0


@dataclass(frozen=True, kw_only=True, eq=False)
class LabelledBatch:
    """A batch of structures with their labels.

    Attributes:
        graph: All structures.
        energy: [n_graphs] float64 (eV), NaN where there is none.
        forces: [n_atoms, 3] float64 (eV/Å), NaN where there are none.
        stress: [n_graphs, 3, 3] float64 (eV/Å³), NaN where there is none.
        free: [n_atoms] bool.
        index: [n_graphs] int64, positions in the data set.
    """

    graph: AtomGraph
    energy: Tensor
    forces: Tensor
    stress: Tensor
    free: Tensor
    index: Tensor

    def to(self, device: torch.device | str, *, dtype: torch.dtype | None = None) -> "LabelledBatch":
        """Move the batch; ``dtype`` applies to positions, cell, forces and stress, never to the energy.

        Total energies of thousands of eV would lose the meV in float32, which only mps, having nothing else, gets.
        """
        only_float32 = torch.device(device).type == "mps"
        dtype = torch.float32 if only_float32 else dtype
        return LabelledBatch(
            graph=self.graph.to(device=device, dtype=dtype),
            energy=self.energy.to(device=device, dtype=torch.float32 if only_float32 else None),
            forces=self.forces.to(device=device, dtype=dtype),
            stress=self.stress.to(device=device, dtype=dtype),
            free=self.free.to(device),
            index=self.index.to(device),
        )


class GraphDataset(torch.utils.data.Dataset[LabelledGraph]):
    """Labelled graphs in memory-mapped files, which each process opens at first use.

    Attributes:
        place: The folder of the cache.
    """

    def __init__(self, place: Path) -> None:
        self.place = Path(place)
        self._arrays: Arrays | None = None
        self._meta: dict[str, Any] = json.loads((self.place / META).read_text())

    @property
    def arrays(self) -> Arrays:
        """The flat arrays, see ``cache.py``."""
        if self._arrays is None:
            self._arrays = open_arrays(self.place)
        return self._arrays

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_arrays": None}

    def __len__(self) -> int:
        return int(self._meta["n_structures"])

    @property
    def cutoff(self) -> float:
        """(Å) of the edges."""
        return float(self._meta["settings"]["cutoff"])

    @property
    def content_hash(self) -> str:
        """The sha256 of the contents of the files that the data set was read from."""
        return str(self._meta["content"])

    @property
    def n_labels(self) -> dict[str, int]:
        """Number of structures that have an energy, forces and a stress."""
        return dict(self._meta["n_labels"])

    @property
    def n_dropped_edges(self) -> int:
        """Number of edges within the cutoff that ``max_neighbors`` removed."""
        return int(self._meta["n_dropped_edges"])

    @property
    def n_atoms(self) -> NDArray[np.int64]:
        """[n_structures]."""
        return np.diff(self.arrays["atom_end"], prepend=0)

    @property
    def n_edges(self) -> NDArray[np.int64]:
        """[n_structures]."""
        return np.diff(self.arrays["edge_end"], prepend=0)

    @property
    def energy(self) -> NDArray[np.float64]:
        """[n_structures] (eV), NaN where there is none."""
        return self.arrays["energy"]

    @property
    def numbers(self) -> tuple[int, ...]:
        """Atomic numbers that occur, ascending."""
        return tuple(np.unique(self.arrays["numbers"]).tolist())

    @property
    def level_of_theory(self) -> str:
        """What the files name as ``level_of_theory`` or ``calculator`` of all structures, or ""."""
        named = set()
        for index in range(len(self)):
            info = self.info(index)
            named.add(str(next((info[key] for key in THEORY_KEYS if key in info), "")))
            if len(named) > 1:
                return ""
        return named.pop() if named else ""

    def atoms_of(self, index: int) -> slice:
        """Range of the atoms of a structure in the per-atom arrays."""
        return _range(self.arrays["atom_end"], index)

    def info(self, index: int) -> dict[str, Any]:
        """Metadata of a structure from its file."""
        line = self.arrays["info"][_range(self.arrays["info_end"], index)]
        said: dict[str, Any] = json.loads(line.tobytes())
        return said

    def compositions(self, indices: Sequence[int] | NDArray[np.integer] | None = None) -> NDArray[np.int64]:
        """[n_structures, 119] number of atoms of each atomic number."""
        chosen = np.arange(len(self)) if indices is None else np.asarray(indices)
        structure = np.repeat(np.arange(len(self)), self.n_atoms)
        flat = np.bincount(structure * 119 + self.arrays["numbers"], minlength=119 * len(self))
        return flat.reshape(len(self), 119)[chosen]

    def __getitem__(self, index: int) -> LabelledGraph:
        index = int(index)
        if not -len(self) <= index < len(self):
            raise IndexError(f"structure {index} of {len(self)}")
        index %= len(self)
        data, atoms, edges = self.arrays, self.atoms_of(index), _range(self.arrays["edge_end"], index)
        n_atoms = atoms.stop - atoms.start
        graph = AtomGraph(
            positions=_tensor(data["positions"][atoms]),
            atomic_numbers=_tensor(data["numbers"][atoms], np.int64),
            tags=_tensor(data["tags"][atoms], np.int64),
            cell=_tensor(data["cell"][index].reshape(1, 3, 3)),
            pbc=_tensor(data["pbc"][index : index + 1]),
            graph_of_atom=torch.from_numpy(np.zeros(n_atoms, dtype=np.int64)),
            centre=torch.from_numpy(np.arange(n_atoms).repeat(data["n_neighbors"][atoms])),
            neighbor=_tensor(data["neighbor"][edges], np.int64),
            shift=_tensor(data["shift"][edges], np.int64),
        )
        energy = float(data["energy"][index])
        forces, stress = data["forces"][atoms], data["stress"][index]
        return LabelledGraph(
            graph=graph,
            energy=None if np.isnan(energy) else energy,
            forces=None if np.isnan(forces).all() else _tensor(forces),
            stress=None if np.isnan(stress).all() else _tensor(stress.reshape(3, 3)),
            free=_tensor(data["free"][atoms]),
            index=index,
        )


def open_dataset(
    files: str | Path | Iterable[str | Path],
    *,
    cutoff: float,
    max_neighbors: int | None = None,
    cache_dir: str | Path | None = None,
    energy_key: str | None = None,
    forces_key: str | None = None,
    trust_pickle: bool = False,
    tags: str = "auto",
    progress: bool = False,
) -> GraphDataset:
    """Open the labelled graphs of the structures in files; graphs are built once and cached on disk.

    Args:
        files: Files, folders or patterns; extxyz (also .xz, .gz), traj, db, aselmdb, VASP and QE outputs, OC20 LMDB.
        cutoff: Largest distance of an edge (Å).
        max_neighbors: Largest number of neighbors per atom; None for no limit.
        cache_dir: Folder of the caches; by default $FAENET_CALC_CACHE or the user's cache folder.
        energy_key: Name of the per-structure scalar to learn; by default the energy.
        forces_key: Name of the array with forces; by default the calculator's forces.
        trust_pickle: Allow LMDB files of pickled objects, whose reading runs code that they contain.
        tags: "auto" (those of the atoms, inferred from geometry where they are none) or "atoms".
        progress: Show a progress bar while building.

    Raises:
        InputError: A file cannot be read or has no labels, or a structure has no graph.
    """
    settings = CacheSettings(
        cutoff=float(cutoff), max_neighbors=max_neighbors, energy_key=energy_key, forces_key=forces_key, tags=tags
    )
    folder = None if cache_dir is None else Path(cache_dir)
    return GraphDataset(open_cache(files, settings, folder=folder, trust_pickle=trust_pickle, progress=progress))


def collate(items: Sequence[LabelledGraph]) -> LabelledBatch:
    """Join labelled graphs into a batch; missing labels become NaN."""
    no_stress = torch.full((3, 3), torch.nan, dtype=torch.float64)
    return LabelledBatch(
        graph=AtomGraph.batch([item.graph for item in items]),
        energy=torch.tensor([torch.nan if i.energy is None else i.energy for i in items], dtype=torch.float64),
        forces=torch.cat(
            [torch.full_like(i.graph.positions, torch.nan) if i.forces is None else i.forces for i in items]
        ),
        stress=torch.stack([no_stress if item.stress is None else item.stress for item in items]),
        free=torch.cat([item.free for item in items]),
        index=torch.tensor([item.index for item in items]),
    )


def _range(ends: NDArray[np.int64], index: int) -> slice:
    return slice(int(ends[index - 1]) if index else 0, int(ends[index]))


def _tensor(values: NDArray[Any], kind: Any = None) -> Tensor:
    # A copy: the mapped files are read-only, tensors are not.
    return torch.from_numpy(np.array(values, dtype=kind))
