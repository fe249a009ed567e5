"""The torch-sim adapter gives the numbers of the calculator."""

import numpy as np
import pytest
from ase.build import bulk, fcc111

from faenet_calc import FAENetCalculator

torch_sim = pytest.importorskip("torch_sim")


def test_forward_equals_the_calculator(emt_potential):
    from faenet_calc.calculator.torchsim import FAENetModel

    structures = [bulk("Cu", cubic=True), fcc111("Cu", (2, 2, 3), vacuum=6.0, periodic=True)]
    for seed, atoms in enumerate(structures):
        atoms.rattle(0.05, seed=seed)
    model = FAENetModel(emt_potential)
    state = torch_sim.io.atoms_to_state(structures, model.device, model.dtype)
    found = model(state)
    expected = FAENetCalculator(emt_potential).predict(structures, ("energy", "forces", "stress"))
    assert np.allclose(found["energy"], [one["energy"] for one in expected], atol=1e-9)
    assert np.allclose(found["forces"], np.concatenate([one["forces"] for one in expected]), atol=1e-9)
    stress = found["stress"][0].numpy()
    assert np.allclose(stress[[0, 1, 2, 1, 0, 0], [0, 1, 2, 2, 2, 1]], expected[0]["stress"], atol=1e-12)


def test_optimization_by_torch_sim(emt_potential):
    from faenet_calc.calculator.torchsim import FAENetModel

    atoms = bulk("Cu", cubic=True)
    atoms.rattle(0.1, seed=0)
    fire = torch_sim.Optimizer.fire if hasattr(torch_sim, "Optimizer") else torch_sim.optimizers.fire
    relaxed = torch_sim.optimize(system=[atoms], model=FAENetModel(emt_potential), optimizer=fire, max_steps=100)
    (found,) = relaxed.to_atoms()
    before, after = FAENetCalculator(emt_potential).predict([atoms, found])
    assert after["energy"] < before["energy"] - 0.01
    assert np.abs(after["forces"]).max() < np.abs(before["forces"]).max()
