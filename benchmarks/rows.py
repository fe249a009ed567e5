"""Result rows of benchmarks: one JSON object per line, appended at once so that interrupted runs can be resumed."""

import argparse
import hashlib
import json
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import safetensors.numpy

from faenet_calc.errors import InputError
from faenet_calc.files import write_atomically
from faenet_calc.potential import shipped

Row = dict[str, Any]


class Rows:
    """Append-only file of rows; without a path, a list in memory.

    Args:
        path: File; its folder is created. A truncated last line is dropped and overwritten.
        header: First row of a new file; an existing file must begin with the same row.

    Raises:
        SystemExit: The file belongs to other settings.
    """

    def __init__(self, path: Path | None, header: Row | None = None) -> None:
        self.path = path
        self.rows: list[Row] = []
        if path is not None and path.exists():
            text = path.read_text()
            whole = text[: text.rfind("\n") + 1]
            self.rows = [json.loads(line) for line in whole.splitlines()]
            if len(whole) < len(text):
                path.write_text(whole)
        if self.rows and header is not None and self.rows[0] != header:
            raise SystemExit(f"{path} begins with {self.rows[0]}, expected {header}; choose another file")
        if not self.rows and header is not None:
            self.append(header)

    def append(self, row: Row) -> None:
        """Append a row and write it immediately."""
        self.extend([row])

    def extend(self, rows: Iterable[Row]) -> None:
        """Append rows that belong together and write them at once."""
        rows = list(rows)
        self.rows += rows
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with open(self.path, "a") as file:
                file.write("".join(json.dumps(row) + "\n" for row in rows))

    def derive(self, function: Callable[[list[Row]], Iterable[Row]]) -> None:
        """Replace all derived rows by those that a function makes of the measured ones."""
        measured = [row for row in self.rows if not row.get("derived")]
        self.rows = [*measured, *(row | {"derived": True} for row in function(measured))]
        if self.path is not None:
            write_atomically(self.path, "".join(json.dumps(row) + "\n" for row in self.rows).encode())

    def of(self, kind: str) -> list[Row]:
        """Rows whose ``row`` is ``kind``, in order."""
        return [row for row in self.rows if row.get("row") == kind]


def model_words(model: str) -> Row:
    """Name or path of a model and the digest of its weights, so that rows of different weights are not mixed."""
    path = shipped.path(model) if model in shipped.names() else Path(model)
    return {"model": model, "weights": weights_digest(path.read_bytes())}


def weights_digest(checkpoint: bytes) -> str:
    """First twelve hexadecimal digits of the sha256 of the weights of a .safetensors file, nothing else in it."""
    digest = hashlib.sha256()
    for name, values in sorted(safetensors.numpy.load(checkpoint).items()):
        if not name.startswith("uncertainty."):
            digest.update(name.encode() + values.tobytes())
    return digest.hexdigest()[:12]


def show(row: Row) -> None:
    """Print a row."""
    print(json.dumps(row), flush=True)


def progress(**words: Any) -> None:
    """Print progress to stderr."""
    print(json.dumps(words), file=sys.stderr, flush=True)


def script_parser(description: str | None, *, quick: str, seeds: int | None = 3) -> argparse.ArgumentParser:
    """Parser with the options that all benchmarks of the paper share.

    Args:
        description: Docstring of the script.
        quick: What ``--quick`` does.
        seeds: Default number of random seeds; None for a script without.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    if seeds is not None:
        parser.add_argument("--seeds", type=int, default=seeds, help="Number of random seeds.")
    parser.add_argument("--quick", action="store_true", help=quick)
    parser.add_argument("--out", type=Path, help="File for the rows (JSON lines).")
    parser.add_argument("--plot", type=Path, help="File for the plot.")
    return parser


def run_script(main: Callable[[], None]) -> None:
    """Run the main function of a script; wrong input ends it with a message instead of a traceback."""
    try:
        main()
    except InputError as error:
        raise SystemExit(f"error: {error}") from None


def rounded(value: Any, digits: int = 4) -> Any:
    """Round the numbers in nested lists and dicts."""
    if isinstance(value, dict):
        return {key: rounded(item, digits) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(item, digits) for item in value]
    return round(float(value), digits) if isinstance(value, float) else value
