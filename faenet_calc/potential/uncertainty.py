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

Energies that share atoms have correlated errors: the variance of E_A - E_B is |M (f_A - f_B)|².

The distance of an atom is that of Mahalanobis from the training atoms of its element, among the leading principal
components of the features. It is normalized: one in a thousand training atoms of the element is farther than 1.
"""

from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

REGULARIZER = 1e-6
COMPONENTS = 128
"""Principal components in the distance: more of them find hardly more foreign structures."""
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
    """

    factor: Tensor
    projection: Tensor
    elements: Tensor
    mean: Tensor
    whitening: Tensor

    def __init__(
        self, *, factor: Tensor, projection: Tensor, elements: Tensor, mean: Tensor, whitening: Tensor
    ) -> None:
        super().__init__()
        tensors = {"factor": factor, "projection": projection, "elements": elements}
        for name, tensor in (tensors | {"mean": mean, "whitening": whitening}).items():
            self.register_buffer(name, tensor)
        self._whole: dict[str, Tensor] = {}
        self._known: dict[int, int] = {}
        self._arrays: dict[str, NDArray[np.floating]] = {}

    @property
    def n_features(self) -> int:
        """Number of last-layer features D."""
        return self.projection.shape[0]

    def deviation(self, features: Tensor) -> Tensor:
        """[n] (eV) standard deviation of the energy that belongs to features [n, D], which may be differences."""
        whitened = features.to(self.factor.dtype) @ self._matrix("factor", self.factor).t()
        return torch.linalg.vector_norm(whitened.double(), dim=1)

    def draws(self, n: int, generator: torch.Generator) -> Tensor:
        """[n, D] (eV) last layers drawn from their distribution: each times features is an error of the energy."""
        noise = torch.randn(n, self.n_features, generator=generator, dtype=torch.float64)
        return noise.to(self.factor) @ self._matrix("factor", self.factor)

    def distance(self, features: Tensor, atomic_numbers: Tensor) -> Tensor:
        """[n_atoms] normalized distances of atoms with features [n_atoms, D]; infinite for other elements."""
        # A handful of small matrices in every call: NumPy has less overhead than PyTorch.
        kinds = atomic_numbers.cpu().numpy()
        components = features.detach().cpu().to(self.projection.dtype).numpy() @ self._array("projection")
        distances = np.full(len(kinds), np.inf)
        for number in set(kinds.tolist()) & self._rows().keys():
            row, atoms = self._rows()[number], np.flatnonzero(kinds == number)
            whitened = (components[atoms] - self._array("mean")[row]) @ self._array(f"{row}").T
            distances[atoms] = np.sqrt(np.square(whitened, dtype=np.float64).sum(axis=1))
        return torch.from_numpy(distances).to(features.device)

    def _rows(self) -> dict[int, int]:
        """Row of every atomic number of the training set, read once."""
        if not self._known:
            self._known = {number: row for row, number in enumerate(self.elements.tolist())}
        return self._known

    def _array(self, name: str) -> NDArray[np.floating]:
        """A buffer, or the whitening matrix of a row, as an array, converted once."""
        if name not in self._arrays:
            buffer = _unpacked(self.whitening[int(name)]) if name.isdecimal() else getattr(self, name)
            self._arrays[name] = buffer.cpu().numpy()
        return self._arrays[name]

    def _matrix(self, name: str, packed: Tensor) -> Tensor:
        """A stored lower triangle as a matrix, unpacked once per device and type."""
        found = self._whole.get(name)
        if found is None or found.device != packed.device or found.dtype != packed.dtype:
            found = self._whole[name] = _unpacked(packed)
        return found


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


def calibrated(uncertainty: LastLayerUncertainty, deviation: Tensor, error: Tensor) -> LastLayerUncertainty:
    """The same uncertainty multiplied by α, from deviations [n] with α = 1 and errors [n] of held-out energies (eV)."""
    alpha = (error / deviation).square().mean().sqrt()
    buffers = dict(uncertainty.named_buffers())
    return LastLayerUncertainty(**(buffers | {"factor": buffers["factor"] * alpha.to(buffers["factor"].dtype)}))


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
