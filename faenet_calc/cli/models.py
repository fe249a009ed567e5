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
        click.echo("meV/atom, meV/Å: errors of energies and forces on held-out data against the origin of the labels:")
        for origin, trained in _origins(rows).items():
            click.echo(f"  {', '.join(trained)}: {origin}")


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


def _adsorption_error(name: str) -> str:
    """Mean absolute error of adsorption energies against DFT (eV) in the card inside the checkpoint, if any."""
    from faenet_calc.potential.checkpoint import read_metadata

    measured = read_metadata(shipped.path(name))["extra"].get("model_card", {}).get("measured", {})
    errors = measured.get("dft_adsorption", {}).get("DFT geometry", {}).get("all")
    return "" if errors is None else f"{errors['mae_eV']:.3f}"


def _origins(rows: list[dict[str, Any]]) -> dict[str, list[str]]:
    """Origin of the labels → names of the models that were trained on them."""
    origins: dict[str, list[str]] = {}
    for row in rows:
        origins.setdefault(row["card"].get("reference", {}).get("calculator", "unknown"), []).append(row["name"])
    return origins


def _error(card: dict[str, Any], key: str) -> str:
    value = card.get("errors", {}).get(key)
    return "" if value is None else f"{value:g}"
