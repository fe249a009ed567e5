"""`faenet-calc data is2re FILES… -o OUT`: initial structures with relaxed energies, from relaxation trajectories."""

from pathlib import Path

import click

from faenet_calc.cli.options import verbosity, verbosity_options
from faenet_calc.errors import counted


@click.command("is2re")
@click.argument("files", nargs=-1, required=True, type=click.Path())
@click.option(
    "-o",
    "--out",
    required=True,
    type=click.Path(dir_okay=False, path_type=Path),
    help="File to write: .extxyz (also .xz, .gz), .traj, .db or .aselmdb.",
)
@click.option("--energy-key", metavar="NAME", help="Name of the number to use as energy.")
@click.option(
    "--fmax",
    type=click.FloatRange(min=0, min_open=True),
    help="Leave out trajectories that end with a larger force on a free atom (eV/Å).",
)
@click.option("--trust-pickle", is_flag=True, help="Read LMDB files of pickled objects; this runs code in the files.")
@click.option("--overwrite", is_flag=True, help="Replace the file if it exists.")
@verbosity_options
@click.pass_context
def command(
    ctx: click.Context,
    files: tuple[str, ...],
    out: Path,
    energy_key: str | None,
    fmax: float | None,
    trust_pickle: bool,
    overwrite: bool,
) -> None:
    """Write the first structure of every relaxation with the energy of its last one (the IS2RE task).

    Snapshots of a relaxation share metadata such as sid and run, or a file. Train on the result with
    `faenet-calc train OUT --set model.preset=paper-is2re`.
    """
    from faenet_calc.data.relaxed_energies import write_relaxed_energies

    written, left_out = write_relaxed_energies(
        files,
        out,
        energy_key=energy_key,
        fmax=fmax,
        trust_pickle=trust_pickle,
        overwrite=overwrite,
        progress=verbosity(ctx) >= 0,
    )
    skipped = f", {counted(left_out, 'trajectory', 'trajectories')} left out" if left_out else ""
    click.echo(f"{out}: {counted(written, 'structure')}{skipped}")
