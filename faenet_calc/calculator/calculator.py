"""FAENetCalculator: a potential, or a committee of them, as an ASE calculator.

``graph_source`` turns atoms into graphs, ``potential.predictor`` predicts, ``results`` converts; this file holds the
conventions of ASE.
"""

import copy
import itertools
import threading
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, Literal, get_args

import torch
from ase import Atoms
from ase.calculators.calculator import Calculator, PropertyNotImplementedError, all_changes

from faenet_calc.calculator import keywords
from faenet_calc.calculator.graph_source import GraphSource
from faenet_calc.calculator.guard import Guard, OnOutside
from faenet_calc.calculator.keywords import check_choice
from faenet_calc.calculator.results import ase_results, check_finite, check_volume
from faenet_calc.errors import InputError
from faenet_calc.frames.config import FrameMode
from faenet_calc.graphs.graph import AtomGraph
from faenet_calc.graphs.tags import TagSource
from faenet_calc.potential.capabilities import FramesChoice
from faenet_calc.potential.committee import load_committee
from faenet_calc.potential.predictor import BatchSize, Predictor
from faenet_calc.progress import progress_bar

_ASE_KEYWORDS = ("label", "directory", "atoms")
_STRESS = frozenset({"stress", "stress_var"})


class FAENetCalculator(Calculator):
    """ASE calculator with energies (eV), forces (eV/Å) and stress (eV/Å³) of FAENet potentials.

    Args:
        checkpoint: None for the default shipped model, the name of a shipped model, a path, a list or glob of paths (a
            committee, whose average is used) or a Potential.
        device: "cpu", "cuda", "cuda:1", "mps"; None picks cuda, mps or cpu, but leaves a Potential where it is.
        dtype: "float32" or "float64" for the network; geometry and energies are float64. A float64 Potential stays so.
        forces: "auto" for the checkpoint's own kind, "gradient" (-dE/dx) or "direct" (the force decoder).
        frames: "auto" for the checkpoint's own mode ("pair" for lattice frames with gradient forces; "exact" in cell
            relaxations), or one of "one" (fastest), "pair", "all" (also exact under reflections of the atoms in their
            cell), "exact" and "stochastic"; see :data:`faenet_calc.frames.config.FrameMode`.
        tags: Of models that need them (0 sub-surface, 1 surface, 2 adsorbate). "auto": the atoms' own, translated from
            ASE's layer numbers or inferred from geometry with a warning; "atoms": as they are; an array; a function.
        skin: Verlet skin (Å): neighbors are searched again when an atom has moved by half of it; 0 searches every step.
        remove_net_force: "auto": net force (molecules: and torque) are taken from direct forces, over all atoms and
            before constraints, unless the model was trained on free atoms only. True, False. Gradient forces have none.
        seed: Random seed of stochastic frames.
        on_unknown_element: "error", "warn" (once) or "ignore" for elements that the model can embed but was never
            trained on. Elements that it cannot embed always raise.
        on_outside_domain: "error", "warn" (once) or "ignore" for structures whose energy, forces, distances,
            uncertainty or atomic environments are implausible for the training data. The results have "domain"
            ("inside" or "outside") and "why", unless the checkpoint does not describe its training data.
        on_isolated_atoms: "error", "warn" (once) or "ignore" when one of several atoms has no neighbor.
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
        on_unknown_element: Literal["error", "warn", "ignore"] = "error",
        on_outside_domain: OnOutside = "warn",
        on_isolated_atoms: Literal["error", "warn", "ignore"] = "warn",
        check_finite: bool = True,
        **ase_kwargs: Any,
    ) -> None:
        if unknown := ase_kwargs.keys() - set(_ASE_KEYWORDS):
            keywords.reject(unknown)
        check_choice("forces", forces, ("auto", "gradient", "direct"))
        check_choice("frames", frames, ("auto", *get_args(FrameMode)))
        check_choice("remove_net_force", remove_net_force, ("auto", True, False))
        check_choice("on_unknown_element", on_unknown_element, ("error", "warn", "ignore"))
        check_choice("on_outside_domain", on_outside_domain, ("error", "warn", "ignore"))
        check_choice("on_isolated_atoms", on_isolated_atoms, ("error", "warn", "ignore"))
        committee = load_committee(checkpoint, device, dtype)
        self.predictor = Predictor(
            committee, forces=forces, frames=frames, remove_net_force=remove_net_force, seed=seed
        )
        self.source = GraphSource(
            committee,
            tags=tags,
            skin=skin,
            on_unknown_element=on_unknown_element,
            on_isolated_atoms=on_isolated_atoms,
        )
        self.guard = Guard(committee, on_outside_domain)
        self.check_finite = check_finite
        self.implemented_properties = ["energy", "free_energy", *self.predictor.properties[1:]]
        self._lock = threading.RLock()
        self._drawn_from = self.predictor.generator.get_state()
        super().__init__(**ase_kwargs)
        self.parameters.update(checkpoint=committee.description, dtype=self.info["dtype"], forces=forces, frames=frames)

    def set(self, **kwargs: Any) -> dict[str, Any]:
        """Parameters cannot be changed after construction."""
        if kwargs:
            raise TypeError(f"{', '.join(kwargs)} cannot be changed afterwards; make a new FAENetCalculator")
        return {}

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock = threading.RLock()

    def sharing(self, predictor: Predictor) -> "FAENetCalculator":
        """A calculator with the settings of this one, another predictor, and neighbor lists and results of its own."""
        twin = copy.copy(self)
        twin.predictor, twin.source = predictor, self.source.fresh()
        twin.atoms, twin.results = None, {}
        return twin

    def for_cell_relaxation(self) -> "FAENetCalculator":
        """The calculator with which ``relax`` relaxes a cell.

        Lattice frames follow the cell vectors. Averaged over few frames, they make cubic crystals slightly tetragonal;
        mode "exact" keeps their symmetry. It replaces ``frames="auto"``; other choices are kept.
        """
        kinds = {member.config.frames.kind for member in self.predictor.committee.members}
        if self.predictor.frames != "auto" or kinds != {"lattice"}:
            return self
        return self.sharing(self.predictor.with_frames("exact"))

    def check_state(self, atoms: Atoms, tol: float = 1e-15) -> list[str]:
        """List what changed since the last calculation, tags included. ``tol`` is ignored: any difference counts."""
        last = self.atoms
        if last is None or len(atoms) != len(last):
            return [*all_changes, "tags"]
        pairs = {
            "positions": (atoms.positions, last.positions),
            "numbers": (atoms.numbers, last.numbers),
            "cell": (atoms.cell.array, last.cell.array),
            "pbc": (atoms.pbc, last.pbc),
            "tags": (atoms.get_tags(), last.get_tags()),
        }
        # Several times per step: much faster than np.array_equal, and equal shapes are certain.
        return [name for name, (now, before) in pairs.items() if not (now == before).all()]

    def get_property(self, name: str, atoms: Atoms | None = None, allow_calculation: bool = True) -> Any:
        """Return a result, computed if necessary. Threads that share a calculator wait for each other."""
        self._check_available([name])
        with self._lock:
            return super().get_property(name, atoms, allow_calculation)

    def calculate(
        self,
        atoms: Atoms | None = None,
        properties: Collection[str] = ("energy",),
        system_changes: Collection[str] = tuple(all_changes),
    ) -> None:
        """Compute the properties of ``atoms``; derivatives only where they are needed."""
        with self._lock:
            if atoms is not None:
                self.atoms = atoms.copy()
            self._check_available(properties)
            generator = self.predictor.generator
            if system_changes:
                self.results, self._drawn_from = {}, generator.get_state()
            else:  # another property of the same structure: the same stochastic frames
                generator.set_state(self._drawn_from)
            graphs = self.source.graphs(self.atoms, reuse=True)
            if _STRESS.intersection(properties):
                check_volume(graphs[0])
            near = self.guard.is_near(self.atoms)
            wanted = frozenset(properties) - {"free_energy"} if near else self._computed(properties)
            prediction = self.predictor.predict_one(graphs, wanted)
            results = ase_results(prediction, without=self.guard.properties.difference(properties))
            if self.check_finite:
                check_finite(results, self.atoms.numbers)
            self.results.update(
                results | self.guard.results(graphs[0], prediction, examined=None if near else self.atoms)
            )

    def predict(
        self,
        structures: Iterable[Any],
        properties: Collection[str] = ("energy", "forces"),
        batch_size: BatchSize = "auto",
        progress: bool = False,
    ) -> list[dict[str, Any]]:
        """Predict many structures in batches; the state of the calculator does not change.

        Args:
            structures: ase.Atoms or pymatgen structures.
            properties: Names from ``implemented_properties``.
            batch_size: Structures per batch; "auto" fills the memory budget of the device.
            progress: Show a progress bar.

        Returns:
            list: ASE results of every structure, in order.

        Raises:
            InputError: For a structure that cannot be computed, with its index.
        """
        items = [structures] if isinstance(structures, Atoms) else list(structures)
        self._check_available(properties)
        graphs, predicted = itertools.tee(self._graphs(items, stress=bool(_STRESS.intersection(properties))))
        predictions = self.predictor.predict(graphs, self._computed(properties), batch_size=batch_size)
        hidden = self.guard.properties.difference(properties)
        found: list[dict[str, Any]] = []
        with progress_bar(shown=progress, total=len(items), unit="structures") as bar:
            for prediction, (graph, *_) in zip(predictions, predicted, strict=True):
                results, where = ase_results(prediction, without=hidden), f"structure {len(found)}: "
                if self.check_finite:
                    check_finite(results, graph.atomic_numbers, where)
                found.append(results | self.guard.results(graph, prediction, where))
                bar.update(1)
        return found

    def uncertainty_of_difference(self, structures: Sequence[Any], coefficients: Sequence[float]) -> float:
        """Standard deviation (eV) of a sum of energies, with the correlation of their errors.

        Structures that share atoms have similar errors: an adsorption energy is more certain than its three energies.

            calc.uncertainty_of_difference([slab_with_co, slab, co], [1, -1, -1])

        Args:
            structures: ase.Atoms or pymatgen structures.
            coefficients: Factor of each energy.
        """
        if len(structures) != len(coefficients):
            raise InputError(f"{len(structures)} structures and {len(coefficients)} coefficients; expected one each")
        self._check_available(["energy_uncertainty", "atom_features"])
        total: Any = 0.0
        graphs = self._graphs(list(structures), stress=False)
        for factor, prediction in zip(coefficients, self.predictor.predict(graphs, ("atom_features",)), strict=True):
            assert prediction.atom_features is not None
            total = total + factor * prediction.atom_features.double().sum(dim=0)
        (member,) = self.predictor.committee.members
        assert member.uncertainty is not None
        return float(member.uncertainty.deviation(total[None])[0])

    def _computed(self, properties: Collection[str]) -> frozenset[str]:
        """What the predictor must compute: the properties, and what the guard needs."""
        return frozenset(properties) - {"free_energy"} | self.guard.properties

    def _graphs(self, structures: list[Any], *, stress: bool) -> Iterator[tuple[AtomGraph, ...]]:
        """The graphs of every structure; errors name its index."""
        for index, structure in enumerate(structures):
            try:
                graphs = self.source.graphs(structure, reuse=False)
            except InputError as error:
                raise InputError(f"structure {index}: {error}") from error
            if stress:
                check_volume(graphs[0], f"structure {index}: ")
            yield graphs

    def _check_available(self, properties: Collection[str]) -> None:
        for name in properties:
            if name not in self.implemented_properties:
                raise PropertyNotImplementedError(f"{name} is not available: {self.predictor.why_not(name)}")

    @property
    def n_neighbor_rebuilds(self) -> int:
        """Number of neighbor searches so far."""
        return self.source.n_rebuilds

    @property
    def supported_elements(self) -> tuple[str, ...]:
        """Symbols of the elements that can be computed."""
        return self.predictor.committee.supported_elements

    @property
    def trained_elements(self) -> tuple[str, ...]:
        """Symbols of the elements in the training data; empty if unknown."""
        return self.predictor.committee.trained_elements

    @property
    def energy_kind(self) -> str:
        """Kind of energy: total, adsorption, relaxed-adsorption, formation or other."""
        return self.predictor.committee.members[0].config.energy.kind

    @property
    def energy_reference(self) -> str:
        """Description of the zero of the energy."""
        return self.predictor.committee.members[0].config.energy.reference

    @property
    def level_of_theory(self) -> str:
        """Description of the method that produced the training data."""
        return self.predictor.committee.members[0].config.energy.level_of_theory

    @property
    def info(self) -> dict[str, Any]:
        """Description of this calculator, ready for JSON."""
        predictor, committee = self.predictor, self.predictor.committee
        first = committee.members[0]
        return {
            "names": [member.config.name for member in committee.members],
            "paths": [member.metadata.get("path") for member in committee.members],
            "n_members": len(committee.members),
            "n_parameters": sum(parameter.numel() for parameter in first.parameters()),
            "device": str(first.device),
            "dtype": str(first.dtype).removeprefix("torch."),
            "cutoff": max(member.cutoff for member in committee.members),
            "forces": list(predictor.kinds),
            "frames": list(predictor.modes),
            "frames_for_cell_relaxation": list(self.for_cell_relaxation().predictor.modes),
            "frame_kinds": [member.config.frames.kind for member in committee.members],
            "properties": list(self.implemented_properties),
            "energy_kind": self.energy_kind,
            "energy_reference": self.energy_reference,
            "energy_unit": first.config.energy.unit,
            "level_of_theory": self.level_of_theory,
            "supported_elements": list(self.supported_elements),
            "trained_elements": list(self.trained_elements),
            "needs_tags": committee.needs_tags,
            "deletes_subsurface_atoms": committee.deletes_atoms,
        }
