"""FAENetCalculator: a potential, or a committee of them, as an ASE calculator.

Thin: ``members`` loads, ``graph_source`` turns atoms into graphs, ``committee`` predicts; here are ASE's rules.
"""

import threading
from collections.abc import Collection, Iterable
from typing import Any, Literal

import numpy as np
import torch
from ase import Atoms
from ase.calculators.calculator import Calculator, all_changes

from faenet_calc.calculator import answer_checks, foreign_keywords
from faenet_calc.calculator.batches import BatchSize, predict_all
from faenet_calc.calculator.foreign_keywords import choice
from faenet_calc.calculator.graph_source import GraphSource
from faenet_calc.calculator.members import load_members
from faenet_calc.graphs.tags import TagSource
from faenet_calc.potential.committee import Committee
from faenet_calc.potential.potential import FramesChoice

_ASE_KEYWORDS = ("label", "directory", "atoms")


class FAENetCalculator(Calculator):
    """ASE calculator with energies (eV), forces (eV/Å) and stress (eV/Å³) of FAENet potentials.

    Args:
        checkpoint: None for the default shipped model, the name of a shipped model, a path, a list or glob of paths (a
            committee, whose average is used) or a Potential.
        device: "cpu", "cuda", "cuda:1", "mps"; None picks cuda, mps or cpu, but leaves a Potential where it is.
        dtype: "float32" or "float64" for the network; geometry and energies are float64. A float64 Potential stays so.
        forces: "auto" for the checkpoint's own kind, "gradient" (-dE/dx) or "direct" (the force decoder).
        frames: "auto" for the checkpoint's own deterministic setting, "one", "pair", "all", "exact" or
            "stochastic".
        tags: Of models that need them (0 sub-surface, 1 surface, 2 adsorbate). "auto": the atoms' own, translated from
            ASE's layer numbers or inferred from geometry with a warning; "atoms": as they are; an array; a function.
        skin: Verlet skin (Å): neighbours are searched again when an atom has moved half of it; 0 searches every step.
        remove_net_force: "auto": net force (molecules: and torque) are taken from direct forces, over all atoms and
            before constraints, unless the model was trained on free atoms only. True, False. Gradient forces have none.
        seed: Of stochastic frames.
        on_unknown_element: Elements that cannot be embedded always raise. Embedded but never trained on: "error" warns
            once, "strict" raises, "ignore" is silent.
        on_isolated_atoms: "warn" (once), "error" or "ignore" when one of several atoms has no neighbour.
        check_finite: Raise instead of returning NaN or infinity.
        **ase_kwargs: ASE's label, directory and atoms.
    """

    name = "faenet"

    def __init__(
        self,
        checkpoint: Any = None,
        *,
        device: str | torch.device | None = None,
        dtype: str = "float32",
        forces: Literal["auto", "gradient", "direct"] = "auto",
        frames: FramesChoice = "auto",
        tags: TagSource = "auto",
        skin: float = 0.5,
        remove_net_force: Literal["auto"] | bool = "auto",
        seed: int | None = None,
        on_unknown_element: Literal["strict", "error", "ignore"] = "error",
        on_isolated_atoms: Literal["warn", "error", "ignore"] = "warn",
        check_finite: bool = True,
        **ase_kwargs: Any,
    ) -> None:
        if foreign := ase_kwargs.keys() - set(_ASE_KEYWORDS):
            foreign_keywords.answer(foreign)
        choice("forces", forces, ("auto", "gradient", "direct"))
        choice("frames", frames, ("auto", "one", "pair", "all", "exact", "stochastic"))
        choice("remove_net_force", remove_net_force, ("auto", True, False))
        choice("on_unknown_element", on_unknown_element, ("strict", "error", "ignore"))
        choice("on_isolated_atoms", on_isolated_atoms, ("warn", "error", "ignore"))
        members, description = load_members(checkpoint, device, dtype)
        self.committee = Committee(members, forces=forces, frames=frames, remove_net_force=remove_net_force, seed=seed)
        self.source = GraphSource(
            self.committee,
            tags=tags,
            skin=skin,
            on_unknown_element=on_unknown_element,
            on_isolated_atoms=on_isolated_atoms,
        )
        self.check_finite = check_finite
        self.implemented_properties = list(self.committee.properties)
        self._lock = threading.RLock()
        super().__init__(**ase_kwargs)
        self.parameters.update(checkpoint=description, dtype=self.info["dtype"], forces=forces, frames=frames)

    def set(self, **kwargs: Any) -> dict[str, Any]:
        """Settings are fixed at construction."""
        if kwargs:
            raise TypeError(
                f"{', '.join(kwargs)} cannot be changed afterwards; make a new FAENetCalculator (it is quick)"
            )
        return {}

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock = threading.RLock()

    def check_state(self, atoms: Atoms, tol: float = 1e-15) -> list[str]:
        """What changed since the last calculation, tags included; any difference counts, so ``tol`` is not used."""
        last = self.atoms
        if last is None:
            return [*all_changes, "tags"]
        pairs = {
            "positions": (atoms.positions, last.positions),
            "numbers": (atoms.numbers, last.numbers),
            "cell": (atoms.cell.array, last.cell.array),
            "pbc": (atoms.pbc, last.pbc),
            "tags": (atoms.get_tags(), last.get_tags()),
        }
        return [name for name, (now, before) in pairs.items() if not np.array_equal(now, before)]

    def get_property(self, name: str, atoms: Atoms | None = None, allow_calculation: bool = True) -> Any:
        """A result, computed if it is not at hand. Threads that share a calculator wait for each other."""
        answer_checks.check_request(self.committee, [name])
        with self._lock:
            return super().get_property(name, atoms, allow_calculation)

    def calculate(
        self,
        atoms: Atoms | None = None,
        properties: Collection[str] = ("energy",),
        system_changes: Collection[str] = tuple(all_changes),
    ) -> None:
        """Compute what is asked for; derivatives only if it needs them."""
        with self._lock:
            super().calculate(atoms, properties, system_changes)
            if system_changes:
                self.results = {}
            answer_checks.check_request(self.committee, properties)
            graphs = self.source.graphs(self.atoms, reuse=True)
            answer_checks.check_volume(next(iter(graphs.values())), properties)
            draw: Literal["new", "same"] = "new" if system_changes else "same"
            (results,) = self.committee.evaluate(graphs, properties, draw=draw)
            if self.check_finite:
                answer_checks.check_finite(results, self.atoms.symbols)
            self.results.update(results)

    def predict(
        self,
        structures: Iterable[Any],
        properties: Collection[str] = ("energy", "forces"),
        batch_size: BatchSize = "auto",
        progress: bool = False,
    ) -> list[dict[str, Any]]:
        """Results of many structures, computed in batches; the calculator's own state is not touched.

        Args:
            structures: ase.Atoms or pymatgen structures.
            properties: From ``implemented_properties``.
            batch_size: Structures in a batch; "auto" fills batches to a fixed number of edges × frames.
            progress: Show a progress bar.
        """
        items = [structures] if isinstance(structures, Atoms) else list(structures)
        answer_checks.check_request(self.committee, properties)
        return predict_all(
            self.source, items, properties, batch_size=batch_size, finite=self.check_finite, progress=progress
        )

    @property
    def n_neighbor_rebuilds(self) -> int:
        """How often neighbours were searched anew."""
        return self.source.n_rebuilds

    @property
    def supported_elements(self) -> tuple[str, ...]:
        """Symbols of the elements that can be computed."""
        return self.committee.supported_elements

    @property
    def trained_elements(self) -> tuple[str, ...]:
        """Symbols of the elements in the training data; empty if unknown."""
        return self.committee.trained_elements

    @property
    def energy_kind(self) -> str:
        """What the energy is: total, adsorption, relaxed-adsorption, formation or other."""
        return self.committee.members[0].config.energy.kind

    @property
    def energy_reference(self) -> str:
        """In words, the zero of the energy."""
        return self.committee.members[0].config.energy.reference

    @property
    def level_of_theory(self) -> str:
        """In words, what made the training data."""
        return self.committee.members[0].config.energy.level_of_theory

    @property
    def info(self) -> dict[str, Any]:
        """What this calculator is, ready for JSON."""
        return self.committee.describe()
