"""Every format gives the same graphs and labels; the cache is shared, safe and exact; batches keep what is missing."""

import json
import multiprocessing
import pickle
import shutil

import numpy as np
import pytest
import torch
from ase import Atoms
from ase.build import fcc111, molecule
from ase.calculators.singlepoint import SinglePointCalculator
from ase.constraints import FixAtoms
from ase.io import write

from faenet_calc.data import cache
from faenet_calc.data.dataset import collate, open_dataset
from faenet_calc.data.export import export
from faenet_calc.data.formats import find_files, read_records
from faenet_calc.data.labels import labels_of
from faenet_calc.errors import InputError
from faenet_calc.graphs.neighbors import neighbor_list

CUTOFF = 4.0


def _structures(count=6):
    random = np.random.default_rng(0)
    made = []
    for number in range(count):
        atoms = fcc111("Cu", (2, 2, 2 + number % 2), vacuum=5, periodic=True)
        atoms.info = {"sid": number // 2, "word": "a b"}
        atoms.positions += random.normal(0, 0.1, atoms.positions.shape)
        atoms.set_constraint(FixAtoms(indices=[0, 1]))
        stress = random.normal(0, 0.01, 6)
        atoms.calc = SinglePointCalculator(
            atoms, energy=-3.5 * len(atoms) + number, forces=random.normal(size=(len(atoms), 3)), stress=stress
        )
        made.append(atoms)
    return made


@pytest.fixture
def extxyz(tmp_path):
    write(tmp_path / "data.extxyz", _structures())
    return tmp_path / "data.extxyz"


@pytest.mark.parametrize("ending", ["extxyz", "extxyz.xz", "extxyz.gz", "traj", "db", "aselmdb"])
def test_every_format_gives_raw_labels_and_constraints(tmp_path, ending):
    if ending == "aselmdb":
        pytest.importorskip("ase_db_backends")
    write(tmp_path / "in.traj", _structures())
    target = tmp_path / f"data.{ending}"
    assert export(tmp_path / "in.traj", target) == 6
    dataset = open_dataset(target, cutoff=CUTOFF, cache_dir=tmp_path / "cache")
    assert len(dataset) == 6
    assert dataset.n_labels == {"energy": 6, "forces": 6, "stress": 6}
    for index, atoms in enumerate(_structures()):
        item = dataset[index]
        np.testing.assert_allclose(item.graph.positions, atoms.positions, atol=1e-7)
        np.testing.assert_allclose(item.forces, atoms.calc.results["forces"], atol=1e-7)
        assert np.abs(atoms.get_forces()[:2]).max() == 0 < np.abs(item.forces[:2].numpy()).min()
        np.testing.assert_allclose(item.stress, atoms.get_stress(voigt=False, apply_constraint=False), atol=1e-8)
        assert item.energy == pytest.approx(atoms.calc.results["energy"], abs=1e-7)
        assert item.free.tolist() == [False, False] + [True] * (len(atoms) - 2)
        said = dataset.info(index)
        assert said["sid"] == index // 2
        assert said["source"] == str(target)
        assert said["index"] == index


def test_graphs_are_those_of_the_neighbour_list(extxyz, tmp_path):
    dataset = open_dataset(extxyz, cutoff=CUTOFF, max_neighbors=8, cache_dir=tmp_path / "cache")
    assert dataset.n_dropped_edges > 0
    for index, record in enumerate(read_records(extxyz)):
        graph, atoms = dataset[index].graph, record.atoms
        edges = neighbor_list(atoms.positions, atoms.cell.array, atoms.pbc, CUTOFF, max_neighbors=8)
        for name in ("centre", "neighbor", "shift"):
            assert np.array_equal(getattr(graph, name), getattr(edges, name))
            assert getattr(graph, name).dtype == torch.long
        assert np.array_equal(graph.positions, atoms.positions)
        assert dataset.n_atoms[index] == len(atoms)
        assert dataset.n_edges[index] == len(edges)
    assert dataset.numbers == (29,)


def test_batches_put_nan_where_labels_are_missing(tmp_path):
    structures = _structures(3)
    structures[1].calc = SinglePointCalculator(structures[1], energy=1.0)
    structures[2].calc = SinglePointCalculator(structures[2], forces=np.ones((len(structures[2]), 3)))
    write(tmp_path / "data.traj", structures)
    dataset = open_dataset(tmp_path / "data.traj", cutoff=CUTOFF, cache_dir=tmp_path)
    items = [dataset[index] for index in range(3)]
    assert items[1].forces is None
    assert items[2].energy is None
    batch = collate(items).to("cpu", dtype=torch.float32)
    assert batch.energy.dtype == torch.float64
    assert batch.forces.dtype == batch.graph.positions.dtype == torch.float32
    assert batch.energy.isnan().tolist() == [False, False, True]
    assert batch.stress.isnan().all(dim=(1, 2)).tolist() == [False, True, True]
    missing = batch.forces.isnan().all(dim=1)
    assert missing.tolist() == (batch.graph.graph_of_atom == 1).tolist()
    assert batch.index.tolist() == [0, 1, 2]
    assert len(batch.free) == batch.graph.n_atoms


def test_forces_that_constraints_removed_are_no_labels(tmp_path):
    atoms = _structures(1)[0]
    atoms.calc.results["forces"][:2] = 0
    write(tmp_path / "data.traj", atoms)
    (record,) = read_records(tmp_path / "data.traj")
    labels = labels_of(record)
    assert labels.n_zeroed == 2
    assert np.isnan(labels.forces[:2]).all()
    assert np.isfinite(labels.forces[2:]).all()
    # A relaxed structure without any force keeps its zeros.
    atoms.calc.results["forces"][:] = 0
    write(tmp_path / "relaxed.traj", atoms)
    (record,) = read_records(tmp_path / "relaxed.traj")
    assert labels_of(record).n_zeroed == 0


def test_any_scalar_and_array_can_be_the_label(tmp_path):
    atoms = molecule("H2O")
    atoms.info["U0"] = -76.4
    atoms.arrays["my_forces"] = np.ones((3, 3))
    write(tmp_path / "qm9.extxyz", [atoms, atoms])
    dataset = open_dataset(
        tmp_path / "qm9.extxyz", cutoff=5, energy_key="U0", forces_key="my_forces", cache_dir=tmp_path
    )
    assert dataset[1].energy == -76.4
    assert bool((dataset[1].forces == 1).all())
    assert dataset[0].graph.pbc.tolist() == [[False] * 3]
    with pytest.raises(InputError, match=r"no structure has energy under 'gap'.*U0"):
        open_dataset(tmp_path / "qm9.extxyz", cutoff=5, energy_key="gap", cache_dir=tmp_path)
    with pytest.raises(InputError, match=r"no structure has an energy.*U0"):
        open_dataset(tmp_path / "qm9.extxyz", cutoff=5, cache_dir=tmp_path)


def test_a_structure_without_a_graph_is_named(tmp_path):
    atoms = _structures(2)
    atoms[1].positions[3, 0] = np.nan
    write(tmp_path / "data.traj", atoms)
    with pytest.raises(InputError, match=r"data.traj #1 \(Cu12\).*not all finite.*data check"):
        open_dataset(tmp_path / "data.traj", cutoff=CUTOFF, cache_dir=tmp_path / "cache")
    assert not [path for path in (tmp_path / "cache").iterdir() if path.is_dir()]


def test_pickled_lmdb_is_read_only_when_trusted(tmp_path):
    lmdb = pytest.importorskip("lmdb")
    from torch_geometric.data import Data

    atoms = _structures(1)[0]
    item = Data(
        pos=torch.tensor(atoms.positions, dtype=torch.float32),
        atomic_numbers=torch.tensor(atoms.numbers).float(),
        cell=torch.tensor(atoms.cell.array)[None],
        tags=torch.ones(len(atoms), dtype=torch.long),
        fixed=torch.tensor([1, 1] + [0] * (len(atoms) - 2)).float(),
        y=-1.25,
        force=torch.ones(len(atoms), 3),
        sid=77,
        y_relaxed=-2.5,
    )
    old = Data.__new__(Data)  # how versions before 2 pickled it: fields as plain attributes
    old.__dict__.update(dict(item._store._mapping))
    environment = lmdb.open(str(tmp_path / "oc.lmdb"), subdir=False, map_size=1 << 24)
    with environment, environment.begin(write=True) as transaction:
        for number in range(11):
            transaction.put(str(number).encode(), pickle.dumps(item))
        transaction.put(b"11", pickle.dumps(old))
        transaction.put(b"length", pickle.dumps(12))
    with pytest.raises(InputError, match="trust_pickle"):
        open_dataset(tmp_path / "oc.lmdb", cutoff=CUTOFF, cache_dir=tmp_path)
    dataset = open_dataset(tmp_path / "oc.lmdb", cutoff=CUTOFF, cache_dir=tmp_path, trust_pickle=True)
    assert len(dataset) == 12
    for index in (0, 11):
        assert dataset[index].energy == -1.25
        assert dataset.info(index)["sid"] == 77
        assert dataset[index].graph.tags.unique().tolist() == [1]
        assert int((~dataset[index].free).sum()) == 2
        assert bool((dataset[index].forces == 1).all())
    relaxed = open_dataset(
        tmp_path / "oc.lmdb", cutoff=CUTOFF, cache_dir=tmp_path, trust_pickle=True, energy_key="y_relaxed"
    )
    assert relaxed[3].energy == -2.5


VASPRUN = """<?xml version="1.0" encoding="ISO-8859-1"?>
<modeling><generator><i name="program" type="string">vasp</i></generator>
<kpoints><varray name="kpointlist"><v>0 0 0</v></varray><varray name="weights"><v>1</v></varray></kpoints>
<atominfo><atoms>2</atoms><types>1</types>
<array name="atoms"><dimension dim="1">ion</dimension><field type="string">element</field><field type="int">t</field>
<set><rc><c>H </c><c>1</c></rc><rc><c>H </c><c>1</c></rc></set></array></atominfo>
<structure name="initialpos"><crystal><varray name="basis"><v>8 0 0</v><v>0 8 0</v><v>0 0 8</v></varray></crystal>
<varray name="positions"><v>0 0 0</v><v>0.1 0 0</v></varray>
<varray name="selective"><v type="logical">F F F</v><v type="logical">T T T</v></varray></structure>
<calculation><scstep>
<energy><i name="e_fr_energy">-6.7</i><i name="e_wo_entrp">-6.6</i><i name="e_0_energy">-6.65</i></energy>
</scstep><structure><crystal><varray name="basis"><v>8 0 0</v><v>0 8 0</v><v>0 0 8</v></varray></crystal>
<varray name="positions"><v>0 0 0</v><v>0.1 0 0</v></varray></structure>
<varray name="forces"><v>0.5 0 0</v><v>-0.5 0 0</v></varray>
<energy><i name="e_fr_energy">-6.7</i><i name="e_wo_entrp">-6.6</i><i name="e_0_energy">-6.65</i></energy></calculation>
</modeling>
"""


def test_a_folder_of_vasp_runs(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "vasprun.xml").write_text(VASPRUN)
        (tmp_path / name / "OUTCAR").write_text("the same run, read from vasprun.xml")
        (tmp_path / name / "POSCAR").write_text("no labels here")
    assert [path.name for path in find_files(tmp_path)] == ["vasprun.xml"] * 2
    dataset = open_dataset(tmp_path, cutoff=CUTOFF, cache_dir=tmp_path / ".cache")
    assert len(dataset) == 2
    assert dataset[0].free.tolist() == [False, True]
    assert dataset[0].forces[:, 0].tolist() == [0.5, -0.5]
    assert dataset[0].energy == pytest.approx(-6.65)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("missing.extxyz", None, "does not exist"),
        ("broken.extxyz", "3\nProperties=species:S:1:pos:R:3\nH 0 0 0\n", "cannot be read as extxyz"),
        ("strange.zzz", "what is this", "not known to ASE"),
    ],
)
def test_bad_files_are_named(tmp_path, name, text, message):
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(InputError, match=f"{name}.*{message}"):
        open_dataset(tmp_path / name, cutoff=CUTOFF, cache_dir=tmp_path)


def test_missing_packages_are_named(tmp_path, monkeypatch):
    (tmp_path / "data.aselmdb").write_text("")
    monkeypatch.setattr("faenet_calc.data.formats.find_spec", lambda name: None)
    with pytest.raises(InputError, match="pip install ase-db-backends"):
        open_dataset(tmp_path / "data.aselmdb", cutoff=CUTOFF, cache_dir=tmp_path)


def test_the_cache_is_reused_and_keyed_by_content_and_settings(extxyz, tmp_path, monkeypatch):
    folder = tmp_path / "cache"
    first = open_dataset(extxyz, cutoff=CUTOFF, cache_dir=folder)
    with monkeypatch.context() as patch:
        patch.setattr(cache, "_build", lambda *_: pytest.fail("the cache was built again"))
        assert open_dataset(extxyz, cutoff=CUTOFF, cache_dir=folder).place == first.place
    assert open_dataset(extxyz, cutoff=CUTOFF + 0.5, cache_dir=folder).place != first.place
    write(extxyz, _structures(4))
    changed = open_dataset(extxyz, cutoff=CUTOFF, cache_dir=folder)
    assert changed.place != first.place
    assert len(changed) == 4


def test_a_damaged_cache_is_built_again(extxyz, tmp_path):
    first = open_dataset(extxyz, cutoff=CUTOFF, cache_dir=tmp_path / "cache")
    expected = first[3].graph.positions.clone()
    del first
    (place,) = [path for path in (tmp_path / "cache").iterdir() if path.is_dir()]
    (place / "positions").write_bytes(b"short")
    again = open_dataset(extxyz, cutoff=CUTOFF, cache_dir=tmp_path / "cache")
    assert torch.equal(again[3].graph.positions, expected)


def _open_and_sum(arguments):
    path, folder = arguments
    dataset = open_dataset(path, cutoff=CUTOFF, cache_dir=folder)
    return str(dataset.place), float(sum(dataset[i].graph.positions.sum() for i in range(len(dataset))))


def test_processes_share_one_cache(extxyz, tmp_path):
    folder = tmp_path / "cache"
    folder.mkdir()
    with multiprocessing.get_context("spawn").Pool(3) as pool:
        answers = pool.map(_open_and_sum, [(extxyz, folder)] * 6, chunksize=1)
    assert len(set(answers)) == 1
    assert len([path for path in folder.iterdir() if path.is_dir()]) == 1


def test_remains_of_a_killed_build_are_cleared(extxyz, tmp_path):
    folder = tmp_path / "cache"
    place = open_dataset(extxyz, cutoff=CUTOFF, cache_dir=folder).place
    shutil.rmtree(place)
    remains = folder / f".{place.name}-killed"
    remains.mkdir()
    (remains / "positions").write_bytes(b"half")
    open_dataset(extxyz, cutoff=CUTOFF, cache_dir=folder)
    assert not remains.exists()


def test_data_sets_travel_to_workers(extxyz, tmp_path):
    dataset = open_dataset(extxyz, cutoff=CUTOFF, cache_dir=tmp_path)
    dataset[0]
    packed = pickle.dumps(dataset)
    assert len(packed) < 5000
    assert torch.equal(pickle.loads(packed)[4].graph.positions, dataset[4].graph.positions)
    loader = torch.utils.data.DataLoader(
        dataset, batch_size=4, collate_fn=collate, num_workers=1, multiprocessing_context="spawn"
    )
    assert [batch.index.tolist() for batch in loader] == [[0, 1, 2, 3], [4, 5]]
    assert dataset[-1].index == 5
    with pytest.raises(IndexError):
        dataset[6]


def test_far_images_need_wider_integers(tmp_path):
    atoms = Atoms("Cu2", positions=[[0, 0, 0], [2.5 * 300, 2.0, 0]], cell=[2.5, 20, 20], pbc=[True, False, False])
    atoms.calc = SinglePointCalculator(atoms, energy=0.0)
    write(tmp_path / "far.traj", atoms)
    dataset = open_dataset(tmp_path / "far.traj", cutoff=3.0, cache_dir=tmp_path)
    meta = json.loads((dataset.place / "meta.json").read_text())
    assert meta["types"]["shift"] == "int16"
    assert dataset[0].graph.shift.abs().max() > 127
    assert dataset[0].graph.edge_vectors().norm(dim=1).max() < 3.0


def test_real_data_is_read_as_it_is(data_dir, tmp_path):
    dataset = open_dataset(data_dir / "mlearn" / "Li.extxyz.xz", cutoff=CUTOFF, cache_dir=tmp_path)
    assert len(dataset) == 29
    assert dataset.numbers == (3,)
    assert dataset.info(0)["group"]
