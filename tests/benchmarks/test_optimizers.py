"""The benchmark of optimisers, on CO over Cu(111) with EMT."""

import optimizers as benchmark
import pytest
from ase.build import add_adsorbate, fcc111, molecule
from ase.calculators.emt import EMT
from ase.constraints import FixAtoms
from heldout_systems import to_json

from faenet_calc import relax

LIMITS = {"fmax": 0.02, "steps": 300}


@pytest.fixture(scope="module")
def system():
    start = fcc111("Cu", (2, 2, 3), vacuum=8.0)
    add_adsorbate(start, molecule("CO"), 1.8, "fcc", mol_index=1)
    start.set_tags([2 if symbol in "CO" else 1 for symbol in start.symbols])
    start.set_constraint(FixAtoms(indices=range(8)))
    end = relax(start, EMT(), optimizer="FIRE", fmax=0.02).atoms
    return {"start": to_json(start), "minimum": end.positions.tolist()}


@pytest.mark.parametrize("watched", [False, True])
def test_ends_are_counted(system, watched):
    elsewhere = {**system, "minimum": benchmark.from_json(system["start"]).positions.tolist()}
    elsewhere["minimum"][-1][0] += 1.3
    elsewhere["minimum"][-2][0] += 1.3
    row = benchmark.compare(EMT(), [system, elsewhere], "BFGS", LIMITS, watched=watched, lifted_A=0.0)
    assert (row["converged"], row["same_site"], row["systems"]) == (2, 1, 2)
    assert row["mean_steps"] > 5


@pytest.mark.parametrize("watched", [False, True])
def test_a_lifted_adsorbate_starts_elsewhere(system, watched):
    few = {**LIMITS, "steps": 0}
    low, high = (benchmark.compare(EMT(), [system], "BFGS", few, watched=watched, lifted_A=up) for up in (0.0, 4.0))
    assert (low["odd_ends"], high["odd_ends"]) == (0, 1), "4 Å up it is desorbed"
    assert "same_site" in low and "same_site" not in high


def test_the_watch_is_what_is_said(system, monkeypatch):
    watched = []
    monkeypatch.setattr(benchmark, "relax", lambda *args, **kwargs: watched.append(1) or relax(*args, **kwargs))
    for watch, times in ((False, 0), (True, 1)):
        row = benchmark.compare(EMT(), [system], "LBFGS", LIMITS, watched=watch, lifted_A=0.0)
        assert (row["watched"], len(watched)) == (watch, times)
