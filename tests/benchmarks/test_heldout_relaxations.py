"""The benchmark of held-out relaxations, with EMT as reference and, changed on purpose, as model."""

import json
from itertools import islice
from types import SimpleNamespace

import heldout_relaxations as benchmark
import numpy as np
import pytest
from ase.calculators.emt import EMT
from rows import Rows

from faenet_calc.labelling import load_recipe

RECIPE = """
name: small
tasks: 1
calculator: {factory: ase.calculators.emt.EMT}
metals: [{symbol: Cu, crystal: fcc, a: 3.61}, {symbol: Pd, crystal: fcc, a: 3.88}]
alloys: [{metals: [Cu, Pd]}]
slabs:
  - {crystal: fcc, facet: "111", sizes: [[2, 2, 3], [2, 2, 4]]}
  - {crystal: fcc, facet: "100", sizes: [[2, 2, 3]]}
adsorbates: [O, N, CO]
gas: [O2, CO]
heldout:
  - {substrate: Cu, adsorbate: O}
  - {substrate: Pd, facet: fcc100}
  - {substrate: CuPd}
"""


LIMITS = {"optimizer": "BFGS", "fmax": 0.05, "steps": 200}


class Model(EMT):
    """EMT that claims to be a model, wrong by a constant where O or CO meets a metal."""

    def __init__(self, trained=(), error=0.0):
        super().__init__()
        self.trained_elements, self.error = trained, error

    def calculate(self, *args, **kwargs):
        super().calculate(*args, **kwargs)
        if self.error and "O" in self.atoms.symbols and len(self.atoms) > 2:
            self.results["energy"] += self.error


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    path = tmp_path_factory.mktemp("recipe") / "small.yaml"
    path.write_text(RECIPE)
    return load_recipe(path)


@pytest.fixture(scope="module")
def minima(recipe, tmp_path_factory):
    path = tmp_path_factory.mktemp("minima") / "minima.jsonl"
    benchmark.run_reference(recipe, EMT(), path, count=4, limits=LIMITS)
    return path


def test_systems_are_balanced_and_held_out(repository):
    recipe = load_recipe(repository / "datasets" / "metals-v1" / "recipes" / "reference-driven.yaml")
    systems = list(islice(benchmark.heldout_systems(recipe), 60))
    assert [sum(one.group == group for one in systems) for group in ("pair", "facet", "alloy")] == [30, 15, 15]
    pairs = {(rule.substrate, rule.adsorbate) for rule in recipe.heldout if rule.adsorbate}
    assert {(one.substrate.name, one.adsorbate) for one in systems if one.group == "pair"} == pairs
    assert {one.substrate.name for one in systems if one.group == "facet"} == {"Cu", "Pt"}
    assert {one.facet for one in systems if one.group == "facet"} == {"fcc211"}
    assert {one.substrate.name for one in systems if one.group == "alloy"} == {"CuPd"}
    assert len({one.adsorbate for one in systems}) >= 15
    starts = [one.start(8.0) for one in systems[:20]]
    assert len({site for _, site in starts}) >= 4
    for atoms, _ in starts:
        fixed, slab = atoms.constraints[0].get_indices(), np.flatnonzero(atoms.get_tags() < 2)
        assert 0.25 <= len(fixed) / len(slab) <= 0.5
        assert atoms.positions[fixed, 2].max() < atoms.positions[np.setdiff1d(slab, fixed), 2].min()


def test_starts_are_reproducible(recipe):
    first, again = (next(islice(benchmark.heldout_systems(recipe), 3, None)).start(8.0)[0] for _ in range(2))
    assert first.positions.tolist() == again.positions.tolist()
    assert first.numbers.tolist() == again.numbers.tolist()


def test_the_reference_agrees_with_itself(minima, capsys):
    summary = benchmark.compare(Model(), Rows(minima))
    assert summary["systems"] == 4
    assert summary["all"]["same_site"] == "4 of 4"
    # Starts are stored with six digits.
    assert summary["all"]["adsorption_largest_error_eV"] < 1e-3
    assert abs(summary["all"]["adsorption_mean_error_eV_at_minima"]) < 1e-3
    assert {"pair", "facet", "alloy"} <= set(summary)
    shown = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(shown) == 4
    assert all(row["lateral_A"] < 0.02 and row["same_bonds"] for row in shown)


def test_the_reference_from_moved_starts(minima, capsys):
    rows = Rows(minima)
    before = minima.read_text()
    levels = benchmark.Levels(EMT(), rows, LIMITS)
    near = benchmark.compare(EMT(), rows, levels=levels, moved_A=0.01)
    shown = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert near["all"]["adsorption_largest_error_eV"] < 0.02
    assert 0 < max(row["lateral_A"] for row in shown) < 0.2
    far = benchmark.compare(EMT(), rows, levels=levels, moved_A=0.6)
    assert far["all"]["adsorption_largest_error_eV"] > near["all"]["adsorption_largest_error_eV"]
    assert minima.read_text() == before, "levels of the reference are known and its file stays as it is"


def test_switches_of_the_calculator():
    assert benchmark._switches(["in_parts=true", "other=false"]) == {"in_parts": True, "other": False}
    with pytest.raises(SystemExit, match="in_parts=1: expected KEYWORD=true"):
        benchmark._switches(["in_parts=1"])


def test_a_wrong_model_is_seen(minima):
    summary = benchmark.compare(Model(error=0.3), Rows(minima))
    with_oxygen = [row["adsorbate"] in ("O", "CO") for row in Rows(minima).of("system")]
    assert any(with_oxygen)
    assert summary["all"]["adsorption_mae_eV"] == pytest.approx(0.3 * np.mean(with_oxygen), abs=1e-3)
    assert summary["all"]["adsorption_mean_error_eV_at_minima"] == pytest.approx(0.3 * np.mean(with_oxygen), abs=1e-3)


def test_another_site_is_seen(minima, tmp_path):
    rows = Rows(minima)
    for row in rows.of("system"):
        n_slab = row["start"]["tags"].count(0) + row["start"]["tags"].count(1)
        for position in row["minimum"][n_slab:]:
            position[0] += 0.9
    summary = benchmark.compare(Model(), rows)["all"]
    assert summary["same_site"] == "0 of 4"
    assert summary["adsorption_mean_error_eV_at_minima"] > 0.1 > summary["adsorption_mae_eV"]  # it is no minimum


def test_systems_outside_of_the_model_and_bad_minima_are_counted_apart(minima):
    rows = Rows(minima)
    rows.of("system")[0]["flags"] = ["desorbed"]
    sane = [row for row in rows.of("system")[1:]]
    inside = [row for row in sane if {"Cu", "O"} >= set(benchmark.from_json(row["start"]).symbols)]
    summary = benchmark.compare(Model(trained=("Cu", "O")), rows)
    assert summary["reference_not_sane"] == {"desorbed": 1}
    assert (summary["systems"], summary["outside_trained_elements"]) == (len(inside), len(sane) - len(inside))
    assert inside


def test_a_stopped_reference_run_goes_on(recipe, minima, tmp_path):
    lines = minima.read_text().splitlines(keepends=True)
    path = tmp_path / "minima.jsonl"
    path.write_text("".join(lines[:-1]) + lines[-1][:40])
    again = benchmark.run_reference(recipe, EMT(), path, count=4, limits=LIMITS)
    names, energies = ([row[key] for row in again.of("system")] for key in ("name", "energy"))
    whole = Rows(minima).of("system")
    assert names == [row["name"] for row in whole]
    assert energies == pytest.approx([row["energy"] for row in whole])
    with pytest.raises(SystemExit, match="choose another file"):
        Rows(path, {"row": "header", "recipe": "another"})


def test_speed_has_both(minima):
    row = benchmark.speed(Model(), EMT(), Rows(minima), count=1, repeats=3)
    assert row["times_faster"] > 0
    assert len(row["cpu_s_per_call"]) == 2


class Timed(EMT):
    """EMT that advances a clock by ``cost`` (s) per call."""

    clock = 0.0

    def __init__(self, cost):
        super().__init__()
        self.cost = cost

    def calculate(self, *args, **kwargs):
        super().calculate(*args, **kwargs)
        Timed.clock += self.cost


def test_a_race_counts_the_time_of_both_parts_of_a_relaxation(minima, monkeypatch):
    """Slow first and quick at the end costs more than quick alone, and slow all the way the most."""
    monkeypatch.setattr(benchmark, "time", SimpleNamespace(process_time=lambda: Timed.clock))
    rows, quick, slow = Rows(minima), Timed(1.0), Timed(10.0)
    equal = benchmark.race(quick, None, slow, rows, Rows(None), count=2, words={})
    both = benchmark.race(quick, slow, slow, rows, Rows(None), count=2, words={})
    assert equal["relaxations"] == 2
    assert equal["times_faster_median"] > 2 * both["times_faster_median"]
    assert equal["times_faster"] > 2 * both["times_faster"]
    assert both["cpu_s_per_relaxation"][0] > 2 * equal["cpu_s_per_relaxation"][0]


class Counting(EMT):
    """EMT that counts its calls."""

    calls = 0

    def calculate(self, *args, **kwargs):
        super().calculate(*args, **kwargs)
        self.calls += 1


def test_a_stopped_race_goes_on(minima, tmp_path):
    """Systems that are in the file are not run again, those of other words are."""
    path, rows, words = tmp_path / "race.jsonl", Rows(minima), {"model": "one"}
    first = benchmark.race(EMT(), None, EMT(), rows, Rows(path), count=2, words=words)
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:1]) + '{"case": "cut by a ki')
    model = Counting()
    benchmark.race(model, None, EMT(), rows, Rows(path), count=2, words=words)
    one_of_two, model.calls = model.calls, 0
    again = benchmark.race(model, None, EMT(), rows, Rows(path), count=2, words=words)
    assert (again["relaxations"], model.calls) == (2, 0)
    benchmark.race(model, None, EMT(), rows, Rows(path), count=2, words={"model": "other"})
    assert 0 < one_of_two < model.calls
    cases = [row for row in Rows(path).rows if row["model"] == "one"]
    assert len(cases) == 2
    assert again["cpu_s_per_relaxation"] == pytest.approx(np.mean([row["cpu_s"] for row in cases], axis=0), abs=1e-4)
    assert first.keys() == again.keys()


@pytest.mark.parametrize("count", [0, 1000])
def test_a_race_over_more_systems_than_there_are_says_so(minima, count):
    with pytest.raises(SystemExit, match=f"--count {count}: .* expected 1 to"):
        benchmark.race(EMT(), None, EMT(), Rows(minima), Rows(None), count=count, words={})


def test_models_are_relaxed_as_far_as_the_reference_was(recipe, minima, tmp_path):
    tight = tmp_path / "tight.jsonl"
    benchmark.run_reference(recipe, EMT(), tight, count=1, limits={**LIMITS, "fmax": 0.01})
    rows = [Rows(path) for path in (minima, tight)]
    summaries = [benchmark.compare(Model(), one) for one in rows]
    assert [summary["fmax"] for summary in summaries] == [0.05, 0.01]
    calls = [one.of("system")[0]["calls"] for one in rows]
    assert calls[1] > calls[0]
    assert summaries[1]["all"]["calls_per_relaxation"] == [calls[1], calls[1]]


def test_the_reference_judges_other_sites(minima, capsys):
    """From moved starts it ends elsewhere; there the judge stays, and says how far above its own minimum that is."""
    rows = Rows(minima)
    levels = benchmark.Levels(EMT(), rows, LIMITS)
    summary = benchmark.compare(EMT(), rows, judge=EMT(), levels=levels, moved_A=0.6)
    shown = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    judged = [row for row in shown if "stays" in row]
    assert judged and {row["name"] for row in judged} == {row["name"] for row in shown if row["lateral_A"] > 0.5}
    assert all(row["stays"] for row in judged), "the same calculator ended there"
    assert all(row["end_above_eV"] == pytest.approx(row["error_eV"], abs=1e-3) for row in judged)
    assert summary["all"]["other_sites"] == summary["all"]["other_sites_minima_of_reference"] == len(judged)
    same = benchmark.compare(EMT(), rows, judge=EMT(), levels=levels)
    assert "other_sites" not in same["all"]


def test_a_file_without_minima_is_refused(tmp_path):
    with pytest.raises(SystemExit, match="holds no minima; make it with"):
        benchmark.compare(EMT(), Rows(tmp_path / "absent.jsonl"))
