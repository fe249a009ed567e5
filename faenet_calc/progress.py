"""Progress of long work: a bar on a terminal, a line now and then in a log file."""

import sys
from typing import Any

from tqdm import tqdm

_SECONDS_BETWEEN_LINES_OF_A_LOG = 30.0


def progress_bar(*, shown: bool, **settings: Any) -> "tqdm[Any]":
    """A tqdm bar on stderr.

    Args:
        shown: False makes it silent.
        settings: Of tqdm: total, unit, desc, initial.
    """
    if not sys.stderr.isatty():
        settings["mininterval"] = _SECONDS_BETWEEN_LINES_OF_A_LOG
    return tqdm(disable=not shown, **settings)
