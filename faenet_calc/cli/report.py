"""`faenet-calc report DIR`: rebuild the tables and the page of a screening."""

from pathlib import Path

import click

from faenet_calc.cli.options import verbosity, verbosity_options


@click.command()
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@verbosity_options
@click.pass_context
def command(ctx: click.Context, folder: Path) -> None:
    """Rebuild results.csv, results.parquet, structures.db and report.html of the screening in DIR."""
    from faenet_calc.reports.screening import write_screening_report
    from faenet_calc.screening.screen import merge_screen

    merge_screen(folder)
    path = write_screening_report(folder)
    if verbosity(ctx) >= 0:
        click.echo(f"wrote {path}", err=True)
