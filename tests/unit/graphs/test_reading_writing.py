"""Files of structures: which are read, how they are named, and that writing is all or nothing."""

import bz2
import gzip
import lzma

import numpy as np
import pytest
from ase.build import bulk, molecule
from ase.io import read, write

from faenet_calc.errors import InputError
from faenet_calc.graphs import writing
from faenet_calc.graphs.reading import read_structures
from faenet_calc.graphs.writing import write_structures


@pytest.fixture
def three(tmp_path):
    path = tmp_path / "three.extxyz"
    write(path, [bulk("Cu", a=a) for a in (3.5, 3.6, 3.7)])
    return path


def test_every_structure_is_read_and_named(three, tmp_path):
    molecule("CO").write(tmp_path / "co.xyz")
    found = read_structures([three, tmp_path / "co.xyz"])
    assert [item.stem for item in found] == ["three-0", "three-1", "three-2", "co"]
    assert found[1].name == f"{three}@1" and found[3].name == str(tmp_path / "co.xyz")
    assert len(found[3].atoms) == 2


@pytest.mark.parametrize(("index", "volumes"), [("1", [3.6]), ("-1", [3.7]), ("::2", [3.5, 3.7])])
def test_indices(three, index, volumes):
    found = read_structures(f"{three}@{index}")
    assert [item.atoms.get_volume() for item in found] == pytest.approx([a**3 / 4 for a in volumes])


@pytest.mark.parametrize("ending", ["xz", "gz", "bz2"])
def test_compressed_structures_are_decompressed_once(tmp_path, monkeypatch, ending):
    """ASE alone decompresses the file again for every structure, which takes minutes where there are thousands."""
    path = tmp_path / f"many.extxyz.{ending}"
    write(path, [bulk("Cu", a=a) for a in np.linspace(3.4, 3.8, 40)])
    rewound = []
    module, kind = {"xz": (lzma, "LZMAFile"), "gz": (gzip, "GzipFile"), "bz2": (bz2, "BZ2File")}[ending]
    stream = getattr(module, kind)
    monkeypatch.setattr(stream, "seek", _recording(stream.seek, rewound))
    found = read_structures(path)
    assert [item.atoms.get_volume() for item in found] == pytest.approx([a**3 / 4 for a in np.linspace(3.4, 3.8, 40)])
    assert not rewound
    read(path, ":")
    assert len(rewound) >= 40


def _recording(seek, calls):
    def recorded(self, *arguments):
        calls.append(arguments)
        return seek(self, *arguments)

    return recorded


def test_an_index_out_of_range_names_the_file(three):
    with pytest.raises(InputError, match=r"three\.extxyz"):
        read_structures(f"{three}@7")


def test_a_folder_is_no_structure(tmp_path):
    with pytest.raises(InputError, match="is a folder"):
        read_structures(tmp_path)


def test_unusable_structures_are_read_if_wanted(tmp_path):
    atoms = molecule("CO")
    atoms.positions[0] = np.nan
    atoms.write(tmp_path / "nan.traj")
    with pytest.raises(InputError, match=r"nan\.traj: "):
        read_structures(tmp_path / "nan.traj")
    assert len(read_structures(tmp_path / "nan.traj", check=False)) == 1


def test_a_failed_write_leaves_the_old_file(three, monkeypatch):
    before = three.read_bytes()

    def break_off(path, images):
        path.write_text("half of")
        raise OSError("disk full")

    monkeypatch.setattr(writing, "write", break_off)
    with pytest.raises(OSError, match="disk full"):
        write_structures(three, [bulk("Cu")], overwrite=True)
    assert three.read_bytes() == before
    assert [path.name for path in three.parent.iterdir()] == ["three.extxyz"], "temporary files were left"


def test_existing_files_need_permission(three):
    with pytest.raises(InputError, match=r"three\.extxyz exists"):
        write_structures(three, [bulk("Cu")])
    write_structures(three, [bulk("Cu")], overwrite=True)
    assert len(read(three, ":")) == 1


@pytest.mark.parametrize("name", ["x.traj", "x.extxyz", "x.json", "x.cif", "POSCAR"])
def test_formats(tmp_path, name):
    write_structures(tmp_path / name, [bulk("Cu", cubic=True)])
    assert len(read(tmp_path / name)) == 4
