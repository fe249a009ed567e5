"""Uncertainty of energies and distance of atoms from the training data, both from last-layer features.

The energy is linear in the features f_A = Σ_i f_i of a structure A: the activations before the last layer of the output
block, after every interaction, averaged over frames and summed over atoms. Its variance follows from the features of
the training set alone (last-layer prediction rigidity: Bigi, Chong, Ceriotti and Grasselli, Mach. Learn.: Sci. Technol.
5, 045018, 2024):

    σ²(A) = α² f_Aᵀ (Σ_t f_t f_tᵀ / n_t² + ς²)⁻¹ f_A = |M f_A|²

| symbol | here |
|---|---|
| f_i | ``features`` [n_atoms, D] |
| f_t, n_t | features and number of atoms of a training structure: the loss is per atom, so the rows are too |
| ς² | ``REGULARIZER`` times the mean diagonal, for features scaled to unit mean square |
| α² | mean of (error / σ)² with α = 1 over structures that were not trained on |
| M | ``factor``: lower triangular, includes α and the scales of the features |
| k | ``half_width``: the true energy of a new system lies within k σ in 95 % of all cases |

Energies that share atoms have correlated errors: the variance of E_A - E_B is |M (f_A - f_B)|².

Errors have heavier tails than a normal distribution, whose k would be 1.96, and structures of one composition have
similar errors. k is therefore a quantile of |error| / σ in which every held-out composition has the same weight, at the
level 0.95 (1 + 1 / n) for n compositions, which gives the coverage for a composition that is not among them (conformal
prediction for grouped data: Dunn, Wasserman and Ramdas, J. Am. Stat. Assoc. 118, 2491, 2023).

The distance of an atom is that of Mahalanobis from the training atoms of its element, among the leading principal
components of the features. It is normalized: one in a thousand training atoms of the element is farther than 1.
"""

from dataclasses import dataclass, field
from typing import Any, Self

import torch
from torch import Tensor, nn

REGULARIZER = 1e-6
COMPONENTS = 64
"""Principal components in the distance: more of them find hardly more foreign structures."""
COVERAGE = 0.95
"""Share of new systems whose true energy is meant to lie within ``half_width`` standard deviations."""
NORMAL_HALF_WIDTH = 1.96
"""Of a normal distribution; for checkpoints that store none."""
FAR = 0.999
"""Quantile of the training atoms of an element that has the distance 1."""
_DISTANCE_REGULARIZER = 1e-4  # of the mean variance of an element's components
_KEPT_ATOMS = 4096  # of each element, for the quantile
FORCE_DRAWS = 32
"""Last layers drawn for the uncertainty of forces, which leaves a statistical error of 10 % per atom."""


class LastLayerUncertainty(nn.Module):
    """Uncertainties and distances from last-layer features.

    Args:
        factor: [D (D + 1) / 2] lower triangle of M, row by row.
        projection: [D, K] principal components.
        elements: [n_elements] int64 atomic numbers of the training set, ascending.
        mean: [n_elements, K] mean components of the training atoms of each element.
        whitening: [n_elements, K (K + 1) / 2] lower triangles that turn deviations from the mean into distances.
        half_width: [1] half width of the 95 % interval in standard deviations; None for that of a normal distribution.
    """

    factor: Tensor
    projection: Tensor
    elements: Tensor
    mean: Tensor
    whitening: Tensor
    half_width: Tensor
    kept: dict[Any, Any]
    """What was made of the tensors, e.g. unpacked matrices; not copied with the module."""

    def __init__(
        self,
        *,
        factor: Tensor,
        projection: Tensor,
        elements: Tensor,
        mean: Tensor,
        whitening: Tensor,
        half_width: Tensor | None = None,
    ) -> None:
        super().__init__()
        if half_width is None:
            half_width = factor.new_full((1,), NORMAL_HALF_WIDTH)
        tensors = {"factor": factor, "projection": projection, "elements": elements, "mean": mean}
        for name, tensor in (tensors | {"whitening": whitening, "half_width": half_width}).items():
            self.register_buffer(name, tensor)
        self.kept = {}

    @property
    def n_features(self) -> int:
        """Number of last-layer features D."""
        return self.projection.shape[0]

    def deviation(self, features: Tensor) -> Tensor:
        """[n] (eV) standard deviation of the energy that belongs to features [n, D], which may be differences."""
        whitened = features.to(self.factor.dtype) @ self.transposed(None)
        return torch.linalg.vector_norm(whitened, dim=1, dtype=torch.float64)

    def draws(self, n: int, generator: torch.Generator) -> Tensor:
        """[n, D] (eV) last layers drawn from their distribution: each times features is an error of the energy."""
        noise = torch.randn(n, self.n_features, generator=generator, dtype=torch.float64)
        return noise.to(self.factor) @ self.transposed(None).t()

    def distance(self, features: Tensor, atomic_numbers: Tensor) -> Tensor:
        """[n_atoms] normalized distances of atoms with features [n_atoms, D]; infinite for other elements."""
        atoms, parts = by_element(atomic_numbers, self.elements)
        components = (features.to(self.projection.dtype) @ self.projection).index_select(0, atoms)
        distances = components.new_full((len(atoms),), torch.inf)
        for row, start, end in parts:
            if row >= 0:
                whitened = (components[start:end] - self.mean[row]) @ self.transposed(row)
                distances[atoms[start:end]] = torch.linalg.vector_norm(whitened, dim=1)
        return distances

    def transposed(self, row: int | None) -> Tensor:
        """Transpose of the whitening matrix of an element, or of M for None, unpacked once."""
        if row not in self.kept:
            self.kept[row] = _unpacked(self.factor if row is None else self.whitening[row]).t().contiguous()
        found: Tensor = self.kept[row]
        return found

    def _apply(self, *args: Any, **kwargs: Any) -> Self:
        """Move or cast the tensors; what was made of them is made again."""
        self.kept.clear()
        return super()._apply(*args, **kwargs)  # type: ignore[no-untyped-call]

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"kept": {}}


def by_element(atomic_numbers: Tensor, elements: Tensor) -> tuple[Tensor, list[tuple[int, int, int]]]:
    """Atoms sorted by element, and of each element its row in ``elements`` (-1 for others) and its range of atoms."""
    atoms = torch.argsort(atomic_numbers, stable=True)
    numbers, counts = torch.unique_consecutive(atomic_numbers[atoms], return_counts=True)
    rows = {number: row for row, number in enumerate(elements.tolist())}
    ends = torch.cumsum(counts, 0).tolist()
    found = zip(numbers.tolist(), counts.tolist(), ends, strict=True)
    return atoms, [(rows.get(number, -1), end - count, end) for number, count, end in found]


@dataclass(eq=False)
class FeatureStatistics:
    """Sums over the features of a training set, from which a :class:`LastLayerUncertainty` is made.

    Attributes:
        seed: Of the choice of atoms that are kept.
        sums: [n_features] of each structure, and its number of atoms.
    """

    seed: int = 0
    sums: list[Tensor] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    _moments: dict[int, tuple[int, Tensor, Tensor]] = field(default_factory=dict)
    _atoms: dict[int, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._generator = torch.Generator().manual_seed(self.seed)

    def add(self, features: Tensor, atomic_numbers: Tensor) -> None:
        """Add a structure with features [n_atoms, D]."""
        features = features.detach().cpu().double()
        self.sums.append(features.sum(dim=0))
        self.sizes.append(len(features))
        for number in atomic_numbers.unique().tolist():
            atoms = features[atomic_numbers.cpu() == number]
            count, total, squares = self._moments.get(number, (0, 0.0 * atoms[0], 0.0 * atoms[0].outer(atoms[0])))
            self._moments[number] = count + len(atoms), total + atoms.sum(dim=0), squares + atoms.t() @ atoms
            self._keep(number, atoms)

    def _keep(self, number: int, atoms: Tensor) -> None:
        """Keep a random part of the atoms of an element."""
        kept = torch.cat([self._atoms[number], atoms]) if number in self._atoms else atoms
        if len(kept) > 2 * _KEPT_ATOMS:
            kept = kept[torch.randperm(len(kept), generator=self._generator)[:_KEPT_ATOMS]]
        self._atoms[number] = kept

    def fit(self) -> LastLayerUncertainty:
        """The uncertainty with α = 1."""
        rows = torch.stack(self.sums) / torch.tensor(self.sizes, dtype=torch.float64)[:, None]
        scale = rows.square().mean(dim=0).sqrt()
        scale = scale.clamp(min=1e-6 * float(scale.max()))
        scaled = rows / scale
        covariance = scaled.t() @ scaled
        covariance.diagonal().add_(REGULARIZER * covariance.diagonal().mean())
        factor = _inverse_factor(covariance) / scale

        numbers = sorted(self._moments)
        squares = torch.stack([self._moments[number][2] / self._moments[number][0] for number in numbers]).mean(dim=0)
        projection = torch.linalg.eigh(squares).eigenvectors.flip(1)[:, :COMPONENTS]
        means, whitenings = [], []
        for number in numbers:
            count, total, moment = self._moments[number]
            mean = projection.t() @ (total / count)
            spread = projection.t() @ (moment / count) @ projection - mean.outer(mean)
            variance = float(spread.diagonal().mean())
            spread.diagonal().add_(max(_DISTANCE_REGULARIZER * variance, 1e-12 * float(squares.diagonal().mean())))
            whitening = _inverse_factor(spread)
            far = torch.linalg.vector_norm((self._atoms[number] @ projection - mean) @ whitening.t(), dim=1)
            means.append(mean)
            whitenings.append(_packed(whitening / torch.quantile(far, FAR)))
        return LastLayerUncertainty(
            factor=_packed(factor).float(),
            projection=projection.float(),
            elements=torch.tensor(numbers),
            mean=torch.stack(means).float(),
            whitening=torch.stack(whitenings).float(),
        )


def calibrated(
    uncertainty: LastLayerUncertainty, deviation: Tensor, error: Tensor, group: Tensor
) -> LastLayerUncertainty:
    """The same uncertainty multiplied by α, with the half width of its 95 % interval.

    Args:
        uncertainty: With α = 1.
        deviation: [n] (eV) its standard deviations of held-out energies.
        error: [n] (eV) errors of these energies.
        group: [n] int64; errors of one group are similar.
    """
    alpha = (error / deviation).square().mean().sqrt()
    half_width = grouped_quantile((error / (alpha * deviation)).abs(), group, COVERAGE)
    buffers = dict(uncertainty.named_buffers())
    like = buffers["factor"]
    changed = {"factor": like * alpha.to(like.dtype), "half_width": like.new_full((1,), half_width)}
    return LastLayerUncertainty(**(buffers | changed))


def grouped_quantile(values: Tensor, group: Tensor, level: float) -> float:
    """Value that is not exceeded with probability ``level`` in a further group; the largest if there are few groups.

    Args:
        values: [n].
        group: [n] int64.
        level: Between 0 and 1.
    """
    _, member, counts = group.unique(return_inverse=True, return_counts=True)
    weight = 1.0 / (counts.double() * len(counts))
    order = torch.argsort(values)
    reached = torch.cumsum(weight[member[order]], 0)
    index = int(torch.searchsorted(reached, level * (1 + 1 / len(counts)) - 1e-9))
    return float(values[order[min(index, len(values) - 1)]])


def _inverse_factor(matrix: Tensor) -> Tensor:
    """Lower triangular L⁻¹ of a positive definite matrix L Lᵀ, so that |L⁻¹ x|² = xᵀ (L Lᵀ)⁻¹ x."""
    identity = torch.eye(len(matrix), dtype=matrix.dtype)
    return torch.linalg.solve_triangular(torch.linalg.cholesky(matrix), identity, upper=False)


def _packed(matrix: Tensor) -> Tensor:
    rows, columns = torch.tril_indices(*matrix.shape)
    return matrix[rows, columns]


def _unpacked(triangle: Tensor) -> Tensor:
    size = int((2 * len(triangle) + 0.25) ** 0.5)
    rows, columns = torch.tril_indices(size, size)
    matrix = triangle.new_zeros(size, size)
    matrix[rows, columns] = triangle
    return matrix
