"""`faenet-calc relax -m MODEL IN… [-o out.extxyz]`: relax structures, several at a time."""

import json
import math
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from faenet_calc.cli.lazy import EXIT_BAD_INPUT, EXIT_FAILURE, EXIT_NOT_CONVERGED
from faenet_calc.cli.numbers import FINITE, POSITIVE
from faenet_calc.cli.options import (
    build_calculator,
    explained_interrupt,
    model_options,
    plain_warnings,
    show_progress,
    verbosity,
    verbosity_options,
)
from faenet_calc.cli.table import Column, row
from faenet_calc.errors import InputError, OutsideDomainWarning, counted, message_of
from faenet_calc.progress import progress_bar

if TYPE_CHECKING:
    from faenet_calc.calculator.calculator import FAENetCalculator
    from faenet_calc.graphs.reading import InputStructure
    from faenet_calc.simulate import RelaxResult


@click.command()
@click.argument("inputs", metavar="IN…", nargs=-1, required=True)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    help="File for the relaxed structures (.extxyz, .traj, .cif, …), updated as they finish.",
)
@click.option(
    "--fmax",
    type=POSITIVE,
    default=0.05,
    show_default=True,
    help="Convergence criterion: largest force on an atom (eV/Å).",
)
@click.option(
    "--steps", type=click.IntRange(min=0), default=500, show_default=True, help="Maximum number of optimizer steps."
)
@click.option(
    "--optimizer", default="LBFGS", show_default=True, help="Name of an ASE optimizer, e.g. LBFGS, BFGS, FIRE or MDMin."
)
@click.option(
    "--one-frame-first",
    is_flag=True,
    help="Relax with a single frame first, which is faster per step, and finish with the frames of --frames.",
)
@click.option("--cell", "relax_cell", is_flag=True, help="Relax the cell as well, in its periodic directions.")
@click.option(
    "--pressure",
    "pressure_GPa",
    type=FINITE,
    default=0.0,
    show_default=True,
    help="External pressure (GPa) for --cell.",
)
@click.option(
    "--trajectory",
    type=click.Path(path_type=Path),
    help="Record every step: a .traj file, or a folder for several structures.",
)
@click.option("--log", "logfile", type=click.Path(path_type=Path), help="Append the log of the optimizer to this file.")
@click.option(
    "--batch-size",
    type=click.IntRange(min=1),
    help="Maximum number of structures that are relaxed at the same time.  [default: 4 per thread; 1 with --log]",
)
@click.option(
    "--resume",
    is_flag=True,
    help="Continue an interrupted run: skip structures that are finished in -o, continue others from --trajectory.",
)
@model_options
@verbosity_options
@click.pass_context
def command(ctx: click.Context, /, inputs: tuple[str, ...], as_json: bool, **options: Any) -> None:
    """Relax every structure in the files IN… (FILE@INDEX selects some of them).

    A structure that cannot be computed is reported and the others are relaxed. Exit code 0 if all converged, 3 if some
    did not converge or are outside the domain of the model, 1 if some failed, 2 for invalid input.
    """
    from faenet_calc.graphs.reading import check_structure, read_structures
    from faenet_calc.graphs.writing import reserved
    from faenet_calc.simulate.relax import optimizer_factory

    output: Path | None = options.pop("output")
    optimizer_factory(options["optimizer"], {})
    with plain_warnings(ctx, but=(OutsideDomainWarning,)):  # reported with the result of each structure
        structures = read_structures(inputs, check=False)
        if len(structures) == 1:
            check_structure(structures[0])
        _check_output(output, len(structures), resume=options["resume"], overwrite=options["overwrite"])
        trajectories = _trajectories(options.pop("trajectory"), structures, **options)
        with reserved(output):
            batch = _Batch(ctx, structures, trajectories, output, as_json=as_json, options=options)
            batch.run()
    if as_json:
        click.echo(json.dumps({"model": batch.calc.info["names"], "results": batch.rows()}))
    ctx.exit(batch.exit_code())


_STATES = ("converged", "not converged", "failed", "not computed")
_PER_THREAD = 4  # structures: most of the gain of larger batches, and little is lost by an interruption


class _Batch:
    """The structures of one command."""

    def __init__(
        self,
        ctx: click.Context,
        structures: list["InputStructure"],
        trajectories: list[Path | None],
        output: Path | None,
        *,
        as_json: bool,
        options: dict[str, Any],
    ) -> None:
        from faenet_calc.cli.relax_output import RelaxOutput, task_key

        model = {name: options.pop(name) for name in ("model", "device", "dtype", "seed")}
        self.calc: FAENetCalculator = build_calculator(**model, frames=options.pop("frames"))
        info = self.calc.info
        settings = {
            "model": [member.metadata.get("sha256") for member in self.calc.predictor.committee.members],
            "settings": [info["dtype"], info["forces"], info["frames"], options["relax_cell"], options["pressure_GPa"]],
        }
        self.ctx, self.options = ctx, options
        self.structures, self.trajectories = structures, trajectories
        self.keys = [task_key(item, settings) for item in structures]
        self.output: RelaxOutput = RelaxOutput(output, self.keys, resume=options["resume"])
        self.runs: dict[int, _Run] = {}
        self.talks = not as_json and verbosity(ctx) >= 0
        widths = (max(len(item.name) for item in structures), max(len(_formula(item)) for item in structures))
        self.columns = (
            Column("structure", widths[0], right=False),
            Column("formula", widths[1], right=False),
            Column("steps", 5, right=True),
            Column("time/s", 7, right=True),
            Column("fmax/(eV/Å)", 11, right=True),
            Column("energy/eV", 12, right=True),
            Column("state", 9, right=False),
        )

    def run(self) -> None:
        """Relax all structures, keeping the output complete; on Ctrl-C, say how to continue."""
        start, n = time.perf_counter(), len(self.structures)
        self._say(row(self.columns))
        bar = progress_bar(shown=show_progress(self.ctx) and n > 1, total=n, unit="structures", desc="all", leave=False)
        with explained_interrupt(self.ctx, self._interrupted):
            with bar:
                todo = []
                for index in range(n):
                    known = self._known(index)
                    if known is None:
                        todo.append(index)
                    else:
                        self._finish(index, known, bar)
                self._relax(todo, bar)
            self.output.write()
        if self.talks and n > 1:
            click.echo(self._summary(time.perf_counter() - start))
        if self.talks and self.output.n_saved:
            click.echo(f"wrote {self.output.path}", err=True)
        elif self.talks and self.output.path is None and any(run.result is not None for run in self.runs.values()):
            click.echo("the relaxed structures are not saved; -o FILE saves them", err=True)

    def rows(self) -> list[dict[str, Any]]:
        """The JSON objects of all structures, in the order of the input."""
        return [run.row() for _, run in sorted(self.runs.items())]

    def exit_code(self) -> int:
        """The most serious of the structures; 2 only if no structure could be used."""
        states = {run.state() for run in self.runs.values()}
        if states == {"not computed"}:
            return EXIT_BAD_INPUT
        if states & {"not computed", "failed"}:
            return EXIT_FAILURE
        outside = any(run.result is not None and run.result.why is not None for run in self.runs.values())
        return 0 if states == {"converged"} and not outside else EXIT_NOT_CONVERGED

    def _known(self, index: int) -> "_Run | None":
        """The run of a structure that is finished in the output or cannot be computed; None if it has to be relaxed."""
        from faenet_calc.graphs.reading import check_structure

        item = self.structures[index]
        stored = self.output.finished(self.keys[index], fmax=self.options["fmax"], steps=self.options["steps"])
        if stored is not None:
            return _Run(item=item, result=stored)
        try:
            check_structure(item)
        except InputError as error:
            return _Run(item=item, result=None, refused=message_of(error).removeprefix(f"{item.name}: "))
        return None

    def _relax(self, todo: list[int], bar: Any) -> None:
        import torch

        from faenet_calc.simulate.batch import relax_batch

        options, batch_size = dict(self.options), self.options["batch_size"]
        if batch_size is None:
            batch_size = 1 if options["logfile"] is not None else _PER_THREAD * torch.get_num_threads()

        def finish(number: int, result: "RelaxResult") -> None:
            item = self.structures[todo[number]]
            computed = not math.isnan(result.energy)
            run = _Run(item=item, result=result if computed else None, refused=None if computed else result.error)
            self._finish(todo[number], run, bar)

        relax_batch(
            [self.structures[index].atoms for index in todo],
            self.calc,
            trajectories=[self.trajectories[index] for index in todo],
            on_result=finish,
            progress=show_progress(self.ctx) and len(todo) == 1,
            **(options | {"batch_size": batch_size}),
        )

    def _finish(self, index: int, run: "_Run", bar: Any) -> None:
        """Save and print the result of a structure."""
        self.runs[index] = run
        if run.result is not None:
            self.output.add(self.keys[index], run.item, run.result)
        bar.clear()
        if run.error is not None:
            click.echo(f"Error: {run.item.name}: {run.error}", err=True)
        elif self.talks and run.result is not None and run.result.why is not None:
            click.echo(f"Warning: {run.item.name}: outside the domain of the model: {run.result.why}", err=True)
        self._say(row(self.columns, run.cells()))
        bar.update()

    def _say(self, line: str) -> None:
        if self.talks:
            click.echo(line)

    def _summary(self, seconds: float) -> str:
        runs = self.runs.values()
        counts = Counter(run.state() for run in runs)
        parts = [f"{counts[state]} {state}" for state in _STATES if counts[state] or state == "converged"]
        anomalies = Counter(flag for run in runs if run.result is not None for flag in run.result.anomalies)
        parts += [f"{count} {flag}" for flag, count in anomalies.items()]
        return f"{len(runs)} structures in {seconds:.1f} s: {', '.join(parts)}"

    def _interrupted(self) -> str:
        """Save what is finished and say how to continue."""
        self.output.write()
        n_done, n = len(self.runs), counted(len(self.structures), "structure")
        done = f"Interrupted: {n_done} of {n} {'is' if n_done == 1 else 'are'} finished"
        if self.output.path is None and self.trajectories[0] is None:
            return f"{done}; nothing was saved. Use -o FILE (and --trajectory) to be able to continue with --resume."
        places = []
        if self.output.path is not None:
            saved = counted(self.output.n_saved, "relaxed structure is", "relaxed structures are")
            places.append(f"{saved} saved in {self.output.path}")
        first = self.trajectories[0]
        if first is not None:
            place = first if len(self.structures) == 1 else first.parent
            places.append(f"the steps of unfinished ones in {place}")
        return f"{done}; {' and '.join(places)}. Repeat the command with --resume to continue."


@dataclass(frozen=True, kw_only=True, eq=False)
class _Run:
    """A structure with its result, or with the reason why it could not be computed."""

    item: "InputStructure"
    result: "RelaxResult | None"
    refused: str | None = None

    @property
    def error(self) -> str | None:
        """What went wrong, if anything did."""
        return self.refused if self.result is None else self.result.error

    def state(self) -> str:
        """One of `_STATES`."""
        if self.result is None:
            return "not computed"
        if self.result.error is not None:
            return "failed"
        return "converged" if self.result.converged else "not converged"

    def cells(self) -> tuple[str, ...]:
        """The row of the table."""
        result = self.result
        if result is None:
            return (self.item.name, _formula(self.item), "-", "-", "-", "-", "NOT computed")
        state = {"failed": "FAILED", "not converged": "NOT converged"}.get(self.state(), self.state())
        return (
            self.item.name,
            _formula(self.item),
            str(result.n_steps),
            f"{result.wall_s:.1f}" if result.wall_s else "-",  # no time was spent on a result of an earlier run
            f"{result.fmax:.4f}",
            f"{result.energy:.4f}",
            ", ".join((state, *result.anomalies)),
        )

    def row(self) -> dict[str, Any]:
        """The JSON object."""
        values: dict[str, Any] = {
            "file": str(self.item.path),
            "index": self.item.index,
            "formula": _formula(self.item),
            "n_atoms": len(self.item.atoms),
            "error": self.error,
            "converged": False,
        }
        if self.result is not None:
            names = ("energy", "converged", "n_steps", "fmax", "wall_s")
            values |= {name: getattr(self.result, name) for name in names}
            values["anomalies"] = list(self.result.anomalies)
            if self.result.why is not None:
                values |= {"domain": "outside", "why": self.result.why}
        return values


def _formula(item: "InputStructure") -> str:
    return str(item.atoms.get_chemical_formula())


_HINT = "--resume continues it, --overwrite replaces it"


def _check_output(output: Path | None, n_structures: int, *, resume: bool, overwrite: bool) -> None:
    from faenet_calc.graphs.writing import check_format, keeps_everything, refuse_existing

    refuse_existing(output, overwrite=overwrite or resume, hint=_HINT)
    check_format(output, several=n_structures > 1)
    if resume and output is not None and output.exists() and not keeps_everything(output):
        raise InputError(f"--resume cannot tell from {output} what is finished; use -o with .extxyz or .traj")


def _trajectories(
    given: Path | None, structures: list["InputStructure"], *, resume: bool, overwrite: bool, **_: Any
) -> list[Path | None]:
    """A trajectory for each structure: the file given, or files in the folder given."""
    from faenet_calc.graphs.writing import refuse_existing

    if given is None:
        return [None] * len(structures)
    if len(structures) == 1 and given.suffix == ".traj":
        paths = [given]
    elif given.suffix:
        raise InputError(f"--trajectory {given}: expected a .traj file for one structure, a folder for several")
    else:
        given.mkdir(exist_ok=True)
        names = [item.stem for item in structures]
        if repeated := sorted({name for name in names if names.count(name) > 1}):
            raise InputError(f"files with the same name ({', '.join(repeated)}) would share a trajectory; rename them")
        paths = [given / f"{name}.traj" for name in names]
    for path in paths:
        refuse_existing(path, overwrite=overwrite or resume, hint=_HINT)
    return list(paths)
