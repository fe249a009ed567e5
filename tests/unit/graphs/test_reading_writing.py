"""Files of structures: which are read, how they are named, and that writing is all or nothing."""

import bz2
import gzip
import lzma
import os
import tempfile

import numpy as np
import pytest
from ase import Atoms
from ase.build import bulk, fcc111, molecule
from ase.calculators.singlepoint import SinglePointCalculator
from ase.io import read, write

from faenet_calc.errors import InputError
from faenet_calc.graphs import writing
from faenet_calc.graphs.reading import read_structures
from faenet_calc.graphs.writing import LossyFormatWarning, reserved, write_structures


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


def test_an_at_sign_in_a_file_name_is_no_index_if_the_file_exists(three, tmp_path):
    for name in ("run@2.extxyz", "T@300K.extxyz", "a@1"):
        path = tmp_path / name
        write(path, [bulk("Cu", a=a) for a in (3.5, 3.6)], format="extxyz")
        assert len(read_structures(path)) == 2
        assert read_structures(f"{path}@1")[0].atoms.get_volume() == pytest.approx(3.6**3 / 4)
    assert len(read_structures(f"{three}@1")) == 1, "the index still works"
    with pytest.raises(InputError, match=r"absent@home\.extxyz: no such file"):
        read_structures(tmp_path / "absent@home.extxyz")


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


def with_energy(atoms):
    atoms.calc = SinglePointCalculator(atoms, energy=-1.0, forces=np.zeros((len(atoms), 3)))
    return atoms


@pytest.mark.parametrize("name", ["out.cif", "out.vasp", "out.xsf"])
def test_formats_without_energies_say_so(tmp_path, name):
    with pytest.warns(LossyFormatWarning, match=r"out\.\w+: the format \w+ does not hold energies and forces;"):
        write_structures(tmp_path / name, [with_energy(bulk("Cu"))])
    assert len(read(tmp_path / name)) == 1
    write_structures(tmp_path / f"plain-{name}", [bulk("Cu")])  # no energy, no warning


@pytest.mark.parametrize("name", ["out.cif", "out.vasp"])
def test_formats_without_periodicity_say_so(tmp_path, name):
    slab = bulk("Cu", cubic=True)
    slab.pbc = [True, True, False]
    with pytest.warns(LossyFormatWarning, match="periodic boundaries TTF may be read back differently"):
        write_structures(tmp_path / name, [slab])
    assert read(tmp_path / name).pbc.all(), "this format keeps the periodicity: no need to warn"


@pytest.mark.parametrize("name", ["out.extxyz", "out.traj", "out.json"])
def test_complete_formats_keep_everything(tmp_path, name):
    slab = bulk("Cu", cubic=True)
    slab.pbc = [True, True, False]
    write_structures(tmp_path / name, [with_energy(slab)])
    again = read(tmp_path / name)
    assert again.get_potential_energy() == -1.0 and again.pbc.tolist() == [True, True, False]


def test_an_output_is_reserved_for_one_process(tmp_path):
    path = tmp_path / "out.extxyz"
    with reserved(path):
        assert not path.exists()
        with pytest.raises(InputError, match=r"out\.extxyz is being written by another process; wait"), reserved(path):
            pass
    with reserved(path):
        pass
    assert list(tmp_path.iterdir()) == []


def test_leftovers_of_a_killed_process_are_removed(tmp_path):
    names = [".out.extxyz.ab12cd34", ".out.extxyz.old", ".other.extxyz.ab12cd34"]
    for name in names:
        (tmp_path / name).mkdir()
        (tmp_path / name / "out.extxyz").write_text("half a struc")
    with reserved(tmp_path / "out.extxyz"):
        pass
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names[1:])


def test_a_folder_without_write_permission():
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o555)
        if os.geteuid() == 0:  # root may write everywhere
            os.seteuid(65534)
        try:
            words = r"out\.extxyz cannot be written: Permission denied \(folder .*\)"
            with pytest.raises(InputError, match=words), reserved(f"{folder}/out.extxyz"):
                pass
        finally:
            os.seteuid(os.getuid())


def in_bohr(atoms):
    atoms = atoms.copy()
    atoms.set_cell(atoms.cell / 0.529177, scale_atoms=False)
    atoms.positions /= 0.529177
    return atoms


REAL = {
    **{name: molecule(name) for name in ("H2O", "CH4", "C6H6", "CH3OH", "SiH4")},
    **{name: bulk(name) for name in ("Cu", "Pt", "Si", "Na", "Fe")},
    "expanded Cu": bulk("Cu", a=4.2),
    "Pt(111)": fcc111("Pt", (2, 2, 3), vacuum=8.0),
    "dissociated N2": Atoms("N2", [[0, 0, 0], [0, 0, 2.3]]),
    "gas": Atoms("H3", [[0, 0, 0], [0, 0, 6.0], [6.0, 0, 0]]),
}


@pytest.mark.parametrize("name", REAL)
def test_coordinates_in_bohr_are_suspected(tmp_path, name):
    path = tmp_path / "structure.traj"
    write(path, REAL[name])
    read_structures(path)  # no warning
    write(path, in_bohr(REAL[name]))
    if name in ("dissociated N2", "gas"):
        read_structures(path)  # nothing to tell from
    else:
        with pytest.warns(UserWarning, match=r"structure\.traj: no two atoms are within bonding distance, .* Bohr"):
            read_structures(path)
