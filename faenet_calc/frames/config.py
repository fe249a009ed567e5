"""Settings of the frames."""

from dataclasses import dataclass
from typing import Literal

from faenet_calc.errors import InputError

FrameKind = Literal["lattice", "pca3d", "pca2d", "none", "augment3d", "augment2d"]

FrameMode = Literal["one", "pair", "all", "exact", "stochastic"]
"""How many frames of a structure are averaged. With lattice frames every deterministic mode is exact under rotation and
reflection of atoms and cell together, translation, permutation, periodic images and supercells, and its forces are the
exact gradient. Besides that,

- ``one`` (1 frame) has no further symmetry and is the fastest; without a third cell vector it is not exact under
  reflection;
- ``pair`` (2 frames, U and -U; the default with gradient forces) is exact under inversion of the atoms in the same
  cell: forces vanish at centers of inversion, and inversion-related sites are equivalent. The two frames share most of
  their cost;
- ``all`` (8 frames, all signs of the axes) is also exact if a cell vector changes its sign, and under reflection of the
  atoms in the same cell at planes normal to an axis that map the lattice onto itself: forces normal to such a mirror
  plane of the structure vanish;
- ``exact`` (40 for slabs, 120 for bulk) also makes the dependence on the choice of cell vectors vanishingly small for
  slabs and small for bulk;
- ``stochastic`` (1 random frame) is for training.

In bulk crystals, ``pair`` and ``all`` also average over the cyclic orders of the axes (6 and 24 frames), which makes
the three directions of a cubic cell equivalent.

Molecules and wires, free or surrounded by vacuum in a box, have weighted pair frames, which are exact and smooth only
as a whole: ``pair`` and ``exact`` are the same as ``all`` for them, and ``one`` takes the frame of largest weight,
whose energy may jump. In ``pair``, ``all`` and ``exact``, molecules out of reach of the rest of a structure have pair
frames of their own (``potential.fragments``)."""


_EXACT_UNDER: dict[FrameMode, str] = {
    "one": "",
    "pair": ", inversion in the same cell",
    "all": ", inversion and reflections in the same cell, signs of cell vectors",
    "exact": ", inversion and reflections in the same cell, signs of cell vectors; slabs: choice of cell vectors",
}


@dataclass(frozen=True, kw_only=True)
class FramesConfig:
    """Choice of frames of a potential.

    Attributes:
        kind: ``lattice`` (periodic structures: frame of the lattice; molecules: weighted pair frames), the paper's
            ``pca3d`` / ``pca2d``, ``none``, or random rotations as data augmentation (``augment3d``, ``augment2d``
            about z).
        mode: Mode used for ``frames="auto"``; "auto" is a choice by the kinds of frames and forces, see
            ``PotentialConfig.frame_mode``.
        proper: Rotations only (SE(3)), no reflections.
        differentiable: Gradients include the derivative of the frames (exact forces); False is upstream's fixed frame.
        free_orientation: Probability with which a stochastic frame of a molecule or wire is any orientation instead of
            one of its pair frames, so that a molecule far from a surface is learned to have the energy of the free one.
            Stochastic frames of bulk always have any orientation. For kind ``lattice``.
        free_orientation_slabs: The same for slabs, whose stochastic frames otherwise keep the surface normal.
    """

    kind: FrameKind = "lattice"
    mode: FrameMode | Literal["auto"] = "auto"
    proper: bool = False
    differentiable: bool = True
    free_orientation: float = 0.5
    free_orientation_slabs: float = 0.0

    def __post_init__(self) -> None:
        for name in ("free_orientation", "free_orientation_slabs"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise InputError(f"frames.{name}={getattr(self, name)}, expected a probability from 0 to 1")

    def exact_symmetries(self, mode: FrameMode) -> str | None:
        """Symmetries that predictions for periodic structures have for any weights; None if not lattice frames."""
        if self.kind != "lattice" or mode == "stochastic":
            return None
        rigid = "rotation, translation" if self.proper else "rotation, reflection, translation"
        return f"{rigid}, permutation, periodic images, supercells{_EXACT_UNDER[mode]}"
