"""Frames of structures, and frame averaging for any model.

In: an AtomGraph. Out: :class:`~faenet_calc.frames.frames.Frames`, the weighted O(3) frames over which a prediction is
averaged. ``FrameAveraging`` (a PyTorch Geometric transform) and ``frame_averaged`` (a wrapper) do the same for any
model; they are imported on first use because PyTorch Geometric is slow to import. May import ``graphs`` and what lies
below it.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from faenet_calc.frames.averaging import FrameAveraging, frame_averaged

__all__ = ["FrameAveraging", "frame_averaged"]


def __getattr__(name: str) -> Any:
    """Import the wrapper and the transform on first use."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from faenet_calc.frames import averaging

    return getattr(averaging, name)
