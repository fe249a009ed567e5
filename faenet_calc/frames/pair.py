"""Weighted pair frames: exact and smooth frames for molecules and wires.

With c_i = x_i - centroid, an atom i far from the centroid defines the axis e1 ∥ c_i, and a partner j off that axis the
second axis e2 ∥ c_j⊥ = c_j - (c_j·e1) e1. The energy is the weighted average over such frames. A weight vanishes, with
its first two derivatives, before its frame becomes ill-defined, so that the average is invariant and differentiable at
every geometry, however symmetric:

    w_ij = u_i / Σ u · v_ij / Σ_j v_ij
    u_i  = max(0, |c_i| / R - τ)³           R   = p-mean of |c_i| over atoms, a smooth maximum
    v_ij = max(0, s_ij / S_i - τ')³         S_i = p-mean of s_ij over atoms

The number of frames cannot be smaller than the order of the molecule's point group (120 for an icosahedron), but should
not be much larger either:

- Up to ``FEW_ATOMS`` atoms, s_ij = |c_j⊥|, the distance of j from the axis, and τ = τ' = 0.7.
- Above, s_ij = |c_j⊥| / (d_ij² + b²) prefers the nearest atoms beside i, of which there are few in a molecule of any
  size; τ approaches one as the number of atoms n grows, 1 - τ = 0.3 (FEW_ATOMS / n)^½, which keeps the width of the
  window at 0.4 to 1 Å; and pairs whose weight is below the mean weight Σ w² are reduced smoothly, to zero at half of
  it. An icosahedral or cuboctahedral cluster of 55 to 309 atoms then has 96 or 120 frames.

e1 and e2 are polar vectors; the sign of e3 is averaged, which makes the set exact under reflections. Where a molecule
is nearly linear (all |c_j⊥| ≪ R) the azimuth loses its meaning and the energy must become even in the bend: the mirror
image e2 → -e2 is blended in and reaches equal weight at the linear geometry, where any perpendicular e2 will do.

One periodic direction (a wire) is the same with the single axis e1 along the lattice vector, both signs of e1 and the
partners of small molecules: means over atoms do not change when the wire is replicated.
"""

import torch
from torch import Tensor

POWER = 32  # of the p-mean; values are scaled by their maximum, so nothing overflows
TAU = 0.7  # below one, the least that the maximum divided by the p-mean can be: some weight is always positive
FEW_ATOMS = 16
SOFTENING = 0.5  # b (Å): keeps the preference for near partners finite where atoms coincide
PRUNED = 0.5  # weights below this fraction of the mean weight Σ w² are dropped in molecules of more than FEW_ATOMS
BENT, STRAIGHT = 0.10, 0.02  # P_i / R above which no mirror image is blended in, and below which it has equal weight


def molecule_frames(positions: Tensor) -> tuple[Tensor, Tensor]:
    """Frames of one molecule.

    Args:
        positions: [n_atoms, 3] (Å).

    Returns:
        Rotations [n_frames, 3, 3] with axes as columns, and weights [n_frames] that sum to one; both differentiable.
    """
    n_atoms, centred = len(positions), positions - positions.mean(dim=0)
    if float(centred.detach().abs().max()) == 0.0:  # a single atom has no direction: with both signs, vectors cancel
        unit = torch.eye(3, dtype=positions.dtype, device=positions.device)
        return torch.stack([unit, -unit]), positions.new_full((2,), 0.5)
    many = n_atoms > FEW_ATOMS
    tau = 1 - (1 - TAU) * (FEW_ATOMS / n_atoms) ** 0.5 if many else TAU
    share, radius = _window(_lengths(centred[None]), tau)
    atoms = torch.nonzero(share[0].detach())[:, 0]
    return _around_axes(centred[atoms], share[0, atoms], centred, radius[0], axis_atoms=atoms if many else None)


def wire_frames(positions: Tensor, axis: Tensor) -> tuple[Tensor, Tensor]:
    """Frames of one structure that is periodic along ``axis`` [3] (Å) only; returns as :func:`molecule_frames`."""
    centred = positions - positions.mean(dim=0)
    rotations, weights = _around_axes(axis[None], axis.new_ones(1), centred, torch.linalg.vector_norm(axis))
    flip = rotations.new_tensor([-1.0, 1.0, 1.0])
    return torch.cat([rotations, rotations * flip]), torch.cat([weights, weights]) / 2


def _lengths(vectors: Tensor) -> Tensor:
    """[k, n] lengths of [k, n, 3] vectors; zero, with zero gradient, below 1 % of the longest of each row."""
    squared = vectors.square().sum(dim=2)
    kept = squared.detach() > 1e-4 * squared.detach().amax(dim=1, keepdim=True)
    return torch.where(kept, torch.where(kept, squared, 1.0).sqrt(), 0.0)


def _window(values: Tensor, tau: float) -> tuple[Tensor, Tensor]:
    """Smooth weights of the largest of non-negative values [k, n], row by row.

    Returns:
        Weights [k, n] that sum to one in each row, zero outside of the window, and the p-means [k, 1] of the values.
    """
    largest = values.detach().amax(dim=1, keepdim=True)
    mean = largest * (values / largest).pow(POWER).mean(dim=1, keepdim=True).pow(1.0 / POWER)
    weights = (values / mean - tau).clamp(min=0.0).pow(3)
    return weights / weights.sum(dim=1, keepdim=True), mean


def _around_axes(
    axes: Tensor, share: Tensor, centred: Tensor, radius: Tensor, *, axis_atoms: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Frames whose first axes are ``axes`` [k, 3] of weight ``share`` [k], with second axes towards partner atoms.

    Args:
        axes: [k, 3] (Å).
        share: [k], sums to one.
        centred: [n_atoms, 3] (Å) relative to the centroid.
        radius: [] (Å) size of the structure, with which the distance of atoms from an axis is compared.
        axis_atoms: [k] the atoms at ``axes``: prefer partners near them and drop pairs of small weight.
    """
    e1 = axes / torch.linalg.vector_norm(axes, dim=1, keepdim=True)
    perpendicular = centred[None] - (e1 @ centred.T)[:, :, None] * e1[:, None, :]
    negligible = 1e-6 if centred.dtype == torch.float64 else 1e-3
    if float(torch.linalg.vector_norm(perpendicular.detach(), dim=2).max()) <= negligible * float(radius.detach()):
        e2 = torch.stack([_any_perpendicular(one) for one in e1.detach()])
        # Both perpendicular directions: the average of a rank-2 tensor is then independent of their choice.
        e1, e2, share = (
            e1.repeat(2, 1),
            torch.cat([e2, torch.linalg.cross(e1.detach(), e2, dim=1)]),
            share.repeat(2) / 2,
        )
        e2 = e2 - (e2 * e1).sum(dim=1, keepdim=True) * e1
        return _flipped(e1, e2, share, torch.full_like(share, 0.5))
    distance = _lengths(perpendicular)
    partner_share, reach = _window(distance, TAU)
    weight = share[:, None] * partner_share
    if axis_atoms is not None:
        between = (centred[None] - centred[axis_atoms][:, None]).square().sum(dim=2)
        weight = _pruned(share[:, None] * _window(distance / (between + SOFTENING**2), TAU)[0])
    axis, partner = torch.nonzero(weight.detach(), as_tuple=True)
    bend = ((reach / radius - STRAIGHT) / (BENT - STRAIGHT)).clamp(0.0, 1.0)
    mirror = (0.5 - 0.5 * smooth_step(bend))[axis, 0]
    return _flipped(e1[axis], perpendicular[axis, partner], weight[axis, partner], mirror)


def _pruned(weight: Tensor) -> Tensor:
    """Weights that sum to one, those below their own weighted mean Σ w² reduced smoothly, to zero at PRUNED times it.

    The largest weight is never below the mean, so that something remains; equal weights stay as they are.
    """
    mean = weight.square().sum()
    kept = weight * smooth_step(((weight / mean - PRUNED) / (1 - PRUNED)).clamp(0.0, 1.0))
    return kept / kept.sum()


def smooth_step(x: Tensor) -> Tensor:
    """From 0 at x = 0 to 1 at x = 1 with vanishing first and second derivatives at both ends."""
    return x.pow(3) * (10 - 15 * x + 6 * x.square())


def _flipped(e1: Tensor, e2: Tensor, weight: Tensor, mirror: Tensor) -> tuple[Tensor, Tensor]:
    """Frames of axes e1 and e2 [k, 3] with both signs of e3, and where ``mirror`` [k] > 0 with -e2 at that weight."""
    e2 = e2 / torch.linalg.vector_norm(e2, dim=1, keepdim=True)
    axes = torch.stack([e1, e2, torch.linalg.cross(e1, e2, dim=1)], dim=2)
    blended = torch.nonzero(mirror.detach())[:, 0]
    axes = torch.cat([axes, axes[blended] * axes.new_tensor([1.0, -1.0, 1.0])])
    weight = torch.cat([weight * (1 - mirror), (weight * mirror)[blended]])
    other = axes * axes.new_tensor([1.0, 1.0, -1.0])
    return torch.stack([axes, other], dim=1).reshape(-1, 3, 3), (weight / 2).repeat_interleave(2)


def _any_perpendicular(e1: Tensor) -> Tensor:
    """[3] a unit vector perpendicular to ``e1``, the same every time."""
    helper = torch.zeros_like(e1)
    helper[int(e1.abs().argmin())] = 1.0
    e2 = torch.linalg.cross(e1, helper, dim=0)
    return e2 / torch.linalg.vector_norm(e2)
