"""`faenet-calc check`: the self-test of a model."""

import click

from faenet_calc.cli.options import verbosity_options


@click.command()
@click.option("-m", "--model", default=None, help="Shipped name or checkpoint file; the default model if left out.")
@click.option("--nve-steps", default=200, show_default=True, help="Steps of 1 fs of the drift test; 0 leaves it out.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of a table.")
@click.argument("structures", nargs=-1, type=click.Path(exists=True, dir_okay=False))
@verbosity_options
@click.pass_context
def command(ctx: click.Context, model: str | None, nve_steps: int, as_json: bool, structures: tuple[str, ...]) -> None:
    """Test a model's physics: symmetries, forces, stress, extensivity, smoothness, drift.

    Runs in float64 on shipped structures of the model's elements, or on the STRUCTURES given. Exit code 1 if a row
    fails.
    """
    from faenet_calc.graphs.reading import read_structures
    from faenet_calc.potential.checkpoint import load_potential
    from faenet_calc.potential.shipped import default_name
    from faenet_calc.testing.selfcheck import check_potential

    potential = load_potential(model or default_name())
    chosen = {item.name: item.atoms for item in read_structures(structures)} or None
    report = check_potential(potential, chosen, nve_steps=nve_steps)
    click.echo(report.to_json() if as_json else report.table())
    if not report.passed:
        ctx.exit(1)
