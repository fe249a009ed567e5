"""Potential: graph -> frames -> FAENet -> averaged Prediction.

Geometry (positions, cell, edge vectors, frames) is float64 wherever the device supports it; the network runs in its own
dtype; energies are summed in the dtype of the geometry. Gradient forces go back through the same path, frames included.
"""

import dataclasses
from collections.abc import Collection
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from faenet_calc import elements
from faenet_calc.errors import InputError
from faenet_calc.frames.frames import Frames
from faenet_calc.graphs import convert
from faenet_calc.graphs.graph import AtomGraph
from faenet_calc.network.config import DecoderConfig, ModelConfig
from faenet_calc.network.faenet import FAENet
from faenet_calc.potential.capabilities import Capabilities, ForcesChoice, FramesChoice, Request
from faenet_calc.potential.config import PotentialConfig
from faenet_calc.potential.device import as_dtype
from faenet_calc.potential.domain import TrainingDomain
from faenet_calc.potential.forward import forward
from faenet_calc.potential.modes import differentiable, prediction_mode
from faenet_calc.potential.prediction import Prediction
from faenet_calc.potential.presets import preset as preset_config
from faenet_calc.potential.uncertainty import LastLayerUncertainty
from faenet_calc.settings import from_mapping, to_mapping


class Potential(nn.Module):
    """A network with everything that turns it into an energy function: references, units, elements and frames."""

    _place_of_weight: tuple[nn.Module, dict[str, nn.Parameter | None], str] | None = None

    def __init__(self, config: PotentialConfig) -> None:
        super().__init__()
        self.config = config
        self.model = FAENet(config.model)
        self.uncertainty: LastLayerUncertainty | None = None
        self.metadata: dict[str, Any] = {}

    @property
    def dtype(self) -> torch.dtype:
        """Floating-point type of the network."""
        return self._any_weight().dtype

    @property
    def device(self) -> torch.device:
        """Where the network lives."""
        return self._any_weight().device

    def _any_weight(self) -> Tensor:
        """A parameter of the network, found without a walk through its modules, which every call would pay for."""
        if self._place_of_weight is None or self._place_of_weight[0] is not self.model:
            name, _ = next(self.model.named_parameters())
            path, _, last = name.rpartition(".")
            self._place_of_weight = self.model, self.model.get_submodule(path)._parameters, last
        _, parameters, last = self._place_of_weight
        weight = parameters[last]
        assert weight is not None
        return weight

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

    @cached_property
    def capabilities(self) -> Capabilities:
        """What can be predicted, and why the rest cannot."""
        return Capabilities.of(self.config, uncertainty=self.uncertainty is not None)

    @property
    def needs_tags(self) -> bool:
        """Whether the prediction depends on tags."""
        return self.config.model.atoms.tag_channels > 0 or self.config.graph.rewiring != "none"

    def with_domain(self, domain: TrainingDomain, uncertainty: LastLayerUncertainty | None = None) -> "Potential":
        """A potential that shares this network and has a training domain and, if given, an uncertainty."""
        fitted = Potential(dataclasses.replace(self.config, domain=domain))
        fitted.model, fitted.metadata = self.model, dict(self.metadata)
        fitted.uncertainty = None if uncertainty is None else uncertainty.to(self.device).requires_grad_(False)
        return fitted.train(self.training)

    def graph(self, structures: Any) -> AtomGraph:
        """The graph of one structure or a list of them (ase.Atoms, pymatgen, PyG, AtomGraph) for this potential."""
        batch = convert.to_batch(
            structures,
            cutoff=self.cutoff,
            dtype=self.geometry_dtype,
            device=self.device,
            max_neighbors=self.config.graph.max_neighbors,
        )
        host = batch.on_host
        self.check_elements(host.atomic_numbers)
        if self.needs_tags and bool(((host.tags < 0) | (host.tags > 2)).any()):
            raise InputError(
                f"tags {sorted(set(host.tags.tolist()))} came with the atoms; this potential needs 0 (sub-surface), "
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
                f"unknown {'element' if len(found) == 1 else 'elements'} {', '.join(found)} at atom indices "
                f"{unknown.tolist()[:10]}; supported are "
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
            properties: Any of :data:`~faenet_calc.potential.capabilities.PROPERTIES`; None for energy and, where the
                potential has them, forces.
            frames: "auto" is the checkpoint's deterministic setting.
            forces: "auto" is the checkpoint's own kind.
            generator: Needed for stochastic frames.
        """
        with prediction_mode(self.device):
            graph = differentiable(self.graph(structures))
            found = self.evaluate(graph, properties=properties, frames=frames, forces=forces, generator=generator)
            return found.detach()

    def evaluate(
        self,
        graph: AtomGraph,
        *,
        properties: Collection[str] | None = None,
        frames: FramesChoice | Frames = "auto",
        forces: ForcesChoice = "auto",
        generator: torch.Generator | None = None,
        create_graph: bool = False,
        memory_bytes: int | None = None,
    ) -> Prediction:
        """Predict a batch of graphs in one pass; inference and training both call it.

        :class:`~faenet_calc.potential.predictor.Predictor` divides any number of graphs into such batches.

        Args:
            graph: From :meth:`graph`.
            properties: As in :meth:`predict`.
            frames: As in :meth:`predict`, or frames that were built before (of the rewired graph where there is one).
            forces: "both" gives gradient and direct forces (``forces`` is then the checkpoint's own kind).
            generator: Needed for stochastic frames.
            create_graph: Keep gradient forces and stress differentiable, for training on them.
            memory_bytes: Memory budget (bytes): the frames are evaluated in parts that fit; None for the device's
                default. Not used in training.
        """
        request = self.capabilities.request(properties, forces, frames)
        return self.run(graph, request, generator=generator, create_graph=create_graph, memory_bytes=memory_bytes)

    def run(
        self,
        graph: AtomGraph,
        request: Request,
        *,
        generator: torch.Generator | None = None,
        create_graph: bool = False,
        memory_bytes: int | None = None,
    ) -> Prediction:
        """Make a prediction that :attr:`capabilities` has checked; arguments as in :meth:`evaluate`."""
        kept = self._kept_atoms(graph)
        prediction = forward(
            self.model,
            self.config,
            graph if kept is None else graph.keep_atoms(kept),
            request,
            uncertainty=self.uncertainty,
            generator=generator,
            create_graph=create_graph,
            memory_bytes=memory_bytes,
        )
        return prediction if kept is None else _scatter_back(prediction, graph, kept)

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


_PER_ATOM = (
    "energies", "forces", "gradient_forces", "direct_forces", "forces_frame_std", "energies_uncertainty",
    "forces_uncertainty", "domain_distance", "atom_features",
)  # fmt: skip


def _scatter_back(result: Prediction, graph: AtomGraph, kept: Tensor) -> Prediction:
    """Per-atom results of a rewired graph at the atoms of the original; zero for deleted atoms."""
    changes: dict[str, Tensor] = {"graph_of_atom": graph.graph_of_atom}
    for name in _PER_ATOM:
        value = getattr(result, name)
        if value is not None:
            full = value.new_zeros(graph.n_atoms, *value.shape[1:])
            changes[name] = full.index_copy(0, torch.nonzero(kept)[:, 0], value)
    return dataclasses.replace(result, **changes)


@torch.inference_mode(False)
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
