"""The label factory: structures are what they say, labels are raw and reproducible, a killed run continues."""

import json
import os
from collections import Counter
from dataclasses import replace
from pathlib import Path

import ase.db
import numpy as np
import pytest
from ase.calculators.emt import EMT
from ase.data import covalent_radii
from ase.io import read
from click.testing import CliRunner
from small_recipe import SMALL, recipe

from faenet_calc.cli import main
from faenet_calc.cli.data_generate import command
from faenet_calc.data.formats import read_records
from faenet_calc.errors import InputError
from faenet_calc.files import locked
from faenet_calc.labelling import generate, plan
from faenet_calc.labelling.adsorbates import ADSORBATES, gas_molecule, random_rotation, upright
from faenet_calc.labelling.calculators import in_own_folders
from faenet_calc.labelling.factory import LOCK
from faenet_calc.labelling.labels import fingerprint
from faenet_calc.labelling.sampling import snapshots
from faenet_calc.labelling.structures import Substrate, bulk_cell, place, sites, slab
from faenet_calc.labelling.tasks import substrates

CU = Substrate(name="Cu", symbols=("Cu",), crystal="fcc", a=3.6)
IRON = Substrate(name="Fe", symbols=("Fe",), crystal="bcc", a=2.87)
RU = Substrate(name="Ru", symbols=("Ru",), crystal="hcp", a=2.7, c=4.28)


class FailingEMT(EMT):
    """EMT that refuses structures with oxygen."""

    def calculate(self, atoms, *args):
        if 8 in atoms.numbers:
            raise RuntimeError("no oxygen today")
        super().calculate(atoms, *args)


def rng() -> np.random.Generator:
    return np.random.default_rng(1)


def labels(folder: Path) -> list:
    return read(folder / "labels.extxyz", ":")


@pytest.mark.parametrize(
    ("substrate", "facet", "size", "n_surface", "kinds"),
    [
        (CU, "fcc111", (2, 2, 3), 4, {"ontop": 4, "bridge": 12, "fcc": 4, "hcp": 4}),
        (CU, "fcc111", (3, 3, 4), 9, {"ontop": 9, "bridge": 27, "fcc": 9, "hcp": 9}),
        (CU, "fcc100", (2, 2, 3), 4, {"ontop": 4, "bridge": 8, "hollow": 4}),
        (CU, "fcc110", (2, 2, 4), 4, {"ontop": 4, "bridge": 4, "longbridge": 4, "hollow": 4}),
        (RU, "hcp0001", (2, 2, 3), 4, {"ontop": 4, "bridge": 12, "fcc": 4, "hcp": 4}),
        (IRON, "bcc110", (2, 2, 3), 4, None),
        (IRON, "bcc100", (2, 2, 4), 4, {"ontop": 4, "bridge": 8, "hollow": 4}),
        (CU, "fcc211", (3, 2, 3), 6, None),
    ],
)
def test_slabs_have_tags_and_the_sites_of_their_facet(substrate, facet, size, n_surface, kinds):
    atoms = slab(substrate, facet, size, 8.0, rng())
    assert atoms.pbc.tolist() == [True, True, False]
    assert np.bincount(atoms.get_tags()).tolist() == [len(atoms) - n_surface, n_surface]
    # The topmost atoms belong to the surface, the lowest never.
    assert atoms.get_tags()[np.argmax(atoms.positions[:, 2])] == 1
    assert atoms.get_tags()[np.argmin(atoms.positions[:, 2])] == 0
    found = Counter(site.kind for site in sites(atoms))
    if kinds is None:
        assert {"ontop", "bridge", "hollow"} <= set(found)
    else:
        assert found == kinds


@pytest.mark.parametrize("seed", [161, 535])
def test_atoms_in_line_at_the_rim_are_no_face(seed):
    """These strains leave rows of (211) straight to the last digit, or nearly: triangles of no area."""
    ideal = slab(replace(CU, a=3.61), "fcc211", (3, 2, 3), 8.0, rng())
    strain = np.random.default_rng(seed).uniform(-0.02, 0.02, (3, 3))
    strain = (strain + strain.T) / 2
    strain[2] = strain[:, 2] = 0
    strained = ideal.copy()
    strained.set_cell(np.asarray(ideal.cell) @ (np.eye(3) + strain), scale_atoms=True)
    corners = [sum(site.kind == "ontop" for site in sites(atoms)) for atoms in (ideal, strained)]
    assert corners[0] == corners[1]
    assert {"ontop", "bridge", "hollow"} <= {site.kind for site in sites(strained)}


def test_hcp_hollow_has_an_atom_below_and_fcc_hollow_has_none():
    atoms = slab(CU, "fcc111", (3, 3, 3), 8.0, rng())
    second = np.unique(atoms.positions[:, 2].round(3))[1]
    below = atoms[np.isclose(atoms.positions[:, 2], second, atol=1e-2)]
    for site in sites(atoms):
        probe = below.copy()
        probe.append("H")
        probe.positions[-1] = [*site.position[:2], second]
        closest = probe.get_distances(-1, range(len(below)), mic=True).min()
        assert (closest < 0.1) == (site.kind == "hcp"), site


@pytest.mark.parametrize("name", ADSORBATES)
def test_adsorbates_touch_the_slab_with_the_binding_atom_down(name):
    bare = slab(CU, "fcc111", (3, 3, 3), 8.0, rng())
    site = next(site for site in sites(bare) if site.kind == "ontop")
    atoms = place(bare, name, site, 0.0, 0.0, rng())
    n = len(bare)
    assert atoms.get_tags()[:n].max() == 1
    assert (atoms.get_tags()[n:] == 2).all()
    distances = atoms.get_all_distances(mic=True)[n:, :n]
    sums = covalent_radii[atoms.numbers[n:]][:, None] + covalent_radii[atoms.numbers[:n]]
    assert (distances - sums).min() == pytest.approx(0.0, abs=1e-6)
    assert upright(name).positions[1:, 2].max(initial=0.1) > 0
    # The molecule came through in one piece.
    assert np.allclose(
        np.sort(atoms[n:].get_all_distances().ravel()), np.sort(gas_molecule(name).get_all_distances().ravel())
    )


def test_random_rotations_are_proper_and_differ():
    first, second = random_rotation(g := rng()), random_rotation(g)
    assert np.allclose(first @ first.T, np.eye(3))
    assert np.linalg.det(first) == pytest.approx(1)
    assert not np.allclose(first, second)


def test_alloys_have_their_composition_and_vegards_volume():
    pure, (mixed,) = substrates(recipe())
    volume = sum(metal.a**3 for metal in pure) / 2
    assert mixed.a**3 == pytest.approx(volume)
    atoms = slab(mixed, "fcc111", (2, 2, 3), 8.0, rng())
    assert Counter(atoms.get_chemical_symbols()) == {"Cu": 6, "Pd": 6}
    assert Counter(bulk_cell(mixed, rng()).get_chemical_symbols()) == {"Cu": 4, "Pd": 4}
    assert bulk_cell(RU, rng()).pbc.all()


def test_the_task_list_is_fixed_grows_at_its_end_and_spreads_over_systems():
    short, long = plan(recipe(tasks=30)), plan(recipe(tasks=90))
    assert long[:30] == short
    assert plan(recipe(tasks=30, seed=1)) != short
    assert {task.system for task in long} >= {
        "Cu_fcc111_CO",
        "Pd_fcc111_clean",
        "Cu50Pd50_fcc111_O",
        "gas_H2O",
        "Cu_fcc_bulk",
    }


def test_held_out_rules_match_pairs_and_alloys_only():
    split = {task.system: task.split for task in plan(recipe(tasks=200))}
    assert split["Pd_fcc111_CO"] == split["Cu50Pd50_fcc111_O"] == split["Cu50Pd50_fcc_bulk"] == "heldout"
    assert split["Cu_fcc111_CO"] == split["Pd_fcc111_O"] == split["gas_CO"] == split["Pd_fcc111_clean"] == "train"


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    progress = generate(recipe(tasks=40), folder)
    assert progress.tasks == 40
    assert progress.failed == 0
    assert progress.labels == len(labels(folder)) > 100
    return folder


def test_labels_are_the_calculators_own_raw_values(made):
    frames = labels(made)
    assert {atoms.info["how"] for atoms in frames} >= {"start", "relax", "md", "rattle", "strain", "curve"}
    for atoms in frames[::7]:
        assert not atoms.constraints
        again = atoms.copy()
        again.calc = EMT()
        assert atoms.get_potential_energy() == pytest.approx(again.get_potential_energy(), abs=1e-6)
        assert np.allclose(atoms.get_forces(), again.get_forces(), atol=1e-5)
        if atoms.pbc.any():
            assert np.allclose(atoms.get_stress(), again.get_stress(), atol=1e-6)
        else:
            assert "stress" not in atoms.calc.results


def test_fixed_atoms_of_relaxations_keep_their_forces(made):
    relaxed = [atoms for atoms in labels(made) if atoms.info["how"] == "relax" and atoms.pbc.any()]
    assert relaxed
    assert all(np.abs(atoms.get_forces()).max(axis=1).min() > 0 for atoms in relaxed)


def test_every_label_says_where_it_comes_from(made):
    tasks = {task.index: task for task in plan(recipe(tasks=40))}
    for atoms in labels(made):
        info, task = atoms.info, tasks[int(atoms.info["task"])]
        assert (info["system"], info["split"], info["kind"]) == (task.system, task.split, task.kind)
        assert info["seed"] == task.seed
        assert info["calculator"] == "ase.calculators.emt.EMT"
        assert info["recipe"] == f"small:sha256-{recipe().digest()}"
        assert (info["site"] != "none") == bool(task.molecule and task.facet)
        periodic = 0 if info["metal"] == "none" else 2 if task.facet else 3
        assert atoms.pbc.sum() == periodic


def test_no_two_labels_are_equal(made):
    marks = [fingerprint(atoms) for atoms in labels(made)]
    assert len(set(marks)) == len(marks)


def test_the_fingerprint_sees_through_rotation_and_order_but_not_through_motion():
    atoms = slab(CU, "fcc111", (2, 2, 3), 8.0, rng())
    turned = atoms.copy()[::-1]
    turned.rotate(37, "z", rotate_cell=True)
    assert fingerprint(turned) == fingerprint(atoms)
    moved = atoms.copy()
    moved.positions[0, 2] += 0.05
    assert fingerprint(moved) != fingerprint(atoms)
    replaced = atoms.copy()
    replaced.numbers[0] = 47
    assert fingerprint(replaced) != fingerprint(atoms)


def test_a_killed_run_continues_to_the_same_labels(tmp_path):
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    generate(recipe(), whole)
    generate(recipe(tasks=5), cut)
    # The kill: a task half written to the labels, its journal line torn.
    with (cut / "labels.extxyz").open("a") as file:
        file.write("14\nLattice=")
    with (cut / "journal.jsonl").open("a") as file:
        file.write('{"task": 5, "lab')
    progress = generate(recipe(), cut)
    assert (cut / "labels.extxyz").read_text() == (whole / "labels.extxyz").read_text()
    assert progress.tasks == 12
    journal = [json.loads(line) for line in (cut / "journal.jsonl").read_text().splitlines()[1:]]
    assert [line["task"] for line in journal] == list(range(12))


def test_a_database_holds_the_same_labels_also_after_a_kill(tmp_path):
    pytest.importorskip("ase_db_backends")
    text = generate(recipe(), tmp_path / "text").file
    first = generate(recipe(tasks=5), tmp_path / "cut", form="aselmdb")
    # The kill: a task whose labels are written and whose journal line is torn.
    with (tmp_path / "cut" / "journal.jsonl").open("r+") as file:
        lines = file.read().splitlines(keepends=True)
        file.seek(0)
        file.truncate()
        file.write("".join(lines[:-1]) + lines[-1][:20])
    with pytest.raises(InputError, match="as aselmdb, asked for extxyz"):
        generate(recipe(), tmp_path / "cut", form="extxyz")
    done = generate(recipe(), tmp_path / "cut")
    assert done.file == first.file
    assert first.labels < done.labels
    one, two = list(read_records(text)), list(read_records(done.file))
    assert len(one) == len(two) == done.labels
    for a, b in zip(one, two, strict=True):
        assert dict(a.info) == {name: b.info[name] for name in a.info}
        assert np.array_equal(a.atoms.numbers, b.atoms.numbers)
        assert np.array_equal(a.atoms.get_tags(), b.atoms.get_tags())
        assert a.results.keys() == b.results.keys()
        for name in ("energy", "forces"):
            assert np.allclose(a.results[name], b.results[name], atol=1e-7, rtol=0)
    generate(recipe(), tmp_path / "cut")
    assert len(list(read_records(done.file))) == done.labels


def test_a_database_that_lost_structures_is_noticed(tmp_path):
    pytest.importorskip("ase_db_backends")
    done = generate(recipe(tasks=2), tmp_path, form="aselmdb")
    with ase.db.connect(str(done.file), use_lock_file=False) as database:
        database.delete([1])
    with pytest.raises(InputError, match="its journal says"):
        generate(recipe(tasks=3), tmp_path)


def test_two_processes_make_the_same_labels_as_one(tmp_path):
    generate(recipe(tasks=6), tmp_path / "one")
    generate(recipe(tasks=6), tmp_path / "two", workers=2)
    one, two = (sorted(read(tmp_path / name / "labels.extxyz", ":"), key=_place) for name in ("one", "two"))
    assert [_place(atoms) for atoms in one] == [_place(atoms) for atoms in two]
    assert all(np.allclose(a.positions, b.positions) for a, b in zip(one, two, strict=True))


def _place(atoms) -> tuple[int, int]:
    return int(atoms.info["task"]), int(atoms.info["snapshot"])


@pytest.mark.parametrize(("workers", "folders"), [(1, {0}), (2, {1, 2})])  # a late worker may find no task
def test_workers_write_to_folders_of_their_own(tmp_path, workers, folders):
    """Two runs of a DFT code in one folder would overwrite each other's files."""
    calculator = {"factory": "ase.calculators.emt.EMT", "kwargs": {"directory": str(tmp_path / "code")}}
    settings = recipe(tasks=4, calculator=calculator)
    generate(settings, tmp_path / "out", workers=workers)
    assert len(list((tmp_path / "code").iterdir())) in folders
    first, second = (in_own_folders(settings, name).calculator.kwargs["directory"] for name in ("a", "b"))
    assert (first, second) == (str(tmp_path / "code" / "a"), str(tmp_path / "code" / "b"))


@pytest.mark.parametrize("box", [0.0, 9.0])
def test_gas_molecules_are_put_into_the_box_of_the_recipe(tmp_path, box):
    generate(recipe(tasks=2, gas_box_A=box, metals=[], alloys=[], slabs=[], adsorbates=[], heldout=[]), tmp_path)
    found = labels(tmp_path)
    assert found
    assert {(tuple(atoms.cell.lengths()), bool(atoms.pbc.all())) for atoms in found} == {((box,) * 3, box > 0)}


def test_a_folder_of_another_recipe_is_refused(tmp_path):
    generate(recipe(tasks=1), tmp_path)
    with pytest.raises(InputError, match="another recipe"):
        generate(recipe(tasks=1, seed=5), tmp_path)


def test_a_folder_in_use_is_refused(tmp_path):
    with locked(tmp_path / LOCK, wait=False), pytest.raises(InputError, match="in use"):
        generate(recipe(tasks=1), tmp_path)


def test_a_shortened_label_file_is_noticed(tmp_path):
    generate(recipe(tasks=2), tmp_path)
    os.truncate(tmp_path / "labels.extxyz", 10)
    with pytest.raises(InputError, match="shorter than its journal"):
        generate(recipe(tasks=3), tmp_path)


@pytest.mark.parametrize("form", ["extxyz", "aselmdb"])
def test_labels_without_their_journal_are_refused(tmp_path, form):
    """Which tasks are done is unknown then, and every label would be written again."""
    done = generate(recipe(tasks=2), tmp_path, form=form)
    before = len(list(read_records(done.file)))
    (tmp_path / "journal.jsonl").rename(tmp_path / "away")
    with pytest.raises(InputError, match=r"journal\.jsonl is missing"):
        generate(recipe(tasks=2), tmp_path, form=form)
    with pytest.raises(InputError, match=r"journal\.jsonl is missing"):
        generate(recipe(tasks=2), tmp_path)
    (tmp_path / "away").rename(tmp_path / "journal.jsonl")
    generate(recipe(tasks=2), tmp_path)
    assert len(list(read_records(done.file))) == before > 0


def test_a_damaged_journal_is_refused(tmp_path):
    generate(recipe(tasks=2), tmp_path)
    journal = tmp_path / "journal.jsonl"
    lines = journal.read_text().splitlines(keepends=True)
    journal.write_text("".join([lines[0], "{not JSON\n", lines[2]]))
    with pytest.raises(InputError, match="is damaged"):
        generate(recipe(tasks=3), tmp_path)
    journal.write_text("")
    with pytest.raises(InputError, match="is damaged"):
        generate(recipe(tasks=3), tmp_path)


def test_an_error_of_the_calculator_ends_its_task_only(tmp_path):
    settings = recipe()
    settings = replace(settings, calculator=replace(settings.calculator, factory=f"{__name__}.FailingEMT"))
    progress = generate(settings, tmp_path, trust_code=True)
    with_oxygen = [task for task in plan(settings) if "O" in task.molecule]
    assert progress.failed == len(with_oxygen) > 0
    assert progress.tasks == 12
    assert progress.labels == len(labels(tmp_path)) > 0
    assert "no oxygen today" in (tmp_path / "journal.jsonl").read_text()


def test_huge_forces_are_left_out(tmp_path):
    strict = recipe(sampling={**SMALL["sampling"], "max_force": 1.0})
    progress = generate(strict, tmp_path)
    assert progress.dropped > 0
    assert max(np.abs(atoms.get_forces()).max() for atoms in labels(tmp_path)) <= 1.0


def test_the_time_limit_begins_no_further_task(tmp_path):
    assert generate(recipe(), tmp_path, time_limit_s=0.0).tasks == 0
    assert generate(recipe(tasks=3), tmp_path).tasks == 3


def test_curves_go_from_contact_to_far_away():
    task = next(task for task in plan(recipe(tasks=60)) if task.kind == "curve")
    found = [(s.height, s.atoms.get_potential_energy()) for s in snapshots(task, recipe(), EMT())]
    heights = [height for height, _ in found]
    assert heights == sorted(heights)
    assert len(heights) == 3
    assert heights[0] < 0.3 < 2.0 < heights[-1]


@pytest.mark.parametrize("kinds", [("relax",), ("md", "curve")])
def test_adsorbates_are_treated_as_the_recipe_says(kinds):
    usual, chosen = recipe(tasks=200, mix={}), recipe(tasks=200, mix={"adsorbate_kinds": list(kinds)})
    found = [{task.kind for task in plan(settings) if task.facet and task.molecule} for settings in (usual, chosen)]
    assert found == [{"relax", "curve", "rattle", "md"}, set(kinds)]
    assert usual.digest() != chosen.digest()


@pytest.mark.parametrize(("tilt", "within"), [(0.0, (0.0, 1e-6)), (30.0, (2.0, 30.0)), (120.0, (60.0, 120.0))])
def test_adsorbates_start_tilted_as_far_as_the_recipe_allows(tilt, within):
    tilted = recipe(tasks=200, adsorbates=["CO"], sampling={**SMALL["sampling"], "tilt_deg": tilt})
    angles = []
    for task in [task for task in plan(tilted) if task.kind == "rattle" and task.molecule]:
        start = next(iter(snapshots(task, tilted, EMT()))).atoms
        carbon, oxygen = start.positions[start.get_tags() == 2]
        axis = oxygen - carbon
        angles.append(np.degrees(np.arccos(np.clip(axis[2] / np.linalg.norm(axis), -1, 1))))
    assert len(angles) > 10
    assert within[0] <= max(angles) <= within[1] + 1e-6


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"adsorbates": ["XeF2"]}, "XeF2"),
        ({"gas": ["H"]}, "gas"),
        ({"task": 5}, "did you mean 'tasks'"),
        ({"metals": [{"symbol": "Cu", "crystal": "hcp", "a": 2.5}]}, "hcp needs c"),
        ({"metals": [{"symbol": "Cq", "crystal": "fcc", "a": 2.5}]}, "chemical element"),
        ({"alloys": [{"metals": ["Cu", "Au"]}]}, "must be listed under metals"),
        ({"slabs": [{"crystal": "hcp", "facet": "111", "sizes": [[2, 2, 3]]}]}, "facet"),
        ({"slabs": [{"crystal": "fcc", "facet": "111", "sizes": [[2, 2]]}]}, "n1, n2, layers"),
        ({"heldout": [{}]}, "hold out everything"),
        ({"calculator": {"factory": "EMT"}}, "dotted path"),
        ({"sampling": {"rattle_A": [0.1]}}, "smallest, largest"),
        ({"sampling": {"tilt_deg": 200}}, "upside down"),
        ({"mix": {"adsorbate_kinds": ["relaxed"]}}, "one or more of curve, md, rattle, relax"),
        ({"mix": {"adsorbate_kinds": []}}, "one or more of"),
        ({"gas_box_A": -1.0}, "edge of a box"),
    ],
)
def test_mistakes_in_a_recipe_are_named(changes, words):
    with pytest.raises(InputError, match=words):
        recipe(**changes)


def test_the_command_runs_and_reports(tmp_path, repository):
    recipe_file = repository / "examples" / "recipes" / "emt.yaml"
    arguments = [str(recipe_file), "-o", str(tmp_path), "--tasks", "2", "--format", "extxyz", "--json"]
    result = CliRunner().invoke(command, arguments)
    assert result.exit_code == 0, result.output
    printed = json.loads(result.stdout)
    assert printed["tasks"] == 2
    assert printed["labels"] == len(labels(tmp_path))
    assert printed["file"] == str(tmp_path / "labels.extxyz")


def test_the_command_generates_every_shard_of_a_manifest(tmp_path):
    """Shards of one run share a folder; another seed is another run."""
    (tmp_path / "small.yaml").write_text(json.dumps(SMALL))
    listed = {"sha256": "0" * 64, "structures": 1, "recipe": "small.yaml", "tasks": 1}
    shards = [
        {"file": "one.extxyz.xz", "split": "train", **listed},
        {"file": "two.extxyz.xz", "split": "train", "seed": 5, **listed},
        {"file": "validation.extxyz.xz", "split": "val", **listed},
    ]
    reference = {"calculator": "EMT", "version": "ASE"}
    manifest = {"name": "m", "summary": "s", "split": "x", "licence": "MIT", "reference": reference, "shards": shards}
    (tmp_path / "manifest.yaml").write_text(json.dumps(manifest))
    result = CliRunner().invoke(command, [str(tmp_path / "manifest.yaml"), "-o", str(tmp_path / "out"), "--json"])
    assert result.exit_code == 0, result.output
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    assert [Path(row["folder"]).name for row in rows] == ["one", "two"]
    assert all(row["tasks"] == 1 for row in rows)
    one, two = (labels(tmp_path / "out" / name)[0].info["seed"] for name in ("one", "two"))
    assert one != two


@pytest.mark.parametrize("limit", ["nan", "inf", "-1"])
@pytest.mark.parametrize("words", [["data", "generate"], ["train"]])
def test_a_time_limit_is_a_number_of_seconds(tmp_path, words, limit):
    file = tmp_path / "recipe.yaml"
    file.write_text("name: nothing\n")
    found = CliRunner().invoke(main, [*words, str(file), "--time-limit", limit])
    assert found.exit_code == 2 and "--time-limit" in found.output
