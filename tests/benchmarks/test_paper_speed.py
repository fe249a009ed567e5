"""Both sides of the benchmark give the same forces, and rows tell their ratio."""

import copy

import numpy as np
import paper_speed as benchmark
import pytest
import upstream_style
from speed import slab

from faenet_calc import FAENetCalculator


@pytest.mark.parametrize("independent", [False, True])
def test_both_sides_give_the_same_forces(independent):
    potential = benchmark.paper_potential(independent=independent)
    model = upstream_style.UpstreamStyle(copy.deepcopy(potential.model)).eval()
    atoms = slab(12)
    atoms.rattle(0.05, seed=0)
    atoms.calc = FAENetCalculator(
        potential, frames="all", device="cpu", tags=benchmark.tags, remove_net_force=False, on_outside_domain="ignore"
    )
    theirs = benchmark.upstream_forces(model, potential, atoms, 8).numpy()
    assert np.abs(theirs).max() > 0.05
    assert np.abs(atoms.get_forces() - theirs).max() < benchmark.LARGEST_FORCE_DIFFERENCE
    atoms.positions[0] += 0.1
    assert np.abs(atoms.get_forces() - theirs).max() > benchmark.LARGEST_FORCE_DIFFERENCE


def test_rows():
    rows = []
    benchmark.measure(12, "one", 1, rows.append, independent=False)
    ours, theirs, ratio = (row["value"] for row in rows)
    assert ratio == pytest.approx(theirs / ours)
