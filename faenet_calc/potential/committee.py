"""Committee: one or several potentials that answer together.

A single potential is a committee of one. Results are averaged over members; with several, the members' own values and
their population variance come along under the names that MACE uses (``energy_comm``, ``energy_var``, ...).
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch
from ase.stress import full_3x3_to_voigt_6_stress
from numpy.typing import NDArray

from faenet_calc import elements
from faenet_calc.errors import InputError
from faenet_calc.graphs.graph import AtomGraph
from faenet_calc.potential.net_force import remove_net_force, remove_torque
from faenet_calc.potential.potential import FramesChoice, Potential

GraphKey = tuple[float, int | None]
"""Cutoff (Å) and cap on neighbours: members that agree in both share a graph."""

PER_GRAPH = ("energy", "stress", "energy_frame_std")
# Where a name that can be asked for comes from.
_SOURCE = {
    "free_energy": "energy",
    "energy_comm": "energy",
    "energy_var": "energy",
    "forces_comm": "forces",
    "forces_var": "forces",
    "stress_var": "stress",
}
_BY_PRODUCTS = {"stress": "forces", "forces_frame_std": "forces"}


class Committee:
    """Potentials with one way of asking them.

    Args:
        members: At least one, all with the same meaning of the energy.
        forces: "auto" (each its own), "gradient" or "direct".
        frames: "auto" (each its own) or a mode.
        remove_net_force: "auto" (from direct forces of models trained on all atoms), True or False.
        seed: Of stochastic frames; None draws one.

    Attributes:
        properties: What can be asked for.
    """

    def __init__(
        self,
        members: Sequence[Potential],
        *,
        forces: Literal["auto", "gradient", "direct"],
        frames: FramesChoice,
        remove_net_force: Literal["auto"] | bool,
        seed: int | None,
    ) -> None:
        self.members, self.frames, self.remove_net_force = tuple(members), frames, remove_net_force
        self._check_meaning()
        self.modes = tuple(m.config.frames.mode if frames == "auto" else frames for m in self.members)
        self.kinds = tuple(m.config.forces if forces == "auto" else forces for m in self.members)
        headless = [m.config.name or "Potential" for m in self.members if m.model.decoder is None]
        if forces == "direct" and headless:
            raise InputError(f"forces='direct', but {', '.join(headless)} has no force decoder; use forces='gradient'")
        self.missing = self._missing()
        base = ("energy", "free_energy", "forces", "energies", "stress", "energy_frame_std", "forces_frame_std")
        several = ("energy_comm", "energy_var", "forces_comm", "forces_var", "stress_var")
        offered = (*base, *several) if len(self.members) > 1 else base
        self.properties = tuple(name for name in offered if _SOURCE.get(name, name) not in self.missing)
        self.generator = torch.Generator()
        if seed is None:
            self.generator.seed()
        else:
            self.generator.manual_seed(seed)
        self._start = self.generator.get_state()

    def _check_meaning(self) -> None:
        """Averages need members that speak of the same energy."""
        first = self.members[0].config.energy
        for number, member in enumerate(self.members):
            if member.config.energy != first:
                raise InputError(
                    f"members of a committee must predict the same energy: member 0 says {first}, member {number} says "
                    f"{member.config.energy}"
                )

    def _missing(self) -> dict[str, str]:
        """Why a property that other potentials have cannot be had here, by its name."""
        reasons: dict[str, str] = {}
        if "none" in self.kinds:
            reason = "the model was trained on energies only; forces='gradient' gives its never-trained gradient"
            reasons |= dict.fromkeys(("forces", "forces_frame_std", "stress"), reason)
        elif "direct" in self.kinds:
            reasons["stress"] = (
                "the forces are direct (a separate output), and stress is the strain derivative of the energy; only "
                "gradient-force models have a meaningful one. forces='gradient' or a gradient-force checkpoint gives it"
            )
        if not all(m.model.has_atom_energies for m in self.members):
            reasons["energies"] = "the model mixes structure energies (upstream's 'concat'), not per-atom ones"
        framed = [m.config.frames.kind in ("lattice", "pca3d", "pca2d") for m in self.members]
        if {"one", "stochastic"} & set(self.modes) or not all(framed):
            reason = "a single frame has no spread; use frames='all' (or 'exact') with a frame-averaging model"
            reasons |= {name: reasons.get(name, reason) for name in ("energy_frame_std", "forces_frame_std")}
        return reasons

    def why_not(self, name: str) -> str:
        """In words, why a property cannot be had."""
        if name in ("energy_comm", "energy_var", "forces_comm", "forces_var", "stress_var") and len(self.members) == 1:
            return "it needs a committee; give a list or glob of checkpoints"
        return self.missing.get(_SOURCE.get(name, name), f"known are {', '.join(self.properties)}")

    @property
    def graph_keys(self) -> tuple[GraphKey, ...]:
        """The different graphs that members need."""
        return tuple(dict.fromkeys(_key(m) for m in self.members))

    @property
    def needs_tags(self) -> bool:
        """Whether any member depends on tags."""
        return any(m.needs_tags for m in self.members)

    @property
    def supported_elements(self) -> tuple[str, ...]:
        """Symbols of the elements that every member can embed."""
        common = set.intersection(*(set(m.supported_elements) for m in self.members))
        return tuple(elements.symbol(z) for z in sorted(common))

    @property
    def trained_elements(self) -> tuple[str, ...]:
        """Symbols of the elements that every member was trained on; empty if unknown."""
        known = [set(m.config.trained_elements) for m in self.members if m.config.trained_elements]
        return tuple(elements.symbol(z) for z in sorted(set.intersection(*known))) if known else ()

    def describe(self) -> dict[str, Any]:
        """What the committee is, ready for JSON."""
        first = self.members[0]
        return {
            "names": [m.config.name for m in self.members],
            "n_members": len(self.members),
            "n_parameters": sum(parameter.numel() for parameter in first.parameters()),
            "device": str(first.device),
            "dtype": str(first.dtype).removeprefix("torch."),
            "cutoff": max(m.cutoff for m in self.members),
            "forces": list(self.kinds),
            "frames": list(self.modes),
            "frame_kinds": [m.config.frames.kind for m in self.members],
            "properties": list(self.properties),
            "energy_kind": first.config.energy.kind,
            "energy_reference": first.config.energy.reference,
            "energy_unit": first.config.energy.unit,
            "level_of_theory": first.config.energy.level_of_theory,
            "supported_elements": list(self.supported_elements),
            "trained_elements": list(self.trained_elements),
            "needs_tags": self.needs_tags,
            "deletes_subsurface_atoms": any(m.config.graph.rewiring == "remove-tag-0" for m in self.members),
        }

    def evaluate(
        self,
        graphs: Mapping[GraphKey, AtomGraph],
        properties: Collection[str],
        *,
        draw: Literal["new", "same", "extra"] = "extra",
    ) -> list[dict[str, Any]]:
        """Results of every structure of a batch, as ASE wants them (numpy, float64, Voigt stress).

        Args:
            graphs: The same structures for each of :attr:`graph_keys`.
            properties: From :attr:`properties`; energy always comes along, and forces where they cost nothing.
            draw: Of stochastic frames: "new" ones, to which a later "same" returns, or "extra" ones.
        """
        wanted = {"energy"} | {_SOURCE.get(name, name) for name in properties}
        wanted |= {_BY_PRODUCTS[name] for name in wanted if name in _BY_PRODUCTS}
        if draw == "same":
            self.generator.set_state(self._start)
        elif draw == "new" and "stochastic" in self.modes:
            self._start = self.generator.get_state()
        answers = [self._ask(index, graphs[_key(m)], wanted) for index, m in enumerate(self.members)]
        return [_together([answer[number] for answer in answers]) for number in range(len(answers[0]))]

    def _ask(self, index: int, graph: AtomGraph, wanted: set[str]) -> list[dict[str, NDArray[np.float64]]]:
        """What one member says about every structure."""
        member, kind = self.members[index], self.kinds[index]
        with torch.no_grad():  # evaluate switches gradients on for itself where it needs them
            prediction = member.evaluate(
                graph,
                properties=wanted,
                frames=self.frames,
                forces="auto" if kind == "none" else kind,
                generator=self.generator,
            )
        arrays = {name: getattr(prediction, name).detach().cpu().double().numpy() for name in sorted(wanted)}
        ends = np.cumsum(graph.atoms_per_graph.cpu().numpy()).tolist()
        results = []
        for number, (start, end) in enumerate(zip([0, *ends[:-1]], ends, strict=True)):
            one = {k: v[number] if k in PER_GRAPH else v[start:end] for k, v in arrays.items()}
            if kind == "direct" and "forces" in one and self._balances(member):
                one["forces"] = remove_net_force(one["forces"])
                if not bool(graph.pbc[number].any()):
                    positions = graph.positions[start:end].detach().cpu().double().numpy()
                    one["forces"] = remove_torque(one["forces"], positions)
            results.append(one)
        return results

    def _balances(self, member: Potential) -> bool:
        if self.remove_net_force == "auto":
            return not member.config.forces_on_free_atoms_only
        return bool(self.remove_net_force)


def _key(member: Potential) -> GraphKey:
    return member.cutoff, member.config.graph.max_neighbors


def _together(answers: list[dict[str, NDArray[np.float64]]]) -> dict[str, Any]:
    """The average over members and, with several, their values and population variance."""
    results: dict[str, Any] = {}
    for name in answers[0]:
        values = np.stack([answer[name] for answer in answers])
        if name == "stress":
            values = np.stack([full_3x3_to_voigt_6_stress(value) for value in values])
        results[name] = float(values.mean()) if values.ndim == 1 else values.mean(axis=0)
        if len(answers) > 1 and name in ("energy", "forces", "stress"):
            variance = values.var(axis=0)
            results[f"{name}_var"] = float(variance) if variance.ndim == 0 else variance
            if name != "stress":
                results[f"{name}_comm"] = values
    results["free_energy"] = results["energy"]
    return results
