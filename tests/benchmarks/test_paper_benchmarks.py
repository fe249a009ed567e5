"""Quick runs of the benchmarks of the paper: all rows are there, derived numbers are right, and runs can be resumed."""

import json
import subprocess
import sys
from collections import Counter

import ablation
import dft
import is2re
import numpy as np
import oc20
import paper_pareto
import pytest
import qm9
import symmetry
from ase.build import add_adsorbate, fcc111
from ase.io import write
from rows import Rows

from faenet_calc.errors import InputError


def run(main, folder, name, *arguments):
    out, picture = folder / f"{name}.jsonl", folder / f"{name}.svg"
    main(["--quick", "--out", str(out), "--plot", str(picture), *arguments])
    assert picture.stat().st_size > 0
    return [json.loads(line) for line in out.read_text().splitlines()]


def value(rows, **words):
    (found,) = [row["value"] for row in rows if words.items() <= row.items()]
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("results")


@pytest.fixture(scope="module")
def molecules(folder):
    return run(qm9.main, folder, "qm9")


@pytest.fixture(scope="module")
def slabs(folder):
    return run(oc20.main, folder, "oc20")


def test_qm9_has_all_networks_sizes_and_targets(molecules):
    measured = {(row["case"], row["train"], row["target"]) for row in molecules if "seed" in row}
    assert len(measured) == 3 * 2 * 2
    errors = {case: value(molecules, case=case, train=80, target="U0") for case in qm9.NETWORKS}
    gain = 100 * (errors["SchNet"] - errors["FAENet"]) / errors["SchNet"]
    table = "relative improvement of FAENet over SchNet (%)"
    assert value(molecules, table=table, case="U0", metric="80 molecules, 80 seen") == pytest.approx(gain, abs=0.06)
    assert value(molecules, table=table, case="U0", metric="paper, 110000") == 51.5


def test_composition_is_a_fit_to_the_numbers_of_atoms(molecules, folder):
    sets = qm9.write_sample(folder, [80])
    error = value(molecules, case=qm9.COMPOSITION, table=qm9.title(80, 80), metric="U0")
    assert error == pytest.approx(qm9.baseline_error(sets, 80, "U0"), abs=1e-3)
    spread = 1e3 * np.std([atoms.info["U0"] for atoms in qm9.read(sets.test)])
    assert 100 < error < 0.05 * spread


def test_settings_are_compared_by_the_validation_error_at_equal_effort(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(qm9, "CHOICE_TRAIN", 40)
    monkeypatch.setattr(qm9, "CHOICE_PASSES", 40)
    monkeypatch.setattr(qm9, "OTHER_SETTINGS", {"no frames": ("frames.kind=none",)})
    sets, rows = qm9.write_sample(folder, [40]), Rows(tmp_path / "rows.jsonl")
    qm9.choose_settings(rows, sets)
    tried = {name: [row["case"] for row in rows.rows if row["metric"] == name] for name in qm9.NETWORKS}
    assert tried == {"SchNet": [*qm9.RATES], "FAENet": [*qm9.RATES, "no frames"]}
    for name in qm9.NETWORKS:
        assert len({row["value"] for row in rows.rows if row["metric"] == name}) == len(tried[name])
    monkeypatch.setattr(qm9, "fit", None)
    qm9.choose_settings(rows, sets)  # nothing is trained again


def test_a_finished_run_trains_nothing_again(molecules, folder, monkeypatch):
    monkeypatch.setattr(qm9, "fit", None)
    assert run(qm9.main, folder, "qm9") == molecules


def test_a_missing_seed_is_trained_again(molecules, folder, tmp_path, monkeypatch):
    last = max(n for n, row in enumerate(molecules) if "seed" in row)
    (tmp_path / "qm9.jsonl").write_text("".join(json.dumps(row) + "\n" for row in molecules[: last - 1]))
    monkeypatch.setattr(qm9, "fit", None)
    with pytest.raises(TypeError):
        run(qm9.main, tmp_path, "qm9")


def test_targets_have_the_units_of_qm9():
    methane = qm9.sample()
    assert len(methane) == 200
    for atoms in methane[:20]:
        assert -2e4 < atoms.info["U0"] < -1e3 and atoms.info["U0"] < atoms.info["U"] < atoms.info["H"]
        assert atoms.info["gap"] == pytest.approx(atoms.info["lumo"] - atoms.info["homo"], abs=0.01)


def test_qm9_without_its_package_says_how_to_get_it(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(InputError, match="pip install"):
        qm9.installed_data()


def test_the_ablation_has_every_row_of_the_paper(tmp_path):
    rows = run(ablation.main, tmp_path, "ablation")
    assert {row["case"] for row in rows if row["metric"] == "throughput" and "seed" in row} == set(ablation.VARIANTS)
    (table,) = ablation.tables_of(rows)
    assert table == "U0 of QM9, 40 molecules, 40 seen"
    change = value(rows, case="attention", metric="MAE", table=f"{table}: {ablation.CHANGE}")
    errors = [value(rows, case=case, metric="MAE", seed=0) for case in ("attention", "FAENet (baseline)")]
    assert change == pytest.approx(100 * (errors[0] / errors[1] - 1), abs=0.06)
    assert value(rows, case="attention", metric="MAE, paper") == 25.4
    assert run(ablation.main, tmp_path, "ablation") == rows  # derived rows are not taken for measured ones


def test_every_table_of_the_ablation_is_compared_with_its_own_baseline():
    rows = [
        {"table": table, "case": case, "metric": metric, "value": value, "seed": 0}
        for table, factor in {"short": 1.0, "long": 3.0}.items()
        for case in ablation.VARIANTS
        for metric, value in {"MAE": factor * (2.0 if case == "attention" else 1.0), "throughput": 1.0}.items()
    ]
    found = ablation.changes(rows)
    assert {row["value"] for row in found if (row["case"], row["metric"]) == ("attention", "MAE")} == {100.0}
    assert {row["value"] for row in found if (row["case"], row["metric"]) == ("basic MP", "MAE")} == {0.0}


def test_variants_of_the_ablation_are_different_networks():
    settings = [variant.settings for variant in ablation.VARIANTS.values()]
    assert len(set(settings)) == len(settings) == 12


def test_systems_of_oc20_are_held_out_whole():
    data = oc20.snapshots([oc20.SNAPSHOTS])
    split = oc20.split_systems(data, seed=0)
    train, known, held_out = (
        {atoms.info["sid"] for atoms in part} for part in (split.train, split.known, split.held_out)
    )
    assert train == known and not train & held_out
    assert len(held_out) == 4 and len(train) == 13
    assert len(split.train) + len(split.known) + len(split.held_out) == len(data)
    assert {atoms.info["sid"] for atoms in oc20.split_systems(data, seed=1).held_out} != held_out


def test_oc20_energies_are_relative_to_the_relaxed_structure():
    energies = [atoms.calc.results["energy"] for atoms in oc20.snapshots([oc20.SNAPSHOTS])]
    assert len(energies) == 340
    assert sum(energy == 0 for energy in energies) == 17 and max(energies) < 20


def test_oc20_compares_with_schnet_and_the_paper(slabs):
    words = {"table": oc20.KNOWN_SYSTEMS, "metric": "force MAE", "seed": 0}
    errors = {case: value(slabs, case=case, **words) for case in ("SchNet", "this package")}
    gain = 100 * (1 - errors["this package"] / errors["SchNet"])
    table = f"{oc20.KNOWN_SYSTEMS}: {oc20.GAIN}"
    assert value(slabs, table=table, case="this package", metric="force MAE") == pytest.approx(gain, abs=0.06)
    assert value(slabs, table=table, case="published (2M)", metric="force MAE") == 30.8


def test_oc20_takes_evenly_spaced_snapshots_of_the_run_of_vasp(tmp_path):
    every = oc20.snapshots([oc20.SNAPSHOTS])
    few = oc20.snapshots([oc20.SNAPSHOTS], per_system=3, largest=60)
    assert {len(atoms) for atoms in few} == {len(atoms) for atoms in every if len(atoms) <= 60}
    sid = few[0].info["sid"]
    energies = [atoms.get_potential_energy() for atoms in every if atoms.info["sid"] == sid]
    chosen = [atoms.get_potential_energy() for atoms in few if atoms.info["sid"] == sid]
    assert len(chosen) == 3 and (chosen[0], chosen[-1]) == (energies[0], energies[-1])
    for number, atoms in enumerate(few[:3]):
        atoms.info["run"] = "bfgs" if number == 1 else "vasp"
    write(tmp_path / "runs.extxyz", few[:3])
    assert len(oc20.snapshots([tmp_path / "runs.extxyz"])) == 2


def test_oc20_can_leave_out_snapshots_near_the_end_of_a_relaxation():
    every, moving = (oc20.snapshots([oc20.SNAPSHOTS], least_force=force) for force in (0.0, 0.25))
    largest = [np.abs(oc20.free_forces(atoms)).max() for atoms in moving]
    assert min(largest) >= 0.25 and len(moving) < 0.6 * len(every)
    counts = Counter(atoms.info["sid"] for atoms in moving)
    assert min(counts.values()) >= oc20.FEWEST
    split = oc20.split_systems(moving, seed=0)
    assert {atoms.info["sid"] for atoms in split.known} == {atoms.info["sid"] for atoms in split.train}


def test_tables_of_oc20_with_larger_forces_stand_beside_the_others(slabs, folder, tmp_path):
    (tmp_path / "oc20.jsonl").write_text((folder / "oc20.jsonl").read_text())
    rows = run(oc20.main, tmp_path, "oc20", "--least-force", "0.05", "--snapshots", "5")
    title = f"{oc20.KNOWN_SYSTEMS}, forces from 0.05 eV/Å, 1 epochs"
    assert {row["table"] for row in rows if row["case"] == "SchNet"} == {
        *oc20.PARTS,
        *(f"{part}, forces from 0.05 eV/Å, 1 epochs" for part in oc20.PARTS),
    }
    measured = [row for row in slabs if "seed" in row]
    assert [row for row in rows if row.get("table") in oc20.PARTS] == measured
    errors = [value(rows, table=title, case=case, metric="force MAE") for case in ("this package", "SchNet")]
    gain = value(rows, table=f"{title}: {oc20.GAIN}", case="this package", metric="force MAE")
    assert gain == pytest.approx(100 * (1 - errors[0] / errors[1]), abs=0.06)


@pytest.fixture
def relaxed_slab():
    slab = fcc111("Pt", (3, 3, 5), a=3.97, vacuum=8.0)
    slab.pbc = [True, True, False]
    slab.arrays["fixed"] = (slab.get_tags() > 2).astype(int)
    return slab


def test_initial_structures_are_on_the_lattice_of_the_fixed_atoms(relaxed_slab):
    slab = relaxed_slab.copy()
    free = slab.arrays["fixed"] == 0
    slab.positions[free] += np.random.default_rng(0).uniform(-0.3, 0.3, (free.sum(), 3))
    found = is2re.initial_structure(slab)
    assert found is not None
    assert (
        np.abs(found.positions - relaxed_slab.positions).max() < 1e-6 < np.abs(slab.positions - found.positions).max()
    )


@pytest.mark.parametrize(("site", "on_lattice"), [("fcc", True), ("hcp", False)])
def test_adatoms_beside_the_lattice_have_no_initial_structure(relaxed_slab, site, on_lattice):
    add_adsorbate(relaxed_slab, "Rh", 3.97 / np.sqrt(3), site)
    assert (is2re.initial_structure(relaxed_slab) is not None) == on_lattice


def test_fixed_atoms_without_a_lattice_are_refused(relaxed_slab):
    relaxed_slab.rattle(0.3, seed=1)
    with pytest.raises(InputError, match="fixed atoms"):
        is2re.initial_structure(relaxed_slab)


def test_surfaces_of_is2re_are_held_out_whole():
    slabs = is2re.read_slabs(is2re.SLABS)
    training, held_out = is2re.split_surfaces(slabs)
    known, unknown = ({atoms.info["slab"] for atoms in part} for part in (training, held_out))
    assert not known & unknown and (len(known), len(unknown)) == (150, 50)
    assert len(training) + len(held_out) == len(slabs) == 1914
    simple = is2re.baselines(training, held_out)
    assert simple["composition, by kind of surface"] < 0.7 * simple["composition"]


def test_is2re_has_all_methods_and_compares_with_schnet_and_the_paper(tmp_path):
    rows = run(is2re.main, tmp_path, "is2re")
    measured = {row["case"] for row in rows if "seed" in row}
    assert measured == set(is2re.METHODS) == set(symmetry.METHODS)
    for name in measured:
        exact = name in ("SchNet", "this package")
        if exact or name == "No FA":
            assert (value(rows, case=name, metric="Rot-I") < 0.1) == exact
    errors = {name: value(rows, case=name, metric="energy MAE", seed=0) for name in ("SFA", "SchNet")}
    gain = value(rows, table=is2re.GAINS, case="SFA", metric="energy MAE")
    assert gain == pytest.approx(100 * (1 - errors["SFA"] / errors["SchNet"]), abs=0.06)
    assert value(rows, table=is2re.GAINS, case="SFA", metric="paper, 460000 systems") == 16.8


def test_data_that_is_not_there_is_named(tmp_path):
    with pytest.raises(InputError, match="--data"):
        oc20.snapshots([tmp_path / "none.extxyz"])
    with pytest.raises(InputError, match="--co2"):
        dft.data_sets(tmp_path / "none.extxyz")


def test_a_script_ends_with_a_message_for_wrong_input(repository, tmp_path):
    command = [sys.executable, str(repository / "benchmarks" / "oc20.py"), "--data", str(tmp_path / "none.extxyz")]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.returncode == 1
    assert found.stderr.startswith("error:") and "Traceback" not in found.stderr


def test_the_pareto_front_takes_errors_of_the_other_benchmarks(molecules, slabs, folder):
    rows = run(paper_pareto.main, folder, "pareto")
    table = f"OC20, {oc20.KNOWN_SYSTEMS}"
    assert value(rows, table=table, case="SchNet", metric="energy MAE") == pytest.approx(
        value(slabs, table=oc20.KNOWN_SYSTEMS, case="SchNet", metric="energy MAE", seed=0), abs=1e-3
    )
    relaxed = {row["case"]: row["value"] for row in rows if "IS2RE" in row["table"] and row["metric"] == "energy MAE"}
    assert set(relaxed) == set(paper_pareto.IS2RE_CASES) and min(relaxed.values()) > 1000
    marks = {row["case"]: row["value"] for row in rows if row["metric"] == "on the front" and row["table"] == table}
    assert set(marks.values()) <= {"yes", "no"} and "yes" in marks.values()


def test_the_pareto_front():
    points = [
        paper_pareto.Point(case="fast", throughput=9.0, error=3.0),
        paper_pareto.Point(case="dominated", throughput=5.0, error=4.0),
        paper_pareto.Point(case="accurate", throughput=1.0, error=1.0),
    ]
    assert paper_pareto.front(points) == ["fast", "accurate"]


def test_pareto_without_rows_names_the_command(tmp_path, monkeypatch):
    monkeypatch.setattr(paper_pareto, "RESULTS", tmp_path)
    with pytest.raises(InputError, match="faenet-calc benchmark oc20"):
        paper_pareto.stored(None, "oc20", None)


def test_dft_has_published_errors_with_their_source_and_can_be_resumed(tmp_path, monkeypatch):
    rows = run(dft.main, tmp_path, "dft")
    assert {row["table"] for row in rows} == {"mlearn Si", "acetylacetone 300K", "acetylacetone 600K"}
    quoted = [row for row in rows if "source" in row]
    assert len(quoted) == 4 and all("PyXtal_FF" in row["source"] for row in quoted)
    assert value(rows, table="mlearn Si", case="mean energy, zero forces", metric="force MAE") > 100
    spent = {"benchmark": "dft", "case": "this command", "metric": "CPU time", "value": 1.0, "unit": "s"}
    with open(tmp_path / "dft.jsonl", "a") as file:  # as the command leaves it
        file.write(json.dumps(spent) + "\n")
    monkeypatch.setattr(dft, "fit", None)
    assert run(dft.main, tmp_path, "dft") == [*rows, spent]
    others = [{**row, "asked_steps": 200} if "seed" in row else row for row in rows]
    (tmp_path / "dft.jsonl").write_text("".join(json.dumps(row) + "\n" for row in others))
    with pytest.raises(InputError, match=r"--steps 1, but the stored rows are of --steps 200"):
        run(dft.main, tmp_path, "dft")
