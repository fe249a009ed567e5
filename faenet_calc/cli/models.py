"""`faenet-calc models`: list the shipped models."""

import json
from pathlib import Path
from typing import Any

import click
from ruamel.yaml import YAML

from faenet_calc.cli.options import verbosity_options
from faenet_calc.cli.table import print_table
from faenet_calc.potential import shipped


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list with the complete cards.")
@verbosity_options
def command(as_json: bool) -> None:
    """List the shipped models, one line each; an asterisk marks the default model."""
    names = shipped.names()
    default = shipped.default_name() if names else None
    rows = [_describe(name, is_default=name == default) for name in names]
    if as_json:
        click.echo(json.dumps(rows))
    elif not rows:
        click.echo("no models are shipped with this installation")
    else:
        print_table(
            {
                "model": [f"{'*' if row['default'] else ' '} {row['name']}" for row in rows],
                "content": [row["card"].get("summary", "") for row in rows],
                "forces": [row["card"].get("forces", "") for row in rows],
                "E_ads/eV": [_adsorption_error(row["name"]) for row in rows],
                "meV/atom": [_error(row["card"], "energy (meV/atom)") for row in rows],
                "meV/Å": [_error(row["card"], "forces (meV/Å)") for row in rows],
                "MB": [f"{row['size_bytes'] / 1e6:.1f}" for row in rows],
            }
        )
        click.echo("E_ads: mean absolute error of adsorption energies against DFT (RPBE, DFT geometries), if measured.")
        click.echo("meV/atom, meV/Å: errors of energies and forces on held-out data against the reference method:")
        for reference, trained in _references(rows).items():
            click.echo(f"  {', '.join(trained)}: {reference}")
        for row in rows:
            if note := _note_on_domain(row["name"], row["card"]):
                click.echo(note)


def _describe(name: str, *, is_default: bool) -> dict[str, Any]:
    file = shipped.path(name)
    return {
        "name": name,
        "default": is_default,
        "size_bytes": file.stat().st_size,
        "path": str(file),
        "card_path": str(shipped.card(name)),
        "card": _card(file.with_name("card.yaml")),
    }


def _card(path: Path) -> dict[str, Any]:
    """The machine-readable card of a model; empty if there is none."""
    return YAML(typ="safe", pure=True).load(path.read_text(encoding="utf-8")) if path.is_file() else {}


def _measured(name: str) -> dict[str, Any]:
    """Measured errors in the card inside the checkpoint; empty if there are none."""
    from faenet_calc.potential.checkpoint import read_metadata

    measured: dict[str, Any] = read_metadata(shipped.path(name))["extra"].get("model_card", {}).get("measured", {})
    return measured


def _adsorption_error(name: str) -> str:
    """Mean absolute error of adsorption energies against DFT (eV), if measured."""
    errors = _measured(name).get("dft_adsorption", {}).get("DFT geometry", {}).get("all")
    return "" if errors is None else f"{errors['mae_eV']:.3f}"


def _note_on_domain(name: str, card: dict[str, Any]) -> str:
    """For errors inside the domain of the model: on how many structures, and the errors on all; else empty."""
    errors = _measured(name).get("heldout_errors", {})
    if "inside the domain" not in card.get("errors", {}).get("set", "") or not {"all", "domain=inside"} <= set(errors):
        return ""
    every, inside = errors["all"], errors["domain=inside"]
    return (
        f"{name}: errors inside the domain ({inside['structures']} of {every['structures']} structures); "
        f"all structures: {every['energy_mae (meV/atom)']:.1f} meV/atom, {every['forces_mae (meV/Å)']:.0f} meV/Å."
    )


def _references(rows: list[dict[str, Any]]) -> dict[str, list[str]]:
    """Reference method → names of the models that were trained on its labels."""
    references: dict[str, list[str]] = {}
    for row in rows:
        references.setdefault(row["card"].get("reference", {}).get("calculator", "unknown"), []).append(row["name"])
    return references


def _error(card: dict[str, Any], key: str) -> str:
    value = card.get("errors", {}).get(key)
    return "" if value is None else f"{value:g}"
