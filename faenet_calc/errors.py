"""Errors, warnings and the wording of their messages."""

import difflib
import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from types import FrameType

_INTERNAL = ("faenet_calc", "ase")  # packages whose lines a warning does not point at


class InputError(ValueError):
    """Invalid input: a file, an option, a structure, a configuration.

    The message says what was given, what was expected and what to do. On the command line it is printed without a
    traceback and the exit code is 2.
    """


def message_of(error: BaseException) -> str:
    """The message of an exception, with its type unless it is an `InputError`; never the type alone."""
    if isinstance(error, InputError):
        return str(error)
    return f"{str(error) or 'no message'} ({type(error).__name__})"


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """A number with its noun: ``1 structure``, ``2 structures``; ``plural`` is needed only for irregular nouns."""
    return f"{number} {noun if number == 1 else plural or f'{noun}s'}"


def enumerated(words: Sequence[str]) -> str:
    """Words as in a sentence: ``H``, ``H and C``, ``H, C and O``."""
    return " and ".join([*([", ".join(words[:-1])] if len(words) > 1 else []), *words[-1:]])


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """``; did you mean X?`` with the most similar known word, or nothing if none is similar."""
    close = difflib.get_close_matches(word, list(known), n=1)
    return f"; did you mean {close[0]}?" if close else ""


class OutsideDomainWarning(UserWarning):
    """A structure is unlike the training data of the model."""


def warn_user(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn about a line of the user: the innermost one that belongs neither to this package nor to ASE.

    A fixed ``stacklevel`` cannot find it: ASE, ``relax`` and ``relax_batch`` call a calculator at different depths.
    """
    frame = here = sys._getframe(1)
    for frame in _callers(here):
        if str(frame.f_globals.get("__name__")).partition(".")[0] not in _INTERNAL:
            break
    warnings.warn_explicit(
        message,
        category,
        frame.f_code.co_filename,
        frame.f_lineno,
        module=str(frame.f_globals.get("__name__")),
        registry=frame.f_globals.setdefault("__warningregistry__", {}),
    )


def _callers(frame: FrameType) -> Iterator[FrameType]:
    """A frame and its callers, also those of the greenlet in which it runs (see ``simulate.lockstep``)."""
    module = sys.modules.get("greenlet")
    current = None if module is None else module.getcurrent()
    caller: FrameType | None = frame
    while caller is not None:
        yield caller
        caller = caller.f_back
        while caller is None and current is not None:
            current = current.parent
            caller = None if current is None else current.gr_frame
