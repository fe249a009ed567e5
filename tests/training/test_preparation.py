import numpy as np
import pytest
import torch
from ase.io import read
from small_set import write_small_set

from faenet_calc.errors import InputError
from faenet_calc.training.batches import BatchMaker, Replay
from faenet_calc.training.config import DataConfig
from faenet_calc.training.config_file import read_config
from faenet_calc.training.preparation import drawn_per_epoch, open_parts, prepare


def parts_with(path, tmp_path, **settings):
    data = DataConfig(train=(str(path),), split="random", cache_dir=str(tmp_path / "cache"), **settings)
    return open_parts(data, cutoff=4.0, max_neighbors=None, progress=False)


def test_structures_with_large_forces_are_left_out_of_training_alone(tmp_path):
    path = write_small_set(tmp_path / "set.extxyz", 20, rattle=0.15)
    longest = [np.linalg.norm(atoms.get_forces(apply_constraint=False), axis=1).max() for atoms in read(path, ":")]
    limit = float(np.median(longest))
    everything, _ = parts_with(path, tmp_path)
    parts, notes = parts_with(path, tmp_path, max_force=limit)
    assert np.array_equal(parts["val"].indices, everything["val"].indices)
    assert sorted(parts["train"].indices) == sorted(i for i in everything["train"].indices if longest[i] <= limit)
    assert 0 < len(parts["train"]) < len(everything["train"])
    assert any("beyond" in note for note in notes)


def test_a_limit_that_leaves_nothing_is_an_error(tmp_path):
    path = write_small_set(tmp_path / "set.extxyz", 12)
    with pytest.raises(InputError, match="max_force"):
        parts_with(path, tmp_path, max_force=1e-9)


@pytest.mark.parametrize(
    ("fraction", "words"),
    [(0.25, "12 training and 4 validation structures of O, Cu, Pd"), (0.0, "16 training structures of O, Cu, Pd")],
)
def test_a_validation_set_is_announced_only_if_there_is_one(tmp_path, fraction, words):
    path = write_small_set(tmp_path / "set.extxyz", 16)
    settings = [f"data.train=[{path}]", f"data.val_fraction={fraction}", "data.split=random", "model.filters=8"]
    notes = prepare(read_config("", [*settings, f"data.cache_dir={tmp_path / 'cache'}"]), torch.device("cpu")).notes
    assert notes[0].startswith(words)
    assert ("no validation set: validation errors are those of the training set" in notes) == (fraction == 0)


def test_few_validation_structures_are_announced(tmp_path):
    path = write_small_set(tmp_path / "set.extxyz", 60)
    _, few = parts_with(path, tmp_path, val_fraction=0.05)
    assert any("few validation structures (3)" in note for note in few)
    _, enough = parts_with(path, tmp_path, val_fraction=0.2)
    assert not any("few validation" in note for note in enough)


def test_a_file_that_is_listed_twice_is_announced(tmp_path):
    path = write_small_set(tmp_path / "set.extxyz", 12)
    data = DataConfig(train=(str(path), str(path)), split="random", cache_dir=str(tmp_path / "cache"))
    parts, notes = open_parts(data, cutoff=4.0, max_neighbors=None)
    assert len(parts["train"].dataset) == 12
    assert any("names" in note and "2 times" in note and "data.repeat" in note for note in notes)
    assert not any("data.repeat" in note for note in parts_with(path, tmp_path)[1])


def test_an_epoch_goes_through_repeated_files_several_times_in_different_frames(tmp_path):
    paths = [write_small_set(tmp_path / f"{name}.extxyz", n, seed=n) for name, n in (("many", 16), ("few", 4))]
    files = ",".join(map(str, paths))
    settings = [f"data.train=[{files}]", "data.split=random", f"data.cache_dir={tmp_path / 'cache'}", "model.filters=8"]

    def prepared(repeat):
        return prepare(read_config("", [*settings, f"data.repeat={{{repeat}}}"]), torch.device("cpu"))

    found = prepared(f"{paths[1]}: 3")
    drawn, copies = drawn_per_epoch(found.train, found.config.data)
    first = found.train.indices < 16
    assert first.any() and not first.all()
    times = dict(zip(*np.unique(drawn, return_counts=True), strict=True))
    assert [times[index] for index in found.train.indices] == [1 if once else 3 for once in first]
    assert all(sorted(copies[drawn == index]) == list(range(times[index])) for index in times)
    maker = BatchMaker(found.train.dataset, found.potential.config, "stochastic", seed=0)
    last = found.train.indices[~first][:1]
    frames = [maker.make(last, 0, np.array([copy])).frames.rotation for copy in (0, 0, 1)]
    assert torch.equal(frames[0], frames[1]) and not torch.allclose(frames[0], frames[2])
    with pytest.raises(InputError, match=r"data\.repeat names .*other\.extxyz"):
        prepared(f"{write_small_set(tmp_path / 'other.extxyz', 4)}: 2")


def test_defaults_count_repeated_structures_and_replay_differs_between_their_batches(tmp_path):
    path = write_small_set(tmp_path / "few.extxyz", 20)
    settings = [f"data.train=[{path}]", "data.val_fraction=0", f"data.cache_dir={tmp_path / 'cache'}"]
    settings += ["model.filters=8", "optim.batch_size=4", f"data.repeat={{{path}: 20}}"]
    found = prepare(read_config("", settings), torch.device("cpu"))
    assert found.config.run.validate_every == 1  # 100 batches in an epoch, not 5
    replay = Replay(dataset=found.train.dataset, share=0.5, references=None)
    maker = BatchMaker(found.train.dataset, found.potential.config, "stochastic", seed=0, replay=replay)
    first = np.array([3])
    drawn = [maker.make(first, 0, np.array([copy])).frames.rotation[1] for copy in range(4)]
    assert len({tuple(rotation.flatten().tolist()) for rotation in drawn}) == 4
