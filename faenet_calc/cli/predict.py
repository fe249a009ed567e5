"""`faenet-calc predict -m MODEL IN… [-o out.extxyz]`: single-point calculations in batches."""

import json
import re
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from faenet_calc.cli.lazy import EXIT_NOT_CONVERGED
from faenet_calc.cli.options import (
    build_calculator,
    model_options,
    plain_warnings,
    show_progress,
    verbosity,
    verbosity_options,
)
from faenet_calc.errors import enumerated

if TYPE_CHECKING:
    from ase import Atoms

    from faenet_calc.graphs.reading import InputStructure

_EXPLAINED = 5  # structures outside the domain whose reasons are printed
_OF_ASE = ("energy", "free_energy", "forces", "stress", "energies")


@click.command()
@click.argument("inputs", metavar="IN…", nargs=-1, required=True)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    help="File for the structures with their results (.extxyz, .traj, …).",
)
@click.option(
    "-p",
    "--property",
    "properties",
    multiple=True,
    help="Property to compute: energy, forces, stress, energies, energy_uncertainty, energy_frame_std, …; may be "
    "repeated.  [default: energy, forces and energy_uncertainty or energy_frame_std]",
)
@model_options
@verbosity_options
@click.pass_context
def command(
    ctx: click.Context,
    /,
    inputs: tuple[str, ...],
    output: Path | None,
    properties: tuple[str, ...],
    as_json: bool,
    overwrite: bool,
    **model: Any,
) -> None:
    """Compute energies, forces and stresses of every structure in the files IN… (FILE@INDEX selects some of them).

    Exit code 3 if a structure is outside the domain of the model.
    """
    from faenet_calc.errors import InputError, OutsideDomainWarning
    from faenet_calc.graphs.reading import read_structures
    from faenet_calc.graphs.writing import check_format, refuse_existing, reserved, write_structures

    refuse_existing(output, overwrite=overwrite)
    with plain_warnings(ctx, but=(OutsideDomainWarning,)), reserved(output):  # reported below, for every structure
        structures = read_structures(inputs)
        check_format(output, several=len(structures) > 1)
        calc = build_calculator(**model)
        known = calc.implemented_properties
        uncertainty = "energy_uncertainty" if "energy_uncertainty" in known else "energy_frame_std"
        if unknown := [name for name in properties if name not in known]:
            raise InputError(f"--property {unknown[0]}: not available, {calc.predictor.why_not(unknown[0])}")
        wanted = properties or [name for name in ("energy", "forces", uncertainty) if name in known]
        atoms = [item.atoms for item in structures]
        try:
            results = calc.predict(atoms, properties=wanted, progress=show_progress(ctx))
        except InputError as error:
            message = re.sub(r"^structure (\d+)(?=: )", lambda found: structures[int(found[1])].name, str(error))
            raise InputError(message) from error
        if output is not None:
            done = [labelled(a, result) for a, result in zip(atoms, results, strict=True)]
            write_structures(output, done, overwrite=overwrite)
    rows = [_row(item, result) for item, result in zip(structures, results, strict=True)]
    if as_json:
        click.echo(json.dumps({"model": calc.info["names"], "energy_kind": calc.energy_kind, "results": rows}))
    else:
        _print_table([item.name for item in structures], rows)
        if verbosity(ctx) >= 0 and (note := _left_out(wanted, output)) is not None:
            click.echo(note, err=True)
        if output is not None and verbosity(ctx) >= 0:
            click.echo(f"wrote {output}", err=True)
    outside = [
        f"{item.name}: outside the domain of the model: {row['why']}"
        for item, row in zip(structures, rows, strict=True)
        if "why" in row
    ]
    if outside and verbosity(ctx) >= 0:
        for reason in outside[:_EXPLAINED]:
            click.echo(f"Warning: {reason}", err=True)
        if (n_more := len(outside) - _EXPLAINED) > 0:
            click.echo(f"Warning: {n_more} more outside the domain of the model; --json prints why", err=True)
    if outside:
        ctx.exit(EXIT_NOT_CONVERGED)


def labelled(atoms: "Atoms", result: dict[str, Any]) -> "Atoms":
    """A copy of the atoms with the results: ASE's properties in a calculator, others in ``info`` and ``arrays``."""
    import numpy as np
    from ase.calculators.singlepoint import SinglePointCalculator

    copy = atoms.copy()
    copy.calc = SinglePointCalculator(copy, **{name: result[name] for name in _OF_ASE if name in result})
    for name, value in result.items():
        if name in _OF_ASE or name.endswith("_comm"):
            continue
        array = np.asarray(value)
        if array.ndim and len(array) == len(atoms):
            copy.arrays[name] = array
        else:
            copy.info[name] = value
    return copy


def _row(item: "InputStructure", result: dict[str, Any]) -> dict[str, Any]:
    import numpy as np

    row: dict[str, Any] = {
        "file": str(item.path),
        "index": item.index,
        "formula": item.atoms.get_chemical_formula(),
        "n_atoms": len(item.atoms),
    }
    if "forces" in result:
        row["fmax"] = float(np.linalg.norm(result["forces"], axis=1).max())
    return row | {name: np.asarray(value).tolist() for name, value in result.items() if name != "free_energy"}


# Columns of the table: result → title, factor of the printed unit, decimals. The largest value of arrays is printed.
_COLUMNS = {
    "fmax": ("fmax/(eV/Å)", 1.0, 3),
    "energy_uncertainty": ("uncertainty/meV", 1000.0, 1),
    "energy_uncertainty_95": ("95 % within ±/meV", 1000.0, 1),
    "energy_frame_std": ("frame std/meV", 1000.0, 3),
    "energies_uncertainty": ("max. atom uncertainty/meV", 1000.0, 1),
    "forces_uncertainty": ("max. force uncertainty/(eV/Å)", 1.0, 3),
    "forces_frame_std": ("max. force frame std/(eV/Å)", 1.0, 4),
    "domain_distance": ("max. domain distance", 1.0, 3),
}
_IN_TABLE = {"energy", "free_energy", "forces", *_COLUMNS}


def _print_table(names: list[str], rows: list[dict[str, Any]]) -> None:
    import numpy as np

    from faenet_calc.cli.table import print_table

    columns = {
        "structure": names,
        "formula": [row["formula"] for row in rows],
        "energy/eV": [f"{row['energy']:.4f}" for row in rows],
        "eV/atom": [f"{row['energy'] / row['n_atoms']:.4f}" for row in rows],
    }
    for name, (title, factor, decimals) in _COLUMNS.items():
        if name in rows[0]:
            columns[title] = [f"{factor * np.max(row[name]):.{decimals}f}" for row in rows]
    if "energy_var" in rows[0]:
        columns["committee std/meV"] = [f"{1000 * row['energy_var'] ** 0.5:.3f}" for row in rows]
    if any(row.get("domain") == "outside" for row in rows):
        columns["domain"] = ["OUTSIDE" if "why" in row else "inside" for row in rows]
    print_table(columns)


def _left_out(wanted: Collection[str], output: Path | None) -> str | None:
    """Which of the properties are not in the table, and where they are; None if all are."""
    if not (names := [name for name in dict.fromkeys(wanted) if name not in _IN_TABLE]):
        return None
    verb, them = ("is", "it") if len(names) == 1 else ("are", "them")
    they = "it" if len(names) == 1 else "they"
    saved = f"and {they} {verb} in {output}" if output is not None else f"-o FILE saves {them}"
    return f"{enumerated(names)} {verb} not in the table: --json prints {them}, {saved}"
