"""`faenet-calc convert UPSTREAM.pt OUT.safetensors`: import weights of the original FAENet code."""

import json
from pathlib import Path

import click

from faenet_calc.cli.options import verbosity, verbosity_options

_FILE = click.Path(dir_okay=False, path_type=Path)


@click.command()
@click.argument("upstream", type=_FILE)
@click.argument("out", type=_FILE)
@click.option(
    "--config",
    type=_FILE,
    help="Constructor arguments or ocp config (JSON or YAML) for a file that holds weights only.",
)
@click.option(
    "--trust-pickle",
    is_flag=True,
    help="Unpickle UPSTREAM, which can run arbitrary code. Use it only for files that you trust.",
)
@click.option("--raw-weights", is_flag=True, help="Use the raw weights instead of their moving average.")
@click.option("--overwrite", is_flag=True, help="Replace OUT if it exists.")
@click.option("--json", "as_json", is_flag=True, help="Print the results as one JSON object.")
@verbosity_options
@click.pass_context
def command(
    ctx: click.Context,
    upstream: Path,
    out: Path,
    config: Path | None,
    trust_pickle: bool,
    raw_weights: bool,
    overwrite: bool,
    as_json: bool,
) -> None:
    """Convert UPSTREAM, a state dict of PyPI faenet or a checkpoint of the RolnickLab/ocp trainer, to OUT."""
    from faenet_calc.graphs.writing import refuse_existing

    refuse_existing(out, overwrite=overwrite)
    from faenet_calc.potential.checkpoint import load_potential, save_potential
    from faenet_calc.potential.upstream_files import read_config, read_upstream

    potential = read_upstream(
        upstream,
        config=None if config is None else read_config(config),
        trust_pickle=trust_pickle,
        use_ema=not raw_weights,
    )
    save_potential(potential, out)
    written = load_potential(out, device="cpu")
    notes = written.metadata["extra"]["notes"]
    if as_json:
        click.echo(json.dumps({"path": str(out), "sha256": written.metadata["sha256"], "notes": notes}))
        return
    click.echo(f"{out}: {written.config.name}, {written.config.energy.kind} energy, forces {written.config.forces}")
    if verbosity(ctx) >= 0:
        for note in notes:
            click.echo(f"  - {note}")
