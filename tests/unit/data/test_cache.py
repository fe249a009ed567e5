"""The graph cache: damaged files are noticed, names and places that cannot be used are explained."""

import json

import numpy as np
import pytest
from click.testing import CliRunner
from small_set import write_small_set

from faenet_calc.cli import main
from faenet_calc.data.dataset import open_dataset
from faenet_calc.errors import InputError
from faenet_calc.graphs.reading import read_structures


@pytest.fixture
def files(tmp_path):
    return write_small_set(tmp_path / "small.extxyz")


def edges(dataset):
    return [item.graph.neighbor.tolist() for item in dataset]


def wrong_type(place):
    """Twice as many numbers of half the size: every index points somewhere else, some beyond the arrays."""
    meta = json.loads((place / "meta.json").read_text())
    meta["types"]["edge_end"] = "int32"
    (place / "meta.json").write_text(json.dumps(meta))


def not_json(place):
    (place / "meta.json").write_text("{}")


def flipped_byte(place):
    content = bytearray((place / "neighbor").read_bytes())
    content[7] ^= 0xFF
    (place / "neighbor").write_bytes(content)


def missing_array(place):
    (place / "forces").unlink()


@pytest.mark.parametrize("damage", [wrong_type, not_json, flipped_byte, missing_array])
def test_a_damaged_cache_is_built_again(files, tmp_path, damage):
    cache = tmp_path / "cache"
    first = open_dataset(files, cutoff=4.0, cache_dir=cache)
    expected = edges(first)
    damage(first.place)
    again = open_dataset(files, cutoff=4.0, cache_dir=cache)
    assert again.place == first.place
    assert edges(again) == expected


def test_a_whole_cache_is_used_again(files, tmp_path):
    first = open_dataset(files, cutoff=4.0, cache_dir=tmp_path / "cache")
    built = (first.place / "meta.json").stat().st_mtime_ns
    open_dataset(files, cutoff=4.0, cache_dir=tmp_path / "cache")
    assert (first.place / "meta.json").stat().st_mtime_ns == built


def test_a_cache_folder_that_cannot_be_written_is_explained(files, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FAENET_CALC_CACHE", str(tmp_path / "file" / "cache"))
    result = CliRunner().invoke(main, ["data", "stats", str(files)])
    assert result.exit_code == 2
    assert "graph cache cannot be written" in result.stderr and "FAENET_CALC_CACHE" in result.stderr


def test_an_at_sign_in_a_file_name_is_no_index(tmp_path):
    path = write_small_set(tmp_path / "Cu@3.extxyz")
    assert len(open_dataset(path, cutoff=4.0, cache_dir=tmp_path / "cache")) == 12
    assert len(read_structures(path)) == 12
    assert len(read_structures(f"{path}@2:4")) == 2


def test_the_hash_of_the_contents_does_not_depend_on_names(files, tmp_path):
    other = write_small_set(tmp_path / "other.extxyz")
    changed = write_small_set(tmp_path / "changed.extxyz", seed=1)
    first, same, different = (
        open_dataset(path, cutoff=4.0, cache_dir=tmp_path / "cache").content_hash for path in (files, other, changed)
    )
    assert first == same != different


def test_conversion_without_the_named_energy_is_refused(files, tmp_path):
    out = tmp_path / "out.extxyz"
    result = CliRunner().invoke(main, ["data", "convert", str(files), "-o", str(out), "--energy-key", "nosuch"])
    assert result.exit_code == 2
    assert "no structure has energy under 'nosuch'" in result.stderr
    assert not out.exists()


def test_pymatgen_json_is_read_without_importing_the_modules_it_names(tmp_path, monkeypatch):
    from ase.build import bulk
    from pymatgen.io.ase import AseAtomsAdaptor

    trap = tmp_path / "trap_module.py"
    trap.write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()\nclass Trap:\n    pass\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    structure = AseAtomsAdaptor.get_structure(bulk("Cu", cubic=True))
    content = structure.as_dict()
    for site in content["sites"]:
        site["properties"] = {"x": {"@module": "trap_module", "@class": "Trap"}}
    content["properties"] = {"y": {"@module": "trap_module", "@class": "Trap"}}
    path = tmp_path / "structure.json"
    path.write_text(json.dumps(content))
    (found,) = read_structures(path)
    assert np.allclose(found.atoms.positions, bulk("Cu", cubic=True).positions)
    assert not (tmp_path / "ran").exists()
    path.write_text(json.dumps({"@module": "trap_module", "@class": "Trap"}))
    with pytest.raises(InputError, match="holds a Trap"):
        read_structures(path)
    assert not (tmp_path / "ran").exists()
