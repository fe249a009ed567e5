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
from faenet_calc.files import write_atomically


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """A script of the folder ``benchmarks``.

    It takes ``--out ROWS.jsonl`` and ``--plot PLOT.svg`` and writes rows with the keys benchmark, case, metric, value
    and unit.

    Attributes:
        line: Its line in the listing.
        script: Name of the script without suffix, if it differs from that of the benchmark.
        quick: Arguments of a short run that tests the script; its numbers mean nothing.
    """

    line: str
    script: str = ""
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
        line="Invariance and equivariance of frame averaging, augmentation and SchNet on OC20 systems."
    ),
    "ablation": Benchmark(line="Rows of the paper's ablation table on QM9 (needs qm9pack)."),
    "qm9": Benchmark(line="Learning curves of the paper's network and SchNet on QM9 (needs qm9pack)."),
    "oc20": Benchmark(line="Energies and forces of held-out OC20 systems beside SchNet."),
    "is2re": Benchmark(line="Relaxed energies of alloy slabs from initial structures, and the symmetries kept."),
    "pareto": Benchmark(line="Error against throughput of the networks of oc20 and qm9.", script="paper_pareto"),
    "dft": Benchmark(line="Published DFT data sets on their splits, beside SchNet and published errors."),
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
@click.option("--resume", is_flag=True, help="Keep earlier results and add the rows that are missing.")
@verbosity_options
@click.pass_context
def command(
    ctx: click.Context,
    name: str | None,
    arguments: tuple[str, ...],
    quick: bool,
    folder: Path | None,
    overwrite: bool,
    resume: bool,
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
    if rows.exists() and not overwrite and not resume:
        raise InputError(
            f"{rows} exists; continue it with --resume, replace it with --overwrite, or give a folder (-o)"
        )
    rows.parent.mkdir(parents=True, exist_ok=True)
    if not resume:
        rows.unlink(missing_ok=True)
    given = [*(BENCHMARKS[name].quick if quick else ()), *arguments, "--out", str(rows), "--plot", str(plot)]
    before = _cpu_time()
    try:
        _run(scripts / f"{BENCHMARKS[name].script or name}.py", given, ctx)
    finally:
        _add_cpu_time(rows, name, _cpu_time() - before)
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


def _add_cpu_time(rows: Path, name: str, spent_s: float) -> None:
    """Write the CPU time (s) of all runs of a benchmark, also interrupted ones, as the last row."""
    stored = [json.loads(line) for line in rows.read_text().splitlines()] if rows.exists() else []
    words = {"benchmark": name, "case": "this command", "metric": "CPU time"}
    earlier = [row for row in stored if words.items() <= row.items()]
    spent_s += sum(row["value"] for row in earlier)
    kept = [row for row in stored if row not in earlier]
    total = words | {"value": round(spent_s, 1), "unit": "s"}
    write_atomically(rows, "".join(json.dumps(row) + "\n" for row in [*kept, total]).encode())


def _run(script: Path, arguments: list[str], ctx: click.Context) -> None:
    """Run a script with the package of its clone; its rows are in a file, so its stdout is not shown."""
    path = os.pathsep.join(filter(None, [str(script.parents[1]), os.environ.get("PYTHONPATH")]))
    shown = None if verbosity(ctx) > 0 else subprocess.DEVNULL
    finished = subprocess.run(
        [sys.executable, str(script), *arguments], env={**os.environ, "PYTHONPATH": path}, stdout=shown, check=False
    )
    if finished.returncode:
        raise RuntimeError(f"{script.name} ended with exit code {finished.returncode}")
