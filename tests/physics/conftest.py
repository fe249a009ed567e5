"""Potentials with random weights in float64: they expose what trained weights hide."""

import pytest

from faenet_calc.potential.potential import build_potential
from faenet_calc.testing.laws import scaled

SMALL = {"hidden_channels": 64, "filters": 48, "interactions": 2, "gaussians": 16, "mean_neighbors": 40.0}


@pytest.fixture(scope="session")
def modern():
    """Small `modern` network whose forces are of the order of 1 eV/Å."""
    return scaled(build_potential("modern-s", seed=1, dtype="float64", **SMALL), 10.0)


@pytest.fixture(scope="session")
def modern_float32():
    return build_potential("modern-s", seed=1, **SMALL)


@pytest.fixture(scope="session")
def paper_frames():
    """The same network with the paper's PCA frames."""
    return scaled(build_potential("modern-s", seed=1, dtype="float64", frames={"kind": "pca3d"}, **SMALL), 10.0)


@pytest.fixture(scope="session")
def paper_network():
    """What upstream has: GraphNorm, hard cutoff, energies mixed with a bias, fixed PCA frames."""
    return build_potential(
        "modern-s",
        seed=1,
        dtype="float64",
        frames={"kind": "pca3d", "differentiable": False},
        graph_norm=True,
        envelope_power=0,
        jumping="concat_energies",
        **SMALL,
    )
