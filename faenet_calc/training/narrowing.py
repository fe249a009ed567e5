"""Edge embeddings of fewer channels in a trained network, with nearly the same filters.

The part of a filter that depends on an edge, z_l(r) = W_l e(r), is a function of the edge vector alone. A narrower
embedding e' = σ(A u(r) + b), with the inner features u(r) that the network has, and new matrices W'_l are fitted to it
for all interactions at once: no labels are needed.
"""

import copy
import dataclasses
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from faenet_calc.errors import InputError
from faenet_calc.network.embeddings import envelope
from faenet_calc.network.faenet import FAENet
from faenet_calc.network.layers import Interaction, edge_width
from faenet_calc.potential.potential import Potential

_POINTS = 6_000
_STEPS = 120
_SHORTEST_A = 0.6  # no two atoms are bound at a shorter distance
_RIDGE = 1e-9  # of the mean square of the features


def with_edge_channels(potential: Potential, width: int, *, seed: int) -> tuple[Potential, float]:
    """The potential with a narrower edge embedding, and the relative root mean square error of its filters.

    Args:
        potential: A trained potential whose filters are linear in the edge embedding.
        width: The new ``model.edge_channels``.
        seed: Of the sampled edge vectors.
    """
    old = potential.model
    present = edge_width(old.config)
    if not 0 < width < present:
        raise InputError(
            f"finetune.edge_channels = {width} for a model whose edge embedding has {present} channels; expected fewer "
            "channels than the model has: leave it out to train the model as it is"
        )
    if old.edge_embedding.lin_e12 is None:
        raise InputError(
            f"finetune.edge_channels for model.edge_features = {old.config.edge_features!r}; expected "
            "r_and_distance or all"
        )
    try:
        model = dataclasses.replace(old.config, edge_channels=width)
    except ValueError as reason:
        raise InputError(f"finetune.edge_channels: {reason}") from reason
    narrow = copy.deepcopy(potential)
    narrow.config = dataclasses.replace(potential.config, model=model)
    narrow.model = FAENet(model).to(next(old.parameters()).dtype)
    with torch.no_grad():
        inner, filters, weight = _samples(old, seed)
    embedding, maps, offset, error = _fitted(old, inner, filters, weight, width)
    state = narrow.model.state_dict()
    with torch.no_grad():
        for name, value in old.state_dict().items():
            if state[name].shape == value.shape:
                state[name].copy_(value)
        state["edge_embedding.lin_e2.weight"].copy_(embedding[:, :-1])
        state["edge_embedding.lin_e2.bias"].copy_(embedding[:, -1])
        n_filters = len(offset) // old.config.interactions
        for number, (new, shift) in enumerate(zip(maps.split(n_filters), offset.split(n_filters), strict=True)):
            linear = f"interaction_blocks.{number}.lin_geom"
            before = old.state_dict()[f"{linear}.weight"]
            state[f"{linear}.weight"].copy_(torch.cat([new, before[:, present:].to(new.dtype)], dim=1))
            state[f"{linear}.bias"].copy_(old.state_dict()[f"{linear}.bias"] + shift)
    return narrow, error


def _samples(model: FAENet, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Inner features u [n, F], filters of all interactions [n, L F] and weights [n] at random edge vectors; float64.

    Distances are uniform; the weight is what the envelope leaves of a message.
    """
    config, precise = model.config, copy.deepcopy(model).double()
    generator = torch.Generator().manual_seed(seed)
    distances = _SHORTEST_A + (config.cutoff - _SHORTEST_A) * torch.rand(
        _POINTS, dtype=torch.float64, generator=generator
    )
    directions = functional.normalize(torch.randn(_POINTS, 3, dtype=torch.float64, generator=generator))
    edge = precise.edge_embedding
    assert edge.lin_e12 is not None and edge.lin_e2 is not None
    own = edge.act(edge.lin_e1(directions * distances[:, None]))
    shared = edge.act(edge.lin_e12(precise.distance_expansion(distances)))
    inner = torch.cat([own, shared], dim=1)
    e = edge.act(functional.linear(inner, edge.lin_e2.weight, edge.lin_e2.bias))
    linears = [cast(nn.Linear, cast(Interaction, block).lin_geom) for block in precise.interaction_blocks]
    maps = torch.cat([linear.weight[:, : edge_width(config)] for linear in linears])
    weight = envelope(distances, config.cutoff, config.envelope_power) if config.envelope_power else distances * 0 + 1
    return inner, e @ maps.t(), weight


def _fitted(
    model: FAENet, inner: Tensor, filters: Tensor, weight: Tensor, width: int
) -> tuple[Tensor, Tensor, Tensor, float]:
    """New embedding [width, F + 1] with its bias, maps [L F, width], their offsets [L F], and the relative error.

    The embedding starts as the channels of the old one that explain most of the filters. Its maps are those of least
    squares at every step.
    """
    with_one = torch.cat([inner, torch.ones_like(inner[:, :1])], dim=1)
    root = weight.sqrt()[:, None]
    target = root * filters
    scale = target.square().mean().sqrt()
    second_layer = cast(nn.Linear, model.edge_embedding.lin_e2)
    old = torch.cat([second_layer.weight, second_layer.bias[:, None]], dim=1).detach().double()
    chosen = _explaining(root * model.edge_embedding.act(with_one @ old.t()), target, width)
    embedding = old[chosen].clone().requires_grad_(True)

    def solve(embedding: Tensor) -> tuple[Tensor, Tensor]:
        e = model.edge_embedding.act(with_one @ embedding.t())
        features = root * torch.cat([e, torch.ones_like(e[:, :1])], dim=1)
        gram = features.t() @ features
        ridge = _RIDGE * gram.diagonal().mean() * torch.eye(len(gram), dtype=gram.dtype)
        solution = torch.linalg.solve(gram + ridge, features.t() @ target)
        return solution, (features @ solution - target).square().mean()

    optimizer = torch.optim.LBFGS([embedding], max_iter=_STEPS, history_size=20, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = solve(embedding)[1] / scale.square()
        loss.backward()
        return loss

    with torch.enable_grad():
        optimizer.step(closure)
    with torch.no_grad():
        solution, error = solve(embedding)
    return embedding.detach(), solution[:-1].t(), solution[-1], float(error.sqrt() / scale)


def _explaining(features: Tensor, target: Tensor, count: int) -> list[int]:
    """Columns of ``features`` [n, m] that together explain ``target`` [n, k] best, chosen one after another."""
    remaining, rest = target.clone(), features.clone()
    chosen: list[int] = []
    for _ in range(count):
        norms = rest.square().sum(dim=0)
        gain = (rest.t() @ remaining).square().sum(dim=1) / norms.clamp(min=1e-12 * float(norms.max()))
        gain[chosen] = -1.0
        best = int(gain.argmax())
        chosen.append(best)
        direction = rest[:, best] / rest[:, best].norm()
        remaining -= direction[:, None] * (direction @ remaining)
        rest -= direction[:, None] * (direction @ rest)
    return sorted(chosen)
