"""`faenet-calc data stats FILES…`: counts, ranges, neighbors, references, trivial errors."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from faenet_calc.cli.data import label_options
from faenet_calc.cli.options import verbosity, verbosity_options
from faenet_calc.errors import counted

if TYPE_CHECKING:
    from faenet_calc.data.statistics import DatasetStats, Spread


@click.command("stats")
@label_options
@click.option(
    "--cutoff",
    "cutoffs",
    type=click.FloatRange(min=0, min_open=True),
    multiple=True,
    help="Cutoff radius (Å); may be repeated.  [default: 4, 5, 6]",
)
@click.option("--cache-dir", type=click.Path(file_okay=False, path_type=Path), help="Folder of the graph cache.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@verbosity_options
@click.pass_context
def command(
    ctx: click.Context,
    files: tuple[str, ...],
    energy_key: str | None,
    forces_key: str | None,
    trust_pickle: bool,
    cutoffs: tuple[float, ...],
    cache_dir: Path | None,
    as_json: bool,
) -> None:
    """Counts, ranges, neighbors per cutoff, element references, and the errors of trivial predictions."""
    from faenet_calc.data.dataset import open_dataset
    from faenet_calc.data.statistics import describe

    wanted = cutoffs or (4.0, 5.0, 6.0)
    dataset = open_dataset(
        files,
        cutoff=max(wanted),
        cache_dir=cache_dir,
        energy_key=energy_key,
        forces_key=forces_key,
        trust_pickle=trust_pickle,
        progress=verbosity(ctx) >= 0 and not as_json,
    )
    stats = describe(dataset, wanted)
    if as_json:
        click.echo(json.dumps(asdict(stats)))
    else:
        _show(stats)


def _show(stats: "DatasetStats") -> None:
    labels = ", ".join(f"{count} {name}" for name, count in stats.n_labels.items())
    size = f"{counted(stats.n_structures, 'structure')}, {counted(stats.n_atoms, 'atom')}"
    click.echo(f"{size} ({stats.n_fixed} fixed); labels: {labels}")
    sub_surface, surface, adsorbate = stats.tags
    click.echo(f"tags: {sub_surface} sub-surface, {surface} surface, {adsorbate} adsorbate atoms")
    click.echo("\n                              mean        std        min        max")
    for name, spread in (
        ("atoms per structure", stats.atoms_per_structure),
        ("energy (eV)", stats.energy),
        ("energy (eV/atom)", stats.energy_per_atom),
        ("after references (eV/atom)", stats.residual_per_atom),
        ("force component (eV/Å)", stats.force_component),
    ):
        if spread is not None:
            click.echo(f"{name:26s} {_row(spread)}")
    click.echo("\nerror of a trivial model (MAE):")
    if stats.residual_per_atom is not None:
        click.echo(f"  element references only    {1000 * stats.residual_per_atom.mae:.1f} meV/atom")
    if stats.force_component is not None:
        click.echo(f"  no forces                  {1000 * stats.force_component.mae:.1f} meV/Å")
    click.echo("\ncutoff (Å)  neighbors: mean  most")
    for cutoff, (mean, most) in stats.neighbors.items():
        click.echo(f"{cutoff:10.1f} {mean:17.1f} {most:5d}")
    click.echo("\nelement       atoms  structures  reference (eV/atom)")
    for name, (atoms, structures) in stats.elements.items():
        reference = f"{stats.references[name]:19.4f}" if name in stats.references else ""
        click.echo(f"{name:7s} {atoms:11d} {structures:11d} {reference}")
    if stats.references and not stats.references_unique:
        click.echo("The references are not unique: the compositions do not tell all elements apart.")


def _row(spread: "Spread") -> str:
    return " ".join(f"{value:10.3f}" for value in (spread.mean, spread.std, spread.lowest, spread.highest))
