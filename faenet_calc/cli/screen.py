"""`faenet-calc screen --bulk Cu --miller 1 1 1 --adsorbate CO -o DIR`: adsorption energies of many configurations."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from faenet_calc.cli.numbers import NOT_NEGATIVE, POSITIVE
from faenet_calc.cli.options import (
    build_calculator,
    explained_interrupt,
    model_options,
    plain_warnings,
    show_progress,
    verbosity,
    verbosity_options,
)
from faenet_calc.cli.table import print_table
from faenet_calc.errors import InputError, counted

if TYPE_CHECKING:
    from faenet_calc.screening.screen import ScreenResult
    from faenet_calc.screening.surfaces import Slab

_INDEX = click.Tuple([int, int, int])


@click.command()
@click.option("--slab", "slabs", multiple=True, help="Structure file with a clean slab; may be repeated.")
@click.option(
    "--bulk", "bulks", multiple=True, help="Element or crystal file to cut slabs from, after relaxing its cell."
)
@click.option("--miller", "millers", type=_INDEX, multiple=True, help="Miller index h k l; may be repeated.")
@click.option(
    "--width", type=NOT_NEGATIVE, default=5.0, show_default=True, help="Minimum in-plane width of a cell (Å)."
)
@click.option("--thickness", type=POSITIVE, default=7.0, show_default=True, help="Minimum thickness of a cut slab (Å).")
@click.option("--vacuum", type=POSITIVE, default=15.0, show_default=True, help="Vacuum of a cut slab (Å).")
@click.option(
    "--adsorbate",
    "adsorbates",
    multiple=True,
    help="Atom, radical or molecule by name, or FILE:0,1 with the indices of the binding atoms; may be repeated.",
)
@click.option(
    "--coverage",
    "coverages",
    type=click.IntRange(min=1),
    multiple=True,
    default=(1,),
    help="Number of adsorbates per cell; may be repeated.  [default: 1]",
)
@click.option("--rotations", type=click.IntRange(min=1), default=2, show_default=True, help="Rotations per site.")
@click.option("--gas", multiple=True, metavar="ELEMENT=MOLECULE", help="Gas reference of an element, e.g. O=O2.")
@click.option("--fmax", type=POSITIVE, default=0.05, show_default=True, help="Convergence criterion (eV/Å).")
@click.option("--steps", type=click.IntRange(min=1), default=300, show_default=True, help="Maximum number of steps.")
@click.option("--optimizer", default="LBFGS", show_default=True, help="Name of an ASE optimizer.")
@click.option("--all-frames-only", is_flag=True, help="Do not relax with a single frame first.")
@click.option("-o", "--output", "out_dir", required=True, type=click.Path(path_type=Path), help="Output folder.")
@click.option("--workers", type=click.IntRange(min=1), default=1, show_default=True, help="Number of worker processes.")
@click.option("--scheduler", help="Address of a running Dask scheduler, e.g. tcp://host:8786.")
@click.option("--slurm", multiple=True, metavar="KEY=VALUE", help="Start workers as SLURM jobs, e.g. partition=long.")
@click.option("--threads", type=click.IntRange(min=1), help="Torch threads per worker.")
@click.option("--shard", metavar="I/N", help="Compute the I-th of N parts, counted from 1, e.g. in an array job.")
@click.option("--merge", is_flag=True, help="Compute nothing; rebuild tables and report, e.g. after all shards.")
@click.option("--resume", is_flag=True, help="Continue the screening in the folder.")
@click.option("--top", type=click.IntRange(min=1), help="Number of configurations per system to export.")
@click.option("--export", type=click.Choice(["vasp", "espresso"]), help="Write input folders for the best ones.")
@model_options
@verbosity_options
@click.pass_context
def command(ctx: click.Context, /, out_dir: Path, merge: bool, as_json: bool, **options: Any) -> None:
    """Place adsorbates on every distinct site of slabs, relax them and rank their adsorption energies.

    Slabs are given by --slab or cut by --bulk and --miller. The lower half of a slab is fixed, unless its file has
    fixed atoms (FixAtoms, selective dynamics).

    Exit code 0 if all configurations converged, 3 if some did not or could not be computed, 2 for invalid input.
    """
    from faenet_calc.reports.screening import write_screening_report
    from faenet_calc.screening.screen import merge_screen, screen
    from faenet_calc.screening.worker import RelaxSettings

    with explained_interrupt(ctx, lambda: _interrupted(out_dir)), plain_warnings(ctx):
        if merge:
            result = merge_screen(out_dir)
        else:
            model = {name: options[name] for name in ("model", "device", "dtype", "frames", "seed")}
            calculator = build_calculator(**model)
            slabs = [*options["slabs"], *_cuts(calculator, options, progress=show_progress(ctx))]
            settings = RelaxSettings(
                optimizer=options["optimizer"],
                fmax=options["fmax"],
                steps=options["steps"],
                one_frame_first=not options["all_frames_only"],
            )
            result = screen(
                slabs,
                options["adsorbates"],
                out_dir,
                calculator=calculator,
                settings=settings,
                rotations=options["rotations"],
                coverages=options["coverages"],
                min_width_A=options["width"],
                gas=_pairs("--gas", options["gas"]),
                workers=options["workers"],
                scheduler=options["scheduler"],
                slurm=_pairs("--slurm", options["slurm"]) or None,
                threads=options["threads"],
                shard=_shard(options["shard"]),
                resume=options["resume"],
                top=options["top"],
                export=options["export"],
                progress=show_progress(ctx),
            )
        report = write_screening_report(out_dir)
    if as_json:
        click.echo(json.dumps({"folder": str(out_dir), "results": [row.to_json() for row in result.rows]}))
    elif verbosity(ctx) >= 0:
        _print(result, report)
    ctx.exit(0 if all(row.converged and row.error is None for row in result.rows) else 3)


def _interrupted(out_dir: Path) -> str:
    from faenet_calc.screening.store import ScreenStore

    store = ScreenStore(out_dir)
    if not store.exists():
        return "Interrupted: nothing was saved. Start the command again."
    n_finished = len(store.rows())
    if n_finished == 0 and store.references() is None:
        return (
            f"Interrupted before the references were finished: {out_dir} holds no results yet. Repeat the command with "
            "--resume to compute them."
        )
    if n_finished == 0:
        return (
            f"Interrupted before the first configuration was finished: the references are kept in {out_dir}. Repeat "
            "the command with --resume to continue."
        )
    return (
        f"Interrupted: {counted(n_finished, 'configuration is', 'configurations are')} finished and saved in "
        f"{out_dir}. Repeat the command with --resume to continue, or run `faenet-calc report {out_dir}` for the "
        "tables and the page of what is finished."
    )


def _cuts(calculator: Any, options: dict[str, Any], *, progress: bool) -> "list[Slab]":
    """The slabs of --bulk and --miller."""
    from faenet_calc.graphs.reading import read_structures
    from faenet_calc.screening.surfaces import cut_slab, relaxed_bulk

    if bool(options["bulks"]) != bool(options["millers"]):
        raise InputError("--bulk and --miller belong together, e.g. --bulk Cu --miller 1 1 1")
    slabs = []
    for name in options["bulks"]:
        is_file = Path(name).is_file() or Path(name).suffix
        relaxed = relaxed_bulk(read_structures([name])[0].atoms if is_file else name, calculator, progress=progress)
        for miller in options["millers"]:
            slabs += cut_slab(
                relaxed,
                miller,
                layers_A=options["thickness"],
                vacuum_A=options["vacuum"],
                min_width_A=options["width"],
            )
    return slabs


def _pairs(option: str, values: tuple[str, ...]) -> dict[str, str]:
    pairs = {}
    for value in values:
        for pair in value.split(","):
            key, equals, word = pair.partition("=")
            if not (key and equals and word):
                raise InputError(f"{option} {value!r}, expected KEY=VALUE")
            pairs[key] = word
    return pairs


def _shard(text: str | None) -> tuple[int, int] | None:
    """(i, n) from "i/n", with i counted from 0."""
    if text is None:
        return None
    first, slash, last = text.partition("/")
    if not (slash and first.isdecimal() and last.isdecimal() and 1 <= int(first) <= int(last)):
        raise InputError(f"--shard {text!r}, expected I/N with 1 <= I <= N, e.g. 3/10")
    return int(first) - 1, int(last)


def _or_dash(value: float | None, form: str) -> str:
    return "–" if value is None else format(value, form)


def _print(result: "ScreenResult", report: Path) -> None:
    from faenet_calc.screening.results import RESOLVED_EV, not_distinguished

    best = [row for row in result.best() if row.adsorption_energy is not None]
    print_table(
        {
            "slab": [row.slab for row in best],
            "adsorbate": [row.adsorbate for row in best],
            **({"coverage": [str(row.coverage) for row in best]} if len({row.coverage for row in best}) > 1 else {}),
            "best site": [row.final_site or row.site for row in best],
            "E_ads/eV": [f"{row.adsorption_energy:.3f}" for row in best],
            "uncertainty/eV": [_or_dash(row.uncertainty, ".3f") for row in best],
            "probability": [_or_dash(row.most_stable_probability, ".0%") for row in best],
            f"within {RESOLVED_EV} eV": [", ".join(not_distinguished(result.rows, row)) or "–" for row in best],
        }
    )
    n_failed = sum(row.error is not None for row in result.rows)
    n_open = sum(row.error is None and not row.converged for row in result.rows)
    click.echo(
        f"{counted(len(result.rows), 'configuration')}, {n_failed} failed, {n_open} not converged; gas references: "
        f"{result.gas.describe()}"
    )
    click.echo(f"wrote {result.folder / 'results.csv'} and {report}", err=True)
