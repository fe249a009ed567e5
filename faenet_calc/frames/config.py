"""Settings of the frames."""

from dataclasses import dataclass
from typing import Literal

FrameKind = Literal["lattice", "pca3d", "pca2d", "none", "augment3d", "augment2d"]
FrameMode = Literal["one", "all", "exact", "stochastic"]


@dataclass(frozen=True, kw_only=True)
class FramesConfig:
    """How structures are turned into frames.

    Attributes:
        kind: ``lattice`` (periodic: frame of the lattice; molecules: weighted pair frames), the paper's ``pca3d`` /
            ``pca2d``, ``none``, or random rotations as data augmentation (``augment3d``, ``augment2d`` about z).
        mode: The deterministic setting used when a caller says "auto".
        proper: Only rotations (SE(3)), no reflections.
        differentiable: Gradients go through the frames (exact forces); False is upstream's fixed frame.
    """

    kind: FrameKind = "lattice"
    mode: FrameMode = "all"
    proper: bool = False
    differentiable: bool = True
