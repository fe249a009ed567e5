"""`faenet-calc data generate RECIPE.yaml`: structures labelled by any ASE calculator."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from faenet_calc.cli.options import verbosity, verbosity_options

if TYPE_CHECKING:
    from faenet_calc.labelling.label_files import LabelFormat


@click.command("generate")
@click.argument("recipe", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("-o", "--out", type=click.Path(file_okay=False, path_type=Path), help="Folder; default: labels/NAME.")
@click.option("-j", "--workers", type=click.IntRange(min=1), default=1, show_default=True, help="Processes.")
@click.option("--format", "form", type=click.Choice(["extxyz", "aselmdb"]), help="Of the labels; default: extxyz.")
@click.option("--tasks", type=click.IntRange(min=1), help="Length of the task list, instead of the recipe's.")
@click.option("--time-limit", type=click.FloatRange(min=0), help="Begin no task after this many seconds.")
@click.option("--json", "as_json", is_flag=True, help="Print the counts as one JSON object.")
@verbosity_options
@click.pass_context
def command(
    ctx: click.Context,
    recipe: Path,
    out: Path | None,
    workers: int,
    form: "LabelFormat | None",
    tasks: int | None,
    time_limit: float | None,
    as_json: bool,
) -> None:
    """Build the structures of RECIPE, label them and write labels.extxyz or labels.aselmdb.

    A run that was stopped goes on where it was when the same command is given again.
    """
    from faenet_calc.labelling import generate, load_recipe

    settings = load_recipe(recipe, {} if tasks is None else {"tasks": tasks})
    folder = out or Path("labels") / settings.name
    shows = verbosity(ctx) >= 0 and not as_json
    done = generate(settings, folder, workers=workers, time_limit_s=time_limit, progress=shows, form=form)
    if as_json:
        click.echo(json.dumps({"folder": str(folder), **vars(done), "file": str(done.file)}))
    else:
        click.echo(
            f"{done.file}: {done.labels} structures from {done.tasks} of {settings.tasks} tasks "
            f"({done.duplicates} duplicates and {done.dropped} beyond the force limit left out; "
            f"{done.failed} tasks failed)"
        )
