"""`faenet-calc evaluate`: errors of a model on labelled data."""

import dataclasses
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from faenet_calc.cli.lazy import EXIT_NOT_CONVERGED
from faenet_calc.cli.options import device_option, frames_option, show_progress, verbosity, verbosity_options
from faenet_calc.errors import counted

if TYPE_CHECKING:
    from faenet_calc.data.dataset import GraphDataset
    from faenet_calc.potential.potential import Potential
    from faenet_calc.training.assessment import Assessment

_LARGE_SHIFT = 0.1  # per atom
_FALSE_ALARMS = 0.01  # share of structures inside the domain that the guard may mark


@click.command()
@click.argument("data", metavar="DATA…", nargs=-1, required=True)
@click.option("-m", "--model", help="Shipped model or checkpoint file.  [default: the default shipped model]")
@click.option(
    "--report", type=click.Path(path_type=Path, dir_okay=False), help="Write a self-contained HTML report to this file."
)
@click.option("--json", "as_json", is_flag=True, help="Print the results as one JSON object.")
@frames_option
@click.option(
    "--forces",
    type=click.Choice(["auto", "gradient", "direct"]),
    default="auto",
    show_default=True,
    help="Forces to evaluate: energy gradient, direct head, or auto for the setting of the model.",
)
@click.option("--free-atoms-only", is_flag=True, help="Evaluate forces on unconstrained atoms only.")
@click.option("--energy-key", help="Key of the energy label in the files.  [default: the calculator's energy]")
@click.option("--forces-key", help="Key of the force labels in the files.  [default: the calculator's forces]")
@click.option("--align", is_flag=True, help="Fit one energy offset per element to the data before the comparison.")
@click.option(
    "--symmetry",
    type=click.IntRange(min=0),
    default=20,
    show_default=True,
    help="Number of structures for the symmetry metrics; 0 skips them.",
)
@click.option(
    "--about-z", is_flag=True, help="Rotate about z only in the symmetry metrics, as the paper does for OC20."
)
@device_option
@click.option(
    "--dtype", type=click.Choice(["float32", "float64"]), help="Floating-point precision.  [default: as stored]"
)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Random seed.")
@click.option("--trust-pickle", is_flag=True, help="Read pickled LMDB files, which can run arbitrary code.")
@click.option("--overwrite", is_flag=True, help="Replace an existing report.")
@verbosity_options
@click.pass_context
def command(ctx: click.Context, /, data: tuple[str, ...], model: str | None, **options: Any) -> None:
    """Compare the predictions of a model with the labels in DATA (extxyz, traj, db, …).

    Energies in eV, forces in eV/Å. Symmetry metrics (Rot-I, Refl-I, F-Rot-E, F-Refl-E, %-diff) are absolute and per
    structure. Exit code 3 if more than 1 % of the structures are outside the domain of the model.
    """
    from faenet_calc.graphs.writing import refuse_existing

    report: Path | None = options["report"]
    refuse_existing(report, overwrite=options["overwrite"])
    potential, dataset = _open(data, model, options, show_progress(ctx))
    n_trained = _n_trained_on(potential, dataset)
    if n_trained:
        click.echo(
            f"Warning: the model was trained on {n_trained} of these {len(dataset)} structures, so the errors are too "
            "small; those of the structures that were left out are in report.html and errors.json of the training",
            err=True,
        )
    found, throughput, symmetry, offsets = _measure(ctx, potential, dataset, options)
    result = {
        "n_structures": found.n_structures,
        "n_trained_on": n_trained,
        **found.metrics,
        "unit": potential.config.energy.unit,
        "structures_per_second": throughput,
        "symmetry": symmetry,
        "frames": potential.config.frame_mode if options["frames"] == "auto" else options["frames"],
        "offsets": offsets,
    }
    outside = {record.index: record.why for record in found.records if record.why is not None}
    if potential.uncertainty is not None:
        result |= {"domain": "outside" if outside else "inside", "n_outside": len(outside), "why": outside}
    if report is not None:
        _write_report(report, model, dataset, found, symmetry)
    if options["as_json"]:
        click.echo(json.dumps(result))
    elif verbosity(ctx) >= 0:
        _print(found, symmetry, potential.config.energy.unit)
        click.echo(f"  {'throughput':<46}{throughput:>10.4g} structures/s")
        if outside:
            verb = "is" if len(outside) == 1 else "are"
            click.echo(
                f"{len(outside)} of {counted(found.n_structures, 'structure')} {verb} outside the domain of the model"
            )
        if not options["align"] and (shift := _common_shift(found)) is not None:
            click.echo(
                f"Warning: the energies differ from the labels by nearly the same amount per atom ({shift:+.3g} "
                f"{potential.config.energy.unit}), as with labels of another code or functional; --align fits one "
                "offset per element",
                err=True,
            )
        if report is not None:
            click.echo(f"wrote {report}", err=True)
    if len(outside) > _FALSE_ALARMS * found.n_structures:
        ctx.exit(EXIT_NOT_CONVERGED)


def _open(
    data: tuple[str, ...], model: str | None, options: dict[str, Any], progress: bool
) -> tuple["Potential", "GraphDataset"]:
    from faenet_calc.data.dataset import open_dataset
    from faenet_calc.potential import shipped
    from faenet_calc.potential.checkpoint import load_potential

    potential = load_potential(model or shipped.default_name(), device=options["device"], dtype=options["dtype"])
    dataset = open_dataset(
        list(data),
        cutoff=potential.cutoff,
        max_neighbors=potential.config.graph.max_neighbors,
        energy_key=options["energy_key"],
        forces_key=options["forces_key"],
        trust_pickle=options["trust_pickle"],
        progress=progress,
    )
    return potential, dataset


def _common_shift(found: "Assessment") -> float | None:
    """Mean error of the energies per atom if it is large and much larger than their scatter; else None."""
    import numpy as np

    errors = np.array([(record.predicted_energy - record.energy) / len(record.numbers) for record in found.records])
    errors = errors[np.isfinite(errors)]
    if len(errors) < 2 or abs(errors.mean()) < max(_LARGE_SHIFT, 5 * errors.std()):
        return None
    return float(errors.mean())


def _n_trained_on(potential: "Potential", dataset: "GraphDataset") -> int:
    """Number of structures that the model was trained on, if these are the files of its training; else 0."""
    training = potential.metadata.get("extra", {}).get("training", {})
    return int(training["n_train"]) if training.get("data") == dataset.content_hash else 0


def _measure(
    ctx: click.Context, potential: "Potential", dataset: "GraphDataset", options: dict[str, Any]
) -> tuple["Assessment", float, dict[str, Any] | None, dict[str, float] | None]:
    """Errors, structures per second (wall time), symmetry metrics and fitted offsets."""
    import numpy as np
    import torch

    from faenet_calc.progress import progress_bar
    from faenet_calc.training.alignment import aligned
    from faenet_calc.training.assessment import assess
    from faenet_calc.training.symmetry import symmetry_metrics

    potential.check_elements(torch.tensor(dataset.numbers))
    indices = np.arange(len(dataset))
    offsets = None
    if options["align"]:
        potential, offsets = aligned(potential, dataset, indices)
    began = time.perf_counter()
    with progress_bar(shown=show_progress(ctx), total=len(dataset), unit="structures") as bar:
        found = assess(
            potential,
            dataset,
            indices,
            frames=options["frames"],
            forces=options["forces"],
            free_atoms_only=options["free_atoms_only"],
            records=True,
            seed=options["seed"],
            progress=bar.update,
        )
    throughput = found.n_structures / (time.perf_counter() - began)
    turned = None
    if options["symmetry"]:
        chosen = np.linspace(0, len(dataset) - 1, min(options["symmetry"], len(dataset))).astype(int)
        measured = symmetry_metrics(
            potential,
            dataset,
            chosen,
            frames=options["frames"],
            seed=options["seed"],
            about_z=options["about_z"],
        )
        turned = dataclasses.asdict(measured)
    return found, throughput, turned, offsets


def _write_report(
    path: Path, model: str | None, dataset: "GraphDataset", found: "Assessment", symmetry: dict[str, Any] | None
) -> None:
    from faenet_calc.reports.learning import evaluation_report, evaluation_section

    sources = [f"{info.get('source', '')}#{info.get('index', '')}" for info in map(dataset.info, range(len(dataset)))]
    evaluation_report(
        path,
        title=f"Errors of {model or 'the default model'}",
        sections=[evaluation_section("data", found, sources)],
        symmetry=[] if symmetry is None else _symmetry_rows(symmetry),
    )


def _symmetry_rows(symmetry: dict[str, Any]) -> list[tuple[str, str]]:
    def milli(value: float | None, unit: str) -> str:
        return "–" if value is None else f"{1e3 * value:.3g} {unit}"

    return [
        ("energy change under rotation (Rot-I)", milli(symmetry["rot_i"], "meV")),
        ("energy change under reflection (Refl-I)", milli(symmetry["refl_i"], "meV")),
        ("force error under rotation (F-Rot-E)", milli(symmetry["f_rot_e"], "meV/Å")),
        ("force error under reflection (F-Refl-E)", milli(symmetry["f_refl_e"], "meV/Å")),
        ("relative energy change under rotation (%-diff)", f"{symmetry['percent_diff']:.2g} %"),
    ]


def _number(value: float) -> str:
    """Four digits, without an exponent for large numbers."""
    return f"{value:,.0f}" if 9999.5 <= abs(value) < 1e9 else f"{value:.4g}"


def _print(found: "Assessment", symmetry: dict[str, Any] | None, unit: str) -> None:
    from faenet_calc.reports.learning import SHOWN

    click.echo(counted(found.n_structures, "structure"))
    if unit != "eV":  # a scalar property, to which thresholds and factors of energies do not apply
        click.echo(f"  {'MAE':<46}{_number(found.metrics['energy_mae']):>10} {unit}")
        return
    for name, (title, factor, unit) in SHOWN.items():
        if name in found.metrics:
            click.echo(f"  {title:<46}{_number(found.metrics[name] * factor):>10} {unit}")
    for name, value in found.metrics.items():
        if name.startswith("forces_mae["):
            click.echo(f"  force MAE of {name[11:-1]:<33}{_number(1e3 * value):>10} meV/Å")
    for title, text in [] if symmetry is None else _symmetry_rows(symmetry):
        number, _, unit = text.partition(" ")
        click.echo(f"  {title:<46}{number:>10} {unit}")
