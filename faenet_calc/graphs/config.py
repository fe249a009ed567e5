"""Settings of the graphs."""

from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge


@dataclass(frozen=True, kw_only=True)
class GraphConfig:
    """Options for building graphs from structures.

    Attributes:
        max_neighbors: Keep this many nearest neighbors of an atom (symmetric, ties kept); None keeps all.
        rewiring: ``remove-tag-0`` deletes sub-surface atoms, as upstream OC20 weights expect.
    """

    max_neighbors: Annotated[int, Ge(1)] | None = None
    rewiring: Literal["none", "remove-tag-0"] = "none"
