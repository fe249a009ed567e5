"""The two sides of the benchmark are the same network, and each side trains it."""

import dataclasses

import pytest
import torch
import training_throughput as benchmark

from faenet_calc.potential.potential import build_potential
from faenet_calc.training.config_file import config_from_mapping

SMALL = {"hidden_channels": 168, "filters": 12, "interactions": 2, "gaussians": 8, "decoder": {"channels": 8}}


def small(seed=0):
    return build_potential("paper-s2ef", seed=seed, **SMALL)


def test_both_sides_give_the_same_numbers():
    (slab,) = benchmark.slabs(1)
    assert benchmark.compare(small(), small(), slab) < 1e-4
    assert benchmark.compare(small(), small(seed=1), slab) > 1e-2


@pytest.mark.parametrize("make", [benchmark.our_step, benchmark.upstream_step])
@pytest.mark.parametrize("mode", ["stochastic", "all"])
def test_a_step_changes_weights_and_uses_the_conservation_term(make, mode):
    recipe = config_from_mapping({"model": {"preset": "paper-s2ef"}}).loss
    assert recipe.conservation > 0
    after: list[torch.Tensor] = []
    for settings in (recipe, dataclasses.replace(recipe, conservation=0.0)):
        potential = small()
        before = {name: value.clone() for name, value in potential.model.named_parameters()}
        step = make(potential, benchmark.slabs(2), mode, settings)
        step()
        shared = {name: value for name, value in potential.model.named_parameters() if name.endswith("lin_up.weight")}
        assert all(not torch.equal(value, before[name]) for name, value in shared.items())
        after.append(torch.cat([value.detach().flatten() for value in shared.values()]))
    assert not torch.equal(*after)
