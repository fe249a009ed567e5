"""Predictions are the same inside torch's inference mode, without gradients and under autocast."""

import contextlib

import pytest
import torch
from ase.build import bulk

from faenet_calc import FAENetCalculator, build_potential
from faenet_calc.potential.checkpoint import load_potential, save_potential

MODES = {
    "inference_mode": torch.inference_mode,
    "no_grad": torch.no_grad,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
}


def small_potential():
    return build_potential(
        "modern-s", hidden_channels=64, filters=16, interactions=2, gaussians=12, cutoff=4.0, trained_elements=(29,)
    )


@pytest.fixture
def copper():
    atoms = bulk("Cu", cubic=True)
    atoms.rattle(0.1, seed=0)
    return atoms


@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
@pytest.mark.parametrize("built_inside", [False, True])
@pytest.mark.parametrize("called_inside", [False, True])
def test_a_prediction_does_not_depend_on_the_mode_of_the_caller(copper, tmp_path, mode, built_inside, called_inside):
    expected = small_potential().predict(copper, ("energy", "forces", "stress"))
    save_potential(small_potential(), tmp_path / "model.safetensors")
    with mode() if built_inside else contextlib.nullcontext():
        built = small_potential(), load_potential(tmp_path / "model.safetensors", device="cpu")
        graph = built[0].graph(copper)
    with mode() if called_inside else contextlib.nullcontext():
        for potential in built:
            for structure in (copper, graph):
                found = potential.predict(structure, ("energy", "forces", "stress"))
                for name in ("energy", "forces", "stress"):
                    assert torch.equal(getattr(found, name), getattr(expected, name))
        calculator = FAENetCalculator(built[0], device="cpu")
        assert calculator.get_potential_energy(copper) == float(expected.energy[0])
        assert calculator.get_forces(copper) == pytest.approx(expected.forces.numpy(), abs=1e-6)
