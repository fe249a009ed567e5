"""`faenet-calc info MODEL`: description of a model."""

import json
from typing import TYPE_CHECKING, Any

import click

from faenet_calc.cli.options import verbosity_options

if TYPE_CHECKING:
    from faenet_calc.potential.potential import Potential


@click.command()
@click.argument("model", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print the results as one JSON object.")
@verbosity_options
def command(model: str | None, as_json: bool) -> None:
    """Describe MODEL: a shipped model, a .safetensors file, or a .pt file of the original code.

    Without MODEL, the default shipped model is described.
    """
    from faenet_calc import elements
    from faenet_calc.potential import shipped
    from faenet_calc.potential.checkpoint import load_potential

    name = shipped.default_name() if model is None else model
    described = describe(load_potential(name, device="cpu"))
    if as_json:
        click.echo(json.dumps(described))
        return
    described["extra"] = f"{', '.join(described['extra'])} (see --json)" if described["extra"] else None
    if len(described["supported_elements"]) == elements.MAX_Z:
        described["supported_elements"] = "all"
    width = max(len(key) for key in described)
    for key, value in described.items():
        lines = value if isinstance(value, list) and key == "notes" else [_words(value)]
        for number, line in enumerate(lines):
            click.echo(f"{key.replace('_', ' ') if number == 0 else '':<{width}}  {line}")


def describe(potential: "Potential") -> dict[str, Any]:
    """The properties of a model as JSON values, by the names that ``info`` prints."""
    from faenet_calc import elements
    from faenet_calc.network.native import library, unavailable
    from faenet_calc.potential import shipped

    config, metadata, compiled = potential.config, potential.metadata, library()
    extra = dict(metadata.get("extra", {}))
    shipped_name = metadata.get("name")
    frames = f"{config.frames.kind}, {config.frame_mode}" + (", rotations only" if config.frames.proper else "")
    card = str(shipped.card(shipped_name)) if shipped_name else extra.get("card")
    words = extra.get("model_card", {})
    return {
        "model": shipped_name or config.name or metadata.get("path"),
        "path": metadata.get("path"),
        "sha256": metadata.get("sha256"),
        "card": card,
        "energy": config.energy.kind,
        "energy_reference": config.energy.reference,
        "level_of_theory": config.energy.level_of_theory,
        "energy_unit": config.energy.unit,
        "forces": config.forces,
        "direct_forces_available": config.model.decoder is not None,
        "cutoff_A": config.model.cutoff,
        "max_neighbors": config.graph.max_neighbors,
        "frames": frames,
        "exact_symmetries": config.frames.exact_symmetries(config.frame_mode),
        "needs_tags": potential.needs_tags,
        "deletes_subsurface_atoms": config.graph.rewiring == "remove-tag-0",
        "parameters": sum(value.numel() for value in potential.parameters()),
        "dtype": str(potential.dtype).removeprefix("torch."),
        "compiled_code": f"no, slower: {unavailable()}" if compiled is None else f"yes ({compiled.instructions})",
        "supported_elements": [elements.symbol(z) for z in potential.supported_elements],
        "trained_elements": [elements.symbol(z) for z in config.trained_elements],
        "domain": words.get("domain"),
        "bad_at": ", ".join(words["bad_at"]) if words.get("bad_at") else None,
        "error_against_DFT": _adsorption_error(words.get("measured", {})),
        "errors": _errors(words.get("measured", {})),
        "licence": words.get("licence"),
        "notes": _notes(potential, extra),
        "extra": {key: value for key, value in extra.items() if key != "notes"},
    }


def _adsorption_error(measured: dict[str, Any]) -> str | None:
    """The error of adsorption energies against DFT stated in a model card."""
    errors = measured.get("dft_adsorption", {}).get("DFT geometry", {}).get("all")
    return errors and f"{errors['mae_eV']:.3f} eV on {errors['pairs']} adsorption energies (RPBE, DFT geometries)"


def _errors(measured: dict[str, Any]) -> str | None:
    """The errors on held-out structures stated in a model card, against the origin of the labels."""
    errors = measured.get("heldout_errors", {}).get("all") or measured.get("test_errors")
    wanted = ("structures", "energy_mae (meV/atom)", "forces_mae (meV/Å)")
    if not errors or not all(key in errors for key in wanted):
        return None
    structures, energy, forces = (errors[key] for key in wanted)
    found = f"{energy:.3g} meV/atom and {forces:.3g} meV/Å on {structures} held-out structures"
    return f"{found} against the reference method of its labels; see the card"


def _notes(potential: "Potential", extra: dict[str, Any]) -> list[str]:
    """Remarks on how to use the predictions."""
    notes = list(extra.get("notes", []))
    if potential.config.graph.rewiring == "remove-tag-0" and not any("sub-surface" in note for note in notes):
        notes.append("sub-surface atoms (tag 0) are removed before the network and have no forces")
    if potential.config.forces == "none":
        notes.append("trained on energies only: forces need forces='gradient' and were never validated")
    if potential.config.energy.kind == "relaxed-adsorption":
        notes.append(
            "the energy is that of the relaxed structure, predicted from the unrelaxed one; not usable for relaxations"
        )
    return notes


def _words(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return " ".join(map(str, value)) or "unknown"
    if isinstance(value, dict):
        return json.dumps(value) if value else "-"
    return "-" if value is None else str(value)
