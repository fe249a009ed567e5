"""`faenet-calc models`: the shipped models."""

import json
from typing import Any

import click

from faenet_calc.cli.options import verbosity_options
from faenet_calc.potential import shipped


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list.")
@verbosity_options
def command(as_json: bool) -> None:
    """List the shipped models; a star marks the default."""
    names = shipped.names()
    default = shipped.default_name() if names else None
    rows: list[dict[str, Any]] = []
    for name in names:
        file = shipped.path(name)
        rows.append(
            {
                "name": name,
                "default": name == default,
                "size_bytes": file.stat().st_size,
                "path": str(file),
                "description": shipped.description(name),
            }
        )
    if as_json:
        click.echo(json.dumps(rows))
        return
    if not rows:
        click.echo("no models are shipped with this installation")
    for row in rows:
        size = f"{row['size_bytes'] / 1e6:.1f} MB"
        click.echo(f"{'*' if row['default'] else ' '} {row['name']}  ({size})  {row['description']}")
        click.echo(f"    {row['path']}")
