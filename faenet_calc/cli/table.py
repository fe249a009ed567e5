"""Aligned columns of text on the terminal."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import click


@dataclass(frozen=True)
class Column:
    """Title, width and alignment of a column.

    Attributes:
        title: Printed above the column.
        width: Least number of characters.
        right: Aligned to the right, as numbers are.
    """

    title: str
    width: int
    right: bool

    def cell(self, text: str) -> str:
        """The text, padded to the width of the column."""
        width = max(self.width, len(self.title))
        return f"{text:>{width}}" if self.right else f"{text:<{width}}"


def row(columns: Sequence[Column], cells: Sequence[str] | None = None) -> str:
    """One line of a table, for tables that are printed row by row; the titles without ``cells``."""
    texts = [column.title for column in columns] if cells is None else cells
    return "  ".join(column.cell(text) for column, text in zip(columns, texts, strict=True)).rstrip()


def print_table(columns: Mapping[str, Sequence[str]]) -> None:
    """Print columns under their titles: numbers aligned to the right, other texts to the left."""
    layout = [Column(title, max(map(len, cells), default=0), _are_numbers(cells)) for title, cells in columns.items()]
    click.echo(row(layout))
    for cells in zip(*columns.values(), strict=True):
        click.echo(row(layout, cells))


def _are_numbers(cells: Sequence[str]) -> bool:
    def is_number(text: str) -> bool:
        try:
            float(text)
        except ValueError:
            return False
        return True

    return all(is_number(cell) for cell in cells if cell not in ("", "-", "–"))
