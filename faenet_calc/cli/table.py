"""Columns of text on the terminal."""

from collections.abc import Mapping, Sequence

import click


def print_table(columns: Mapping[str, Sequence[str]]) -> None:
    """Print columns under their titles: the first two to the left, numbers to the right."""
    widths = {title: max(len(title), *map(len, cells)) for title, cells in columns.items()}
    rows = [list(columns), *map(list, zip(*columns.values(), strict=True))]
    for row in rows:
        cells = [
            f"{cell:<{width}}" if number < 2 else f"{cell:>{width}}"
            for number, (cell, width) in enumerate(zip(row, widths.values(), strict=True))
        ]
        click.echo("  ".join(cells).rstrip())
