"""Shared fixtures: where the reference data is, and a reproducible start for every test."""

import os
import random
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings

REPOSITORY = Path(__file__).resolve().parent.parent


# The same examples in every run, and no time limit on one: the machine may be busy.
settings.register_profile("reproducible", derandomize=True, deadline=None, print_blob=True)
settings.load_profile("reproducible")


@pytest.fixture(scope="session")
def repository() -> Path:
    return REPOSITORY


@pytest.fixture(scope="session")
def shared_dir() -> Path:
    """The folder with reference data (golden outputs, data sets) beside the repository."""
    folder = Path(os.environ.get("FAENET_CALC_SHARED", REPOSITORY.parent / "shared"))
    if not folder.is_dir():
        pytest.skip(f"reference data not found at {folder}; set FAENET_CALC_SHARED to its folder")
    return folder


def pytest_configure(config: pytest.Config) -> None:
    # Before torch is imported: several test processes share the cores.
    os.environ.setdefault("OMP_NUM_THREADS", "1")


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
    """A conservative potential with sensible minima: copper of EMT, float64 (see emt_potential.py)."""
    from faenet_calc.potential.checkpoint import load_potential

    return load_potential(REPOSITORY / "tests" / "data" / "emt-copper.safetensors", device="cpu", dtype="float64")
