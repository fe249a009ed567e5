"""`faenet-calc data split FILES… -o DIR`: training, validation and test files."""

import json
from pathlib import Path

import click

from faenet_calc.cli.data import label_options
from faenet_calc.cli.options import verbosity, verbosity_options
from faenet_calc.errors import InputError, counted


@click.command("split")
@label_options
@click.option("-o", "--out", required=True, type=click.Path(file_okay=False, path_type=Path), help="Output folder.")
@click.option(
    "--by",
    "kind",
    default="auto",
    show_default=True,
    help="Groups to keep together: auto, trajectory, composition, adsorbate, slab, file, info or key:NAME; random "
    "divides trajectories.",
)
@click.option("--fractions", default="0.8,0.1,0.1", show_default=True, help="Fractions of train, val and test.")
@click.option(
    "--apart-from",
    multiple=True,
    metavar="FILE",
    help="Leave out structures that share a group with those in FILE, e.g. an earlier validation set (repeatable).",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Random seed.")
@click.option(
    "--format",
    "ending",
    type=click.Choice(["extxyz", "extxyz.xz", "traj", "db", "aselmdb"]),
    default="extxyz",
    help="Format of the files.",
)
@click.option("--overwrite", is_flag=True, help="Replace existing files.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@verbosity_options
@click.pass_context
def command(
    ctx: click.Context,
    files: tuple[str, ...],
    energy_key: str | None,
    forces_key: str | None,
    trust_pickle: bool,
    out: Path,
    kind: str,
    fractions: str,
    apart_from: tuple[str, ...],
    seed: int,
    ending: str,
    overwrite: bool,
    as_json: bool,
) -> None:
    """Write DIR/train, DIR/val and DIR/test files that share no trajectory (unless --by random is given)."""
    from faenet_calc.data.export import export_split

    written = export_split(
        files,
        out,
        kind=kind,
        fractions=_numbers(fractions),
        seed=seed,
        apart_from=apart_from,
        ending=ending,
        energy_key=energy_key,
        forces_key=forces_key,
        trust_pickle=trust_pickle,
        overwrite=overwrite,
        progress=verbosity(ctx) >= 0 and not as_json,
    )
    if as_json:
        click.echo(
            json.dumps({**written.counts, "kind": written.kind, "n_groups": written.n_groups, "note": written.note})
        )
        return
    for name, count in written.counts.items():
        click.echo(f"{out / f'{name}.{ending}'}: {counted(count, 'structure')}")
    note = written.note or "split at random"
    if written.kind not in ("info", "random"):
        note = f"split by {written.kind}: {counted(written.n_groups, 'group')}" + (f"; {note}" if written.note else "")
    click.echo(note)


def _numbers(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError as error:
        raise InputError(f"--fractions {text!r}, expected numbers such as 0.8,0.1,0.1") from error
