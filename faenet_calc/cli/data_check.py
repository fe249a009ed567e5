"""`faenet-calc data check FILES…`: is this data fit to learn from?."""

import json
import textwrap
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from faenet_calc.cli.data import label_options
from faenet_calc.cli.lazy import EXIT_BAD_INPUT
from faenet_calc.cli.options import verbosity, verbosity_options
from faenet_calc.errors import counted

if TYPE_CHECKING:
    from faenet_calc.data.findings import DataReport, Finding

_COLORS = {"error": "red", "warning": "yellow", "note": "cyan"}


@click.command("check")
@label_options
@click.option(
    "--cutoff", type=click.FloatRange(min=0, min_open=True), default=5.0, show_default=True, help="Cutoff radius (Å)."
)
@click.option("--json", "as_json", is_flag=True, help="Print the report as one JSON object.")
@verbosity_options
@click.pass_context
def command(
    ctx: click.Context,
    files: tuple[str, ...],
    energy_key: str | None,
    forces_key: str | None,
    trust_pickle: bool,
    cutoff: float,
    as_json: bool,
) -> None:
    """Find mistakes in labelled data, and say what to do about them.

    The exit code is 2 if there are errors, 0 if there are only warnings and notes.
    """
    from faenet_calc.data.check import check_files

    report = check_files(
        files,
        cutoff=cutoff,
        energy_key=energy_key,
        forces_key=forces_key,
        trust_pickle=trust_pickle,
        progress=verbosity(ctx) >= 0 and not as_json,
    )
    if as_json:
        click.echo(json.dumps({**asdict(report), "ok": report.ok}))
    else:
        _show(report, all_of_it=verbosity(ctx) >= 0)
    if not report.ok:
        ctx.exit(EXIT_BAD_INPUT)


def _show(report: "DataReport", *, all_of_it: bool) -> None:
    from faenet_calc.data.findings import SEVERITIES

    if all_of_it:
        click.echo(
            f"{counted(report.n_structures, 'structure')}, {counted(report.n_atoms, 'atom')}, "
            f"{counted(len(report.elements), 'element')} ({' '.join(report.elements)}); labels: "
            f"{report.n_energies} energies, {report.n_forces} forces, {report.n_stresses} stresses"
        )
        for finding in report.findings:
            _show_finding(finding)
    counts = ", ".join(counted(report.count(severity), severity) for severity in SEVERITIES)
    click.echo(f"{'no errors' if report.ok else 'not fit for training as it is'}: {counts}")


def _show_finding(finding: "Finding") -> None:
    label = click.style(f"{finding.severity:8s}", fg=_COLORS[finding.severity], bold=True)
    click.echo(f"\n{label} {finding.code} ({finding.count})")
    for text in (finding.message, f"→ {finding.advice}"):
        click.echo(textwrap.indent(textwrap.fill(text, 110), "         "))
    for example in finding.examples:
        click.echo(f"           {example}")
