"""The front, the rows and the picture of points that are known; times of calculators in turns."""

import json
import math

import pytest
from ase.calculators.calculator import Calculator
from ase.calculators.emt import EMT
from pareto import Point, call_times, front, main, plot, rows, slab, stored_errors, table

from faenet_calc.errors import InputError

POINTS = [
    Point(model="slow & best", ms=40.0, energy_mae=2.0, forces_mae=20.0),
    Point(model="fast", ms=10.0, energy_mae=6.0, forces_mae=50.0),
    Point(model="useless", ms=30.0, energy_mae=1.0, forces_mae=60.0),
    Point(model="reference", ms=400.0, energy_mae=math.nan, forces_mae=math.nan),
]


def test_only_models_that_no_other_beats_are_on_the_front():
    assert front(POINTS) == ["fast", "slow & best"]
    assert front(POINTS[:1]) == ["slow & best"]


def test_of_equally_fast_models_the_better_one_is_on_the_front():
    twin = Point(model="twin", ms=10.0, energy_mae=6.0, forces_mae=45.0)
    assert front([*POINTS, twin]) == ["twin", "slow & best"]


def test_the_table_compares_with_the_reference():
    lines = table(POINTS, "reference").splitlines()
    assert lines[2].startswith("| fast | 10.0 | 40.0 | 6 | 50 | yes |")
    assert lines[-1] == "| reference | 400.0 | 1.0 | – | – |  |"
    assert "–" in table(POINTS[:2], None)


def test_rows_leave_out_what_was_not_measured():
    found = {(row["model"], row["metric"]): row["value"] for row in rows(POINTS, "here")}
    assert found["useless", "on_front"] == 0.0 and found["fast", "on_front"] == 1.0
    assert ("reference", "forces_mae") not in found and found["reference", "call"] == 400.0
    assert all(math.isfinite(value) for value in found.values())


def test_the_picture_has_every_point_at_its_place():
    (axes,) = plot(POINTS).axes
    drawn = {line.get_label(): line.get_xydata() for line in axes.lines if not line.get_label().startswith("_")}
    assert set(drawn) == {point.model for point in POINTS} == {text.get_text() for text in axes.texts}
    for point in POINTS[:3]:
        assert drawn[point.model].tolist() == [[point.ms, point.forces_mae]]
    assert drawn["reference"][:, 0].tolist() == [400.0, 400.0]
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    (x_low, x_high), (y_low, y_high) = axes.get_xlim(), axes.get_ylim()
    assert x_low < 10.0 and x_high > 400.0 and y_low < 20.0 and y_high > 60.0, "a point lies outside"


class Lazy(Calculator):
    """Counts calls and does nothing."""

    implemented_properties = ("energy", "forces")
    calls = 0

    def calculate(self, atoms=None, properties=("energy",), system_changes=()):
        super().calculate(atoms, properties, system_changes)
        self.calls += 1
        self.results = {"energy": 0.0, "forces": 0.0 * atoms.positions}


def test_times_are_of_the_calls():
    lazy = Lazy()
    times = call_times({"emt": EMT(), "lazy": lazy}, repeats=4)
    assert lazy.calls == 7 and 0 <= times["lazy"] < times["emt"]
    assert len(slab()) == 40


def test_errors_are_read_from_rows(tmp_path):
    path = tmp_path / "rows.jsonl"
    metrics = {"energy_mae": 3.0, "forces_mae": 30.0, "forces_rmse": 50.0}
    lines = [{"model": "a", "case": case, "metric": m, "value": v} for case in ("all", "x") for m, v in metrics.items()]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert stored_errors(path, ["a"]) == {"a": {"energy_mae": 3.0, "forces_mae": 30.0}}
    with pytest.raises(InputError, match="no errors of b"):
        stored_errors(path, ["a", "b"])


def test_the_command(tmp_path, monkeypatch, capsys, repository):
    model = str(repository / "tests" / "data" / "emt-copper.safetensors")
    lines = [{"model": "data:one", "case": "all", "metric": m, "value": 5.0} for m in ("energy_mae", "forces_mae")]
    errors = tmp_path / "errors.jsonl"
    errors.write_text("".join(json.dumps(line) + "\n" for line in lines))
    outputs = ["--json", str(tmp_path / "rows.jsonl"), "--plot", str(tmp_path / "p.svg"), "--repeats", "2"]
    reference = ["--reference", "ase.calculators.emt.EMT"]
    monkeypatch.setattr("sys.argv", ["x", f"{model}:one", "--errors", str(errors), *outputs, *reference])
    main()
    assert "| 5 | 5 | yes |" in capsys.readouterr().out
    assert (tmp_path / "p.svg").read_text().startswith("<?xml")
    assert (tmp_path / "rows.jsonl").read_text().count("\n") == 6
