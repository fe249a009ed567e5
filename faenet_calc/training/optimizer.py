"""Optimizers: AdamW, or Muon for the matrices inside the network and AdamW for the other parameters.

Muon (Jordan et al. 2024, https://kellerjordan.github.io/posts/muon) replaces the averaged gradient of a matrix by the
nearest orthogonal matrix, so that a step moves all its directions equally far. torch.optim.Muon does that in bfloat16,
which is slow on a CPU and costs digits of a resumed run; the iteration here runs in the precision of the weights.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn

from faenet_calc.training.config import OptimConfig
from faenet_calc.training.orthogonal import orthogonal

_MOMENTUM = 0.95
_SMALLEST_SIDE = 16  # of a matrix that has enough directions for Muon
_RMS_OF_ADAM = 0.2  # Root mean square of an AdamW step in units of the rate; the same rate then suits both.


def build_optimizer(model: nn.Module, config: OptimConfig) -> "torch.optim.AdamW | MuonAdamW":
    """Build the optimizer of all trainable parameters."""
    return MuonAdamW(model, config) if config.kind == "muon" else _adamw(*_linear_and_other(model), config)


def _adamw(decayed: list[Tensor], plain: list[Tensor], config: OptimConfig) -> torch.optim.AdamW:
    groups = [{"params": decayed, "weight_decay": config.weight_decay}, {"params": plain, "weight_decay": 0.0}]
    present = [group for group in groups if group["params"]]
    return torch.optim.AdamW(present, lr=config.lr, betas=(0.9, config.beta2), fused=True)


def _linear_and_other(model: nn.Module) -> tuple[list[Tensor], list[Tensor]]:
    """Trainable weights of linear layers (with weight decay), and biases, norms and embeddings (without)."""
    linear: list[Tensor] = []
    other: list[Tensor] = []
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            if parameter.requires_grad:
                (linear if isinstance(module, nn.Linear) and name == "weight" else other).append(parameter)
    return linear, other


class MuonAdamW:
    """Muon for the weights of linear layers with at least 16 inputs and outputs, AdamW for all other parameters."""

    def __init__(self, model: nn.Module, config: OptimConfig) -> None:
        linear, other = _linear_and_other(model)
        large = [weight for weight in linear if min(weight.shape) >= _SMALLEST_SIDE]
        small = [weight for weight in linear if min(weight.shape) < _SMALLEST_SIDE]
        self.parts: list[torch.optim.Optimizer] = []
        if large:
            self.parts.append(Muon(large, lr=config.lr, weight_decay=config.weight_decay))
        if small or other:
            self.parts.append(_adamw(small, other, config))

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """Parameter groups of both optimizers."""
        return [group for part in self.parts for group in part.param_groups]

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Reset the gradients."""
        for part in self.parts:
            part.zero_grad(set_to_none=set_to_none)

    def step(self) -> None:
        """Update the weights."""
        for part in self.parts:
            part.step()

    def state_dict(self) -> dict[str, Any]:
        """State of both optimizers, for the resume file."""
        return {"parts": [part.state_dict() for part in self.parts]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state of both optimizers."""
        for part, stored in zip(self.parts, state["parts"], strict=True):
            part.load_state_dict(stored)


class Muon(torch.optim.Optimizer):
    """Momentum with orthogonalized steps for matrices; decoupled weight decay as in AdamW."""

    def __init__(self, parameters: list[Tensor], *, lr: float, weight_decay: float) -> None:
        super().__init__(parameters, {"lr": lr, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Update the weights."""
        for group in self.param_groups:
            weights = [weight for weight in group["params"] if weight.grad is not None]
            if not weights:
                continue
            gradients = [weight.grad for weight in weights]
            for weight in weights:
                if not self.state[weight]:
                    self.state[weight]["momentum"] = torch.zeros_like(weight)
            averages = [self.state[weight]["momentum"] for weight in weights]
            torch._foreach_lerp_(averages, gradients, 1 - _MOMENTUM)
            directions = orthogonal(torch._foreach_lerp(gradients, averages, _MOMENTUM))
            torch._foreach_mul_(weights, 1 - group["lr"] * group["weight_decay"])
            torch._foreach_mul_(directions, [-group["lr"] * _RMS_OF_ADAM * math.sqrt(max(w.shape)) for w in weights])
            torch._foreach_add_(weights, directions)
