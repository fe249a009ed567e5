"""Progress of long tasks: a bar on a terminal, an occasional line in a log file."""

import os
import sys
from typing import Any

from tqdm import tqdm

_LOG_INTERVAL_S = 30.0  # between lines where stderr is not a terminal
_USUAL_SIZE = {"ncols": 80, "nrows": 24}  # of a terminal that does not tell its own: tqdm would draw nothing there
_ended: dict[int, int] = {}  # what the bars in a log file showed when their line was ended
# That of tqdm, except that slow tasks have "0.50 structures/s" instead of "2.00s/ structures".
_FORMAT = "{l_bar}{bar}| {n_fmt}/{total_fmt} [{elapsed}<{remaining}, {rate_noinv_fmt}{postfix}]"


def progress_bar(*, shown: bool | str, unit: str = "steps", **settings: Any) -> "tqdm[Any]":
    """A tqdm bar on stderr with the remaining time.

    Args:
        shown: Whether to draw it; a text is the title of the bar, in place of ``desc``. A hidden bar accepts the same
            calls.
        unit: What is counted, in the plural.
        settings: Further arguments of tqdm: total, desc, initial, leave.
    """
    if isinstance(shown, str):
        settings["desc"] = shown
    if settings.get("total") is not None:
        settings["bar_format"] = _FORMAT
    if not sys.stderr.isatty():
        settings |= {"mininterval": _LOG_INTERVAL_S, "delay": _LOG_INTERVAL_S}  # short tasks leave no line
    elif _width() == 0:
        settings |= _USUAL_SIZE
    return tqdm(disable=not shown, unit=f" {unit.strip()}", **settings)


def _width() -> int | None:
    """Columns of the terminal; 0 if it does not tell, as in some containers and scripts; None without a terminal."""
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns
    except (OSError, ValueError, AttributeError):
        return None


def print_above_bars(text: str) -> None:
    """Print a line on stderr without breaking the bars that are drawn there."""
    if sys.stderr.isatty():
        tqdm.write(text, file=sys.stderr)
    else:  # a log file: tqdm would draw every bar again after the line; one just drawn has no end of line yet
        drawn = {id(bar): bar.last_print_n for bar in getattr(tqdm, "_instances", ()) if not bar.disable}
        new = any(count > _ended.get(bar, 0) for bar, count in drawn.items())
        _ended.clear()
        _ended.update(drawn)
        print(("\n" if new else "") + text, file=sys.stderr)
    sys.stderr.flush()
