"""Committee: one or several potentials that predict the same energy."""

import copy
import glob
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from faenet_calc import elements
from faenet_calc.errors import InputError
from faenet_calc.potential import shipped
from faenet_calc.potential.checkpoint import load_potential
from faenet_calc.potential.device import as_dtype, pick_device
from faenet_calc.potential.potential import Potential

GraphKey = tuple[float, int | None]
"""Cutoff (Å) and maximum number of neighbors: members that agree in both share a graph."""


class Committee:
    """Potentials whose predictions are averaged; a single potential is a committee of one.

    Args:
        members: At least one; all must predict the same kind of energy with the same reference.
        description: What the members were loaded from; None for their names.

    Attributes:
        members: The potentials.
        description: As given.
        graph_keys: The distinct graphs that the members need.
        graph_of_member: For every member, the index of its graph in ``graph_keys``.
        supported_elements: Symbols of the elements that every member can embed.
        trained_elements: Symbols of the elements that every member was trained on; empty if unknown.
        needs_tags: Whether any member depends on tags.
        deletes_atoms: Whether any member deletes sub-surface atoms.
    """

    def __init__(self, members: Sequence[Potential], description: str | None = None) -> None:
        if not members:
            raise InputError("a committee of 0 potentials was given; expected at least one")
        self.members = tuple(members)
        self.description = description or ", ".join(member.config.name or "Potential" for member in members)
        first = self.members[0].config.energy
        for number, member in enumerate(self.members):
            if member.config.energy != first:
                raise InputError(
                    f"members of a committee must predict the same energy: member 0 says {first}, member {number} says "
                    f"{member.config.energy}"
                )
        keys = [(member.cutoff, member.config.graph.max_neighbors) for member in self.members]
        self.graph_keys: tuple[GraphKey, ...] = tuple(dict.fromkeys(keys))
        self.graph_of_member = tuple(self.graph_keys.index(key) for key in keys)
        self.supported_elements = _symbols([set(member.supported_elements) for member in self.members])
        trained = [set(member.config.trained_elements) for member in self.members]
        self.trained_elements = _symbols([known for known in trained if known])
        self.needs_tags = any(member.needs_tags for member in self.members)
        self.deletes_atoms = any(member.config.graph.rewiring == "remove-tag-0" for member in self.members)


def load_committee(checkpoint: Any, device: str | torch.device | None = None, dtype: str = "float32") -> Committee:
    """Load the potentials that a user's ``checkpoint`` stands for.

    Args:
        checkpoint: None (default shipped model), shipped name, path, list of those, glob, or Potential(s).
        device: None picks cuda, mps or cpu, but leaves a Potential where it is.
        dtype: "float32" or "float64"; a float64 Potential stays float64.
    """
    as_dtype(dtype)
    sources = _sources(checkpoint)
    names = [source.config.name or "Potential" if isinstance(source, Potential) else str(source) for source in sources]
    return Committee([_load(source, device, dtype) for source in sources], ", ".join(names))


def _symbols(sets: list[set[int]]) -> tuple[str, ...]:
    """Symbols of the elements that all sets have in common."""
    return tuple(elements.symbol(z) for z in sorted(set.intersection(*sets))) if sets else ()


def _sources(checkpoint: Any) -> list[Any]:
    if checkpoint is None:
        return [shipped.default_name()]
    if isinstance(checkpoint, Potential):
        return [checkpoint]
    if isinstance(checkpoint, str | Path):
        pattern = str(checkpoint)
        if glob.has_magic(pattern) and not Path(pattern).exists():
            found = sorted(glob.glob(str(Path(pattern).expanduser()), recursive=True))
            if not found:
                raise InputError(f"no file matches the pattern {pattern!r} (looked from {Path.cwd()})")
            return list(found)
        return [checkpoint]
    if isinstance(checkpoint, Sequence) and len(checkpoint):
        return [source for item in checkpoint for source in _sources(item)]
    raise InputError(
        f"checkpoint={checkpoint!r} ({type(checkpoint).__name__}); expected None (the default model), a name or path, "
        "a list or glob of paths (a committee), or a Potential"
    )


def _load(source: Any, device: str | torch.device | None, dtype: str) -> Potential:
    if not isinstance(source, Potential):
        return load_potential(source, device=pick_device(device), dtype=as_dtype(dtype))
    target = source.device if device is None else pick_device(device)
    wider = as_dtype(dtype) if source.dtype == torch.float32 else source.dtype
    if target == source.device and wider == source.dtype:
        return source
    return copy.deepcopy(source).to(device=target, dtype=wider)
