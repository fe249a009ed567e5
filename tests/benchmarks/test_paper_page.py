"""The page about the paper's experiments quotes stored results only, and its tables are those of the stored rows."""

import json
import re
from pathlib import Path

import pytest
from tables import markdown

from faenet_calc.cli.benchmark import BENCHMARKS

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
COMMAND = re.compile(r"faenet-calc benchmark (\w+)")
INCLUDED = re.compile(r"benchmarks/results/(\w+)\.md")


@pytest.fixture(scope="module")
def page(repository):
    return (repository / "docs" / "paper.md").read_text()


def table_rows(page):
    before_sections = page.partition("\n## ")[0]
    return [line.split(" | ") for line in before_sections.splitlines() if line.startswith("| ")][1:]


def quoted(page):
    """Benchmark and bold number of every quotation."""
    found = []
    for _, _, command, result in table_rows(page):
        numbers = re.findall(r"\*\*(.+?)\*\*", result)
        name = COMMAND.search(command)
        assert bool(numbers) == (name is not None), command
        found += [(name[1], number) for number in numbers]
    return found


def cells(repository, name):
    text = (repository / "benchmarks" / "results" / f"{name}.md").read_text()
    return {cell.strip() for line in text.splitlines() for cell in line.split("|")}


def test_bold_numbers_are_cells_of_the_results(page, repository):
    assert len(quoted(page)) > 5
    wrong = [(name, number) for name, number in quoted(page) if number not in cells(repository, name)]
    assert wrong == []


def test_a_number_that_was_not_measured_is_noticed(repository):
    assert "99.9 ± 0.1" not in cells(repository, "expressivity")


def test_every_row_has_a_verdict(page):
    verdicts = {row[1] for row in table_rows(page)}
    assert verdicts <= {"reproduced", "at reduced scale", "not confirmed", "refuted", "not run", "–"}


@pytest.mark.parametrize("name", [name for name in BENCHMARKS if name != "speed"])
def test_results_are_complete_and_tables_are_those_of_the_rows(name):
    rows = [json.loads(line) for line in (RESULTS / f"{name}.jsonl").read_text().splitlines()]
    assert markdown(rows) == (RESULTS / f"{name}.md").read_text()
    assert (RESULTS / f"{name}.svg").stat().st_size > 0
    (spent,) = [row["value"] for row in rows if row["metric"] == "CPU time"]
    assert spent > 0


def test_every_benchmark_of_the_paper_is_on_the_page(page):
    assert {name for name in BENCHMARKS if name != "speed"} <= {*COMMAND.findall(page), *INCLUDED.findall(page)}
