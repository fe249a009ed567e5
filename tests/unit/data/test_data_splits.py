"""Splits keep what belongs together; references and scales are those of the structures they are fitted to."""

import numpy as np
import pytest
from ase import Atoms
from ase.build import add_adsorbate, bulk, fcc111
from ase.calculators.singlepoint import SinglePointCalculator
from ase.io import write

from faenet_calc.data import statistics
from faenet_calc.data.dataset import open_dataset, split_dataset
from faenet_calc.data.splits import trajectories
from faenet_calc.errors import InputError

ENERGY = {"Cu": -3.7, "Pd": -5.2, "O": -4.9}


def _dataset(tmp_path, structures, name="data.traj", cutoff=3.0):
    for atoms in structures:
        if atoms.calc is None:
            energy = sum(ENERGY[symbol] for symbol in atoms.symbols)
            atoms.calc = SinglePointCalculator(atoms, energy=energy, forces=np.full((len(atoms), 3), 0.5))
    write(tmp_path / name, structures)
    return open_dataset(tmp_path / name, cutoff=cutoff, cache_dir=tmp_path / "cache")


def _walk(start, steps, random, length=0.03):
    """A trajectory: small steps from a start, written one after the other."""
    atoms = start.copy()
    made = []
    for _ in range(steps):
        atoms = atoms.copy()
        atoms.positions += random.normal(0, length, atoms.positions.shape)
        made.append(atoms)
    return made


def _trajectories(count=12, steps=7):
    """Walks from starts of one composition that are far from each other."""
    random = np.random.default_rng(0)
    start = bulk("Cu", cubic=True)
    walks = []
    for _ in range(count):
        shifted = start.copy()
        shifted.positions += random.normal(0, 0.7, start.positions.shape)
        walks.append(_walk(shifted, steps, random))
    return walks


def _disjoint_and_complete(split, dataset):
    joined = np.concatenate(list(split.values()))
    assert sorted(joined.tolist()) == list(range(len(dataset)))


def _n_divided(split, groups):
    owner = {int(index): name for name, indices in split.items() for index in indices}
    return sum(len({owner[index] for index in np.flatnonzero(groups == g)}) > 1 for g in np.unique(groups))


def test_trajectories_are_found_by_continuity_and_never_divided(tmp_path):
    dataset = _dataset(tmp_path, [atoms for walk in _trajectories() for atoms in walk])
    truth = np.repeat(np.arange(12), 7)
    assert np.array_equal(trajectories(dataset), truth)
    for seed in range(5):
        split = split_dataset(dataset, seed=seed)
        assert split.kind == "trajectory"
        assert split.n_groups == 12
        assert not split.note
        _disjoint_and_complete(split, dataset)
        assert _n_divided(split, truth) == 0
        assert len(split["train"]) > len(split["val"]) > 0 < len(split["test"])
    random = split_dataset(dataset, kind="random")
    assert _n_divided(random, truth) > 6
    assert "12 trajectories" in random.note


def test_wrapped_atoms_do_not_break_a_trajectory(tmp_path):
    (walk,) = _trajectories(count=1, steps=8)
    for atoms in walk[::2]:
        atoms.wrap()
    assert set(trajectories(_dataset(tmp_path, walk))) == {0}


def test_names_of_systems_join_runs_that_are_apart(tmp_path):
    walks = _trajectories(count=12, steps=3)
    for number, walk in enumerate(walks):
        for atoms in walk:
            atoms.info["sid"] = number % 4
    dataset = _dataset(tmp_path, [atoms for walk in walks for atoms in walk], "data.extxyz")
    groups = trajectories(dataset)
    assert len(set(groups)) == 4
    split = split_dataset(dataset, kind="trajectory", fractions=(0.5, 0.25, 0.25))
    assert _n_divided(split, groups) == 0


def test_few_trajectories_are_split_at_random_with_a_note(tmp_path):
    dataset = _dataset(tmp_path, [atoms for walk in _trajectories(count=3) for atoms in walk])
    split = split_dataset(dataset)
    assert split.kind == "random"
    assert "only 3 trajectories or systems were found" in split.note
    with pytest.raises(InputError, match="too few"):
        split_dataset(dataset, kind="composition")


def _slabs():
    """Cu and Pd slabs with and without O, four of each kind, written in an order that mixes them."""
    random = np.random.default_rng(2)
    made = []
    for _ in range(4):
        for metal in ("Cu", "Pd"):
            for adsorbate in ("O", None, "CuO"):
                slab = fcc111(metal, (2, 2, 3), vacuum=6, periodic=True)
                if adsorbate:
                    add_adsorbate(slab, "O", 1.3, "fcc")
                slab.info = {"adsorbate": adsorbate or "clean"} if adsorbate == "CuO" else {}
                slab.positions += random.normal(0, 0.02, slab.positions.shape)
                made.append(slab)
    return made


@pytest.mark.parametrize(("kind", "n_groups"), [("composition", 4), ("adsorbate", 3), ("slab", 2)])
def test_chemistry_is_kept_together(tmp_path, kind, n_groups):
    dataset = _dataset(tmp_path, _slabs(), "data.extxyz")
    fractions = {"train": 0.7, "val": 0.3}
    split = split_dataset(dataset, kind=kind, fractions=fractions, seed=3)
    assert split.n_groups == n_groups
    _disjoint_and_complete(split, dataset)
    if kind == "slab":
        for indices in split.values():
            metals = {number for index in indices for number in dataset[index].graph.atomic_numbers.tolist()} - {8}
            assert len(metals) == 1


def test_the_files_own_words_are_used(tmp_path):
    structures = [atoms for walk in _trajectories(count=12, steps=1) for atoms in walk]
    for number, atoms in enumerate(structures):
        atoms.info["split"] = ("training", "val", "train")[number % 3]
    split = split_dataset(_dataset(tmp_path, structures, "data.extxyz"))
    assert split.kind == "info"
    assert split["val"].tolist() == [1, 4, 7, 10]
    del structures[0].info["split"]
    dataset = _dataset(tmp_path, structures, "other.extxyz")
    assert split_dataset(dataset).kind == "trajectory"
    with pytest.raises(InputError, match="split"):
        split_dataset(dataset, kind="info")


def test_a_validation_set_that_the_files_lack_is_split_off_their_training_set(tmp_path):
    structures = [atoms for walk in _trajectories(count=15, steps=4) for atoms in walk]
    for number, atoms in enumerate(structures):
        atoms.info |= {"split": "heldout" if number < 12 else "train", "system": f"s{number // 4}"}
    dataset = _dataset(tmp_path, structures, "data.extxyz")
    split = split_dataset(dataset, fractions={"train": 0.75, "val": 0.25}, seed=3)
    _disjoint_and_complete(split, dataset)
    assert "validation set" in split.note
    assert split["test"].tolist() == list(range(12))
    assert len(split["val"]) == 12
    assert not {index // 4 for index in split["val"]} & {index // 4 for index in split["train"]}, "whole trajectories"
    assert "val" not in split_dataset(dataset, fractions={"train": 0.9, "test": 0.1}), "not asked for"


def test_by_file_and_by_key(tmp_path):
    structures = [atoms for walk in _trajectories(count=12, steps=2) for atoms in walk]
    for number, atoms in enumerate(structures):
        atoms.info["batch"] = number // 8
    dataset = _dataset(tmp_path, structures, "data.extxyz")
    assert split_dataset(dataset, kind="key:batch").n_groups == 3
    with pytest.raises(InputError, match="no 'nothing'; it has batch"):
        split_dataset(dataset, kind="key:nothing")
    with pytest.raises(InputError, match="too few"):
        split_dataset(dataset, kind="file")
    with pytest.raises(InputError, match="expected one of"):
        split_dataset(dataset, kind="compositions")
    with pytest.raises(InputError, match="expected fractions"):
        split_dataset(dataset, fractions=(0.5, -0.5))


def test_seeds_decide_and_every_set_gets_something(tmp_path):
    dataset = _dataset(tmp_path, [atoms for walk in _trajectories(count=3, steps=4) for atoms in walk])
    one, same, other = (split_dataset(dataset, kind="random", seed=seed) for seed in (1, 1, 2))
    assert np.array_equal(one["train"], same["train"])
    assert not np.array_equal(one["train"], other["train"])
    split = split_dataset(dataset, kind="trajectory", fractions=(0.98, 0.01, 0.01))
    assert [len(indices) for indices in split.values()] == [4, 4, 4]


def _alloys():
    made = []
    for number in range(6):
        atoms = bulk("Cu", cubic=True) * (1, 1, 1 + number % 2)
        atoms.symbols[: number % 3] = "Pd"
        atoms.symbols[-1] = "O" if number > 3 else "Cu"
        made.append(atoms)
    return made


def test_references_are_recovered(tmp_path):
    dataset = _dataset(tmp_path, _alloys())
    references = statistics.fit_references(dataset)
    assert references == pytest.approx(ENERGY, abs=1e-9)
    fitted = statistics.reference_fit(dataset)
    assert not fitted.deficient
    assert np.abs(fitted.residual).max() < 1e-9
    assert np.abs(statistics.residuals(dataset, None, {**ENERGY, "Cu": -2.7})).max() > 0.3
    with pytest.raises(InputError, match="no reference energy for O"):
        statistics.residuals(dataset, None, {"Cu": 1.0, "Pd": 1.0})


def test_references_of_one_composition_stay_near_the_mean(tmp_path):
    atoms = bulk("Cu", cubic=True)
    atoms.symbols[0] = "O"
    dataset = _dataset(tmp_path, [atoms.copy() for _ in range(5)])
    fitted = statistics.reference_fit(dataset)
    assert fitted.deficient
    assert fitted.rank == 1
    mean = (ENERGY["O"] + 3 * ENERGY["Cu"]) / 4
    assert fitted.energies == pytest.approx([mean, mean], abs=1e-6)
    assert np.abs(fitted.residual).max() < 1e-6


def test_only_the_chosen_structures_count(tmp_path):
    structures = _alloys()
    structures[0].calc = SinglePointCalculator(structures[0], energy=1e6, forces=np.full((len(structures[0]), 3), 9.0))
    dataset = _dataset(tmp_path, structures)
    chosen = np.arange(1, 6)
    assert statistics.fit_references(dataset, chosen) == pytest.approx(ENERGY, abs=1e-9)
    assert statistics.force_scale(dataset, chosen) == pytest.approx(0.5)
    assert statistics.force_scale(dataset) > 1
    assert statistics.energy_scale(dataset) > 1000
    # Rows of 12 neighbours in fcc: 3 Å is between the first (2.55) and second (3.61) shell.
    assert statistics.mean_neighbors(dataset, chosen) == pytest.approx(12)


def test_description(tmp_path):
    dataset = _dataset(tmp_path, _alloys(), cutoff=4.0)
    described = statistics.describe(dataset, [3.0, 4.0])
    assert described.neighbors == {3.0: (12.0, 12), 4.0: (18.0, 18)}
    assert described.n_atoms == sum(atoms for atoms, _ in described.elements.values()) == int(dataset.n_atoms.sum())
    assert described.elements["O"] == (2, 2)
    assert described.force_component.mae == 0
    assert described.force_component.mean == pytest.approx(0.5)
    assert described.residual_per_atom.mae < 1e-9
    assert described.references_unique


def test_single_atoms_without_neighbours(tmp_path):
    dataset = _dataset(tmp_path, [Atoms("Cu", positions=[[0, 0, 0]]), Atoms("Pd", positions=[[0, 0, 0]])])
    assert dataset.n_edges.tolist() == [0, 0]
    assert dataset[1].graph.n_edges == 0
    assert statistics.fit_references(dataset) == pytest.approx({"Cu": -3.7, "Pd": -5.2})
