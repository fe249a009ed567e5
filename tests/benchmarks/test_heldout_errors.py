"""Groups by the recipe's rules, errors by hand, a mean predictor that sees training data only."""

import json
import shutil
from pathlib import Path

import heldout_errors
import numpy as np
import pytest
from error_groups import groups_of, reasons
from heldout_errors import (
    HELDOUT,
    RECIPE,
    VALIDATION,
    StructureError,
    baseline,
    choose,
    evaluated_files,
    known_to,
    label,
    main,
    mean_errors,
    metrics,
    model_errors,
    rows,
    split_name,
    summarize,
    table,
)
from labelled_slabs import words, write_slabs

from faenet_calc.data.dataset import open_dataset
from faenet_calc.errors import InputError
from faenet_calc.labelling.recipe import load_recipe
from faenet_calc.training.assessment import assess


@pytest.fixture(scope="module")
def recipe():
    return load_recipe(RECIPE)


@pytest.fixture
def labelled(tmp_path):
    entries = [words("train"), words("train", "O"), words("train"), words("heldout", "O", "fcc211"), words("heldout")]
    path = write_slabs(tmp_path / "labels.extxyz", entries)
    return open_dataset(path, cutoff=4.0, cache_dir=tmp_path / "cache")


@pytest.mark.parametrize(
    ("metal", "facet", "adsorbate", "expected"),
    [
        ("Cu", "fcc111", "OH", ["unseen pair"]),
        ("Cu", "fcc211", "OH", ["unseen pair", "unseen facet"]),
        ("Pt", "fcc211", "none", ["unseen facet"]),
        ("Cu-Pd", "fcc111", "CO", ["unseen alloy"]),
        ("Cu-Pd", "none", "none", ["unseen alloy"]),
        ("Pd-Pt", "fcc111", "CO", ["other"]),
    ],
)
def test_the_rules_say_why(recipe, metal, facet, adsorbate, expected):
    info = {"metal": metal, "facet": facet, "adsorbate": adsorbate, "split": "heldout", "recipe": "metals:sha256-1"}
    assert reasons(info, recipe) == expected


def test_only_unseen_structures_of_the_recipe_have_a_reason(recipe):
    info = {"metal": "Cu", "facet": "fcc211", "adsorbate": "O", "recipe": "metals:sha256-1", "split": "test"}
    assert reasons(info, recipe) == ["unseen facet"]
    assert reasons({**info, "split": "train"}, recipe) == reasons({**info, "split": "val"}, recipe) == []
    assert reasons({**info, "recipe": "copper:sha256-1"}, recipe) == []


@pytest.mark.parametrize(
    ("system", "adsorbate", "expected"),
    [
        ("gas_CO", "CO", {("kind", "gas")}),
        ("Ru_hcp_bulk", "none", {("kind", "bulk"), ("metal", "Ru")}),
        ("Pt_fcc111_clean", "none", {("kind", "clean"), ("metal", "Pt")}),
        ("Pt_fcc111_CO", "CO", {("kind", "adsorbate"), ("metal", "Pt"), ("adsorbate", "CO")}),
    ],
)
def test_groups(recipe, system, adsorbate, expected):
    info = {"system": system, "metal": system.split("_")[0], "facet": "x", "adsorbate": adsorbate, "split": "train"}
    assert set(groups_of(info, recipe)) == {("all", ""), *expected}


def test_structures_without_words_are_in_no_group_but_all(recipe):
    assert groups_of({"source": "a.xyz"}, recipe) == [("all", "")]


def test_errors_by_hand():
    first = StructureError(
        index=0,
        n_atoms=2,
        energy=0.2,
        forces=np.array([[0.3, 0.0, 0.0], [0.0, 0.0, -0.6]]),
        adsorbate=np.array([0, 1], bool),
    )
    second = StructureError(index=1, n_atoms=4, energy=-0.8, forces=np.zeros((0, 3)), adsorbate=np.zeros(0, bool))
    found = metrics([first, second])
    assert found == pytest.approx(
        {
            "energy_mae": 150.0,
            "energy_rmse": 1e3 * np.sqrt((0.1**2 + 0.2**2) / 2),
            "structure_energy_mae": 0.5,
            "forces_mae": 150.0,
            "forces_rmse": 1e3 * np.sqrt((0.3**2 + 0.6**2) / 6),
            "adsorbate_forces_mae": 200.0,
        }
    )
    assert "forces_mae" not in metrics([second])


def test_a_model_has_the_errors_that_evaluate_gives(labelled, emt_potential, recipe):
    dataset = open_dataset(labelled.info(0)["source"], cutoff=emt_potential.cutoff, cache_dir=labelled.place.parent)
    indices = np.array([0, 2, 4])
    expected = assess(emt_potential, dataset, indices).metrics
    found = summarize("emt", model_errors(emt_potential, dataset, indices), dataset, recipe)
    assert found[0].group == ("all", "") and found[0].n_structures == 3 and found[0].n_systems == 1
    for ours, theirs in (
        ("energy_mae", "energy_mae_per_atom"),
        ("forces_mae", "forces_mae"),
        ("forces_rmse", "forces_rmse"),
    ):
        assert found[0].values[ours] == pytest.approx(1e3 * expected[theirs])
    assert found[0].values["structure_energy_mae"] == pytest.approx(expected["energy_mae"])


def test_the_mean_predictor_is_a_fit_to_elements_without_forces(labelled):
    train, test = np.array([0, 1, 2]), np.array([3, 4])
    counts = labelled.compositions()[:, [8, 29]]
    fractions = counts / counts.sum(axis=1, keepdims=True)
    per_atom = labelled.energy / counts.sum(axis=1)
    element = np.linalg.lstsq(fractions[train], per_atom[train], rcond=None)[0]
    found = mean_errors(labelled, train, labelled, test)
    assert [error.energy for error in found] == pytest.approx(
        list(counts[test] @ element - labelled.energy[test]), abs=1e-9
    )
    assert found[0].forces == pytest.approx(-labelled.arrays["forces"][labelled.atoms_of(3)])
    assert found[0].adsorbate.sum() == 1


def test_the_mean_predictor_does_not_see_held_out_structures(labelled, tmp_path, capsys):
    test = np.array([3, 4])
    honest = [error.energy for error in mean_errors(labelled, np.array([0, 1, 2]), labelled, test)]
    for train in ([], [labelled.info(0)["source"]]):
        assert [error.energy for error in baseline(labelled, test, train)] == pytest.approx(honest)
    cheating = [error.energy for error in mean_errors(labelled, np.arange(5), labelled, test)]
    assert cheating != pytest.approx(honest)
    unmarked = open_dataset(
        write_slabs(tmp_path / "only.extxyz", [words("heldout")]), cutoff=4.0, cache_dir=tmp_path / "cache"
    )
    assert baseline(unmarked, np.array([0]), []) is None and "give --train" in capsys.readouterr().err


def test_held_out_structures_are_chosen(labelled):
    assert choose(labelled, None).tolist() == [3, 4]
    assert choose(labelled, "train").tolist() == [0, 1, 2]
    assert choose(labelled, "train", limit=2).tolist() == [0, 2]
    with pytest.raises(InputError, match="split=test"):
        choose(labelled, "test")


def test_structures_of_elements_never_seen_are_left_out(labelled, emt_potential):
    assert known_to(emt_potential, labelled, np.arange(5)).tolist() == [0, 2, 4]


def test_frames_in_names():
    assert split_name("metals-s") == ("metals-s", "auto")
    assert split_name("metals-s:one") == ("metals-s", "one")
    assert split_name("C:/models/a.safetensors") == ("C:/models/a.safetensors", "auto")


def test_a_checkpoint_goes_by_the_name_of_its_folder(repository):
    path = repository / "tests" / "data" / "emt-copper.safetensors"
    assert [label("metals-s:one"), label(str(path)), label(f"{path}:one")] == ["metals-s:one", "data", "data:one"]


def test_the_command(labelled, tmp_path, monkeypatch, capsys, repository):
    model = str(repository / "tests" / "data" / "emt-copper.safetensors")
    out = tmp_path / "rows.jsonl"
    monkeypatch.setenv("FAENET_CALC_CACHE", str(tmp_path / "cache"))
    source = labelled.info(0)["source"]
    monkeypatch.setattr("sys.argv", ["x", model, "--data", source, "--json", str(out), "--groups", "all", "why"])
    main()
    printed = capsys.readouterr()
    assert "1 of 2 structures are left out" in printed.err
    assert "mean predictor" in printed.out and "| metal: Cu |" not in printed.out
    found = [json.loads(line) for line in out.read_text().splitlines()]
    assert {"benchmark", "model", "case", "metric", "value", "unit", "n_structures", "n_systems"} == set(found[0])
    assert {row["model"] for row in found} == {"data", "mean predictor"}
    assert "metal=Cu" in {row["case"] for row in found}


def test_table_and_rows_have_every_group(labelled, recipe):
    found = summarize("mean", mean_errors(labelled, np.arange(3), labelled, np.array([3, 4])), labelled, recipe)
    text = table(found)
    for word in (
        "| all | 2 | 2 | mean |",
        "why: unseen facet",
        "why: other",
        "kind: clean",
        "adsorbate: O",
        "metal: Cu",
    ):
        assert word in text
    assert {row["case"] for row in rows("b", found)} >= {"all", "why=unseen facet", "how=rattle"}


def test_the_test_set_is_sealed(tmp_path):
    assert evaluated_files(None, final=False) == [VALIDATION]
    copy = shutil.copy(HELDOUT, tmp_path / "renamed.extxyz.xz")
    for data in (HELDOUT, copy, RECIPE.parents[1], f"{RECIPE.parents[1]}:test"):
        with pytest.raises(InputError, match="sealed test set"):
            evaluated_files([data], final=False)
    assert evaluated_files(None, final=True) == [HELDOUT]
    with pytest.raises(InputError, match="omit --data"):
        evaluated_files([VALIDATION], final=True)


def test_a_changed_test_set_is_not_opened(tmp_path, monkeypatch):
    folder = RECIPE.parents[1]
    for name in ("manifest.yaml", HELDOUT.name):
        shutil.copy(folder / name, tmp_path)
    monkeypatch.setattr(heldout_errors, "DATASET", tmp_path)
    assert evaluated_files(None, final=True) == [tmp_path / HELDOUT.name]
    with open(tmp_path / HELDOUT.name, "ab") as file:
        file.write(b"x")
    with pytest.raises(InputError, match="edited or damaged"):
        evaluated_files(None, final=True)


def test_every_opening_is_recorded(labelled, tmp_path, monkeypatch, repository):
    model = str(repository / "tests" / "data" / "emt-copper.safetensors")
    openings = tmp_path / "openings.jsonl"
    source = Path(labelled.info(0)["source"])
    monkeypatch.setenv("FAENET_CALC_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(heldout_errors, "OPENINGS", openings)
    monkeypatch.setattr("sys.argv", ["heldout_errors.py", model, "--data", str(source)])
    main()
    assert not openings.exists()
    monkeypatch.setattr(heldout_errors, "shard_files", lambda folder, split: [source])
    monkeypatch.setattr("sys.argv", ["heldout_errors.py", model, f"{model}:one", "--final"])
    main()
    main()
    found = [json.loads(line) for line in openings.read_text().splitlines()]
    assert len(found) == 4
    assert {row["command"] for row in found} == {f"heldout_errors.py {model} {model}:one --final"}
    assert all(row["weights"] and row["date"].endswith("+00:00") and len(row["data"]) == 1 for row in found)
