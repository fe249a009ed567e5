"""Statistics of a data set: element references, neighbors, scales of the labels, and errors of trivial predictions.

Element references are the energies e_Z for which Σ n_Z e_Z is closest to the labels, by least squares per atom. If
the compositions do not determine them (e.g. every structure is Cu36CO2), ridge regression selects those closest to the
mean energy per atom.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from faenet_calc.elements import symbol
from faenet_calc.errors import InputError

if TYPE_CHECKING:
    from faenet_calc.data.dataset import GraphDataset

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Indices = Sequence[int] | NDArray[np.integer[Any]] | None

_RANK_TOLERANCE = 1e-6  # relative to the largest singular value of the matrix of composition fractions
_RIDGE = 1e-6  # relative to the mean square of a column; determined references change by less than this fraction


@dataclass(frozen=True, kw_only=True, eq=False)
class ReferenceFit:
    """A fit of element references.

    Attributes:
        numbers: [n_elements] atomic numbers that occur.
        energies: [n_elements] (eV per atom).
        rank: Number of independent compositions; references are unique if it equals the number of elements.
        residual: [n_structures] (eV per atom), label minus Σ references, over the number of atoms.
    """

    numbers: Integers
    energies: Floats
    rank: int
    residual: Floats

    @property
    def deficient(self) -> bool:
        """Whether the references are not unique."""
        return self.rank < len(self.numbers)

    def by_symbol(self) -> dict[str, float]:
        """Symbol → eV per atom."""
        return {symbol(int(z)): float(e) for z, e in zip(self.numbers, self.energies, strict=True)}


def fit(compositions: Integers, energies: Floats) -> ReferenceFit:
    """Fit element references.

    Args:
        compositions: [n_structures, 119] atoms of each atomic number.
        energies: [n_structures] (eV), all finite.
    """
    if len(energies) == 0:
        raise InputError("no structure has an energy; element references need some")
    numbers = np.flatnonzero(compositions.sum(axis=0))
    size = compositions.sum(axis=1)
    fractions = compositions[:, numbers] / size[:, None]
    per_atom = energies / size
    middle = per_atom.mean()
    singular = np.linalg.svd(fractions, compute_uv=False)
    rank = int((singular > _RANK_TOLERANCE * singular[0]).sum())
    rows, target = fractions, per_atom - middle
    if rank < len(numbers):
        weight = np.sqrt(_RIDGE * len(rows)) * np.sqrt((fractions**2).mean(axis=0))
        rows, target = np.vstack([rows, np.diag(weight)]), np.append(target, np.zeros(len(numbers)))
    solution = np.linalg.lstsq(rows, target, rcond=None)[0] + middle
    return ReferenceFit(numbers=numbers, energies=solution, rank=rank, residual=per_atom - fractions @ solution)


def fit_references(dataset: "GraphDataset", indices: Indices = None) -> dict[str, float]:
    """Symbol → reference energy (eV per atom), fitted to the structures that have an energy."""
    return reference_fit(dataset, indices).by_symbol()


def reference_fit(dataset: "GraphDataset", indices: Indices = None) -> ReferenceFit:
    """Fit references as :func:`fit_references` does, and return them with rank and residuals."""
    chosen = _chosen(dataset, indices)
    chosen = chosen[np.isfinite(dataset.energy[chosen])]
    return fit(dataset.compositions(chosen), dataset.energy[chosen])


def mean_neighbors(dataset: "GraphDataset", indices: Indices = None) -> float:
    """Mean number of neighbors of an atom."""
    chosen = _chosen(dataset, indices)
    return float(dataset.n_edges[chosen].sum() / dataset.n_atoms[chosen].sum())


def energy_scale(dataset: "GraphDataset", indices: Indices = None, references: dict[str, float] | None = None) -> float:
    """Root mean square of the energies after references (eV per atom); 1 if there are no energies or it is 0."""
    chosen = _chosen(dataset, indices)
    chosen = chosen[np.isfinite(dataset.energy[chosen])]
    if len(chosen) == 0:
        return 1.0
    rest = residuals(dataset, chosen, fit_references(dataset, chosen) if references is None else references)
    return float(np.sqrt((rest**2).mean())) or 1.0


def residuals(dataset: "GraphDataset", indices: Indices, references: dict[str, float]) -> Floats:
    """[n_structures] (eV per atom) label minus references, NaN where there is no label.

    Raises:
        InputError: An element has no reference.
    """
    chosen = _chosen(dataset, indices)
    compositions = dataset.compositions(chosen)
    table = np.zeros(119)
    for number in np.flatnonzero(compositions.sum(axis=0)):
        name = symbol(int(number))
        if name not in references:
            raise InputError(f"no reference energy for {name}; there are some for {', '.join(references)}")
        table[number] = references[name]
    rest: Floats = (dataset.energy[chosen] - compositions @ table) / compositions.sum(axis=1)
    return rest


def force_scale(dataset: "GraphDataset", indices: Indices = None, *, free_only: bool = False) -> float:
    """Root mean square of the labelled force components (eV/Å); 1 if there are none or all are zero."""
    components = force_components(dataset, indices, free_only=free_only)
    return (float(np.sqrt((components**2).mean())) or 1.0) if components.size else 1.0


def force_components(dataset: "GraphDataset", indices: Indices = None, *, free_only: bool = False) -> Floats:
    """[n] (eV/Å) every force component that has a label."""
    kept = np.zeros(len(dataset), dtype=bool)
    kept[_chosen(dataset, indices)] = True
    atoms = np.repeat(kept, dataset.n_atoms)
    if free_only:
        atoms &= dataset.arrays["free"]
    components: Floats = dataset.arrays["forces"][atoms].ravel()
    return components[np.isfinite(components)]


def largest_forces(dataset: "GraphDataset") -> Floats:
    """[n_structures] (eV/Å) the longest force of each structure, 0 where there are no labels."""
    lengths = np.nan_to_num(np.linalg.norm(dataset.arrays["forces"], axis=1))
    first = dataset.arrays["atom_end"] - dataset.n_atoms
    longest: Floats = np.maximum.reduceat(lengths, first)
    return longest


@dataclass(frozen=True, kw_only=True)
class Spread:
    """Distribution of a quantity over a data set.

    Attributes:
        count: Number of values.
        mean: Mean value.
        std: Standard deviation.
        mae: Mean absolute deviation from the median: the MAE of the best constant prediction.
        lowest: The smallest value.
        highest: The largest value.
    """

    count: int
    mean: float
    std: float
    mae: float
    lowest: float
    highest: float

    @classmethod
    def of(cls, values: Floats) -> "Spread | None":
        """None if no value is finite."""
        values = values[np.isfinite(values)]
        if values.size == 0:
            return None
        return cls(
            count=int(values.size),
            mean=float(values.mean()),
            std=float(values.std()),
            mae=float(np.abs(values - np.median(values)).mean()),
            lowest=float(values.min()),
            highest=float(values.max()),
        )


@dataclass(frozen=True, kw_only=True)
class DatasetStats:
    """The output of `faenet-calc data stats`.

    Attributes:
        n_structures: Structures.
        n_atoms: Atoms of all structures.
        n_labels: Structures with an energy, forces, a stress.
        atoms_per_structure: Spread of sizes.
        elements: Symbol → (atoms, structures) that have it.
        tags: Atoms with tag 0, 1 and 2.
        n_fixed: Atoms that are constrained.
        energy: (eV) spread of the labels.
        energy_per_atom: (eV per atom) spread of the labels over the number of atoms.
        residual_per_atom: (eV per atom) spread after element references; its mae is the error of a trivial model.
        force_component: (eV/Å); its mae is the error of predicting no force.
        neighbors: Cutoff (Å) → mean and largest number of neighbors.
        references: Symbol → eV per atom.
        references_unique: Whether compositions determine the references.
    """

    n_structures: int
    n_atoms: int
    n_labels: dict[str, int]
    atoms_per_structure: Spread | None
    elements: dict[str, tuple[int, int]]
    tags: tuple[int, int, int]
    n_fixed: int
    energy: Spread | None
    energy_per_atom: Spread | None
    residual_per_atom: Spread | None
    force_component: Spread | None
    neighbors: dict[float, tuple[float, int]]
    references: dict[str, float]
    references_unique: bool


def describe(dataset: "GraphDataset", cutoffs: Sequence[float] = ()) -> DatasetStats:
    """Compute counts, ranges, neighbors, references and errors of trivial predictions.

    Args:
        cutoffs: (Å) up to the data set's own; by default its own and those 1 and 2 Å below.
    """
    compositions, sizes = dataset.compositions(), dataset.n_atoms
    occurring = np.flatnonzero(compositions.sum(axis=0))
    labelled = np.isfinite(dataset.energy).any()
    references = reference_fit(dataset) if labelled else None
    return DatasetStats(
        n_structures=len(dataset),
        n_atoms=int(sizes.sum()),
        n_labels=dataset.n_labels,
        atoms_per_structure=Spread.of(sizes.astype(np.float64)),
        elements={
            symbol(int(z)): (int(compositions[:, z].sum()), int((compositions[:, z] > 0).sum())) for z in occurring
        },
        tags=_tag_counts(dataset),
        n_fixed=int((~dataset.arrays["free"]).sum()),
        energy=Spread.of(dataset.energy),
        energy_per_atom=Spread.of(dataset.energy / sizes),
        residual_per_atom=None if references is None else Spread.of(references.residual),
        force_component=Spread.of(force_components(dataset)),
        neighbors=_neighbor_counts(dataset, cutoffs or [dataset.cutoff - 2, dataset.cutoff - 1, dataset.cutoff]),
        references={} if references is None else references.by_symbol(),
        references_unique=references is not None and not references.deficient,
    )


def _tag_counts(dataset: "GraphDataset") -> tuple[int, int, int]:
    sub_surface, surface, adsorbate = np.bincount(dataset.arrays["tags"], minlength=3).tolist()
    return sub_surface, surface, adsorbate


def _neighbor_counts(dataset: "GraphDataset", cutoffs: Sequence[float]) -> dict[float, tuple[float, int]]:
    """Mean and largest number of neighbors within each cutoff, from the stored edges."""
    wanted = sorted({float(cutoff) for cutoff in cutoffs if 0 < cutoff <= dataset.cutoff})
    total, largest = dict.fromkeys(wanted, 0), dict.fromkeys(wanted, 0)
    for item in (dataset[index] for index in range(len(dataset))):
        distance = item.graph.edge_vectors().norm(dim=1).numpy()
        for cutoff in wanted:
            counts = np.bincount(item.graph.centre.numpy()[distance < cutoff], minlength=1)
            total[cutoff] += int(counts.sum())
            largest[cutoff] = max(largest[cutoff], int(counts.max()))
    n_atoms = int(dataset.n_atoms.sum())
    return {cutoff: (total[cutoff] / n_atoms, largest[cutoff]) for cutoff in wanted}


def _chosen(dataset: "GraphDataset", indices: Indices) -> Integers:
    return np.arange(len(dataset)) if indices is None else np.asarray(indices, dtype=np.int64)
