"""Write the machine-readable card of a shipped model into its checkpoint and update the sha256 file.

    python scripts/embed_card.py metals-m metals-s …

The card consists of `pretrained/NAME/card.yaml` and, under `measured`, of the results of the benchmarks of DFT
adsorption energies, held-out errors, held-out relaxations, properties and NVE (benchmarks/results/NAME-*.jsonl). It is
stored as `model_card` in the metadata of the checkpoint: `faenet-calc info NAME --json`, or
`load_potential(NAME).metadata["extra"]["model_card"]`.
The weights are not changed.
"""

import argparse
import hashlib
import json
import sys
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from faenet_calc import load_potential
from faenet_calc.potential.checkpoint import save_potential

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))
from rows import weights_digest  # noqa: E402

KEYS = {
    "summary", "elements", "forces", "errors", "domain", "bad_at", "licence", "attribution", "data", "reference",
    "reproduce",
}  # fmt: skip
CASES = ("all", "domain=inside", "why=unseen pair", "why=unseen facet", "why=unseen alloy", "how=relax", "how=rattle")
DFT_ERRORS = ("pairs", "mae_eV", "rmse_eV", "max_eV", "rank_correlation", "same_site", "slabs_with_sites")
RELAXATIONS = (
    "same_site", "adsorption_mae_eV", "adsorption_median_error_eV", "adsorption_largest_error_eV", "converged",
    "cpu_s_per_relaxation",
)  # fmt: skip


def rows_of(name: str, benchmark: str) -> list[dict[str, Any]]:
    """Stored rows of a benchmark; none if it was not run."""
    path = ROOT / "benchmarks" / "results" / f"{name}-{benchmark}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def measured(name: str) -> dict[str, Any]:
    """Numbers of each benchmark that was run."""
    found: dict[str, Any] = {}
    for row in rows_of(name, "dft_adsorption"):
        if row["row"] == "group" and not row["case"].startswith("surface="):
            geometry = found.setdefault("dft_adsorption", {}).setdefault(f"{row['geometry']} geometry", {})
            case = row["case"].removeprefix("adsorbate=")
            geometry[case] = {key: row[key] for key in DFT_ERRORS if key in row}
    for row in rows_of(name, "heldout_errors"):
        if row["model"] == name and row["case"] in CASES:
            case = found.setdefault("heldout_errors", {}).setdefault(row["case"].removeprefix("why="), {})
            case["structures"] = row["n_structures"]
            case[f"{row['metric']} ({row['unit']})"] = row["value"]
    for row in rows_of(name, "heldout_relaxations"):
        if row.get("summary"):
            found["heldout_relaxations"] = {
                "optimizer": row["optimizer"],
                "fmax_eV_per_A": row["fmax"],
                **{key: row["all"][key] for key in RELAXATIONS},
            }
    for row in rows_of(name, "properties"):
        if row.get("summary"):
            found["properties"] = {key: value for key, value in row.items() if key.endswith(("_A", "_GPa", "_per_cm"))}
    keys = ("ps", "mean_temperature_K", "drift_meV_per_atom_ps", "blown_up", "frames")
    runs = [row for row in rows_of(name, "nve_systems") if row.get("row") == "system"]
    if runs:
        found["nve_systems"] = {row["system"]: {key: row[key] for key in keys if key in row} for row in runs}
    return found


def model_card(name: str) -> dict[str, Any]:
    """The card of a model: card.yaml and the measured numbers.

    Raises:
        SystemExit: card.yaml lacks a required key.
    """
    path = ROOT / "pretrained" / name / "card.yaml"
    card = YAML(typ="safe", pure=True).load(path.read_text(encoding="utf-8"))
    if missing := sorted(KEYS - set(card)):
        raise SystemExit(f"{path} lacks {', '.join(missing)}")
    return {**card, "measured": {**card.get("measured", {}), **measured(name)}}


def main() -> None:
    """Embed the cards of the given models."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="+", metavar="NAME")
    for name in parser.parse_args().names:
        file = ROOT / "pretrained" / name / "model.safetensors"
        potential, before = load_potential(file, device="cpu"), file.read_bytes()
        extra = {**potential.metadata["extra"], "model_card": model_card(name)}
        save_potential(potential, file, extra=extra)
        assert weights_digest(file.read_bytes()) == weights_digest(before), "the weights have changed"
        digest = hashlib.sha256(file.read_bytes()).hexdigest()
        (file.parent / "sha256").write_text(f"{digest}  {file.name}\n")
        print(f"{file}: sha256 {digest}")


if __name__ == "__main__":
    main()
