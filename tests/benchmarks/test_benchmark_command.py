"""`faenet-calc benchmark`: listing, errors, and the files of a quick run."""

import json
import sys

import pytest
from click.testing import CliRunner
from tables import markdown

from faenet_calc.cli import benchmark, main


def run(*arguments: str):
    return CliRunner().invoke(main, ["benchmark", *arguments])


def test_the_listing_names_every_benchmark_and_each_has_a_script(repository):
    listed = run().stdout.splitlines()
    assert [line.split()[0] for line in listed] == list(benchmark.BENCHMARKS)
    for name, described in benchmark.BENCHMARKS.items():
        assert (repository / "benchmarks" / f"{described.script or name}.py").is_file()


def test_an_unknown_name_is_answered_with_the_known_ones():
    found = run("spede")
    assert found.exit_code == 2
    assert "'spede'" in found.stderr and "speed" in found.stderr


def test_an_installation_without_scripts_says_where_they_are(monkeypatch, tmp_path):
    monkeypatch.setattr(benchmark, "__file__", str(tmp_path / "site-packages" / "faenet_calc" / "cli" / "benchmark.py"))
    found = run("speed")
    assert found.exit_code == 2
    assert "Clone the repository" in found.stderr


def test_a_quick_run_writes_rows_table_and_plot_and_is_not_overwritten(tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    arguments = ("expressivity", "--quick", "-o", str(tmp_path), "--networks", "SchNet", "FAENet, Full FA")
    found = run(*arguments)
    assert found.exit_code == 0, found.stderr
    rows = [json.loads(line) for line in (tmp_path / "expressivity-quick.jsonl").read_text().splitlines()]
    assert rows[-1]["metric"] == "CPU time" and rows[-1]["value"] > 0
    assert found.stdout == (tmp_path / "expressivity-quick.md").read_text() == markdown(rows)
    assert (tmp_path / "expressivity-quick.svg").stat().st_size > 0
    refused = run(*arguments).stderr
    assert "--overwrite" in refused and "--resume" in refused
    resumed = run(*arguments, "--resume")
    assert resumed.exit_code == 0, resumed.stderr
    again = [json.loads(line) for line in (tmp_path / "expressivity-quick.jsonl").read_text().splitlines()]
    assert again[:-1] == rows[:-1] and again[-1]["value"] > rows[-1]["value"]  # nothing new but its CPU time
    accuracy = {(row["case"], row["metric"]): row["value"] for row in rows if row.get("table", "").endswith("accuracy")}
    assert accuracy["SchNet", "2-body"] == 50.0 < accuracy["FAENet, Full FA", "2-body"]
    assert accuracy["pair", "2-fold"] == "congruent" and accuracy["FAENet, Full FA", "2-fold"] == 50.0


def test_a_script_that_fails_is_a_failure(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "executable", "false")
    found = run("speed", "--quick", "-o", str(tmp_path))
    assert found.exit_code == 1 and "exit code" in found.stderr


@pytest.mark.parametrize(
    ("value", "spread", "text"),
    [(12.3456, None, "12.3"), (50.0, 0.5, "50 ± 0.5"), (1234.5, None, "1234"), (0, 0, "0 ± 0")],
)
def test_cells_of_tables(value, spread, text):
    row = {"benchmark": "b", "case": "c", "metric": "m", "value": value, "spread": spread, "unit": "eV"}
    assert markdown([row]).splitlines()[-1] == f"| c | {text} |"
    assert markdown([row]).splitlines()[0] == "| | m (eV) |"
