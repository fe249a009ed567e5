"""New elements start as copies of their nearest trained relatives, with references of their own."""

import numpy as np
import torch
from ase.build import fcc111
from small_set import write_small_set

from faenet_calc import FAENetCalculator, build_potential
from faenet_calc.data.dataset import open_dataset
from faenet_calc.potential.checkpoint import load_potential, save_potential
from faenet_calc.training.alignment import aligned
from faenet_calc.training.assessment import assess
from faenet_calc.training.config import DataConfig, FinetuneConfig, TrainConfig
from faenet_calc.training.finetune import start_as_twins
from faenet_calc.training.preparation import prepare
from faenet_calc.training.uncertainty import fit_uncertainty

NORMALIZATION = {"references": {"O": 1.0, "Cu": 2.0}}


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


def test_nonmetals_start_as_nonmetals_and_metals_as_metals():
    potential = build_potential("modern-s", seed=0, trained_elements=(1, 6, 8, 27, 28, 44))
    twins = start_as_twins(potential, [16, 17, 26, 42])
    assert {twins[16], twins[17]} <= {1, 6, 8}
    assert (twins[26], twins[42]) == (27, 44)
    assert start_as_twins(build_potential("modern-s", seed=0, trained_elements=(28, 44)), [16])[16] in (28, 44)


def test_references_of_new_elements_are_fitted_and_the_others_stay(tmp_path):
    potential = build_potential("modern-s", seed=0, trained_elements=(8, 29), normalization=NORMALIZATION)
    dataset = open_dataset([str(write_small_set(tmp_path / "set.extxyz"))], cutoff=potential.cutoff)
    indices = np.arange(len(dataset))
    assert set(dataset.numbers) == {8, 29, 46}
    start_as_twins(potential, [46])

    def error_per_atom(model):
        records = assess(model, dataset, indices, records=True).records
        with_palladium = [record for record in records if 46 in record.numbers]
        return np.mean([(r.energy - r.predicted_energy) / len(r.numbers) for r in with_palladium])

    fitted, change = aligned(potential, dataset, indices, only=[46])
    before, after = potential.config.normalization.references, fitted.config.normalization.references
    assert set(change) == {"Pd"}
    assert {name: after[name] for name in ("O", "Cu")} == before
    assert after["Pd"] == change["Pd"] != 0
    assert abs(error_per_atom(fitted)) < 0.1 * abs(error_per_atom(potential))
    every, changed = aligned(potential, dataset, indices)
    assert set(changed) == {"O", "Cu", "Pd"}
    assert every.config.normalization.references["Cu"] != before["Cu"]


def test_fine_tuning_without_new_references_still_fits_those_of_new_elements(tmp_path):
    potential = build_potential("modern-s", seed=0, trained_elements=(8, 29), normalization=NORMALIZATION)
    save_potential(potential, tmp_path / "start.safetensors")
    config = TrainConfig(
        data=DataConfig(train=(str(write_small_set(tmp_path / "set.extxyz")),), val_fraction=0.2),
        finetune=FinetuneConfig(checkpoint=str(tmp_path / "start.safetensors"), refit_references=False),
    )
    prepared = prepare(config, torch.device("cpu"))
    references = prepared.potential.config.normalization.references
    assert {name: references[name] for name in ("O", "Cu")} == {"O": 1.0, "Cu": 2.0}
    assert references["Pd"] != 0
    assert any("Pd starts as a copy of" in note for note in prepared.notes)


def test_the_domain_of_a_run_with_replay_includes_the_replayed_data(tmp_path):
    potential = build_potential("modern-s", seed=0, trained_elements=(1, 8, 29, 46))
    new, old = (
        open_dataset([str(write_small_set(tmp_path / f"{seed}.extxyz", seed=seed))], cutoff=potential.cutoff)
        for seed in (0, 1)
    )
    every = np.arange(len(new))
    alone = fit_uncertainty(potential, (new, every), (new, every)).config.domain
    both = fit_uncertainty(potential, (new, every), (new, every), replay=old).config.domain
    assert (alone.n_structures, both.n_structures) == (12, 24)
    assert all(both.shortest[pair] <= distance for pair, distance in alone.shortest.items())
    assert any(both.shortest[pair] < distance for pair, distance in alone.shortest.items())
    assert (
        fit_uncertainty(potential, (new, every), (new, every), replay=old, max_structures=10).config.domain.n_structures
        == 10
    )
