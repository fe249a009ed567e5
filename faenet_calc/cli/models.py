"""`faenet-calc models`: the shipped models (L4)."""

import json
from typing import Any

import click

from faenet_calc import pretrained
from faenet_calc.cli.options import verbosity_options


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list.")
@verbosity_options
def command(as_json: bool) -> None:
    """List the shipped models; a star marks the default."""
    shipped = pretrained.names()
    default = pretrained.default_name() if shipped else None
    rows: list[dict[str, Any]] = []
    for name in shipped:
        file = pretrained.path(name)
        rows.append(
            {
                "name": name,
                "default": name == default,
                "size_bytes": file.stat().st_size,
                "path": str(file),
                "description": pretrained.description(name),
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
