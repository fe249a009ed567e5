"""`faenet-calc data generate RECIPE.yaml`: generate structures labelled by any ASE calculator."""

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from faenet_calc.cli.numbers import NOT_NEGATIVE
from faenet_calc.cli.options import explained_interrupt, verbosity, verbosity_options
from faenet_calc.errors import counted

if TYPE_CHECKING:
    from faenet_calc.labelling import Progress, Recipe
    from faenet_calc.labelling.label_files import LabelFormat


@click.command("generate")
@click.argument("recipe", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "-o", "--out", type=click.Path(file_okay=False, path_type=Path), help="Output folder.  [default: labels/NAME]"
)
@click.option(
    "-j", "--workers", type=click.IntRange(min=1), default=1, show_default=True, help="Number of worker processes."
)
@click.option(
    "--format", "form", type=click.Choice(["extxyz", "aselmdb"]), help="Format of the label file.  [default: extxyz]"
)
@click.option("--tasks", type=click.IntRange(min=1), help="Number of tasks, instead of the number in the recipe.")
@click.option("--seed", type=int, help="Random seed of the task list, instead of the seed in the recipe.")
@click.option("--time-limit", type=NOT_NEGATIVE, metavar="S", help="Start no task after S seconds.")
@click.option(
    "--trust-code", is_flag=True, help="Import any module and call any function that the recipe names as a factory."
)
@click.option("--json", "as_json", is_flag=True, help="Print the counts as one JSON object per recipe.")
@verbosity_options
@click.pass_context
def command(
    ctx: click.Context,
    recipe: Path,
    out: Path | None,
    workers: int,
    form: "LabelFormat | None",
    tasks: int | None,
    seed: int | None,
    time_limit: float | None,
    trust_code: bool,
    as_json: bool,
) -> None:
    """Generate the structures of RECIPE and label them.

    RECIPE is a recipe, or the manifest.yaml of a data set: then every shard of the data set is generated into its own
    folder. Repeat the command to resume a run that was stopped.
    """
    from faenet_calc.labelling import generate

    given = {key: value for key, value in {"tasks": tasks, "seed": seed}.items() if value is not None}
    for settings, folder in _runs(recipe, out, given):
        shows = verbosity(ctx) >= 0 and not as_json
        with explained_interrupt(ctx, partial(_interrupted, folder)):
            done = generate(
                settings,
                folder,
                workers=workers,
                time_limit_s=time_limit,
                progress=shows,
                form=form,
                trust_code=trust_code,
            )
        click.echo(_summary(done, folder, settings, as_json))


def _runs(path: Path, out: Path | None, given: dict[str, Any]) -> "list[tuple[Recipe, Path]]":
    """Recipes to run and their output folders: one, or one for each shard of a manifest."""
    from faenet_calc.data.manifest import is_manifest, load_manifest
    from faenet_calc.labelling import load_recipe

    if not is_manifest(path):
        recipe = load_recipe(path, given)
        return [(recipe, out or Path("labels") / recipe.name)]
    manifest = load_manifest(path)
    folder = out or Path("labels") / manifest.name
    runs: dict[tuple[str, int | None], tuple[Recipe, Path]] = {}  # shards of different splits may share a run
    for shard in (shard for shard in manifest.shards if shard.recipe):
        stated = {key: getattr(shard, key) for key in ("tasks", "seed") if getattr(shard, key) is not None}
        recipe = load_recipe(path.parent / shard.recipe, {**stated, **given})
        runs.setdefault((shard.recipe, shard.seed), (recipe, folder / shard.file.partition(".")[0]))
    return list(runs.values())


def _interrupted(folder: Path) -> str:
    from faenet_calc.labelling.factory import JOURNAL

    journal = folder / JOURNAL
    n_tasks = journal.read_bytes().count(b"\n") - 1 if journal.exists() else 0  # the first line is a header
    if n_tasks < 1:
        return "Interrupted before the first task was finished. Repeat the command to start again."
    return f"Interrupted: the labels of {n_tasks} finished tasks are in {folder}. Repeat the command to continue."


def _summary(done: "Progress", folder: Path, settings: "Recipe", as_json: bool) -> str:
    if as_json:
        return json.dumps({"folder": str(folder), **vars(done), "file": str(done.file)})
    return (
        f"{done.file}: {counted(done.labels, 'structure')} from {done.tasks} of {counted(settings.tasks, 'task')} "
        f"({counted(done.duplicates, 'duplicate')} and {counted(done.dropped, 'structure')} beyond the force limit "
        f"skipped; {counted(done.failed, 'task')} failed)"
    )
