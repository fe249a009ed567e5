"""`faenet-calc check`: self-test of a model."""

import click

from faenet_calc.cli.options import verbosity_options


@click.command()
@click.option(
    "-m", "--model", default=None, help="Shipped model or checkpoint file.  [default: the default shipped model]"
)
@click.option(
    "--nve-steps",
    type=click.IntRange(min=0),
    default=200,
    show_default=True,
    help="Number of 1 fs steps of the energy drift test; 0 skips it.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the results as one JSON object.")
@click.argument("structures", nargs=-1, type=click.Path(exists=True, dir_okay=False))
@verbosity_options
@click.pass_context
def command(ctx: click.Context, model: str | None, nve_steps: int, as_json: bool, structures: tuple[str, ...]) -> None:
    """Test the physics of a model: symmetries, forces, stress, extensivity, smoothness, energy drift.

    Runs in float64 on shipped structures with the model's elements, or on the STRUCTURES given, which takes less
    than a minute. Exit code 1 if a test fails.
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
