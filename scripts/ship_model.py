"""Add a trained checkpoint to the shipped models: model.safetensors, its sha256, and golden.json.

    python scripts/ship_model.py runs/copper-s/best.safetensors copper-s [--default] [--structure slab.extxyz …]
        [--unknown-bond O-Fe …] [--repulsion-inner 0.7]

golden.json contains structures with their energies, forces and stresses in float64: the standard test structures made
of trained elements, and those given. A test compares every shipped model with it. --unknown-bond removes a pair of
elements from the recorded distances of the domain, so that the guard marks their bonds: the data have some of them (CO
and H2O on Fe) but not those that matter (O on Fe). --repulsion-inner moves the distance at which the repulsion has
replaced the network, if `faenet-calc check` finds a minimum of the network there. The cards (card.md, card.yaml) are
written by hand; after the benchmarks have been run, `embed_card.py` stores card.yaml in the checkpoint.
"""

import argparse
import dataclasses
import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

from ase import Atoms
from ase.io import read

from faenet_calc import load_potential
from faenet_calc.potential.checkpoint import save_potential
from faenet_calc.potential.potential import Potential
from faenet_calc.testing.laws import structures

PRETRAINED = Path(__file__).parents[1] / "pretrained"


def golden_values(potential: Potential, extra: dict[str, Atoms]) -> dict[str, Any]:
    """Structures and expected results by name (Å, eV, eV/Å, eV/Å³)."""
    known = set(potential.config.trained_elements)
    values = {}
    for name, atoms in (structures() | extra).items():
        if not set(atoms.numbers.tolist()) <= known:
            continue
        periodic = bool(atoms.pbc.any())
        found = potential.predict(atoms, ("energy", "forces", *(("stress",) if periodic else ())))
        values[name] = {
            "numbers": atoms.numbers.tolist(),
            "positions": atoms.positions.tolist(),
            "cell": atoms.cell.array.tolist(),
            "pbc": atoms.pbc.tolist(),
            "energy": float(found.energy[0]),
            "forces": found.forces.tolist(),
            "stress": found.stress[0].tolist() if periodic else None,
        }
    return values


def without_bonds(potential: Potential, pairs: list[str]) -> Potential:
    """The potential with a domain that does not know bonds between pairs of elements, such as "O-Fe"."""
    domain = potential.config.domain
    if domain is None or (unknown := sorted(set(pairs) - set(domain.shortest))):
        found = "no domain" if domain is None else f"no distance of {', '.join(unknown)}"
        raise SystemExit(f"the checkpoint has {found}; expected pairs of {sorted(domain.shortest) if domain else '…'}")
    shortest = {pair: distance for pair, distance in domain.shortest.items() if pair not in pairs}
    potential.config = dataclasses.replace(potential.config, domain=dataclasses.replace(domain, shortest=shortest))
    return potential


def main() -> None:
    """Copy the checkpoint, write its digest and golden values."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("name")
    parser.add_argument("--default", action="store_true", help="make it the default model")
    parser.add_argument(
        "--structure", type=Path, action="append", default=[], help="additional structure for golden.json"
    )
    parser.add_argument("--repulsion-inner", type=float, help="in short bond lengths, as repulsion.inner in training")
    parser.add_argument("--unknown-bond", action="append", default=[], metavar="PAIR", help="e.g. O-Fe")
    arguments = parser.parse_args()
    extra = {path.stem: read(path) for path in arguments.structure}
    folder = PRETRAINED / arguments.name
    folder.mkdir(parents=True, exist_ok=True)
    model = folder / "model.safetensors"
    if arguments.unknown_bond or arguments.repulsion_inner:
        changed = load_potential(arguments.checkpoint, device="cpu")
        if arguments.unknown_bond:
            changed = without_bonds(changed, arguments.unknown_bond)
        if arguments.repulsion_inner:
            repulsion = dataclasses.replace(changed.config.repulsion, inner=arguments.repulsion_inner)
            changed.config = dataclasses.replace(changed.config, repulsion=repulsion)
        save_potential(changed, model, extra=changed.metadata["extra"])
    else:
        shutil.copyfile(arguments.checkpoint, model)
    potential = load_potential(model, device="cpu", dtype="float64")
    digest = hashlib.sha256(model.read_bytes()).hexdigest()
    (folder / "sha256").write_text(f"{digest}  model.safetensors\n")
    (folder / "golden.json").write_text(json.dumps(golden_values(potential, extra)) + "\n")
    if arguments.default:
        (PRETRAINED / "default").write_text(arguments.name + "\n")
    print(f"{model}: {model.stat().st_size / 1e6:.2f} MB, sha256 {digest}")


if __name__ == "__main__":
    main()
