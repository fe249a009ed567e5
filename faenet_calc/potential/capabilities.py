"""Capabilities: what a potential can predict, and why it cannot predict the rest."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

from faenet_calc.errors import InputError
from faenet_calc.frames.config import FrameMode
from faenet_calc.frames.frames import Frames
from faenet_calc.potential.config import ForceKind, PotentialConfig

PROPERTIES = (
    "energy", "energies", "forces", "stress", "torque", "energy_frame_std", "forces_frame_std", "energy_uncertainty",
    "energy_uncertainty_95", "energies_uncertainty", "forces_uncertainty", "domain_distance", "atom_features",
)  # fmt: skip
_OF_UNCERTAINTY = (
    "energy_uncertainty", "energy_uncertainty_95", "energies_uncertainty", "forces_uncertainty", "domain_distance",
)  # fmt: skip
GUARDED = frozenset({"energy_uncertainty", "domain_distance"})
"""What the domain guard asks for."""
FramesChoice = Literal["auto"] | FrameMode
ForcesChoice = Literal["auto", "gradient", "direct", "both"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Request:
    """A prediction to make, checked against the capabilities of a potential.

    Attributes:
        properties: Names from :data:`PROPERTIES`.
        forces: Kind of ``Prediction.forces``.
        frames: A mode, or frames that were built before.
        stress: Whether the derivative with respect to strain is needed.
        torque: Whether the derivative with respect to the orientation is needed.
        gradient: Whether the derivative with respect to positions is needed.
        gradient_spread: Whether the spread of gradient forces over frames is needed.
        direct: Whether the output of the force decoder is needed.
        features: Whether last-layer features are needed.
        examined: Whether they are needed only for what the domain guard asks for.
    """

    properties: frozenset[str]
    forces: Literal["gradient", "direct"]
    frames: FrameMode | Frames
    stress: bool
    torque: bool
    gradient: bool
    gradient_spread: bool
    direct: bool
    features: bool
    examined: bool


@dataclass(frozen=True, kw_only=True)
class Capabilities:
    """What a potential can predict.

    Attributes:
        own_forces: Kind of forces that the potential was trained on.
        force_kinds: Kinds of forces that can be computed.
        own_mode: Frame mode of the checkpoint.
        frame_averaged: Whether predictions are averages over several frames (modes other than "one", "stochastic").
        atom_energies: Whether the energy is a sum over atoms.
        uncertainty: Whether the checkpoint has a fitted uncertainty.
        name: Name of the potential, for messages.
    """

    own_forces: ForceKind
    force_kinds: tuple[Literal["gradient", "direct"], ...]
    own_mode: FrameMode
    frame_averaged: bool
    atom_energies: bool
    uncertainty: bool
    name: str

    @classmethod
    def of(cls, config: PotentialConfig, *, uncertainty: bool = False) -> "Capabilities":
        """Read the capabilities of a potential from its config and whether it has a fitted uncertainty."""
        return cls(
            own_forces=config.forces,
            force_kinds=("gradient",) if config.model.decoder is None else ("gradient", "direct"),
            own_mode=config.frame_mode,
            frame_averaged=config.frames.kind in ("lattice", "pca3d", "pca2d"),
            atom_energies=config.model.jumping != "concat_energies",
            uncertainty=uncertainty,
            name=config.name or "this potential",
        )

    def kind(self, forces: ForcesChoice) -> Literal["gradient", "direct", "both", "none"]:
        """Resolve "auto"; raise an InputError for direct forces of a potential without a force decoder."""
        kind = self.own_forces if forces == "auto" else forces
        if kind in ("direct", "both") and "direct" not in self.force_kinds:
            raise InputError(f"forces={forces!r}, but {self.name} has no force decoder; use forces='gradient'")
        return kind

    def mode(self, frames: FramesChoice) -> FrameMode:
        """Resolve "auto"."""
        return self.own_mode if frames == "auto" else frames

    def missing(self, forces: ForcesChoice = "auto", frames: FramesChoice | Frames = "auto") -> dict[str, str]:
        """Properties that are not available with these settings, each with the reason.

        With "auto", a direct-force potential gives direct forces and the stress of its energy. With "direct" it gives
        no stress, which would not belong to the same forces.
        """
        kind, reasons = self.kind(forces), dict[str, str]()
        if kind == "none":
            reason = "the model was trained on energies only; forces='gradient' gives its never-trained gradient"
            reasons |= dict.fromkeys(("forces", "forces_frame_std", "stress", "torque"), reason)
        elif forces == "direct":
            reasons["stress"] = (
                "the forces are direct (a separate output), and stress is the strain derivative of the energy; only "
                "gradient-force models have a meaningful one. forces='gradient' or a gradient-force checkpoint gives it"
            )
        if not self.atom_energies:
            reasons["energies"] = (
                "the model mixes structure energies (upstream's 'concat') and has no per-atom energies"
            )
        single = not isinstance(frames, Frames) and self.mode(frames) in ("one", "stochastic")
        if single or not self.frame_averaged:
            reason = "a single frame has no spread; use frames='all' (or 'exact') with a frame-averaging model"
            reasons = dict.fromkeys(("energy_frame_std", "forces_frame_std"), reason) | reasons
        if not self.uncertainty:
            reason = "the checkpoint has no fitted uncertainty; training fits one, scripts/fit_uncertainty.py adds one"
            reasons |= dict.fromkeys(_OF_UNCERTAINTY, reason)
        elif kind != "gradient":
            reasons["forces_uncertainty"] = "it is the uncertainty of gradient forces; use forces='gradient'"
        return reasons

    def properties(self, forces: ForcesChoice = "auto", frames: FramesChoice | Frames = "auto") -> tuple[str, ...]:
        """Names of the available properties, in the order of :data:`PROPERTIES`."""
        missing = self.missing(forces, frames)
        return tuple(name for name in PROPERTIES if name not in missing)

    def request(
        self,
        properties: Collection[str] | None,
        forces: ForcesChoice = "auto",
        frames: FramesChoice | Frames = "auto",
    ) -> Request:
        """Check a request.

        Args:
            properties: Names from :data:`PROPERTIES`; None for energy and, where available, forces.
            forces: Kind of forces.
            frames: Frame mode, or frames that were built before.

        Raises:
            InputError: For unknown or unavailable properties, with the reason.
        """
        missing = self.missing(forces, frames)
        if properties is None:
            properties = [name for name in ("energy", "forces") if name not in missing]
        wanted = frozenset([properties] if isinstance(properties, str) else properties)
        if unknown := sorted(wanted - set(PROPERTIES)):
            raise InputError(f"unknown properties {unknown}; choose from {', '.join(PROPERTIES)}")
        for name in PROPERTIES:
            if name in wanted and name in missing:
                raise InputError(f"{name} is not available: {missing[name]}")
        kind = self.kind(forces)
        stress, torque, spread = (name in wanted for name in ("stress", "torque", "forces_frame_std"))
        return Request(
            properties=wanted,
            forces="direct" if kind == "direct" or (kind == "both" and self.own_forces == "direct") else "gradient",
            frames=frames if isinstance(frames, Frames) else self.mode(frames),
            stress=stress,
            torque=torque,
            gradient=stress or torque or (kind != "direct" and (spread or "forces" in wanted)),
            gradient_spread=spread and kind != "direct",
            direct=kind in ("direct", "both") and (spread or "forces" in wanted),
            features=not wanted.isdisjoint((*_OF_UNCERTAINTY, "atom_features")),
            examined=wanted >= GUARDED and wanted.isdisjoint(("energies_uncertainty", "atom_features")),
        )
