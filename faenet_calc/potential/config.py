"""Everything but the weights of a potential: its settings, as stored in a checkpoint."""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from faenet_calc import elements
from faenet_calc.frames.config import FrameMode, FramesConfig
from faenet_calc.graphs.config import GraphConfig
from faenet_calc.network.config import ModelConfig
from faenet_calc.potential.domain import TrainingDomain

ForceKind = Literal["gradient", "direct", "none"]


@dataclass(frozen=True, kw_only=True)
class EnergyConfig:
    """What the energy of a potential means.

    Attributes:
        kind: Total energy, adsorption energy, relaxed adsorption energy, formation energy, or another scalar.
        reference: In words, the zero of the energy.
        level_of_theory: In words, e.g. "PBE (VASP)".
        unit: Unit of the scalar; eV unless ``kind`` is "other".
    """

    kind: Literal["total", "adsorption", "relaxed-adsorption", "formation", "other"] = "total"
    reference: str = "unknown"
    level_of_theory: str = "unknown"
    unit: str = "eV"


@dataclass(frozen=True, kw_only=True)
class NormalizationConfig:
    """From the network's numbers to physical units: energy = scale · network + shift + Σ references.

    Attributes:
        scale: Of the energy (eV).
        shift: Per structure (eV); 0 for an extensive energy.
        force_scale: Of direct forces (eV/Å).
        references: Energy per atom (eV) by element symbol; missing elements count as 0.
    """

    scale: float = 1.0
    shift: float = 0.0
    force_scale: float = 1.0
    references: dict[str, float] = field(default_factory=dict)

    @cached_property
    def reference_table(self) -> tuple[float, ...]:
        """Energy per atom (eV) by atomic number."""
        table = [0.0] * (elements.MAX_Z + 1)
        for symbol, value in self.references.items():
            table[elements.atomic_number(symbol)] = value
        return tuple(table)


@dataclass(frozen=True, kw_only=True)
class RepulsionConfig:
    """Short-range repulsion between atoms (see :mod:`faenet_calc.potential.repulsion`).

    Distances are fractions of the length of a short bond between the two elements.

    Attributes:
        kind: ``zbl``, or ``none`` for the bare network.
        outer: Where the repulsion begins to act.
        inner: Where it has replaced the network.
        crowding_start: Crowding of a metal atom, a smooth number of metal atoms that are too close, at which the
            network begins to be switched off there.
        crowding_end: Crowding at which it is switched off.
    """

    kind: Literal["none", "zbl"] = "none"
    outer: float = 0.88
    inner: float = 0.55
    crowding_start: float = 1.9
    crowding_end: float = 2.8

    def __post_init__(self) -> None:
        if not 0 < self.inner < self.outer < 1:
            raise ValueError(f"repulsion: inner = {self.inner}, outer = {self.outer}, expected 0 < inner < outer < 1")
        if not 0 < self.crowding_start < self.crowding_end:
            raise ValueError(
                f"repulsion: crowding_start = {self.crowding_start}, crowding_end = {self.crowding_end}, expected "
                "0 < crowding_start < crowding_end"
            )


@dataclass(frozen=True, kw_only=True)
class PotentialConfig:
    """Everything but the weights of a potential.

    Attributes:
        forces: The potential's own kind of forces.
        forces_on_free_atoms_only: Direct forces were trained on unconstrained atoms only.
        supported_elements: Atomic numbers that can be embedded; empty for all rows of the table.
        trained_elements: Atomic numbers that occurred in training; empty if unknown.
        domain: Ranges of the training data; None if they were not recorded.
        name: Of the model, for people.
    """

    model: ModelConfig = field(default_factory=ModelConfig)
    frames: FramesConfig = field(default_factory=FramesConfig)
    graph: GraphConfig = field(default_factory=GraphConfig)
    energy: EnergyConfig = field(default_factory=EnergyConfig)
    normalization: NormalizationConfig = field(default_factory=NormalizationConfig)
    repulsion: RepulsionConfig = field(default_factory=RepulsionConfig)
    forces: ForceKind = "gradient"
    forces_on_free_atoms_only: bool = False
    supported_elements: tuple[int, ...] = ()
    trained_elements: tuple[int, ...] = ()
    domain: TrainingDomain | None = None
    name: str = ""

    def __post_init__(self) -> None:
        if self.forces == "direct" and self.model.decoder is None:
            raise ValueError("forces = 'direct' needs model.decoder, e.g. {kind: mlp, channels: 128, norm: layer}")

    @property
    def frame_mode(self) -> FrameMode:
        """Frame mode of predictions that do not ask for another one.

        For lattice frames with gradient forces, two frames give the errors of all eight at a third of the cost; with
        direct forces, more frames have lower errors (benchmarks/frame_modes.py).
        """
        if self.frames.mode != "auto":
            return self.frames.mode
        return "pair" if self.frames.kind == "lattice" and self.forces == "gradient" else "all"
