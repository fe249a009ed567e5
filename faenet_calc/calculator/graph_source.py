"""GraphSource: builds and checks the graphs that a committee needs for a structure.

Verlet lists, checked elements and inferred tags are kept between steps. Every warning is issued once.
"""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from ase import Atoms
from numpy.typing import NDArray

from faenet_calc import elements
from faenet_calc.errors import InputError, counted, warn_user
from faenet_calc.graphs import convert
from faenet_calc.graphs.graph import AtomGraph
from faenet_calc.graphs.neighbors import VerletList
from faenet_calc.graphs.tags import TagSource
from faenet_calc.potential.committee import Committee

# An atom that moves farther than this (Å) between two calls belongs to another structure, not to the next step.
_SAME_RUN = 1.0


@dataclass(frozen=True, kw_only=True, eq=False)
class _KeptTags:
    """Tags found for a structure, kept while it moves: tags that changed along a trajectory would make energy jump."""

    atoms: Atoms
    given: NDArray[np.integer[Any]]
    tags: NDArray[np.int64]

    def hold_for(self, atoms: Atoms) -> bool:
        last = self.atoms
        if not (
            np.array_equal(atoms.numbers, last.numbers)
            and np.array_equal(atoms.get_tags(), self.given)
            and np.array_equal(atoms.pbc, last.pbc)
        ):
            return False
        if not np.allclose(atoms.cell.array, last.cell.array, atol=_SAME_RUN):
            return False
        moved = np.linalg.solve(atoms.cell.complete().array.T, (atoms.positions - last.positions).T).T
        moved -= np.where(atoms.pbc, np.round(moved), 0.0)
        return bool((np.linalg.norm(moved @ atoms.cell.complete().array, axis=1) < _SAME_RUN).all())


class GraphSource:
    """Builds and checks the graphs of structures for a committee.

    Args:
        committee: The potentials that the graphs are for.
        tags: As in :class:`FAENetCalculator`.
        skin: (Å).
        on_unknown_element: As in :class:`FAENetCalculator`.
        on_isolated_atoms: As in :class:`FAENetCalculator`.
    """

    def __init__(
        self,
        committee: Committee,
        *,
        tags: TagSource,
        skin: float,
        on_unknown_element: Literal["error", "warn", "ignore"],
        on_isolated_atoms: Literal["error", "warn", "ignore"],
    ) -> None:
        self.committee, self.tags = committee, tags
        self.on_unknown_element, self.on_isolated_atoms = on_unknown_element, on_isolated_atoms
        self.skin = skin
        self.lists = [VerletList(cutoff, skin, max_neighbors) for cutoff, max_neighbors in committee.graph_keys]
        self._checked_numbers: NDArray[np.integer[Any]] | None = None
        self._kept_tags: _KeptTags | None = None
        self._issued: set[str] = set()
        if committee.needs_tags and isinstance(tags, str) and tags not in ("auto", "atoms"):
            raise InputError(f'tags={tags!r}, expected "auto", "atoms", an array or a function of the atoms')

    @property
    def n_rebuilds(self) -> int:
        """Number of neighbor searches so far."""
        return sum(verlet.n_rebuilds for verlet in self.lists)

    def fresh(self) -> "GraphSource":
        """A source with the same settings and without memory of earlier structures; warnings are still issued once."""
        twin = GraphSource(
            self.committee,
            tags=self.tags,
            skin=self.skin,
            on_unknown_element=self.on_unknown_element,
            on_isolated_atoms=self.on_isolated_atoms,
        )
        twin._issued = self._issued
        return twin

    def graphs(self, structure: Any, *, reuse: bool) -> tuple[AtomGraph, ...]:
        """Build the graphs of one structure, one per graph key of the committee.

        Args:
            structure: ase.Atoms or a pymatgen structure.
            reuse: Keep neighbors and inferred tags for the next step of the same structure.
        """
        tags = self._tags(structure, keep=reuse) if self.committee.needs_tags else None
        first, graphs = self.committee.members[0], []
        for (cutoff, max_neighbors), verlet in zip(self.committee.graph_keys, self.lists, strict=True):
            graph = convert.to_graph(
                structure,
                cutoff=cutoff,
                max_neighbors=max_neighbors,
                dtype=first.geometry_dtype,
                device=first.device,
                tags=tags,
                neighbors=verlet if reuse else None,
            )
            self._check_isolated(graph, cutoff)
            graphs.append(graph)
        self._check_elements(graphs[0])
        if self.committee.deletes_atoms:
            deleted = int((graphs[0].tags == 0).sum())
            self._warn_once(
                "deleted",
                f"this model deletes sub-surface atoms (tag 0), here {deleted} of {graphs[0].n_atoms}: they have no "
                "forces and no influence; keep them fixed (FixAtoms) in relaxations",
            )
        return tuple(graphs)

    def _warn_once(self, topic: str, message: str) -> None:
        if topic not in self._issued:
            self._issued.add(topic)
            warn_user(message)

    def _tags(self, structure: Any, *, keep: bool) -> NDArray[np.int64] | None:
        if not isinstance(structure, Atoms):
            return None
        if keep and self._kept_tags is not None and self._kept_tags.hold_for(structure):
            tags, found = self._kept_tags.tags, True
        else:
            tags, remark = convert.resolve_tags(structure, self.tags)
            found = remark is not None
            if found:
                self._warn_once("tags", f"this model needs tags (0 sub-surface, 1 surface, 2 adsorbate): {remark}")
        if keep:
            given = structure.get_tags()
            self._kept_tags = _KeptTags(atoms=structure.copy(), given=given, tags=tags) if found else None
        return tags

    def _check_elements(self, graph: AtomGraph) -> None:
        graph = graph.on_host  # a graph that came from there does not wait for a device
        numbers = graph.atomic_numbers.numpy()
        if self._checked_numbers is not None and np.array_equal(numbers, self._checked_numbers):
            return
        for member in self.committee.members:
            member.check_elements(graph.atomic_numbers)
        trained = self.committee.trained_elements
        present = {elements.symbol(z) for z in np.unique(numbers).tolist()}
        untrained = sorted(present - set(trained)) if trained else []
        if untrained and self.on_unknown_element != "ignore":
            message = (
                f"the model was never trained on {', '.join(untrained)} (trained on {', '.join(trained)}); its "
                "predictions for these elements are meaningless"
            )
            if self.on_unknown_element == "error":
                raise InputError(
                    f"{message}. Use another model or fine-tune this one; in Python, "
                    "FAENetCalculator(on_unknown_element='warn') computes anyway."
                )
            self._warn_once(f"elements {untrained}", message)
        self._checked_numbers = numbers

    def _check_isolated(self, graph: AtomGraph, cutoff: float) -> None:
        if graph.n_atoms == 1 or self.on_isolated_atoms == "ignore":
            return
        n_neighbors = np.bincount(graph.on_host.centre.numpy(), minlength=graph.n_atoms)
        if n_neighbors.all():
            return
        isolated = np.flatnonzero(n_neighbors == 0).tolist()
        message = (
            f"{counted(len(isolated), 'atom has', 'atoms have')} no neighbor within {cutoff} Å, and no force acts on "
            f"{'it' if len(isolated) == 1 else 'them'} (indices {isolated[:10]}"
            f"{', …' if len(isolated) > 10 else ''}); has the structure come apart, or is a unit wrong (Å)?"
        )
        if self.on_isolated_atoms == "error":
            raise InputError(f"{message} on_isolated_atoms='warn' or 'ignore' computes it anyway.")
        self._warn_once("isolated", message)
