"""`faenet-calc data …`: check, describe, split, convert, derive and generate data sets."""

from collections.abc import Callable
from typing import Any, TypeVar

import click

from faenet_calc.cli.lazy import LazyGroup

F = TypeVar("F", bound=Callable[..., Any])

COMMANDS = {
    "check": "Find mistakes in labelled data, and say what to do about them.",
    "stats": "Counts, ranges, neighbors, element references, trivial errors.",
    "split": "Write training, validation and test files that share no trajectory.",
    "convert": "Bring data of any format into one file.",
    "is2re": "Initial structures with relaxed energies, from relaxations.",
    "generate": "Label generated structures with any ASE calculator.",
}


@click.group(cls=LazyGroup, commands_help=COMMANDS, module_prefix="faenet_calc.cli.data_", no_args_is_help=True)
def command() -> None:
    """Check, describe, split, convert or generate data sets.

    FILES are extxyz (also .xz, .gz), traj, ASE db, aselmdb, VASP and Quantum ESPRESSO outputs, OC20 LMDB, or folders.
    """


def label_options(function: F) -> F:
    """Add FILES, --energy-key, --forces-key and --trust-pickle to a command."""
    for decorate in (
        click.option(
            "--trust-pickle", is_flag=True, help="Read LMDB files of pickled objects; this runs code in the files."
        ),
        click.option("--forces-key", metavar="NAME", help="Name of the array with the forces."),
        click.option("--energy-key", metavar="NAME", help="Name of the number to use as energy."),
        click.argument("files", nargs=-1, required=True, type=click.Path()),
    ):
        function = decorate(function)
    return function
