"""Options that every command shares: how much to say (L4)."""

from collections.abc import Callable
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])
_KEY = "faenet_calc.verbosity"


def verbosity(ctx: click.Context) -> int:
    """How much to say: -1 with -q, 0 by default, 1 with -v (progress details, tracebacks), 2 with -vv."""
    return int(ctx.meta.get(_KEY, 0))


def _remember(step: int) -> Callable[[click.Context, click.Parameter, int], None]:
    def callback(ctx: click.Context, param: click.Parameter, value: int) -> None:
        # meta is one dictionary for the whole chain of contexts: `-v relax` and `relax -v` agree.
        if value:
            ctx.meta[_KEY] = verbosity(ctx) + step * value

    return callback


def verbosity_options(function: F) -> F:
    """Add -v/--verbose and -q/--quiet; read them with `verbosity(ctx)`."""
    function = click.option(
        "-v", "--verbose", count=True, expose_value=False, callback=_remember(1), help="Say more; show tracebacks."
    )(function)
    return click.option(
        "-q", "--quiet", count=True, expose_value=False, callback=_remember(-1), help="Say only what matters."
    )(function)
