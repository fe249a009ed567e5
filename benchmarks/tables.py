"""Markdown tables of result rows.

    python benchmarks/tables.py rows.jsonl [--out table.md]

Rows have the keys benchmark, case, metric, value and unit, and optionally table (rows of one table belong together),
atoms, and seed; or spread (standard deviation over seeds) and runs (number of seeds). A table has a line per case and a
column per metric; cells are means over seeds with their standard deviations.
"""

import argparse
import json
import statistics
from collections.abc import Iterable
from pathlib import Path

from rows import Row


def markdown(rows: Iterable[Row]) -> str:
    """All tables of the rows, in the order of their first rows."""
    tables: dict[str, list[Row]] = {}
    for row in rows:
        tables.setdefault(_title(row), []).append(row)
    return "\n".join(_table(title, members) for title, members in tables.items())


def _title(row: Row) -> str:
    if "table" in row:
        return str(row["table"])
    return f"{row['atoms']} atoms" if row.get("atoms") is not None else ""


def _table(title: str, rows: list[Row]) -> str:
    columns = list(dict.fromkeys(_column(row) for row in rows))
    members: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        members.setdefault((row["case"], _column(row)), []).append(row)
    cells = {place: _cell(_mean(found)) for place, found in members.items()}
    lines = [f"**{title}**{_seeds(members.values())}\n"] if title else []
    lines += [f"| | {' | '.join(columns)} |", f"|---|{'---|' * len(columns)}"]
    for case in dict.fromkeys(row["case"] for row in rows):
        lines.append(f"| {case} | {' | '.join(cells.get((case, column), '') for column in columns)} |")
    return "\n".join(lines) + "\n"


def _mean(rows: list[Row]) -> Row:
    """One row for the seeds of a cell; without seeds, the last row counts."""
    values = [row["value"] for row in rows if "seed" in row]
    if len(values) < 2:
        return rows[-1]
    return rows[0] | {"value": statistics.mean(values), "spread": statistics.stdev(values)}


def _seeds(cells: Iterable[list[Row]]) -> str:
    """How many seeds the cells are means of."""
    numbers = sorted({rows[-1].get("runs", len(rows)) for rows in cells if "seed" in rows[-1] or "runs" in rows[-1]})
    if not numbers:
        return ""
    least, most = numbers[0], numbers[-1]
    return f" ({least if least == most else f'{least} to {most}'} seed{'s' if most > 1 else ''})"


def _column(row: Row) -> str:
    return f"{row['metric']} ({row['unit']})" if row.get("unit") else str(row["metric"])


def _cell(row: Row) -> str:
    if isinstance(row["value"], str):
        return row["value"]
    text = number(row["value"])
    return f"{text} ± {number(row['spread'])}" if row.get("spread") is not None else text


def number(value: float) -> str:
    """Three significant digits, without exponent between 0.001 and a million; integers as they are."""
    if value == int(value) and abs(value) < 1e6:
        return str(int(value))
    if not 1e-3 <= abs(value) < 1e6:
        return f"{value:.1e}"
    return f"{float(f'{value:.3g}'):g}" if abs(value) < 1e3 else f"{value:.0f}"


def main(arguments: list[str] | None = None) -> None:
    """Print or write the tables of a file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", type=Path)
    parser.add_argument("--out", type=Path, help="Markdown file (default: standard output).")
    chosen = parser.parse_args(arguments)
    text = markdown(json.loads(line) for line in chosen.rows.read_text().splitlines())
    if chosen.out is None:
        print(text, end="")
    else:
        chosen.out.write_text(text)


if __name__ == "__main__":
    main()
