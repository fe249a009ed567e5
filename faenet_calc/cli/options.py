"""Options that commands share: how much to say, which model, what to write."""

import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from faenet_calc.calculator.calculator import FAENetCalculator
    from faenet_calc.potential.capabilities import FramesChoice

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


def model_options(function: F) -> F:
    """Add -m, --device, --dtype, --seed, --json and --overwrite.

    They arrive as ``model`` (a tuple), ``device``, ``dtype``, ``seed``, ``as_json`` and ``overwrite``.
    """
    for option in reversed(
        (
            click.option(
                "-m",
                "--model",
                multiple=True,
                help="Shipped name or checkpoint file; several or a glob: a committee. Default: the shipped one.",
            ),
            click.option("--device", help="cpu, cuda, cuda:1, mps; by default the best there is."),
            click.option("--dtype", type=click.Choice(["float32", "float64"]), default="float32", show_default=True),
            click.option(
                "--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of anything random."
            ),
            click.option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout."),
            click.option("--overwrite", is_flag=True, help="Replace output files that exist."),
        )
    ):
        function = option(function)
    return function


def build_calculator(
    model: Sequence[str], device: str | None, dtype: str, seed: int, frames: "FramesChoice" = "auto"
) -> "FAENetCalculator":
    """The calculator that the options of `model_options` describe."""
    from faenet_calc.calculator.calculator import FAENetCalculator

    checkpoint: Any = None if not model else model[0] if len(model) == 1 else list(model)
    return FAENetCalculator(checkpoint, device=device, dtype=dtype, seed=seed, frames=frames)


def show_progress(ctx: click.Context) -> bool:
    """Whether to draw progress bars: on terminals, unless -q."""
    return sys.stderr.isatty() and verbosity(ctx) >= 0


@contextmanager
def plain_warnings(ctx: click.Context, *, but: tuple[type[Warning], ...] = ()) -> Iterator[None]:
    """Say warnings in one line on stderr, each once and none with -q; leave out the kinds in ``but``."""

    def show(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
        if verbosity(ctx) >= 0 and not issubclass(category, but):
            click.echo(f"Warning: {message}", err=True)

    with warnings.catch_warnings():
        warnings.simplefilter("default")
        warnings.showwarning = show
        yield
