"""Elements that a model was never trained on start as copies of their nearest trained relatives."""

import numpy as np
import torch
from ase.build import fcc111

from faenet_calc import FAENetCalculator, build_potential
from faenet_calc.potential.checkpoint import load_potential, save_potential
from faenet_calc.training.finetune import start_as_twins


def test_a_new_element_is_its_relative_until_it_is_trained(tmp_path):
    potential = build_potential("modern-s", seed=0, dtype="float64", trained_elements=(1, 8, 29))
    slab = fcc111("Cu", (2, 2, 2), vacuum=6.0)
    slab.rattle(0.1, seed=0)
    changed = slab.copy()
    changed.symbols[-1] = "Au"

    def forces(atoms, model):
        return FAENetCalculator(model, dtype="float64", on_unknown_element="ignore").get_property("forces", atoms)

    before = forces(slab, potential)
    assert np.abs(forces(changed, potential) - forces(slab, potential)).max() > 1e-6
    assert start_as_twins(potential, [79]) == {79: 29}
    assert np.array_equal(forces(changed, potential), forces(slab, potential))
    assert np.array_equal(forces(slab, potential), before)
    save_potential(potential, tmp_path / "twins.safetensors")
    again = load_potential(tmp_path / "twins.safetensors", dtype="float64")
    assert np.array_equal(forces(changed, again), forces(slab, again))
    with torch.no_grad():
        potential.model.atom_embedding.emb.weight[79] += 1.0
    assert np.abs(forces(changed, potential) - forces(slab, potential)).max() > 1e-6
