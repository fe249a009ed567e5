"""`faenet-calc md -m MODEL IN`: molecular dynamics of one structure."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from faenet_calc.cli.lazy import EXIT_FAILURE, EXIT_NOT_CONVERGED
from faenet_calc.cli.numbers import FINITE, NOT_NEGATIVE, POSITIVE
from faenet_calc.cli.options import (
    build_calculator,
    explained_interrupt,
    model_options,
    plain_warnings,
    show_progress,
    verbosity,
    verbosity_options,
)
from faenet_calc.errors import InputError, counted

if TYPE_CHECKING:
    from faenet_calc.simulate import MDResult

_ENSEMBLES = ("nve", "nvt-langevin", "nvt-bussi", "nvt-nose-hoover", "npt", "npt-flexible")


@click.command()
@click.argument("structure", metavar="IN")
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), help="Trajectory file (.traj).  [default: none is written]"
)
@click.option(
    "--ensemble",
    type=click.Choice(_ENSEMBLES),
    default="nvt-langevin",
    show_default=True,
    help="Statistical ensemble and thermostat.",
)
@click.option(
    "--temperature",
    "temperature_K",
    type=NOT_NEGATIVE,
    default=300.0,
    show_default=True,
    help="Temperature of the thermostat and of the initial velocities (K).",
)
@click.option(
    "--timestep", "timestep_fs", type=POSITIVE, default=1.0, show_default=True, help="Time step of the integrator (fs)."
)
@click.option(
    "--steps",
    type=click.IntRange(min=0),
    default=1000,
    show_default=True,
    help="Total number of steps, including those before --resume.",
)
@click.option(
    "--pressure",
    "pressure_GPa",
    type=FINITE,
    default=0.0,
    show_default=True,
    help="Pressure of the barostat (GPa) for npt.",
)
@click.option(
    "--thermostat",
    "thermostat_fs",
    type=POSITIVE,
    default=100.0,
    show_default=True,
    help="Time constant of the thermostat (fs).",
)
@click.option(
    "--barostat",
    "barostat_fs",
    type=POSITIVE,
    default=1000.0,
    show_default=True,
    help="Time constant of the barostat (fs).",
)
@click.option(
    "--interval",
    type=click.IntRange(min=1),
    default=10,
    show_default=True,
    help="Steps between snapshots of the trajectory.",
)
@click.option(
    "--log", "logfile", type=click.Path(path_type=Path), help="Append energies and temperatures to this file."
)
@click.option("--resume", is_flag=True, help="Continue from the trajectory of -o if it exists.")
@click.option(
    "--max-temperature",
    "max_temperature_K",
    type=POSITIVE,
    help="Stop above this temperature (K).  [default: 10 × temperature, at least 3000]",
)
@click.option(
    "--max-frame-std", type=POSITIVE, help="Stop when the spread of a force over frames exceeds this value (eV/Å)."
)
@click.option(
    "--max-committee-std", type=POSITIVE, help="Stop when the committee spread of a force exceeds this value (eV/Å)."
)
@model_options
@verbosity_options
@click.pass_context
def command(
    ctx: click.Context, /, structure: str, output: Path | None, as_json: bool, seed: int, **options: Any
) -> None:
    """Run molecular dynamics of the structure in the file IN (FILE@INDEX selects one of several).

    Velocities in the file are used; without them, they are drawn for the temperature. Exit code 3 if the run was
    stopped because it left the domain of the model, 1 if it was stopped for another reason, 2 for invalid input.
    """
    from faenet_calc.errors import OutsideDomainWarning
    from faenet_calc.graphs.reading import read_structures
    from faenet_calc.graphs.writing import refuse_existing
    from faenet_calc.simulate import MDStoppedWarning, run_md

    if not options["resume"]:
        hint = "--resume continues it, --overwrite replaces it"
        refuse_existing(output, overwrite=options["overwrite"], hint=hint)
    elif output is None:
        raise InputError("--resume needs the trajectory to continue from; give it with -o")
    with plain_warnings(ctx, but=(MDStoppedWarning, OutsideDomainWarning)):  # the last line says why
        found = read_structures(structure)
        if len(found) > 1:
            raise InputError(f"{structure} has {len(found)} structures; select one, e.g. {structure}@-1")
        model = {name: options.pop(name) for name in ("model", "device", "dtype", "frames")}
        calc = build_calculator(seed=seed, **model)
        with explained_interrupt(ctx, lambda: _interrupted(output, options["steps"])):
            result = run_md(found[0].atoms, calc, trajectory=output, seed=seed, progress=show_progress(ctx), **options)
    summary = _summary(result, options["timestep_fs"])
    if as_json:
        click.echo(json.dumps({"model": calc.info["names"], "file": str(found[0].path)} | summary))
    elif verbosity(ctx) >= 0 and result.n_new_steps == 0 < options["steps"] <= result.n_steps:
        total = options["steps"]
        click.echo(
            f"{output} already has {counted(result.n_steps, 'step')} and --steps {total} is the total: nothing to do; "
            "give a larger --steps to continue"
        )
    elif verbosity(ctx) >= 0:
        _print(summary, output)
    if result.stopped_because is not None:
        click.echo(f"Error: stopped after {counted(result.n_steps, 'step')}: {result.stopped_because}", err=True)
        ctx.exit(EXIT_FAILURE if result.why is None else EXIT_NOT_CONVERGED)


def _interrupted(output: Path | None, steps: int) -> str:
    from faenet_calc.simulate.trajectory import STEP, read_snapshots

    snapshots = read_snapshots(output) if output is not None and output.exists() else []
    if not snapshots:
        return "Interrupted; nothing was saved. Use -o FILE.traj to be able to continue with --resume."
    step = snapshots[-1].info.get(STEP, len(snapshots) - 1)
    return (
        f"Interrupted: {output} holds {counted(len(snapshots), 'snapshot')} up to step {step} of {steps}. "
        "Repeat the command with --resume to continue."
    )


def _summary(result: "MDResult", timestep_fs: float) -> dict[str, Any]:
    drift = result.drift
    # The step at which a run is stopped has no entry of its own.
    time_fs = result.times_fs[-1] if result.stopped_because is None else result.n_steps * timestep_fs
    return {
        "n_steps": result.n_steps,
        "n_new_steps": result.n_new_steps,
        "time_ps": float(time_fs) / 1000,
        "energy": float(result.energies[-1]),
        "mean_energy": float(result.energies.mean()),
        "mean_temperature_K": float(result.temperatures.mean()),
        "std_temperature_K": float(result.temperatures.std()),
        "drift_meV_per_atom_ps": None if drift is None else drift.meV_per_atom_ps,
        "drift_std_meV_per_atom": None if drift is None else drift.std_meV_per_atom,
        "stopped_because": result.stopped_because,
        **({} if result.why is None else {"domain": "outside", "why": result.why}),
        "snapshot": None if result.snapshot is None else str(result.snapshot),
        "wall_s": result.wall_s,
    }


def _print(summary: dict[str, Any], output: Path | None) -> None:
    resumed = summary["n_new_steps"] < summary["n_steps"]
    new, span = counted(summary["n_new_steps"], "new step"), "the new steps" if resumed else "the run"
    steps = f"{new}, {summary['n_steps']} in total" if resumed else str(summary["n_steps"])
    lines = {
        "steps": f"{steps} ({summary['time_ps']:.3f} ps); {summary['wall_s']:.1f} s of computing time",
        "temperature": f"{summary['mean_temperature_K']:.1f} ± {summary['std_temperature_K']:.1f} K (mean and standard "
        f"deviation over {span})",
        "potential energy": f"{summary['energy']:.4f} eV at the end, {summary['mean_energy']:.4f} eV on average over "
        f"{span}",
    }
    if summary["drift_meV_per_atom_ps"] is not None:
        lines["drift"] = (
            f"{summary['drift_meV_per_atom_ps']:.4f} meV/atom/ps of the conserved quantity, residual "
            f"{summary['drift_std_meV_per_atom']:.4f} meV/atom"
        )
    for title, text in lines.items():
        click.echo(f"{title:<18}{text}")
    if output is None:
        click.echo("the trajectory is not saved; -o FILE.traj saves it", err=True)
    for name in (output, summary["snapshot"]):
        if name is not None:
            click.echo(f"wrote {name}", err=True)
