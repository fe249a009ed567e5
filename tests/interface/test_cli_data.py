"""`faenet-calc data …`: what it prints, writes and exits with."""

import json

import numpy as np
import pytest
from ase.build import bulk
from ase.calculators.emt import EMT
from ase.calculators.singlepoint import SinglePointCalculator
from ase.constraints import FixAtoms
from ase.io import read, write
from click.testing import CliRunner

from faenet_calc.cli import main


def _structures(count=24):
    random = np.random.default_rng(0)
    made = []
    for number in range(count):
        atoms = bulk("Cu", cubic=True) * (1, 1, 1 + number % 2)
        atoms.symbols[: number % 3] = "Pd"
        atoms.positions += random.normal(0, 0.05, atoms.positions.shape)
        atoms.calc = EMT()
        energy, forces = atoms.get_potential_energy() - 3.0 * len(atoms) - number % 3, atoms.get_forces()
        atoms.calc = SinglePointCalculator(atoms, energy=energy, forces=forces)
        atoms.set_constraint(FixAtoms(indices=[0]))
        atoms.info["sid"] = number // 2
        made.append(atoms)
    return made


@pytest.fixture
def data(tmp_path, monkeypatch):
    monkeypatch.setenv("FAENET_CALC_CACHE", str(tmp_path / "cache"))
    write(tmp_path / "data.extxyz", _structures())
    return tmp_path / "data.extxyz"


def _run(*arguments):
    return CliRunner().invoke(main, ["data", *map(str, arguments)])


def test_the_listing_names_every_command():
    text = _run("--help").stdout
    for name in ("check", "stats", "split", "convert", "generate"):
        assert name in text


def test_check_of_good_data(data):
    result = _run("check", data)
    assert result.exit_code == 0
    assert "24 structures" in result.stdout
    assert "no errors" in result.stdout


def test_check_of_bad_data_says_what_to_do_and_exits_with_2(data, tmp_path):
    structures = _structures()
    for atoms in structures:
        atoms.info["REF_energy"] = atoms.calc.results.pop("energy")
    write(tmp_path / "bad.extxyz", structures)
    result = _run("check", tmp_path / "bad.extxyz")
    assert result.exit_code == 2
    assert "--energy-key REF_energy" in result.stdout
    assert "bad.extxyz #0" in result.stdout
    assert _run("check", tmp_path / "bad.extxyz", "--energy-key", "REF_energy").exit_code == 0
    result = _run("check", tmp_path / "bad.extxyz", "--json")
    assert result.exit_code == 2
    report = json.loads(result.stdout)
    assert report["ok"] is False
    assert report["findings"][0]["code"] == "unread-labels"


def test_a_missing_file_is_bad_input(tmp_path):
    result = _run("check", tmp_path / "nothing.extxyz")
    assert result.exit_code == 2
    assert "does not exist" in result.stderr
    assert "Traceback" not in result.stderr


def test_stats(data):
    result = _run("stats", data, "--cutoff", 3, "--cutoff", 4)
    assert result.exit_code == 0, result.stderr
    assert "24 structures" in result.stdout
    assert "element references only" in result.stdout
    answer = json.loads(_run("stats", data, "--cutoff", 4, "--json").stdout)
    assert answer["n_structures"] == 24
    assert answer["n_fixed"] == 24
    assert answer["references"]["Cu"] == pytest.approx(-3, abs=0.1)
    assert list(answer["neighbors"]) == ["4.0"]


def test_split_keeps_systems_together_and_never_overwrites(data, tmp_path):
    out = tmp_path / "sets"
    result = _run("split", data, "-o", out, "--fractions", "0.5,0.25,0.25", "--seed", 1)
    assert result.exit_code == 0, result.stderr
    assert "by trajectory: 12 groups" in result.stdout
    sets = {name: read(out / f"{name}.extxyz", ":") for name in ("train", "val", "test")}
    assert {name: len(structures) for name, structures in sets.items()} == {"train": 12, "val": 6, "test": 6}
    sids = {name: {atoms.info["sid"] for atoms in structures} for name, structures in sets.items()}
    assert not (sids["train"] & sids["val"] or sids["train"] & sids["test"] or sids["val"] & sids["test"])
    assert all(atoms.info["split"] == "val" for atoms in sets["val"])
    before = (out / "train.extxyz").read_bytes()
    again = _run("split", data, "-o", out, "--seed", 2)
    assert again.exit_code == 2
    assert "exists" in again.stderr
    assert (out / "train.extxyz").read_bytes() == before
    assert sorted(path.name for path in out.iterdir()) == ["test.extxyz", "train.extxyz", "val.extxyz"]
    assert _run("split", data, "-o", out, "--seed", 2, "--overwrite").exit_code == 0
    assert (out / "train.extxyz").read_bytes() != before


def test_new_data_stay_apart_from_an_earlier_validation_set(data, tmp_path):
    first = tmp_path / "first"
    assert _run("split", data, "-o", first, "--fractions", "0.75,0.25", "--seed", 1).exit_code == 0
    ways = ["--by", "trajectory", "--fractions", "1"]
    kept_apart = ["--apart-from", first / "val.extxyz"]
    result = _run("split", data, "-o", tmp_path / "more", *ways, *kept_apart)
    assert result.exit_code == 0, result.stderr
    assert "6 structures share a group with excluded structures" in result.stdout
    new, old, val = (read(path, ":") for path in (tmp_path / "more/train.extxyz", data, first / "val.extxyz"))
    apart = {atoms.info["sid"] for atoms in val}
    assert len(apart) == 3
    assert [atoms.info["sid"] for atoms in new] == [one.info["sid"] for one in old if one.info["sid"] not in apart]
    # Without the option they would have met.
    assert _run("split", data, "-o", tmp_path / "plain", *ways).exit_code == 0
    assert apart <= {atoms.info["sid"] for atoms in read(tmp_path / "plain" / "train.extxyz", ":")}
    nothing = _run("split", first / "val.extxyz", "-o", tmp_path / "none", *ways, *kept_apart)
    assert (nothing.exit_code, "nothing is left" in nothing.stderr) == (2, True)
    vague = _run("split", data, "-o", tmp_path / "none", *kept_apart)
    assert (vague.exit_code, "choose e.g. trajectory" in vague.stderr) == (2, True)
    assert not (tmp_path / "none").exists()


def test_the_note_of_a_split_counts_groups_only_where_there_are_some(data, tmp_path):
    assert _run("split", data, "-o", tmp_path / "sets", "--seed", 1).exit_code == 0
    files = [tmp_path / f"sets/{name}.extxyz" for name in ("train", "val", "test")]
    given = _run("split", *files, "-o", tmp_path / "again")
    assert "the split given in the files is used" in given.stdout and "groups" not in given.stdout
    by_chance = _run("split", data, "-o", tmp_path / "random", "--by", "random")
    assert by_chance.stdout.count("split at random: ") == 1 and "groups" not in by_chance.stdout


def test_split_mistakes_are_explained(data, tmp_path):
    assert "expected numbers" in _run("split", data, "-o", tmp_path / "a", "--fractions", "most").stderr
    result = _run("split", data, "-o", tmp_path / "a", "--by", "adsorbat")
    assert result.exit_code == 2
    assert "adsorbate" in result.stderr
    assert not (tmp_path / "a").exists()


def test_convert_keeps_raw_forces_and_constraints(data, tmp_path):
    target = tmp_path / "new" / "data.db"
    result = _run("convert", data, "-o", target)
    assert result.exit_code == 0, result.stderr
    assert "24 structures" in result.stdout
    first, expected = read(f"{target}@0"), _structures()[0]
    assert first.constraints[0].index.tolist() == [0]
    np.testing.assert_allclose(first.calc.results["forces"], expected.calc.results["forces"], atol=1e-7)
    assert np.abs(first.calc.results["forces"][0]).min() > 0
    assert _run("convert", data, "-o", target).exit_code == 2
    assert "cannot write" in _run("convert", data, "-o", tmp_path / "data.cif").stderr


def test_convert_renames_labels(tmp_path):
    structures = _structures(2)
    for atoms in structures:
        atoms.info["REF_energy"] = atoms.calc.results["energy"] + 1
    write(tmp_path / "data.extxyz", structures)
    assert (
        _run("convert", tmp_path / "data.extxyz", "-o", tmp_path / "new.extxyz", "--energy-key", "REF_energy").exit_code
        == 0
    )
    changed = read(tmp_path / "new.extxyz", 0)
    assert changed.calc.results["energy"] == pytest.approx(structures[0].calc.results["energy"] + 1, abs=1e-6)
