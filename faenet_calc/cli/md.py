"""`faenet-calc md -m MODEL IN`: molecular dynamics of one structure."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from faenet_calc.cli.lazy import EXIT_FAILURE
from faenet_calc.cli.options import build_calculator, model_options, plain_warnings, show_progress, verbosity_options
from faenet_calc.errors import InputError

if TYPE_CHECKING:
    from faenet_calc.simulate import MDResult

_ENSEMBLES = ("nve", "nvt-langevin", "nvt-bussi", "nvt-nose-hoover", "npt", "npt-flexible")


@click.command()
@click.argument("structure", metavar="IN")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Trajectory (.traj); without it none is kept.")
@click.option("--ensemble", type=click.Choice(_ENSEMBLES), default="nvt-langevin", show_default=True)
@click.option("--temperature", "temperature_K", type=float, default=300.0, show_default=True, help="(K)")
@click.option("--timestep", "timestep_fs", type=float, default=1.0, show_default=True, help="(fs)")
@click.option("--steps", type=click.IntRange(min=0), default=1000, show_default=True, help="In all, resumed or not.")
@click.option("--pressure", "pressure_GPa", type=float, default=0.0, show_default=True, help="(GPa), with npt.")
@click.option("--thermostat", "thermostat_fs", type=float, default=100.0, show_default=True, help="Time constant (fs).")
@click.option("--barostat", "barostat_fs", type=float, default=1000.0, show_default=True, help="Time constant (fs).")
@click.option("--interval", type=click.IntRange(min=1), default=10, show_default=True, help="Steps between snapshots.")
@click.option("--log", "logfile", type=click.Path(path_type=Path), help="Energies and temperatures (appended to).")
@click.option("--resume", is_flag=True, help="Go on from the trajectory if it exists.")
@click.option("--max-temperature", "max_temperature_K", type=float, help="Stop beyond (K); default 10 × temperature.")
@click.option("--max-frame-std", type=float, help="Stop when a force's spread over frames is larger (eV/Å).")
@click.option("--max-committee-std", type=float, help="Stop when a force's committee spread is larger (eV/Å).")
@model_options
@verbosity_options
@click.pass_context
def command(
    ctx: click.Context, /, structure: str, output: Path | None, as_json: bool, seed: int, **options: Any
) -> None:
    """Run molecular dynamics of the structure in the file IN (FILE@INDEX picks one of several).

    Velocities in the file are kept, otherwise drawn. Exit code 1 if the run had to be stopped.
    """
    from faenet_calc.graphs.reading import read_structures
    from faenet_calc.simulate import MDStoppedWarning, run_md

    with plain_warnings(ctx, but=(MDStoppedWarning,)):
        found = read_structures(structure)
        if len(found) > 1:
            raise InputError(f"{structure} has {len(found)} structures; pick one, e.g. {structure}@-1")
        calc = build_calculator(seed=seed, **{name: options.pop(name) for name in ("model", "device", "dtype")})
        result = run_md(found[0].atoms, calc, trajectory=output, seed=seed, progress=show_progress(ctx), **options)
    summary = _summary(result)
    if as_json:
        click.echo(json.dumps({"model": calc.info["names"], "file": str(found[0].path)} | summary))
    else:
        _print(summary, output)
    if result.stopped_because is not None:
        click.echo(f"Error: stopped after {result.n_steps} steps: {result.stopped_because}", err=True)
        ctx.exit(EXIT_FAILURE)


def _summary(result: "MDResult") -> dict[str, Any]:
    drift = result.drift
    return {
        "n_steps": result.n_steps,
        "time_ps": float(result.times_fs[-1]) / 1000,
        "energy": float(result.energies[-1]),
        "mean_energy": float(result.energies.mean()),
        "mean_temperature_K": float(result.temperatures.mean()),
        "std_temperature_K": float(result.temperatures.std()),
        "drift_meV_per_atom_ps": None if drift is None else drift.meV_per_atom_ps,
        "drift_std_meV_per_atom": None if drift is None else drift.std_meV_per_atom,
        "stopped_because": result.stopped_because,
        "snapshot": None if result.snapshot is None else str(result.snapshot),
        "wall_s": result.wall_s,
    }


def _print(summary: dict[str, Any], output: Path | None) -> None:
    click.echo(f"steps          {summary['n_steps']} ({summary['time_ps']:.3f} ps, {summary['wall_s']:.1f} s)")
    click.echo(f"temperature    {summary['mean_temperature_K']:.1f} ± {summary['std_temperature_K']:.1f} K")
    click.echo(f"potential      {summary['energy']:.4f} eV at the end, {summary['mean_energy']:.4f} eV on average")
    if summary["drift_meV_per_atom_ps"] is not None:
        click.echo(
            f"drift          {summary['drift_meV_per_atom_ps']:.4f} meV/atom/ps, std "
            f"{summary['drift_std_meV_per_atom']:.4f} meV/atom (conserved quantity)"
        )
    for name in (output, summary["snapshot"]):
        if name is not None:
            click.echo(f"wrote {name}", err=True)
