"""Import weights of the original FAENet code (PyPI `faenet`, RolnickLab/ocp) and predict with them.

The file is made here, with random weights under upstream's names, so that the example needs nothing else. With your own
checkpoint the whole example is: faenet-calc convert checkpoint.pt model.safetensors

python examples/import_upstream.py [--quick] [--out FOLDER]
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

import torch
from ase.build import add_adsorbate, fcc111, molecule

from faenet_calc import FAENetCalculator, build_potential

# Constructor arguments of the original code; those that follow from the weights may be omitted.
CONFIG = {"act": "swish", "skip_co": False, "energy_head": "weighted-av-final-embeds", "mp_type": "updownscale_base"}
CONFIG |= {"frame_averaging": "2D", "fa_method": "all", "regress_forces": "direct", "graph_rewiring": "remove-tag-0"}


def write_upstream_file(path: Path) -> None:
    """Write a state dict as the original code does with `torch.save(model.state_dict(), path)`, and its config."""
    potential = build_potential("paper-s2ef", hidden_channels=256, filters=32, interactions=2, gaussians=20, seed=1)
    names = {"atom_embedding.": "embed_block.", "edge_embedding.": "embed_block."}
    weights = {}
    for key, value in potential.model.state_dict().items():
        for ours, theirs in names.items():
            key = theirs + key.removeprefix(ours) if key.startswith(ours) else key
        weights[key] = value
    torch.save(weights, path)
    path.with_suffix(".json").write_text(json.dumps(CONFIG))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="no effect, this example is quick")
    parser.add_argument("--out", type=Path, default=Path("demo-output"), help="folder for files")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    upstream, ours = args.out / "upstream.pt", args.out / "imported.safetensors"

    write_upstream_file(upstream)
    command = [sys.executable, "-m", "faenet_calc", "convert", str(upstream), str(ours), "--overwrite"]
    subprocess.run(command, check=True)

    slab = fcc111("Cu", (2, 2, 3), vacuum=8.0)
    slab.set_tags([0] * 8 + [1] * 4)
    add_adsorbate(slab, molecule("CO", tags=[2, 2]), 1.9, "ontop", mol_index=1)
    calc = FAENetCalculator(ours)
    # The .pt file can also be used directly.
    for name, calculator in {"converted": calc, "as it is": FAENetCalculator(upstream)}.items():
        energy, forces = calculator.get_potential_energy(slab), calculator.get_forces(slab)
        print(f"{name:<10} energy {energy:.6f}, largest force component {abs(forces).max():.6f} (random weights)")
    print(f"energies: {calc.energy_kind}, {calc.energy_reference}; forces: {calc.info['forces'][0]}")


if __name__ == "__main__":
    main()
