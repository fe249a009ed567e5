"""Progress of long tasks: a bar on a terminal, an occasional line in a log file."""

import sys
from typing import Any

from tqdm import tqdm

_LOG_INTERVAL_S = 30.0  # between lines where stderr is not a terminal


def progress_bar(*, shown: bool, **settings: Any) -> "tqdm[Any]":
    """A tqdm bar on stderr.

    Args:
        shown: Whether to draw it. A hidden bar accepts the same calls.
        settings: Arguments of tqdm: total, unit, desc, initial.
    """
    if not sys.stderr.isatty():
        settings["mininterval"] = _LOG_INTERVAL_S
    return tqdm(disable=not shown, **settings)


def print_above_bars(text: str) -> None:
    """Print a line on stderr without breaking the bars that are drawn there."""
    tqdm.write(text, file=sys.stderr)
    sys.stderr.flush()
