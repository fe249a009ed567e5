"""Functions, calculators and results can be sent to other processes, as workflow managers do."""

import multiprocessing
import pickle

import numpy as np
import pytest
from ase.build import fcc111

import faenet_calc
from faenet_calc import FAENetCalculator, relax


@pytest.fixture(scope="module")
def slab():
    atoms = fcc111("Cu", (1, 1, 3), a=3.63, vacuum=6.0)
    atoms.rattle(0.05, seed=0)
    return atoms


@pytest.mark.parametrize("name", ["relax", "relax_batch", "run_md", "run_md_batch", "screen"])
def test_functions_are_found_again(name):
    function = getattr(faenet_calc, name)
    assert pickle.loads(pickle.dumps(function)) is function


def test_a_pickled_calculator_gives_the_same_result(slab):
    calc = FAENetCalculator("metals-s", frames="one")
    result = relax(slab, calc, fmax=0.1)
    copy = pickle.loads(pickle.dumps(result))
    assert copy.energy == result.energy and copy.anomalies == result.anomalies
    assert np.array_equal(copy.atoms.get_forces(), result.atoms.get_forces())
    again = relax(slab, pickle.loads(pickle.dumps(calc)), fmax=0.1)
    assert again.energy == result.energy and again.n_steps == result.n_steps > 0


@pytest.mark.slow
def test_a_job_runs_in_another_process(slab):
    calc = FAENetCalculator("metals-s", frames="one")
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        found = pool.apply(relax, (slab, calc), {"fmax": 0.1})
    assert found.energy == pytest.approx(relax(slab, calc, fmax=0.1).energy, abs=1e-5)
