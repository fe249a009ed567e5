"""`faenet-calc data convert FILES… -o OUT`: any format into one file."""

from pathlib import Path

import click

from faenet_calc.cli.data import label_options
from faenet_calc.cli.options import verbosity, verbosity_options
from faenet_calc.errors import counted


@click.command("convert")
@label_options
@click.option(
    "-o",
    "--out",
    required=True,
    type=click.Path(dir_okay=False, path_type=Path),
    help="File to write: .extxyz (also .xz, .gz), .traj, .db or .aselmdb.",
)
@click.option("--overwrite", is_flag=True, help="Replace the file if it exists.")
@verbosity_options
@click.pass_context
def command(
    ctx: click.Context,
    files: tuple[str, ...],
    energy_key: str | None,
    forces_key: str | None,
    trust_pickle: bool,
    out: Path,
    overwrite: bool,
) -> None:
    """Bring data of any format into one file, with raw forces and all constraints.

    With --energy-key or --forces-key the named numbers become the energy and the forces of the new file.
    """
    from faenet_calc.data.export import export

    count = export(
        files,
        out,
        energy_key=energy_key,
        forces_key=forces_key,
        trust_pickle=trust_pickle,
        overwrite=overwrite,
        progress=verbosity(ctx) >= 0,
    )
    click.echo(f"{out}: {counted(count, 'structure')}")
