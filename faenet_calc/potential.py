"""Potential: graph -> frames -> FAENet -> averaged Prediction (L2); what calculator, drivers and training call.

Geometry (positions, cell, edge vectors, frames) is float64 wherever the device has it; the network runs in its own dtype;
energies are summed in the dtype of the geometry. Forces come back through the same path, frames included.
"""

import dataclasses
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from faenet_calc import convert, elements
from faenet_calc.config import (
    DecoderConfig,
    FrameMode,
    ModelConfig,
    PotentialConfig,
    from_mapping,
    to_mapping,
)
from faenet_calc.config import preset as preset_config
from faenet_calc.errors import InputError
from faenet_calc.faenet import FAENet, NetworkOutput
from faenet_calc.frames import FramedGraph, Frames, build_frames, copy_into_frames, into_frame, out_of_frame
from faenet_calc.graph import AtomGraph

PROPERTIES = ("energy", "energies", "forces", "stress", "energy_frame_std", "forces_frame_std")
FramesChoice = Literal["auto"] | FrameMode
ForcesChoice = Literal["auto", "gradient", "direct", "both"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Prediction:
    """What a potential says about a batch; None where it was not asked for.

    Attributes:
        graph_of_atom: [n_atoms] int64.
        energy: [n_graphs] (eV).
        energies: [n_atoms] (eV), sums to ``energy``.
        forces: [n_atoms, 3] (eV/Å), of the kind that was chosen.
        gradient_forces: [n_atoms, 3] (eV/Å), -dE/dx through the frames.
        direct_forces: [n_atoms, 3] (eV/Å), of the force decoder.
        stress: [n_graphs, 3, 3] (eV/Å³).
        energy_frame_std: [n_graphs] (eV), spread of the energy over frames.
        forces_frame_std: [n_atoms] (eV/Å), root mean square deviation of an atom's force vector over frames.
    """

    graph_of_atom: Tensor
    energy: Tensor
    energies: Tensor | None = None
    forces: Tensor | None = None
    gradient_forces: Tensor | None = None
    direct_forces: Tensor | None = None
    stress: Tensor | None = None
    energy_frame_std: Tensor | None = None
    forces_frame_std: Tensor | None = None

    def _map(self, function: Any) -> "Prediction":
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return Prediction(**{name: None if value is None else function(name, value) for name, value in values.items()})

    def detach(self) -> "Prediction":
        """The same numbers without their history."""
        return self._map(lambda _, value: value.detach())

    def split(self) -> "list[Prediction]":
        """One prediction per structure."""
        n_graphs = len(self.energy)
        ends = torch.cumsum(torch.bincount(self.graph_of_atom, minlength=n_graphs), 0).tolist()
        per_graph = {"energy", "stress", "energy_frame_std"}
        members = []
        for index, (start, end) in enumerate(zip([0, *ends[:-1]], ends, strict=True)):
            atoms, graphs = slice(start, end), slice(index, index + 1)

            def cut(name: str, value: Tensor, atoms: slice = atoms, graphs: slice = graphs) -> Tensor:
                part = value[graphs if name in per_graph else atoms]
                return torch.zeros_like(part) if name == "graph_of_atom" else part

            members.append(self._map(cut))
        return members


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

    def graph(self, structures: Any, *, tags: Any = None) -> AtomGraph:
        """The graph of one structure or a list of them (ase.Atoms, pymatgen, PyG, AtomGraph) for this potential."""
        batch = convert.to_batch(
            structures,
            cutoff=self.cutoff,
            dtype=self.geometry_dtype,
            device=self.device,
            max_neighbors=self.config.graph.max_neighbors,
            tags=tags,
        )
        self.check_elements(batch.atomic_numbers)
        return batch

    def check_elements(self, numbers: Tensor) -> None:
        """Raise an InputError that names atoms which cannot be embedded."""
        known = torch.zeros(max(elements.MAX_Z, int(numbers.max())) + 1, dtype=torch.bool, device=numbers.device)
        known[list(self.supported_elements)] = True
        unknown = torch.nonzero(~known[numbers])[:, 0]
        if len(unknown):
            found = sorted({elements.symbol(int(z)) for z in numbers[unknown]})
            raise InputError(
                f"unknown element(s) {', '.join(found)} at atom indices {unknown.tolist()[:10]}; this potential supports "
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
            properties: Any of energy, energies, forces, stress, energy_frame_std, forces_frame_std; None for energy and,
                where the potential has them, forces.
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
        frames: FramesChoice = "auto",
        forces: ForcesChoice = "auto",
        generator: torch.Generator | None = None,
        create_graph: bool = False,
    ) -> Prediction:
        """Predict a batch of graphs; the path of inference and of training.

        Args:
            graph: From :meth:`graph`.
            properties: As in :meth:`predict`.
            frames: As in :meth:`predict`.
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
        training = torch.is_grad_enabled() and next(self.model.parameters()).requires_grad
        with torch.set_grad_enabled(training or gradient):
            work = _Evaluation(self, reduced, self._mode(frames), generator, strained="stress" in wanted, leaf=gradient)
            output = work.run(per_copy=spread and kind != "direct")
            result = work.collect(output, wanted, kind)
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

    def _mode(self, frames: FramesChoice) -> FrameMode:
        if frames != "auto":
            return frames
        return self.config.frames.mode

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


class _Evaluation:
    """One forward pass of a batch and the derivatives of it."""

    def __init__(
        self,
        potential: Potential,
        graph: AtomGraph,
        mode: FrameMode,
        generator: torch.Generator | None,
        *,
        strained: bool,
        leaf: bool,
    ) -> None:
        self.potential, self.original = potential, graph
        self.strain: Tensor | None = None
        if leaf:
            self.positions = graph.positions.detach().requires_grad_()
            graph = graph.replace(positions=self.positions)
        if strained:
            self.strain = torch.zeros_like(graph.cell).requires_grad_()
            deformation = torch.eye(3).to(graph.cell) + 0.5 * (self.strain + self.strain.transpose(1, 2))
            graph = graph.replace(
                positions=torch.einsum("ni,nij->nj", graph.positions, deformation[graph.graph_of_atom]),
                cell=graph.cell @ deformation,
            )
        self.graph = graph
        self.frames: Frames = build_frames(
            graph, potential.config.frames, mode, vacuum=potential.cutoff, generator=generator
        )
        self.framed: FramedGraph = copy_into_frames(graph, self.frames.graph)
        self.lab_copies: Tensor | None = None

    def run(self, *, per_copy: bool) -> NetworkOutput:
        """The network on all copies; ``per_copy`` keeps the edges of different frames apart in the derivatives."""
        framed, dtype = self.framed, self.potential.dtype
        vectors = self.graph.edge_vectors()
        rotation = self.frames.rotation[framed.frame_of_edge]
        copies = vectors.index_select(0, framed.edge_of_copy)
        if per_copy:
            self.lab_copies = vectors = copies
        distances = torch.linalg.vector_norm(vectors, dim=1).to(dtype)
        in_frame = into_frame(copies, rotation).to(dtype)
        output = self.potential.model(framed, in_frame, distances, None if per_copy else framed.edge_of_copy)
        return cast(NetworkOutput, output)

    def collect(self, output: NetworkOutput, wanted: set[str], kind: ForcesChoice) -> dict[str, Tensor]:
        """Averages over frames in physical units, by the names of :class:`Prediction`."""
        normalization = self.potential.config.normalization
        graph, frames, framed = self.graph, self.frames, self.framed
        energy_of_copy = output.energy.to(graph.positions.dtype) * normalization.scale
        averaged = _average(frames, energy_of_copy, graph.n_graphs)
        references = self._references()
        energy = averaged + normalization.shift + graph.sum_over_atoms(references)
        result: dict[str, Tensor] = {"graph_of_atom": graph.graph_of_atom, "energy": energy}
        if "energies" in wanted and output.node_energy is not None:
            weight = frames.weight[framed.frame_of_node] * normalization.scale
            weighted = output.node_energy.to(energy.dtype) * weight
            share = (normalization.shift / graph.atoms_per_graph.to(energy.dtype))[graph.graph_of_atom]
            result["energies"] = (references + share).index_add(0, framed.atom_of_node, weighted)
        if "energy_frame_std" in wanted:
            deviation = (energy_of_copy - averaged[frames.graph]).square()
            result["energy_frame_std"] = _average(frames, deviation, graph.n_graphs).sqrt()
        if kind in ("direct", "both") and wanted & {"forces", "forces_frame_std"}:
            result |= self._direct(output, wanted)
        return result

    def _references(self) -> Tensor:
        """[n_atoms] (eV) reference energy of each atom."""
        table = self.original.positions.new_zeros(elements.MAX_Z + 1)
        for symbol, value in self.potential.config.normalization.references.items():
            table[elements.atomic_number(symbol)] = value
        return table[self.original.atomic_numbers]

    def derivatives(self, energy: Tensor, *, create_graph: bool, retain_graph: bool) -> dict[str, Tensor]:
        """Forces, stress and force spread from energies [n_graphs]."""
        inputs = [x for x in (self.positions, self.strain, self.lab_copies) if x is not None]
        # An isolated atom's energy does not depend on its position; the zero term ties the two together.
        total = energy.sum() + 0.0 * self.positions.sum()
        grads = list(
            torch.autograd.grad(
                total,
                inputs,
                create_graph=create_graph,
                retain_graph=create_graph or retain_graph,
                allow_unused=True,
                materialize_grads=True,
            )
        )
        result = {"gradient_forces": -grads.pop(0)}
        if self.strain is not None:
            result["stress"] = grads.pop(0) / self.original.volume[:, None, None]
        if self.lab_copies is not None:
            result["forces_frame_std"] = self._gradient_spread(grads.pop(0))
        return result

    def _gradient_spread(self, gradient: Tensor) -> Tensor:
        """[n_atoms] spread over frames of forces at fixed frames, from dE/d(edge copies) [n_edge_copies, 3]."""
        framed = self.framed
        per_frame = gradient / self.frames.weight.detach()[framed.frame_of_edge][:, None]
        force = per_frame.new_zeros(framed.n_nodes, 3).index_add(0, framed.centre, per_frame)
        return self._spread(force.index_add(0, framed.neighbor, -per_frame))

    def _direct(self, output: NetworkOutput, wanted: set[str]) -> dict[str, Tensor]:
        assert output.node_force is not None
        framed = self.framed
        config = self.potential.config
        rotation = self.frames.rotation[framed.frame_of_node]
        in_frame = output.node_force.to(rotation.dtype) * config.normalization.force_scale
        lab = out_of_frame(in_frame, rotation)
        weighted = lab * self.frames.weight[framed.frame_of_node][:, None]
        result = {"direct_forces": lab.new_zeros(self.graph.n_atoms, 3).index_add(0, framed.atom_of_node, weighted)}
        if "forces_frame_std" in wanted:
            result["forces_frame_std"] = self._spread(lab)
        return result

    def _spread(self, node_force: Tensor) -> Tensor:
        """[n_atoms] weighted root mean square deviation of per-node forces [n_nodes, 3] from their mean."""
        framed = self.framed
        weight = self.frames.weight.detach()[framed.frame_of_node]
        mean = node_force.new_zeros(self.graph.n_atoms, 3).index_add(
            0, framed.atom_of_node, node_force * weight[:, None]
        )
        deviation = (node_force - mean[framed.atom_of_node]).square().sum(dim=1) * weight
        return deviation.new_zeros(self.graph.n_atoms).index_add(0, framed.atom_of_node, deviation).sqrt()


def _average(frames: Frames, per_frame: Tensor, n_graphs: int) -> Tensor:
    """[n_graphs] weighted average of a per-frame quantity (paper Eq. 1)."""
    return per_frame.new_zeros(n_graphs).index_add(0, frames.graph, per_frame * frames.weight)


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
