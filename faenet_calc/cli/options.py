"""Options shared by commands: verbosity, model, device, frames, output."""

import logging
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar, get_args

import click

if TYPE_CHECKING:
    from faenet_calc.calculator.calculator import FAENetCalculator
    from faenet_calc.potential.capabilities import FramesChoice

F = TypeVar("F", bound=Callable[..., Any])
_KEY = "faenet_calc.verbosity"
_LOG_LEVELS = {-1: logging.ERROR, 0: logging.WARNING, 1: logging.INFO, 2: logging.DEBUG}  # by verbosity
_DEVICE = re.compile(r"cpu|mps|(cuda|xpu)(:\d+)?")


def verbosity(ctx: click.Context) -> int:
    """-1 with -q, 0 by default, 1 with -v (details and tracebacks), 2 with -vv."""
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
        "-v",
        "--verbose",
        count=True,
        expose_value=False,
        callback=_remember(1),
        help="Print more details, and tracebacks of errors.",
    )(function)
    return click.option(
        "-q", "--quiet", count=True, expose_value=False, callback=_remember(-1), help="Print results and errors only."
    )(function)


def _check_device(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    if value is not None and not _DEVICE.fullmatch(value):
        raise click.BadParameter(f"{value!r} is not a device to compute on; choose cpu, cuda, cuda:N or mps.")
    return value


def device_option(function: F) -> F:
    """Add --device."""
    return click.option(
        "--device",
        callback=_check_device,
        help="Device to compute on: cpu, cuda, cuda:N or mps.  [default: the fastest available]",
    )(function)


def frames_option(function: F) -> F:
    """Add --frames with the modes of `faenet_calc.frames.config.FrameMode`."""
    from faenet_calc.frames.config import FrameMode

    return click.option(
        "--frames",
        type=click.Choice(["auto", *get_args(FrameMode)]),
        default="auto",
        show_default=True,
        help="Frames to average over: one is the fastest, exact the most symmetric, auto the setting of the model.",
    )(function)


def model_options(function: F) -> F:
    """Add -m, --device, --dtype, --frames, --seed, --json and --overwrite.

    They are passed as ``model`` (a tuple), ``device``, ``dtype``, ``frames``, ``seed``, ``as_json`` and ``overwrite``.
    """
    for option in reversed(
        (
            click.option(
                "-m",
                "--model",
                multiple=True,
                help="Shipped model or checkpoint file; repeat it or give a glob for a committee.  "
                "[default: the default shipped model]",
            ),
            device_option,
            click.option(
                "--dtype",
                type=click.Choice(["float32", "float64"]),
                default="float32",
                show_default=True,
                help="Floating-point precision.",
            ),
            frames_option,
            click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Random seed."),
            click.option("--json", "as_json", is_flag=True, help="Print the results as one JSON object."),
            click.option("--overwrite", is_flag=True, help="Replace existing output files."),
        )
    ):
        function = option(function)
    return function


def build_calculator(
    model: Sequence[str], device: str | None, dtype: str, seed: int, frames: "FramesChoice" = "auto"
) -> "FAENetCalculator":
    """The calculator described by the options of `model_options`."""
    from faenet_calc.calculator.calculator import FAENetCalculator

    checkpoint: Any = None if not model else model[0] if len(model) == 1 else list(model)
    return FAENetCalculator(checkpoint, device=device, dtype=dtype, seed=seed, frames=frames)


def show_progress(ctx: click.Context) -> bool:
    """Whether to draw progress bars: on terminals, unless -q."""
    return sys.stderr.isatty() and verbosity(ctx) >= 0


@contextmanager
def plain_warnings(ctx: click.Context, *, but: tuple[type[Warning], ...] = ()) -> Iterator[None]:
    """Print warnings as single lines on stderr, each once and none with -q; leave out the categories in ``but``.

    Log messages of the package are printed too: warnings unless -q, the course of the calculation with -v, every
    optimizer step with -vv.
    """
    from faenet_calc.progress import print_above_bars

    seen = set[str]()  # Python's own record is cleared whenever a filter changes

    def show(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
        if verbosity(ctx) >= 0 and not issubclass(category, but) and str(message) not in seen:
            seen.add(str(message))
            print_above_bars(f"Warning: {message}")

    with _printed_log(verbosity(ctx)), warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.simplefilter(
            "ignore", DeprecationWarning
        )  # they are for developers, and most come from other packages
        warnings.showwarning = show
        yield


@contextmanager
def _printed_log(level: int) -> Iterator[None]:
    """Print log messages of the package on stderr, as many as the verbosity ``level`` asks for."""
    from faenet_calc.progress import print_above_bars

    class Printer(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            prefix = "Warning: " if record.levelno >= logging.WARNING else ""
            print_above_bars(prefix + record.getMessage())

    logger = logging.getLogger("faenet_calc")
    printer, before = Printer(), logger.level
    logger.setLevel(_LOG_LEVELS[max(-1, min(level, 2))])
    logger.addHandler(printer)
    try:
        yield
    finally:
        logger.removeHandler(printer)
        logger.setLevel(before)


@contextmanager
def explained_interrupt(ctx: click.Context, explain: Callable[[], str]) -> Iterator[None]:
    """On Ctrl-C, print ``explain()``, which says what was saved and how to continue, and exit with 1."""
    try:
        yield
    except BaseException as error:
        if not _is_interrupt(error):
            raise
        click.echo(explain(), err=True)
        ctx.exit(1)


def _is_interrupt(error: BaseException | None) -> bool:
    """Whether an error is Ctrl-C, or was raised by the clean-up after it, e.g. of a file that was being closed."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__context__
    return error is not None
