"""Frame averaging of a transformer on raw coordinates, which becomes invariant, and of SchNet, which is so already.

python examples/frame_averaging_models.py [--quick] [--out FOLDER]
"""

import argparse
from functools import partial
from pathlib import Path

import torch
from ase.build import molecule
from torch import Tensor, nn
from torch_geometric.data import Batch, Data
from torch_geometric.nn import SchNet, global_add_pool

from faenet_calc.frames import frame_averaged
from faenet_calc.frames.lattice import random_rotation


class Transformer(nn.Module):
    """Self-attention between the atoms of a molecule, on raw coordinates."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Linear(4, 16), nn.Linear(16, 1)
        self.attend = nn.MultiheadAttention(16, 2, batch_first=True)

    def forward(self, batch: Batch) -> Tensor:
        """[n_molecules]."""
        tokens = self.embed(inputs(batch))[None]
        others = batch.batch[:, None] != batch.batch[None]
        mixed, _ = self.attend(tokens, tokens, tokens, attn_mask=others)
        return global_add_pool(self.head(mixed[0].tanh()), batch.batch)[:, 0]


def inputs(batch: Batch) -> Tensor:
    return torch.cat([batch.pos, batch.z[:, None] / 10], dim=1)


def edges(pos: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
    """Edges for SchNet within 6 Å, without the extension pyg-lib."""
    near = (torch.cdist(pos, pos) < 6.0) & (index[:, None] == index[None]) & ~torch.eye(len(pos), dtype=torch.bool)
    neighbor, centre = near.nonzero().T
    return torch.stack([neighbor, centre]), (pos[neighbor] - pos[centre]).norm(dim=1)


def with_arrays(model: nn.Module, batch: Batch) -> Tensor:
    return model(batch.z, batch.pos, batch.batch)[:, 0]


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="accepted by all examples; this one takes seconds anyway")
    parser.add_argument("--out", type=Path, default=Path("demo-output"), help="folder for files")
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    models = {
        "SchNet": (SchNet(32, 32, 2, interaction_graph=edges), with_arrays),
        "transformer": (Transformer(), None),
    }
    atoms = [molecule(name) for name in ("CH3CH2OH", "C6H6", "CH4", "CO2")]
    molecules = [Data(z=torch.tensor(one.numbers), pos=torch.tensor(one.positions)) for one in atoms]
    turn = random_rotation(torch.Generator().manual_seed(1))
    batch = Batch.from_data_list(molecules)
    turned = Batch.from_data_list([Data(z=data.z, pos=data.pos @ turn) for data in molecules])
    lines = []
    for name, (model, call) in models.items():
        averaged = frame_averaged(model.double(), "pair", "all", call=call).eval()
        bare = partial(call, model) if call else model
        alone, together = (float((one(batch) - one(turned)).abs().max()) for one in (bare, averaged))
        lines.append(f"{name}: changes by {alone:.1e} under rotation, frame averaged by {together:.1e}")
    print("\n".join(lines))
    (out / "frame_averaging_models.txt").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
