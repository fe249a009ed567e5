"""Data sets with a manifest: expanded to their shards, compared with digests and counts."""

import hashlib
from pathlib import Path

import pytest
from ase.build import molecule
from ase.calculators.emt import EMT
from ase.io import write
from ruamel.yaml import YAML

from faenet_calc.cli.train import _config
from faenet_calc.data.check import check_files
from faenet_calc.data.formats import find_files, read_records
from faenet_calc.data.manifest import load_manifest
from faenet_calc.errors import InputError


def write_set(folder: Path, **changes) -> Path:
    """A data set of three shards with 3, 2 and 1 structures."""
    shards = []
    for split, count in (("train", 3), ("val", 2), ("test", 1)):
        structures = []
        for number in range(count):
            atoms = molecule("H2O")
            atoms.rattle(0.05, seed=100 * count + number)
            atoms.calc = EMT()
            atoms.get_forces()
            atoms.info["split"] = split
            structures.append(atoms)
        write(folder / f"{split}.extxyz", structures)
        digest = hashlib.sha256((folder / f"{split}.extxyz").read_bytes()).hexdigest()
        shards.append({"file": f"{split}.extxyz", "sha256": digest, "structures": count, "split": split})
    (folder / "extra.extxyz").write_text("not listed")
    reference = {"calculator": "EMT", "version": "ASE"}
    content = {"name": "tiny", "summary": "s", "split": "x", "licence": "MIT", "reference": reference, "shards": shards}
    YAML().dump({**content, **changes}, folder / "manifest.yaml")
    return folder


def names(*given) -> list[str]:
    return [path.name for path in find_files(given)]


def test_a_manifest_stands_for_its_shards(tmp_path):
    folder = write_set(tmp_path)
    assert names(folder) == names(folder / "manifest.yaml") == ["train.extxyz", "val.extxyz", "test.extxyz"]
    assert names(f"{folder}:train", f"{folder}:val") == ["train.extxyz", "val.extxyz"]
    assert names(f"{folder / 'manifest.yaml'}:test") == ["test.extxyz"]
    assert len(list(read_records(folder))) == 6


def test_training_takes_a_manifest_for_data_not_for_settings(tmp_path):
    path = write_set(tmp_path) / "manifest.yaml"
    assert _config((path,), []).data.train == (str(path),)


def test_a_changed_or_missing_shard_is_refused(tmp_path):
    folder = write_set(tmp_path)
    find_files(folder)
    with (folder / "val.extxyz").open("a") as file:
        file.write("\n")
    with pytest.raises(InputError, match=r"val\.extxyz has sha256 .*edited or damaged"):
        find_files(folder)
    assert names(f"{folder}:train") == ["train.extxyz"]
    (folder / "val.extxyz").unlink()
    with pytest.raises(InputError, match=r"val\.extxyz is missing"):
        find_files(folder)


def test_a_split_without_shards_is_refused(tmp_path):
    shards = load_manifest(write_set(tmp_path)).shards
    write_set(tmp_path, shards=[{**vars(shards[0]), "seed": 0, "tasks": 0}])
    with pytest.raises(InputError, match="no shard with split 'test'"):
        find_files(f"{tmp_path}:test")


def test_data_check_compares_counts(tmp_path):
    folder = write_set(tmp_path)
    assert "wrong-count" not in {finding.code for finding in check_files(folder).findings}
    yaml = YAML()
    content = yaml.load(folder / "manifest.yaml")
    content["shards"][0]["structures"] = 4
    yaml.dump(content, folder / "manifest.yaml")
    (finding,) = (finding for finding in check_files([folder]).findings if finding.code == "wrong-count")
    assert finding.severity == "error" and "3 structures, stated 4" in finding.examples[0]


@pytest.mark.parametrize(
    ("text", "words"),
    [("a: [1", "not YAML"), ("- a", "expected a mapping"), ("name: x\ncolour: red\n", "colour is not a setting")],
)
def test_mistakes_in_a_manifest_are_named(tmp_path, text, words):
    (tmp_path / "manifest.yaml").write_text(text)
    with pytest.raises(InputError, match=words):
        load_manifest(tmp_path)


@pytest.mark.parametrize(("name", "largest"), [("metals-v1", 50e6), ("catalysis-v1", 12e6)])
def test_the_shipped_data_sets_are_whole(repository, name, largest):
    """Digests, and that every file and recipe of the folder is listed."""
    folder = repository / "datasets" / name
    files = find_files(folder)
    assert set(files) == set(folder.glob("*.xz"))
    assert sum(file.stat().st_size for file in files) < largest
    shards = load_manifest(folder).shards
    assert all((folder / shard.recipe).is_file() for shard in shards if shard.recipe or shard.split == "train")
    assert {shard.split for shard in shards} == {"train", "val", "test"}
