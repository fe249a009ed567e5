"""`faenet-calc relax -m MODEL IN… [-o out.extxyz]`: relax structures one after the other."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from faenet_calc.cli.lazy import EXIT_BAD_INPUT, EXIT_FAILURE
from faenet_calc.cli.options import (
    build_calculator,
    model_options,
    plain_warnings,
    show_progress,
    verbosity,
    verbosity_options,
)
from faenet_calc.errors import InputError

if TYPE_CHECKING:
    from faenet_calc.graphs.reading import InputStructure
    from faenet_calc.simulate import RelaxResult

EXIT_NOT_CONVERGED = 3


@click.command()
@click.argument("inputs", metavar="IN…", nargs=-1, required=True)
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Relaxed structures: .extxyz, .traj, .cif, …")
@click.option("--fmax", type=float, default=0.05, show_default=True, help="Largest force (eV/Å) that may remain.")
@click.option("--steps", type=click.IntRange(min=0), default=500, show_default=True, help="At most so many.")
@click.option("--optimizer", default="LBFGS", show_default=True, help="LBFGS, BFGS, FIRE, MDMin, BFGSLineSearch, …")
@click.option(
    "--one-frame-first",
    is_flag=True,
    help="Relax with a single frame first, several times faster a step, and with all frames only at the end.",
)
@click.option("--cell", "relax_cell", is_flag=True, help="Relax the cell too, along its periodic directions.")
@click.option("--pressure", "pressure_GPa", type=float, default=0.0, help="Outer pressure (GPa), with --cell.")
@click.option(
    "--trajectory", type=click.Path(path_type=Path), help="Every step: a .traj file, or a folder if there are several."
)
@click.option("--log", "logfile", type=click.Path(path_type=Path), help="ASE's log of the steps (appended to).")
@click.option("--resume", is_flag=True, help="Go on from --trajectory where it exists.")
@model_options
@verbosity_options
@click.pass_context
def command(ctx: click.Context, /, inputs: tuple[str, ...], output: Path | None, as_json: bool, **options: Any) -> None:
    """Relax every structure in the files IN… (FILE@INDEX picks some).

    Exit code 0 if all converged, 3 if all ran but some did not converge, 1 if some failed, 2 for bad input.
    """
    from faenet_calc.graphs.reading import read_structures
    from faenet_calc.graphs.writing import check_format, refuse_existing, write_structures

    overwrite = options["overwrite"]
    refuse_existing(output, overwrite=overwrite)
    with plain_warnings(ctx):
        structures = read_structures(inputs)
        check_format(output, several=len(structures) > 1)
        trajectories = _trajectories(options.pop("trajectory"), structures)
        model = {name: options.pop(name) for name in ("model", "device", "dtype", "seed")}
        calc = build_calculator(**model)
        options["prerelax"] = build_calculator(**model, frames="one") if options.pop("one_frame_first") else None
        runs = []
        for item, trajectory in zip(structures, trajectories, strict=True):
            run = _relax(item, calc, trajectory=trajectory, progress=show_progress(ctx), **options)
            runs.append(run)
            if not as_json and verbosity(ctx) >= 0:
                click.echo(run.line())
        done = [run.structure() for run in runs if run.result is not None]
        if output is not None and done:
            write_structures(output, done, overwrite=overwrite)
    if as_json:
        click.echo(json.dumps({"model": calc.info["names"], "results": [run.row() for run in runs]}))
    elif output is not None and done and verbosity(ctx) >= 0:
        click.echo(f"wrote {output}", err=True)
    ctx.exit(max((run.exit_code() for run in runs), key=_SEVERITY.index))


_SEVERITY = [0, EXIT_NOT_CONVERGED, EXIT_FAILURE, EXIT_BAD_INPUT]


@dataclass(frozen=True, kw_only=True, eq=False)
class _Run:
    """A structure and what became of it: a result, or why it could not be computed at all."""

    item: "InputStructure"
    result: "RelaxResult | None"
    refused: str | None = None

    def exit_code(self) -> int:
        if self.result is None:
            return EXIT_BAD_INPUT
        if self.result.error is not None:
            return EXIT_FAILURE
        return 0 if self.result.converged else EXIT_NOT_CONVERGED

    def line(self) -> str:
        result = self.result
        if result is None:
            return f"{self.item.name}: {self.refused}"
        state = result.error or ("converged" if result.converged else "NOT converged")
        flags = "".join(f", {flag}" for flag in result.anomalies)
        return (
            f"{self.item.name}: {result.energy:.4f} eV, fmax {result.fmax:.4f} eV/Å after {result.n_steps} steps "
            f"({result.wall_s:.1f} s), {state}{flags}"
        )

    def row(self) -> dict[str, Any]:
        row: dict[str, Any] = {
            "file": str(self.item.path),
            "index": self.item.index,
            "formula": self.item.atoms.get_chemical_formula(),
            "n_atoms": len(self.item.atoms),
            "error": self.refused,
            "converged": False,
        }
        if self.result is not None:
            names = ("energy", "converged", "n_steps", "fmax", "wall_s", "error")
            row |= {name: getattr(self.result, name) for name in names}
            row["anomalies"] = list(self.result.anomalies)
        return row

    def structure(self) -> Any:
        """The relaxed atoms with a note of where they come from."""
        assert self.result is not None
        atoms = self.result.atoms
        atoms.info["source"] = self.item.name
        atoms.info["relax_converged"] = self.result.converged
        atoms.info["relax_steps"] = self.result.n_steps
        if self.result.anomalies:
            atoms.info["anomalies"] = " ".join(self.result.anomalies)
        return atoms


def _relax(item: "InputStructure", calc: Any, **options: Any) -> _Run:
    from faenet_calc.simulate import relax

    try:
        return _Run(item=item, result=relax(item.atoms, calc, **options))
    except InputError as error:
        click.echo(f"Error: {item.name}: {error}", err=True)
        return _Run(item=item, result=None, refused=str(error))


def _trajectories(given: Path | None, structures: list["InputStructure"]) -> list[Path | None]:
    """A trajectory for each structure: the file given, or files in the folder given."""
    if given is None:
        return [None] * len(structures)
    if len(structures) == 1 and given.suffix == ".traj":
        return [given]
    if given.suffix:
        raise InputError(f"--trajectory {given}: a .traj file for one structure, a folder for {len(structures)}")
    given.mkdir(exist_ok=True)
    names = [item.stem for item in structures]
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise InputError(f"files of the same name ({', '.join(repeated)}) would share a trajectory; rename them")
    return [given / f"{name}.traj" for name in names]
