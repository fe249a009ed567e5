"""A trained model gets networks of single atoms, or wider ones: the same surface until they are trained."""

import numpy as np
import pytest
import torch
from ase.io import read
from small_set import SMALL, write_small_set

from faenet_calc import FAENetCalculator, build_potential
from faenet_calc.errors import InputError
from faenet_calc.potential.checkpoint import load_potential
from faenet_calc.training.config_file import read_config
from faenet_calc.training.finetune import with_feed_forward
from faenet_calc.training.loop import train

NETWORK = {"hidden_channels": 64, "filters": 16, "interactions": 2, "gaussians": 12}


@pytest.mark.parametrize("present", [0, 16])
def test_the_surface_is_the_same_until_it_is_trained(tmp_path, present):
    potential = build_potential("modern-s", dtype="float64", feed_forward=present, **NETWORK)
    with torch.no_grad():
        for weight in potential.model.parameters():
            weight *= 1.0 + 1e-12  # digits that float32 does not have
        for block in potential.model.feed_forward_blocks:
            block.lin_out.weight.normal_(std=0.1)
    wider = with_feed_forward(potential, 32, seed=0)
    atoms = read(write_small_set(tmp_path / "set.extxyz", n=2), 0)

    def forces(model):
        return FAENetCalculator(model, dtype="float64").get_property("forces", atoms)

    assert wider.config.model.feed_forward == 32
    np.testing.assert_allclose(forces(wider), forces(potential), rtol=0, atol=1e-13)
    wider.model.feed_forward_blocks[0].lin_out.weight.data[:, present:] += 0.1
    assert np.abs(forces(wider) - forces(potential)).max() > 1e-6


def test_training_goes_on_with_them(tmp_path, monkeypatch):
    monkeypatch.setenv("FAENET_CALC_CACHE", str(tmp_path / "cache"))
    data = write_small_set(tmp_path / "set.extxyz")

    def checkpoint(folder, *more):
        given = [f"data.train={[str(data)]}", f"run.out_dir={tmp_path / folder}", *SMALL, "run.max_epochs=2", *more]
        return train(read_config("", given)).checkpoint

    first = checkpoint("first")
    found = load_potential(checkpoint("second", f"finetune.checkpoint={first}", "finetune.feed_forward=24"))
    assert found.config.model.feed_forward == 24
    assert all(block.lin_out.weight.abs().max() > 0 for block in found.model.feed_forward_blocks)


@pytest.mark.parametrize("width", [16, 8])
def test_they_do_not_become_narrower(width):
    potential = build_potential("modern-s", feed_forward=16, **NETWORK)
    with pytest.raises(InputError, match=rf"feed_forward = {width} .* = 16; it takes a larger width"):
        with_feed_forward(potential, width, seed=0)
