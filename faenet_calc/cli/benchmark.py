"""`faenet-calc benchmark NAME`: run a benchmark of a clone of the repository."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import click

from faenet_calc.cli.options import verbosity, verbosity_options
from faenet_calc.errors import InputError


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """A script of the folder ``benchmarks``.

    It takes ``--out ROWS.jsonl`` and ``--plot PLOT.svg`` and writes rows with the keys benchmark, case, metric, value
    and unit.

    Attributes:
        line: Its line in the listing.
        quick: Arguments of a short run that tests the script; its numbers mean nothing.
    """

    line: str
    quick: tuple[str, ...] = ("--quick",)


BENCHMARKS = {
    "speed": Benchmark(
        line="CPU time of energy and forces by number of atoms, MD steps per second, memory.",
        quick=(
            *("--sizes", "12", "40", "--models", "copper-s"),
            *("--frames", "one", "--repeats", "2", "--batch", "2"),
        ),
    ),
    "expressivity": Benchmark(
        line="Accuracy on k-chains, symmetric structures and k-body counterexamples, beside SchNet and E(n)-GNN."
    ),
    "symmetry": Benchmark(
        line="Invariance and equivariance of frame averaging, augmentation and SchNet on labelled slabs (--data FILE)."
    ),
}


def _listing() -> str:
    width = max(map(len, BENCHMARKS))
    return "\n".join(f"  {name:<{width}}  {benchmark.line}" for name, benchmark in BENCHMARKS.items())


@click.command(
    context_settings={"ignore_unknown_options": True},
    epilog="\b\nBenchmarks:\n" + _listing(),
)
@click.argument("name", required=False, metavar="[NAME]")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[ARGUMENTS OF THE SCRIPT]…")
@click.option("--quick", is_flag=True, help="Run the script on little data for less than a minute, as a test of it.")
@click.option(
    "-o",
    "--out",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Output folder.  [default: benchmarks/results of the clone]",
)
@click.option("--overwrite", is_flag=True, help="Replace earlier results.")
@verbosity_options
@click.pass_context
def command(
    ctx: click.Context, name: str | None, arguments: tuple[str, ...], quick: bool, folder: Path | None, overwrite: bool
) -> None:
    """Run the benchmark NAME and write NAME.jsonl (rows), NAME.md (table) and NAME.svg (plot).

    Without NAME, list the benchmarks. They are part of the repository, not of the installed package. With --quick, the
    files are called NAME-quick.
    """
    if name is None:
        click.echo(_listing())
        return
    if name not in BENCHMARKS:
        raise InputError(f"there is no benchmark {name!r}; choose one of {', '.join(BENCHMARKS)}")
    scripts = _scripts()
    stem = f"{name}-quick" if quick else name
    rows, table, plot = ((folder or scripts / "results") / f"{stem}.{suffix}" for suffix in ("jsonl", "md", "svg"))
    if rows.exists() and not overwrite:
        raise InputError(f"{rows} exists; give --overwrite to replace it, or another folder with -o")
    rows.parent.mkdir(parents=True, exist_ok=True)
    rows.unlink(missing_ok=True)
    given = [*(BENCHMARKS[name].quick if quick else ()), *arguments, "--out", str(rows), "--plot", str(plot)]
    before = _cpu_time()
    _run(scripts / f"{name}.py", given, ctx)
    with open(rows, "a") as file:
        spent = {"metric": "CPU time", "value": round(_cpu_time() - before, 1), "unit": "s"}
        file.write(json.dumps({"benchmark": name, "case": "this command", **spent}) + "\n")
    _run(scripts / "tables.py", [str(rows), "--out", str(table)], ctx)
    if verbosity(ctx) >= 0:
        click.echo(table.read_text(), nl=False)
        click.echo(f"wrote {rows}, {table.name} and {plot.name}", err=True)


def _scripts() -> Path:
    """The folder of the scripts, next to the package in a clone."""
    clone = Path(__file__).resolve().parents[2]
    scripts = clone / "benchmarks"
    if not (scripts / "tables.py").is_file():
        raise InputError(
            f"{clone} has no folder benchmarks: the scripts are not part of the installed package. Clone the "
            "repository and install it with `pip install -e .`, or run this command in its folder with "
            "`python -m faenet_calc benchmark`"
        )
    return scripts


def _cpu_time() -> float:
    """CPU time (s) of all finished child processes."""
    times = os.times()
    return times.children_user + times.children_system


def _run(script: Path, arguments: list[str], ctx: click.Context) -> None:
    """Run a script with the package of its clone; its rows are in a file, so its stdout is not shown."""
    path = os.pathsep.join(filter(None, [str(script.parents[1]), os.environ.get("PYTHONPATH")]))
    shown = None if verbosity(ctx) > 0 else subprocess.DEVNULL
    finished = subprocess.run(
        [sys.executable, str(script), *arguments], env={**os.environ, "PYTHONPATH": path}, stdout=shown, check=False
    )
    if finished.returncode:
        raise RuntimeError(f"{script.name} ended with exit code {finished.returncode}")
