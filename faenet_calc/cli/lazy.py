"""Command groups that import a command when it is invoked, and turn errors into messages and exit codes."""

import difflib
import traceback
from importlib import import_module
from typing import Any

import click

from faenet_calc.cli.options import verbosity
from faenet_calc.errors import InputError, message_of

EXIT_FAILURE = 1
EXIT_BAD_INPUT = 2
EXIT_NOT_CONVERGED = 3
"""The command ran, but a result did not converge or lies outside the model's domain."""


class LazyGroup(click.Group):
    """A group whose commands are imported on demand.

    Attributes:
        commands_help: Name → line in the listing, in the order of the listing.
        module_prefix: The command ``name`` is the attribute ``command`` of the module ``module_prefix + name``.
    """

    def __init__(self, *args: Any, commands_help: dict[str, str], module_prefix: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.module_prefix = module_prefix
        self.commands_help = commands_help

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names in the order of the listing."""
        return list(self.commands_help)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command; None if there is no such name."""
        if cmd_name not in self.commands_help:
            return None
        command = import_module(self.module_prefix + cmd_name).command
        assert isinstance(command, click.Command), f"{self.module_prefix + cmd_name}.command is {command!r}"
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command; name a similar one, or all of them, if there is none with this name."""
        name = args[0]
        if self.get_command(ctx, name) is None and not name.startswith("-"):
            known = self.list_commands(ctx)
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"Did you mean {close[0]!r}?" if close else f"Commands: {', '.join(known)}."
            ctx.fail(f"No such command {name!r}. {hint}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the listing from the table, importing nothing."""
        if self.commands_help:
            with formatter.section("Commands"):
                formatter.write_dl(list(self.commands_help.items()))


class RootGroup(LazyGroup):
    """The outermost group: prints errors on stderr, as one line or (with -v) as traceback, and sets the exit code."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except (click.exceptions.Exit, click.ClickException, click.Abort, BrokenPipeError):
            raise  # click handles these; it ends quietly when the reader of a pipe has gone
        except InputError as error:
            _report(ctx, error, str(error))
            ctx.exit(EXIT_BAD_INPUT)
        except OSError as error:
            where = f"{error.filename}: " if error.filename else ""
            _report(ctx, error, f"{where}{error.strerror or error}")
            ctx.exit(EXIT_BAD_INPUT if isinstance(error, _WRONG_PATH) else EXIT_FAILURE)
        except Exception as error:
            _report(ctx, error, f"{message_of(error)}; -v shows the traceback")
            ctx.exit(EXIT_FAILURE)


_WRONG_PATH = (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError)


def _report(ctx: click.Context, error: Exception, message: str) -> None:
    if verbosity(ctx) > 0:
        click.echo("".join(traceback.format_exception(error)).rstrip(), err=True)
    else:
        click.echo(f"Error: {message}", err=True)
