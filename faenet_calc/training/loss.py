"""The loss: weighted errors of energies, forces and stress, the torque, and the paper's energy-conservation term.

Every term is a sum of errors divided by the number of labels in the whole batch, so that a batch that is distributed
over processes or accumulated in parts gives the same loss and gradient as an undivided one.
"""

from collections.abc import Collection, Mapping

import torch
from torch import Tensor

from faenet_calc.data.dataset import LabelledBatch
from faenet_calc.errors import InputError
from faenet_calc.graphs.tags import ADSORBATE
from faenet_calc.potential.capabilities import ForcesChoice
from faenet_calc.potential.potential import Potential
from faenet_calc.potential.prediction import Prediction
from faenet_calc.training.config import LossConfig, LossKind

TERMS = ("energy", "forces", "stress", "rotation", "conservation")


class Loss:
    """The loss function of a run.

    Args:
        config: Weights and kinds of the terms.
        forces: Kind of forces of the potential, which are compared with the labels.

    Raises:
        InputError: No term has a positive weight.
    """

    def __init__(self, config: LossConfig, forces: str) -> None:
        self.config = config
        self.weights = {name: float(getattr(config, name)) for name in TERMS}
        if forces == "none":
            self.weights["forces"] = 0.0
        if not any(self.weights.values()):
            raise InputError(
                f"every term of the loss ({', '.join(TERMS)}) has weight 0 or no labels; set e.g. loss.energy to 1"
            )
        self.forces: ForcesChoice = "direct" if forces == "direct" else "gradient"
        if self.weights["conservation"] > 0 or (
            forces == "direct" and (self.weights["stress"] > 0 or self.weights["rotation"] > 0)
        ):
            self.forces = "both"

    @property
    def properties(self) -> Collection[str]:
        """Properties that the potential has to predict."""
        wanted = ["energy"]
        if self.weights["forces"] > 0 or self.weights["conservation"] > 0:
            wanted.append("forces")
        if self.weights["stress"] > 0:
            wanted.append("stress")
        if self.weights["rotation"] > 0:
            wanted.append("torque")
        return wanted

    @property
    def needs_second_derivatives(self) -> bool:
        """Whether the loss depends on the weights through derivatives of the energy."""
        full = self.weights["conservation"] > 0 and self.config.conservation_target == "full"
        return (
            (self.forces == "gradient" and self.weights["forces"] > 0)
            or full
            or any(self.weights[name] > 0 for name in ("stress", "rotation"))
        )

    def predict(self, potential: Potential, batch: LabelledBatch, frames: object) -> Prediction:
        """Predict the properties of the loss, differentiable with respect to the weights."""
        return potential.evaluate(
            batch.graph,
            properties=self.properties,
            frames=frames,  # type: ignore[arg-type]
            forces=self.forces if len(self.properties) > 1 else "auto",
            create_graph=self.needs_second_derivatives,
        )

    def counts(self, batch: LabelledBatch) -> dict[str, float]:
        """Count the labelled structures or (weighted) atoms over which each term is averaged."""
        counted = self._counted(batch)
        counts = {
            "energy": (~batch.energy.isnan()).sum(),
            "forces": self._weights(batch)[counted & ~batch.forces.isnan().any(dim=1)].sum(),
            "stress": (~batch.stress.isnan().flatten(1).any(dim=1)).sum(),
            "rotation": torch.tensor(batch.graph.n_graphs),
            "conservation": counted.sum(),
        }
        return {name: float(count) for name, count in counts.items() if self.weights[name] > 0}

    def terms(self, prediction: Prediction, batch: LabelledBatch, counts: dict[str, float]) -> dict[str, Tensor]:
        """Compute each term, unweighted: error sum / count. Missing labels (NaN) are ignored.

        Args:
            prediction: From :meth:`predict`.
            batch: The labels.
            counts: Counts of the whole batch, of which this may be a part.
        """
        config, result = self.config, {}
        if counts.get("energy"):
            known = ~batch.energy.isnan()
            difference = prediction.energy[known] - batch.energy[known]
            if config.per_atom:
                difference = difference / batch.graph.atoms_per_graph[known]
            result["energy"] = self._errors(difference[:, None], config.energy_kind).sum() / counts["energy"]
        counted = self._counted(batch)
        if counts.get("forces"):
            assert prediction.forces is not None
            known = counted & ~batch.forces.isnan().any(dim=1)
            errors = self._errors(prediction.forces[known] - batch.forces[known], config.forces_kind)
            result["forces"] = (self._weights(batch)[known] * errors).sum() / counts["forces"]
        if counts.get("conservation"):
            assert prediction.direct_forces is not None and prediction.gradient_forces is not None
            target = prediction.gradient_forces
            if config.conservation_target == "detached":
                target = target.detach()
            difference = prediction.direct_forces[counted] - target[counted]
            result["conservation"] = self._errors(difference, config.forces_kind).sum() / counts["conservation"]
        if counts.get("rotation"):
            assert prediction.torque is not None
            torque = prediction.torque / batch.graph.atoms_per_graph[:, None]
            result["rotation"] = self._errors(torque, config.rotation_kind).sum() / counts["rotation"]
        if counts.get("stress"):
            assert prediction.stress is not None
            known = ~batch.stress.isnan().flatten(1).any(dim=1)
            difference = (prediction.stress[known] - batch.stress[known]).flatten(1)
            result["stress"] = self._errors(difference, config.stress_kind).sum() / counts["stress"]
        return result

    def total(self, terms: Mapping[str, Tensor]) -> Tensor:
        """Sum the weighted terms."""
        return torch.stack([self.weights[name] * value for name, value in terms.items()]).sum()

    def _counted(self, batch: LabelledBatch) -> Tensor:
        """[n_atoms] bool, atoms whose forces are part of the loss."""
        return batch.free if self.config.free_atoms_only else torch.ones_like(batch.free)

    def _weights(self, batch: LabelledBatch) -> Tensor:
        """[n_atoms] weights of the forces."""
        weights = torch.ones_like(batch.forces[:, 0])
        return weights.masked_fill(batch.graph.tags == ADSORBATE, self.config.adsorbate_weight)

    def _errors(self, difference: Tensor, kind: LossKind) -> Tensor:
        """[n] errors of rows [n, k]; the mean over components, or the length of the row for l2."""
        if kind == "l2":
            return _length(difference)
        if kind == "mse":
            return difference.square().mean(dim=1)
        if kind == "mae":
            return difference.abs().mean(dim=1)
        delta = self.config.huber_delta
        zero = torch.zeros_like(difference)
        return torch.nn.functional.huber_loss(difference, zero, reduction="none", delta=delta).mean(dim=1) / delta


def _length(rows: Tensor) -> Tensor:
    """[n] lengths of rows with a gradient of zero, not NaN, at length zero."""
    squared = rows.square().sum(dim=1)
    positive = squared > 0
    return torch.where(positive, torch.where(positive, squared, torch.ones_like(squared)).sqrt(), squared)
