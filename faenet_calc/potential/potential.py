"""Potential: graph -> frames -> FAENet -> averaged Prediction; what calculator, drivers and training call.

Geometry (positions, cell, edge vectors, frames) is float64 wherever the device has it; the network runs in its own
dtype; energies are summed in the dtype of the geometry. Forces come back through the same path, frames included.
"""

import dataclasses
from collections.abc import Collection
from typing import Any, Literal

import torch
from torch import Tensor, nn

from faenet_calc import elements
from faenet_calc.errors import InputError
from faenet_calc.frames.config import FrameMode
from faenet_calc.frames.frames import Frames
from faenet_calc.graphs import convert
from faenet_calc.graphs.graph import AtomGraph
from faenet_calc.network.config import DecoderConfig, ModelConfig
from faenet_calc.network.faenet import FAENet
from faenet_calc.potential.config import PotentialConfig
from faenet_calc.potential.forward import Evaluation, ForcesChoice
from faenet_calc.potential.prediction import Prediction
from faenet_calc.potential.presets import preset as preset_config
from faenet_calc.settings import from_mapping, to_mapping

PROPERTIES = ("energy", "energies", "forces", "stress", "energy_frame_std", "forces_frame_std")
FramesChoice = Literal["auto"] | FrameMode


class Potential(nn.Module):
    """An energy function of atomic structures with its meaning: references, units, elements, frames."""

    def __init__(self, config: PotentialConfig) -> None:
        super().__init__()
        self.config = config
        self.model = FAENet(config.model)
        self.metadata: dict[str, Any] = {}

    @property
    def dtype(self) -> torch.dtype:
        """Floating-point type of the network."""
        return next(self.model.parameters()).dtype

    @property
    def device(self) -> torch.device:
        """Where the network lives."""
        return next(self.model.parameters()).device

    @property
    def geometry_dtype(self) -> torch.dtype:
        """Floating-point type of positions, frames and summed energies."""
        return torch.float32 if self.device.type == "mps" else torch.float64

    @property
    def cutoff(self) -> float:
        """Largest distance of an edge (Å)."""
        return self.config.model.cutoff

    @property
    def supported_elements(self) -> tuple[int, ...]:
        """Atomic numbers that can be embedded."""
        return self.config.supported_elements or tuple(range(1, self.config.model.atoms.n_elements + 1))

    @property
    def needs_tags(self) -> bool:
        """Whether the prediction depends on tags."""
        return self.config.model.atoms.tag_channels > 0 or self.config.graph.rewiring != "none"

    def graph(self, structures: Any) -> AtomGraph:
        """The graph of one structure or a list of them (ase.Atoms, pymatgen, PyG, AtomGraph) for this potential."""
        batch = convert.to_batch(
            structures,
            cutoff=self.cutoff,
            dtype=self.geometry_dtype,
            device=self.device,
            max_neighbors=self.config.graph.max_neighbors,
        )
        self.check_elements(batch.atomic_numbers)
        if self.needs_tags and bool(((batch.tags < 0) | (batch.tags > 2)).any()):
            raise InputError(
                f"tags {sorted(set(batch.tags.tolist()))} came with the atoms; this potential needs 0 (sub-surface), "
                "1 (surface) or 2 (adsorbate). FAENetCalculator infers them, as graphs.tags.infer_tags does"
            )
        return batch

    def check_elements(self, numbers: Tensor) -> None:
        """Raise an InputError that names atoms which cannot be embedded."""
        known = torch.zeros(max(elements.MAX_Z, int(numbers.max())) + 1, dtype=torch.bool, device=numbers.device)
        known[list(self.supported_elements)] = True
        unknown = torch.nonzero(~known[numbers])[:, 0]
        if len(unknown):
            found = sorted({elements.symbol(int(z)) for z in numbers[unknown]})
            raise InputError(
                f"unknown element(s) {', '.join(found)} at atom indices {unknown.tolist()[:10]}; supported are "
                f"{', '.join(elements.symbol(z) for z in self.supported_elements)}. Use another model or train one."
            )

    def predict(
        self,
        structures: Any,
        properties: Collection[str] | None = None,
        *,
        frames: FramesChoice = "auto",
        forces: ForcesChoice = "auto",
        generator: torch.Generator | None = None,
    ) -> Prediction:
        """Predict one structure or a list of them in a single batched pass.

        Args:
            structures: ase.Atoms, pymatgen Structure/Molecule, PyG Data/Batch, AtomGraph, or a list of them.
            properties: Any of energy, energies, forces, stress, energy_frame_std, forces_frame_std; None for energy
                and, where the potential has them, forces.
            frames: "auto" is the checkpoint's deterministic setting.
            forces: "auto" is the checkpoint's own kind.
            generator: Needed for stochastic frames.
        """
        if properties is None:
            properties = ("energy",) if self.config.forces == "none" and forces == "auto" else ("energy", "forces")
        graph = self.graph(structures)
        evaluated = self.evaluate(graph, properties=properties, frames=frames, forces=forces, generator=generator)
        return evaluated.detach()

    def evaluate(
        self,
        graph: AtomGraph,
        *,
        properties: Collection[str] = ("energy", "forces"),
        frames: FramesChoice | Frames = "auto",
        forces: ForcesChoice = "auto",
        generator: torch.Generator | None = None,
        create_graph: bool = False,
    ) -> Prediction:
        """Predict a batch of graphs; the path of inference and of training.

        Args:
            graph: From :meth:`graph`.
            properties: As in :meth:`predict`.
            frames: As in :meth:`predict`, or frames that were built before (of the rewired graph where there is one).
            forces: "both" gives gradient and direct forces (``forces`` is then the checkpoint's own kind).
            generator: Needed for stochastic frames.
            create_graph: Keep gradient forces and stress differentiable, for training on them.
        """
        wanted, kind = self._check_request(properties, forces)
        kept = self._kept_atoms(graph)
        reduced = graph if kept is None else graph.keep_atoms(kept)
        spread = "forces_frame_std" in wanted
        gradient = ("forces" in wanted and kind in ("gradient", "both")) or "stress" in wanted
        gradient = gradient or (spread and kind != "direct")
        training = torch.is_grad_enabled() and any(p.requires_grad for p in self.model.parameters())
        with torch.set_grad_enabled(training or gradient):
            work = Evaluation(
                self.model,
                self.config,
                reduced,
                self.config.frames.mode if isinstance(frames, str) and frames == "auto" else frames,
                generator,
                leaf=gradient,
                strained="stress" in wanted,
                per_copy=spread and kind != "direct",
                in_parts=not training and not create_graph,
            )
            result = work.averages(wanted, kind)
            if gradient:
                result |= work.derivatives(result["energy"], create_graph=create_graph, retain_graph=training)
            prediction = self._choose_forces(result, wanted, kind)
        return prediction if kept is None else _scatter_back(prediction, graph, kept)

    def _choose_forces(self, result: dict[str, Tensor], wanted: set[str], kind: ForcesChoice) -> Prediction:
        """The prediction with ``forces`` of the chosen kind, or without forces where only stress was asked for."""
        if "forces" not in wanted:
            result.pop("gradient_forces", None)
            return Prediction(**result)
        own = self.config.forces if kind == "both" else kind
        return Prediction(**result, forces=result["direct_forces" if own == "direct" else "gradient_forces"])

    def _check_request(self, properties: Collection[str], forces: ForcesChoice) -> tuple[set[str], ForcesChoice]:
        """The properties as a set and the kind of forces, or an InputError that says what this potential can do."""
        wanted = {properties} if isinstance(properties, str) else set(properties)
        unknown = wanted - set(PROPERTIES)
        if unknown:
            raise InputError(f"unknown properties {sorted(unknown)}; choose from {', '.join(PROPERTIES)}")
        if "energies" in wanted and not self.model.has_atom_energies:
            raise InputError(
                "this potential mixes structure energies (upstream's 'concat'); it has no per-atom energies"
            )
        has_direct = self.model.decoder is not None
        kind: ForcesChoice = forces
        if forces == "auto":
            kind = "direct" if self.config.forces == "direct" else "gradient"
            if self.config.forces == "none" and wanted & {"forces", "forces_frame_std", "stress"}:
                raise InputError(
                    "this potential was trained on energies only; its gradient can be had with forces='gradient', but "
                    "it was never compared with forces"
                )
        if kind in ("direct", "both") and not has_direct:
            raise InputError(
                "direct forces were asked for, but this potential has no force decoder; use forces='gradient'"
            )
        return wanted, kind

    def _kept_atoms(self, graph: AtomGraph) -> Tensor | None:
        """[n_atoms] bool, the atoms that remain after rewiring; None for all."""
        if self.config.graph.rewiring == "none":
            return None
        kept = graph.tags != 0
        empty = torch.nonzero(graph.sum_over_atoms(kept.long()) == 0)[:, 0].tolist()
        if empty:
            raise InputError(
                f"structures {empty} have only tag-0 (sub-surface) atoms, which this upstream model deletes; "
                "set tags (0 sub-surface, 1 surface, 2 adsorbate) with atoms.set_tags"
            )
        return kept


def _scatter_back(result: Prediction, graph: AtomGraph, kept: Tensor) -> Prediction:
    """Per-atom results of a rewired graph at the atoms of the original; zero for deleted atoms."""
    changes: dict[str, Tensor] = {"graph_of_atom": graph.graph_of_atom}
    for name in ("energies", "forces", "gradient_forces", "direct_forces", "forces_frame_std"):
        value = getattr(result, name)
        if value is not None:
            full = value.new_zeros(graph.n_atoms, *value.shape[1:])
            changes[name] = full.index_copy(0, torch.nonzero(kept)[:, 0], value)
    return dataclasses.replace(result, **changes)


_DTYPES = {"float32": torch.float32, "float64": torch.float64}


def as_dtype(dtype: str | torch.dtype) -> torch.dtype:
    """A torch dtype from its name; float32 or float64."""
    found = _DTYPES.get(str(dtype).removeprefix("torch."))
    if found is None:
        raise InputError(f"dtype={dtype!r}, expected 'float32' or 'float64'")
    return found


def build_potential(
    preset: str = "modern-s", *, seed: int = 0, dtype: str | torch.dtype = "float32", **overrides: Any
) -> Potential:
    """A potential with random weights.

    Args:
        preset: modern-s, modern-m, modern-l, paper-is2re, paper-s2ef, paper-qm7x or paper-qm9.
        seed: Of the random weights.
        dtype: "float32" or "float64".
        **overrides: Settings of :class:`PotentialConfig` (mappings merge into a section) or of its model section.
    """
    settings = to_mapping(preset_config(preset))
    model_names = {f.name for f in dataclasses.fields(ModelConfig)}
    for key, value in overrides.items():
        _merge(settings["model"] if key in model_names else settings, key, value)
    if settings["forces"] == "direct" and settings["model"]["decoder"] is None:
        settings["model"]["decoder"] = to_mapping(DecoderConfig())
    config = from_mapping(PotentialConfig, settings, source="build_potential")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        potential = Potential(config)
    potential.model.to(as_dtype(dtype))
    return potential.eval().requires_grad_(False)


def _merge(section: dict[str, Any], key: str, value: Any) -> None:
    """Put ``value`` at ``key``; mappings and settings dataclasses are merged into an existing section."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = to_mapping(value)
    if isinstance(value, dict) and isinstance(section.get(key), dict):
        for name, item in value.items():
            _merge(section[key], name, item)
    else:
        section[key] = value
