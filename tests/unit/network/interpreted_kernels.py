"""Compare the Triton kernels with PyTorch in Triton's interpreter, which must be chosen before Triton is imported.

    TRITON_INTERPRET=1 python tests/unit/network/interpreted_kernels.py

Prints, for every case, the largest difference of each output relative to its largest value.
"""

import json

import torch
from ase.build import fcc111, molecule

from faenet_calc.frames.frames import build_frames
from faenet_calc.network import device_engine
from faenet_calc.network.device_engine import DeviceEngine
from faenet_calc.network.kernels import device, device_triton
from faenet_calc.potential.potential import build_potential

OUTPUTS = ("energy", "node_energy", "hidden", "features", "grad_vectors", "grad_rotation", "grad_factor")
SETTINGS = {
    "slab": {"feed_forward": 24, "cutoff": 4.0},
    "slabs": {"envelope_power": 4, "cutoff": 3.1, "mean_neighbors": 11.0},
    "molecule": {"envelope_power": 0, "jumping": "none"},
}


def main() -> None:
    """Print the differences as JSON."""
    slab, other = fcc111("Cu", (1, 1, 2), vacuum=8.0), fcc111("Pt", (1, 1, 3), vacuum=8.0)
    structures = {"slab": slab, "slabs": [slab, other], "molecule": molecule("H2O")}
    for atoms in (slab, other, structures["molecule"]):
        atoms.rattle(0.1, seed=1)
    found = {}
    for name, atoms in structures.items():
        for dtype in ("float64", "float32"):
            small = {"hidden_channels": 48, "filters": 20, "interactions": 2, "gaussians": 12}
            potential = build_potential("modern-s", dtype=dtype, **(small | SETTINGS[name]))
            torch.manual_seed(3)
            for parameter in potential.model.parameters():
                torch.nn.init.normal_(parameter, std=0.2)
            graph = potential.graph(atoms)
            frames = build_frames(graph, potential.config.frames, "pair", vacuum=potential.cutoff).detach()
            factor = torch.rand(graph.n_edges, dtype=torch.float64)
            results = []
            for operators in (device.ops, device_triton):
                device_engine.ops = operators
                results.append(
                    DeviceEngine(potential.model).evaluate(
                        graph,
                        frames,
                        graph.edge_vectors(),
                        frames.weight,
                        factor=factor,
                        outputs=("gradients", "hidden", "features"),
                    )
                )
            found[f"{name} {dtype}"] = {
                output: float((getattr(results[1], output) - getattr(results[0], output)).abs().max())
                / float(getattr(results[0], output).abs().max())
                for output in OUTPUTS
            }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
