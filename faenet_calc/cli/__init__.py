"""The command line: `faenet-calc COMMAND …`, one file per command.

In: arguments and files. Out: printed results, files and an exit code. May import every other folder.

A command `x` is the attribute `command` of `faenet_calc/cli/x.py`. `COMMANDS` holds its line in the `--help` listing,
so that the listing imports no command; the module is imported when the command is invoked.

Exit codes: 0 done; 1 failure; 2 invalid input (usage errors, `InputError`, a missing file); 3 ran, but not converged or
outside the model's domain.
"""

import click

from faenet_calc import __version__
from faenet_calc.cli.lazy import LazyGroup, RootGroup
from faenet_calc.cli.options import verbosity_options
from faenet_calc.memory import keep_freed_memory

COMMANDS = {
    "predict": "Compute energies, forces and stresses.",
    "relax": "Relax atoms, and optionally the cell.",
    "md": "Run molecular dynamics.",
    "screen": "Relax adsorbates on surfaces and rank adsorption energies.",
    "report": "Rebuild the tables and the page of a screening.",
    "check": "Test the physics of a model: symmetries, forces, extensivity.",
    "info": "Describe a model.",
    "models": "List the shipped models.",
    "convert": "Import weights from the original FAENet code.",
    "train": "Train a potential.",
    "evaluate": "Measure the errors of a model on labelled data.",
    "data": "Check, describe, split, convert or generate data sets.",
    "benchmark": "Run a benchmark of a clone of the repository.",
}


@click.group(cls=RootGroup, commands_help=COMMANDS, module_prefix="faenet_calc.cli.", no_args_is_help=True)
@click.version_option(__version__, prog_name="faenet-calc")
@verbosity_options
def main() -> None:
    """FAENet as an interatomic potential. Energies in eV, lengths in Å, forces in eV/Å, stresses in eV/Å³."""
    keep_freed_memory()


__all__ = ["COMMANDS", "LazyGroup", "main"]
