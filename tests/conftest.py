"""Shared fixtures, seeds set before every test, and failure on unexpected skips."""

import os
import random
import re
import sys
from collections.abc import Generator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings

REPOSITORY = Path(__file__).resolve().parent.parent

# The only reasons to skip a test (regular expressions). Missing data is not among them.
ALLOWED_SKIPS = (
    "CUDA",
    "Windows",
    "this processor has no",
    "this version of ASE has no",
    r"Quantum ESPRESSO \(pw.x\) is not installed",
    r"could not import '(chgnet|mace|nequix|sevenn|torch_sim|triton|vesin_torch)",
)
ALLOWED_SKIPS_OUTSIDE_CI = ("no compiled library", "chromium")  # `.ci/run` and GitHub set CI

# The same examples in every run, and no time limit on one: the machine may be busy.
settings.register_profile("reproducible", derandomize=True, deadline=None, print_blob=True)
settings.load_profile("reproducible")


@pytest.fixture(scope="session")
def repository() -> Path:
    return REPOSITORY


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """Folder with small data sets and a small trained potential (see its README.md)."""
    return REPOSITORY / "tests" / "data"


@pytest.fixture(scope="session")
def golden_dir() -> Path:
    """Folder with inputs, weights and outputs of the original FAENet code (see its README.md)."""
    return REPOSITORY / "tests" / "golden" / "data"


def pytest_configure(config: pytest.Config) -> None:
    # Before torch is imported: several test processes share the cores.
    os.environ.setdefault("OMP_NUM_THREADS", "1")


def _fail_unexpected_skip(report: pytest.TestReport | pytest.CollectReport) -> None:
    """Turn a skip whose reason is not in `ALLOWED_SKIPS` into a failure."""
    if not report.skipped or hasattr(report, "wasxfail"):
        return
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    allowed = ALLOWED_SKIPS if "CI" in os.environ else ALLOWED_SKIPS + ALLOWED_SKIPS_OUTSIDE_CI
    if "WITHOUT_BROWSER" in os.environ:  # `.ci/run` could not install one
        allowed += ("chromium",)
    if not any(re.search(pattern, reason) for pattern in allowed):
        report.outcome = "failed"
        report.longrepr = f"unexpected skip: {reason}\nReasons that are allowed: ALLOWED_SKIPS in tests/conftest.py"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    _fail_unexpected_skip(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    _fail_unexpected_skip(report)
    return report


@pytest.fixture(autouse=True)
def _reproducible() -> None:
    random.seed(0)
    np.random.seed(0)
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(1)
        torch.manual_seed(0)


@pytest.fixture(scope="session")
def emt_potential():
    """Conservative float64 potential trained on EMT copper (see emt_potential.py)."""
    from faenet_calc.potential.checkpoint import load_potential

    return load_potential(REPOSITORY / "tests" / "data" / "emt-copper.safetensors", device="cpu", dtype="float64")


# Potentials with random weights, which reveal errors that training hides. Forces are of the order of 1 eV/Å.
SMALL = {"hidden_channels": 64, "filters": 48, "interactions": 2, "gaussians": 16, "mean_neighbors": 40.0}


@pytest.fixture(scope="session")
def modern():
    """Small `modern` network in float64."""
    from faenet_calc.potential.potential import build_potential
    from faenet_calc.testing.laws import scaled

    return scaled(build_potential("modern-s", seed=1, dtype="float64", **SMALL), 10.0)


@pytest.fixture(scope="session")
def modern_float32():
    from faenet_calc.potential.potential import build_potential

    return build_potential("modern-s", seed=1, **SMALL)


@pytest.fixture(scope="session")
def paper_frames():
    """The network of `modern` with the paper's PCA frames."""
    from faenet_calc.potential.potential import build_potential
    from faenet_calc.testing.laws import scaled

    return scaled(build_potential("modern-s", seed=1, dtype="float64", frames={"kind": "pca3d"}, **SMALL), 10.0)


@pytest.fixture(scope="session")
def paper_network():
    """Design of the original code: GraphNorm, hard cutoff, energies mixed with a bias, constant PCA frames."""
    from faenet_calc.potential.potential import build_potential

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
