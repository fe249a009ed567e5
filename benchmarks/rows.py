"""Results of benchmarks as rows: one JSON object a line, appended as they come, so that a stopped run can go on."""

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import safetensors.numpy

from faenet_calc.potential import shipped

Row = dict[str, Any]


class Rows:
    """A file of rows that only grows; with no path, a list in memory.

    Args:
        path: Its folder is made. A last line that a kill has cut is left out and overwritten.
        header: First row of a new file; an existing file must begin with the same one.

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
        """Add a row and write it at once."""
        self.rows.append(row)
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with open(self.path, "a") as file:
                file.write(json.dumps(row) + "\n")

    def of(self, kind: str) -> list[Row]:
        """Rows whose ``row`` is ``kind``, in order."""
        return [row for row in self.rows if row.get("row") == kind]


def model_words(model: str) -> Row:
    """Name or path of a model, and a digest of its weights: rows of other weights do not mix."""
    path = shipped.path(model) if model in shipped.names() else Path(model)
    return {"model": model, "weights": weights_digest(path.read_bytes())}


def weights_digest(checkpoint: bytes) -> str:
    """Twelve digits of the sha256 of all tensors of a .safetensors file; what else it says may change."""
    digest = hashlib.sha256()
    for name, values in sorted(safetensors.numpy.load(checkpoint).items()):
        digest.update(name.encode() + values.tobytes())
    return digest.hexdigest()[:12]


def show(row: Row) -> None:
    """Print a row."""
    print(json.dumps(row), flush=True)


def progress(**words: Any) -> None:
    """Say how far a run is, on stderr."""
    print(json.dumps(words), file=sys.stderr, flush=True)


def rounded(value: Any, digits: int = 4) -> Any:
    """Numbers in nested lists and dicts with so many digits after the point."""
    if isinstance(value, dict):
        return {key: rounded(item, digits) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(item, digits) for item in value]
    return round(float(value), digits) if isinstance(value, float) else value
