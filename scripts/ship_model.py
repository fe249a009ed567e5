"""Put a trained checkpoint among the shipped models: model.safetensors, its sha256, and golden.json.

    python scripts/ship_model.py runs/copper-s/best.safetensors copper-s [--default]

golden.json holds energies, forces and stresses in float64 of the named structures made of trained elements; a test
compares every shipped model with its own. The card is written by hand.
"""

import argparse
import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

from faenet_calc import load_potential
from faenet_calc.potential import Potential
from faenet_calc.testing import structures

PRETRAINED = Path(__file__).parents[1] / "pretrained"


def golden_values(potential: Potential) -> dict[str, Any]:
    """Expected results by name of structure (eV, eV/Å, eV/Å³)."""
    known = set(potential.config.trained_elements)
    values = {}
    for name, atoms in structures().items():
        if not set(atoms.numbers.tolist()) <= known:
            continue
        periodic = bool(atoms.pbc.any())
        found = potential.predict(atoms, ("energy", "forces", *(("stress",) if periodic else ())))
        values[name] = {
            "energy": float(found.energy[0]),
            "forces": found.forces.tolist(),
            "stress": found.stress[0].tolist() if periodic else None,
        }
    return values


def main() -> None:
    """Copy, hash, compute."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("name")
    parser.add_argument("--default", action="store_true", help="make it the default model")
    arguments = parser.parse_args()
    potential = load_potential(arguments.checkpoint, device="cpu", dtype="float64")
    folder = PRETRAINED / arguments.name
    folder.mkdir(parents=True, exist_ok=True)
    model = folder / "model.safetensors"
    shutil.copyfile(arguments.checkpoint, model)
    digest = hashlib.sha256(model.read_bytes()).hexdigest()
    (folder / "sha256").write_text(f"{digest}  model.safetensors\n")
    (folder / "golden.json").write_text(json.dumps(golden_values(potential), indent=1) + "\n")
    if arguments.default:
        (PRETRAINED / "default").write_text(arguments.name + "\n")
    print(f"{model}: {model.stat().st_size / 1e6:.2f} MB, sha256 {digest}")


if __name__ == "__main__":
    main()
