"""Weighted pair frames: exact and smooth frames for molecules and wires.

With c_i = x_i - centroid, an atom i that lies far out offers the axis e1 ∥ c_i, and an atom j far from that axis the
second axis e2 ∥ c_j - (c_j·e1) e1. The energy is the weighted average over such frames; a weight vanishes, with its
first two derivatives, before its frame becomes ill-defined, so that the average is invariant and differentiable at
every geometry, however symmetric:

    u_i  = max(0, |c_i| / R - τ)³           R   = p-mean of |c_i| over atoms, a smooth maximum
    v_ij = max(0, |c_j⊥i| / P_i - τ)³       P_i = p-mean over j of |c_j⊥i|, the distance of j from the axis i
    w_ij = u_i / Σ u · v_ij / Σ_j v_ij

e1 and e2 are polar vectors; the sign of e3 is averaged, which makes the set exact under reflections. Where a molecule
is close to linear (P_i ≪ R) the azimuth loses its meaning and the energy must become even in the bend: the mirror
image e2 → -e2 is blended in and reaches equal weight at the linear geometry, where any perpendicular e2 will do.

The cost is capped for large molecules: at most ``MAX_AXES`` axes and ``MAX_PARTNERS`` partners of each, by raising the
threshold to the first left-out rank. The energy stays exactly invariant and continuous; only then its forces may have
kinks of the size of the model's frame spread.

One periodic direction (a wire) is the same with the single axis e1 along the lattice vector, both signs of e1, and no
cap: means over atoms do not change when the wire is replicated.
"""

import torch
from torch import Tensor

POWER = 32  # of the p-mean: sharp enough for narrow windows; values are scaled by their maximum, so nothing overflows
TAU = 0.7  # below one, the least that the longest vector divided by the p-mean can be: some weight is always positive
MAX_AXES = 16
MAX_PARTNERS = 16
WIDEST_RANK_THRESHOLD = (
    0.9  # a rank threshold never exceeds this fraction of the maximum: equivalent atoms stay together
)
BENT, STRAIGHT = 0.10, 0.02  # P_i / R above which no mirror image is blended in, and below which it has equal weight


def molecule_frames(positions: Tensor) -> tuple[Tensor, Tensor]:
    """Frames of one molecule.

    Args:
        positions: [n_atoms, 3] (Å).

    Returns:
        Rotations [n_frames, 3, 3] with axes as columns, and weights [n_frames] that sum to one; both differentiable.
    """
    centred = positions - positions.mean(dim=0)
    size = float(torch.linalg.vector_norm(centred, dim=1).max().detach())
    if size == 0.0:  # an atom alone has no direction: with both signs, vectors average to zero
        unit = torch.eye(3, dtype=positions.dtype, device=positions.device)
        return torch.stack([unit, -unit]), positions.new_full((2,), 0.5)
    axis_atoms, axis_weights, radius = _windowed(centred, MAX_AXES)
    parts = [_around_axis(centred[atom], centred, radius, MAX_PARTNERS, axis_flips=False) for atom in axis_atoms]
    rotations = torch.cat([rotation for rotation, _ in parts])
    weights = torch.cat([share * weight for share, (_, weight) in zip(axis_weights, parts, strict=True)])
    return rotations, weights / weights.sum()


def wire_frames(positions: Tensor, axis: Tensor) -> tuple[Tensor, Tensor]:
    """Frames of one structure that is periodic along ``axis`` [3] only; returns as :func:`molecule_frames`."""
    centred = positions - positions.mean(dim=0)
    period = torch.linalg.vector_norm(axis)
    return _around_axis(axis, centred, period, None, axis_flips=True)


def _windowed(vectors: Tensor, at_most: int | None) -> tuple[Tensor, Tensor, Tensor]:
    """The longest of ``vectors`` [n, 3], smoothly weighted.

    Returns:
        Their indices [k], their weights [k] (sum 1, differentiable), and the p-mean of all lengths [].
    """
    squared = vectors.square().sum(dim=1)
    largest = squared.max().detach()
    # Vectors of vanishing length cannot enter the window; leaving them out keeps the square root differentiable.
    kept = torch.nonzero(squared.detach() > 1e-4 * largest)[:, 0]
    lengths = squared[kept].sqrt()
    scale = largest.sqrt()
    mean = scale * ((lengths / scale).pow(POWER).sum() / len(vectors)).pow(1.0 / POWER)
    relative = lengths / mean
    threshold = relative.new_tensor(TAU)
    if at_most is not None and len(kept) > at_most:
        ranked = torch.sort(relative, descending=True).values
        rank_threshold = torch.minimum(ranked[at_most], WIDEST_RANK_THRESHOLD * ranked[0])
        threshold = torch.maximum(threshold, rank_threshold)
    inside = torch.nonzero(relative.detach() > threshold.detach())[:, 0]
    weights = (relative[inside] - threshold).pow(3)
    return kept[inside], weights / weights.sum(), mean


def _around_axis(
    axis: Tensor, centred: Tensor, radius: Tensor, at_most: int | None, *, axis_flips: bool
) -> tuple[Tensor, Tensor]:
    """Frames whose first axis is ``axis`` [3], with second axes towards the atoms farthest from it."""
    e1 = axis / torch.linalg.vector_norm(axis)
    perpendicular = centred - (centred @ e1)[:, None] * e1
    farthest = torch.linalg.vector_norm(perpendicular.detach(), dim=1).max()
    negligible = 1e-6 if centred.dtype == torch.float64 else 1e-3
    if float(farthest) <= negligible * float(radius.detach()):
        e2, partner_weights = _any_perpendicular(e1.detach())[None], axis.new_ones(1)
        e1 = e1.expand(1, 3)
        e2 = e2 - (e2 * e1).sum(dim=1, keepdim=True) * e1
        mirror = axis.new_full((), 0.5)
    else:
        partners, partner_weights, reach = _windowed(perpendicular, at_most)
        e2 = perpendicular[partners]
        e1 = e1.expand(len(partners), 3)
        bend = ((reach / radius - STRAIGHT) / (BENT - STRAIGHT)).clamp(0.0, 1.0)
        mirror = 0.5 - 0.5 * bend.pow(3) * (10 - 15 * bend + 6 * bend.square())
    e2 = e2 / torch.linalg.vector_norm(e2, dim=1, keepdim=True)
    axes = torch.stack([e1, e2, torch.linalg.cross(e1, e2, dim=1)], dim=2)
    signs, shares = _flips(mirror, axis_flips)
    rotations = (axes[:, None] * signs[None, :, None, :]).reshape(-1, 3, 3)
    return rotations, (partner_weights[:, None] * shares).reshape(-1)


def _flips(mirror: Tensor, axis_flips: bool) -> tuple[Tensor, Tensor]:
    """Sign patterns [k, 3] of (e1, e2, e3) and their weights [k]; ``mirror`` is the weight of e2 → -e2."""
    e1_signs = (1.0, -1.0) if axis_flips else (1.0,)
    e2_signs = (1.0, -1.0) if float(mirror.detach()) > 0.0 else (1.0,)
    patterns, shares = [], []
    for first in e1_signs:
        for second in e2_signs:
            for third in (1.0, -1.0):
                patterns.append((first, second, third))
                shares.append((1 - mirror if second > 0 else mirror) / (2 * len(e1_signs)))
    return mirror.new_tensor(patterns), torch.stack(shares)


def _any_perpendicular(e1: Tensor) -> Tensor:
    """[3] a unit vector perpendicular to ``e1``, the same every time."""
    helper = torch.zeros_like(e1)
    helper[int(e1.abs().argmin())] = 1.0
    e2 = torch.linalg.cross(e1, helper, dim=0)
    return e2 / torch.linalg.vector_norm(e2)
