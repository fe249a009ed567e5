"""GraphSource: from a structure to the graphs that a committee needs, looked at on the way.

Keeps what can be kept between steps: Verlet lists, elements already checked, inferred tags. What is worth a warning is
said once.
"""

import warnings
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from ase import Atoms
from numpy.typing import NDArray

from faenet_calc.errors import InputError
from faenet_calc.graphs import convert
from faenet_calc.graphs.graph import AtomGraph
from faenet_calc.graphs.neighbors import VerletList
from faenet_calc.graphs.tags import TagSource
from faenet_calc.potential.committee import Committee, GraphKey

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
        committee: Whose graphs.
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
        on_unknown_element: Literal["strict", "error", "ignore"],
        on_isolated_atoms: Literal["warn", "error", "ignore"],
    ) -> None:
        self.committee, self.tags = committee, tags
        self.on_unknown_element, self.on_isolated_atoms = on_unknown_element, on_isolated_atoms
        self.lists = {key: VerletList(key[0], skin, key[1]) for key in committee.graph_keys}
        self._checked_numbers: NDArray[np.integer[Any]] | None = None
        self._kept_tags: _KeptTags | None = None
        self._said: set[str] = set()
        if committee.needs_tags and isinstance(tags, str) and tags not in ("auto", "atoms"):
            raise InputError(f'tags={tags!r}, expected "auto", "atoms", an array or a function of the atoms')

    @property
    def n_rebuilds(self) -> int:
        """How often a neighbour list was searched anew."""
        return sum(verlet.n_rebuilds for verlet in self.lists.values())

    def graphs(self, structure: Any, *, reuse: bool) -> dict[GraphKey, AtomGraph]:
        """The graphs of one structure; ``reuse`` keeps neighbours and inferred tags for the next step."""
        tags = self._tags(structure, keep=reuse) if self.committee.needs_tags else None
        first = self.committee.members[0]
        graphs = {}
        for key, verlet in self.lists.items():
            graphs[key] = convert.to_graph(
                structure,
                cutoff=key[0],
                max_neighbors=key[1],
                dtype=first.geometry_dtype,
                device=first.device,
                tags=tags,
                neighbors=verlet if reuse else None,
            )
            self._look_for_isolated(graphs[key], key[0])
        first_graph = next(iter(graphs.values()))
        self._look_at_elements(first_graph)
        self._tell_of_deleted_atoms(first_graph)
        return graphs

    def _say(self, topic: str, message: str) -> None:
        if topic not in self._said:
            self._said.add(topic)
            warnings.warn(message, UserWarning, stacklevel=2)

    def _tags(self, structure: Any, *, keep: bool) -> NDArray[np.int64] | None:
        if not isinstance(structure, Atoms):
            return None
        if keep and self._kept_tags is not None and self._kept_tags.hold_for(structure):
            tags, found = self._kept_tags.tags, True
        else:
            tags, remark = convert.resolve_tags(structure, self.tags)
            found = remark is not None
            if found:
                self._say("tags", f"this model needs tags (0 sub-surface, 1 surface, 2 adsorbate): {remark}")
        if keep:
            given = structure.get_tags()
            self._kept_tags = _KeptTags(atoms=structure.copy(), given=given, tags=tags) if found else None
        return tags

    def _look_at_elements(self, graph: AtomGraph) -> None:
        numbers = graph.atomic_numbers.cpu().numpy()
        if self._checked_numbers is not None and np.array_equal(numbers, self._checked_numbers):
            return
        for member in self.committee.members:
            member.check_elements(graph.atomic_numbers)
        trained = self.committee.trained_elements
        foreign = sorted(set(Atoms(numbers=numbers).get_chemical_symbols()) - set(trained)) if trained else []
        if foreign:
            message = (
                f"the model was never trained on {', '.join(foreign)} (trained on {', '.join(trained)}); the numbers "
                "have no meaning for these elements"
            )
            if self.on_unknown_element == "strict":
                raise InputError(f"{message}. Use another model, or on_unknown_element='error' to be only warned.")
            if self.on_unknown_element == "error":
                self._say(f"elements {foreign}", message)
        self._checked_numbers = numbers

    def _tell_of_deleted_atoms(self, graph: AtomGraph) -> None:
        if any(member.config.graph.rewiring == "remove-tag-0" for member in self.committee.members):
            deleted = int((graph.tags == 0).sum())
            self._say(
                "deleted",
                f"this model deletes sub-surface atoms (tag 0), here {deleted} of {graph.n_atoms}: they have no forces "
                "and no influence; keep them fixed (FixAtoms) in relaxations",
            )

    def _look_for_isolated(self, graph: AtomGraph, cutoff: float) -> None:
        if graph.n_atoms == 1 or self.on_isolated_atoms == "ignore":
            return
        lonely = torch.nonzero(torch.bincount(graph.centre, minlength=graph.n_atoms) == 0)[:, 0].tolist()
        if not lonely:
            return
        message = (
            f"{len(lonely)} atom(s) have no neighbour within {cutoff} Å and feel no force (indices {lonely[:10]}"
            f"{', …' if len(lonely) > 10 else ''}); has the structure come apart, or is a unit wrong (Å)?"
        )
        if self.on_isolated_atoms == "error":
            raise InputError(f"{message} on_isolated_atoms='warn' or 'ignore' computes it all the same.")
        self._say("isolated", message)
