"""Frame averaging for a network of your own: a ForceNet-like model of energies and forces that ignores all symmetry.

python examples/frame_averaging.py [--quick] [--out FOLDER]
"""

import argparse
from pathlib import Path

import torch
from ase.build import fcc111
from ase.calculators.emt import EMT
from ase.neighborlist import neighbor_list
from torch import Tensor, nn
from torch_geometric.data import Batch, Data

from faenet_calc.frames import frame_averaged


class EdgeNetwork(nn.Module):
    """Messages are any function of the edge vector; energy and forces come from two heads."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.message = nn.Sequential(nn.Linear(3, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU())
        self.update = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 4))

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """Energy per structure (eV) and forces per atom (eV/Å)."""
        neighbor, centre = batch.edge_index
        offset = torch.einsum("ek,ekx->ex", batch.shift, batch.cell[batch.batch[centre]])
        message = self.message(batch.pos[neighbor] - batch.pos[centre] + offset)
        per_atom = self.update(message.new_zeros(len(batch.pos), message.shape[1]).index_add(0, centre, message))
        energy = per_atom.new_zeros(batch.num_graphs).index_add(0, batch.batch, per_atom[:, 0])
        return {"energy": energy, "forces": per_atom[:, 1:]}


def labelled_slab(seed: int, rotation: float = 0.0) -> Data:
    atoms = fcc111("Cu", (2, 2, 3), vacuum=6.0)
    atoms.rattle(0.1, seed=seed)
    atoms.rotate(rotation, (1, 2, 3), rotate_cell=True)
    atoms.calc = EMT()
    centre, neighbor, shift = (torch.as_tensor(values) for values in neighbor_list("ijS", atoms, 4.0))
    tensors = {"pos": atoms.positions, "cell": atoms.cell.array[None], "y": atoms.get_potential_energy()}
    tensors |= {"force": atoms.get_forces(), "shift": shift}
    data = Data(edge_index=torch.stack([neighbor, centre]), pbc=torch.as_tensor(atoms.pbc)[None])
    data.update({name: torch.as_tensor(value, dtype=torch.float32) for name, value in tensors.items()})
    return data


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer training steps")
    parser.add_argument("--out", type=Path, default=Path("demo-output"), help="folder for files")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)

    torch.manual_seed(0)
    network = EdgeNetwork()
    model = frame_averaged(network, "lattice", "all", outputs={"energy": "scalar", "forces": "vector"})
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    train = Batch.from_data_list([labelled_slab(seed) for seed in range(16)])
    for _ in range(30 if args.quick else 600):  # in training mode, one random frame per structure and step
        found = model.train()(train)
        loss = (found["energy"] - train.y).abs().mean() / 12 + (found["forces"] - train.force).abs().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    slab, turned = (Batch.from_data_list([labelled_slab(99, angle)]) for angle in (0.0, 50.0))
    with torch.no_grad():
        for name, one in {"frame averaged": model.eval(), "bare network": network}.items():
            change = float((one(slab)["energy"] - one(turned)["energy"]).abs())
            print(f"{name}: energy changes by {change:.1e} eV under rotation")
        error = float((model(slab)["forces"] - slab.force).abs().mean())
    print(f"force MAE {error:.3f} eV/Å (zero-force baseline {float(slab.force.abs().mean()):.3f})")
    torch.save(network.state_dict(), args.out / "edge_network.pt")


if __name__ == "__main__":
    main()
