"""The repulsion of a trained model begins below the contacts of its training data, and stays where there are none."""

import dataclasses

import numpy as np
import pytest
import torch
from ase import Atoms
from ase.build import bulk, molecule
from ase.calculators.singlepoint import SinglePointCalculator
from ase.io import write

from faenet_calc.data.dataset import open_dataset
from faenet_calc.potential.config import RepulsionConfig
from faenet_calc.potential.edge_lengths import EdgeLengths
from faenet_calc.potential.repulsion import close_contacts
from faenet_calc.training.config_file import read_config
from faenet_calc.training.contacts import fit_repulsion
from faenet_calc.training.preparation import prepare

OWN = RepulsionConfig(kind="zbl")


def labelled(atoms):
    atoms.calc = SinglePointCalculator(atoms, energy=-1.0, forces=np.zeros((len(atoms), 3)))
    return atoms


def dataset(tmp_path, structures):
    path = tmp_path / "data.extxyz"
    write(path, [labelled(atoms) for atoms in structures])
    return path, open_dataset([path], cutoff=5.0, cache_dir=tmp_path / "cache")


def fitted(data, own=OWN):
    return fit_repulsion(own, data, np.arange(len(data)), cutoff=5.0)


def compressed(scale):
    crystal = bulk("Li", "bcc", a=3.51, cubic=True).repeat(2)
    crystal.set_cell(crystal.cell * scale, scale_atoms=True)
    crystal.rattle(0.02, seed=1)
    return crystal


def test_sensible_data_keep_the_repulsion_of_the_preset(tmp_path):
    _, data = dataset(tmp_path, [bulk("Cu").repeat(2), molecule("H2O"), molecule("CO")])
    assert fitted(data) == (OWN, [])


def test_it_acts_on_no_training_structure(tmp_path):
    """Compressed lithium is crowded, and H2 at 0.5 Å overlaps."""
    _, data = dataset(tmp_path, [compressed(0.85), compressed(1.0), Atoms("H2", [[0, 0, 0], [0, 0, 0.5]])])

    def acts(repulsion):
        found = []
        for index in range(len(data)):
            graph = data[index].graph
            lengths = EdgeLengths.of(graph, graph.edge_vectors().double())
            found.append(close_contacts(repulsion, graph, lengths, 5.0) is not None)
        return found

    repulsion, (note,) = fitted(data)
    assert acts(OWN)[0] and acts(OWN)[2]
    assert acts(repulsion) == [False, False, False]
    assert repulsion.outer < OWN.outer and repulsion.inner / repulsion.outer == pytest.approx(0.625, abs=0.01)
    assert repulsion.crowding_start > OWN.crowding_start
    assert "begins at" in note and "close metal neighbors" in note


def test_it_never_acts_farther_out_and_can_be_absent(tmp_path):
    _, data = dataset(tmp_path, [compressed(0.85)])
    narrow = dataclasses.replace(OWN, outer=0.45, inner=0.3, crowding_start=30.0, crowding_end=31.0)
    assert fitted(data, narrow) == (narrow, [])
    assert fitted(data, RepulsionConfig(kind="none")) == (RepulsionConfig(kind="none"), [])


def test_overlapping_atoms_in_the_data_do_not_switch_it_off(tmp_path):
    _, data = dataset(tmp_path, [Atoms("Cu2", [[0, 0, 0], [0, 0, 0.3]])])
    assert fitted(data)[0].outer == 0.4


def test_training_uses_it_unless_the_settings_state_limits(tmp_path):
    path, _ = dataset(tmp_path, [compressed(0.85 + 0.01 * n) for n in range(8)])
    common = f"data: {{train: [{path}], cache_dir: {tmp_path / 'cache'}}}\nmodel: {{preset: modern-s}}\n"
    prepared = prepare(read_config(common), torch.device("cpu"))
    assert prepared.potential.config.repulsion.crowding_start > OWN.crowding_start
    assert any("close metal neighbors" in note for note in prepared.notes)
    stated = prepare(read_config(common + "repulsion: {crowding_start: 1.8}\n"), torch.device("cpu"))
    assert stated.potential.config.repulsion.crowding_start == 1.8
