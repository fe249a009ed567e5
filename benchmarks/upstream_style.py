"""Training of a paper network in the style of upstream, for ``training_throughput.py``.

Follows what the upstream code does, with the same libraries (PyG ``Data``, ``Batch``, ``MessagePassing``,
``GraphNorm``):

- for every sample drawn: neighbor list, removal of tag-0 atoms, principal axes, positions and cells in all frames, of
  which one is chosen at random (or all are kept);
- one pass per frame on a deep copy of the batch; filters from the concatenation [e, h_j, h_i] on every edge;
- in training mode, -dE/dx in every pass with ``create_graph=True``, used as a constant;
- torch's default AdamW and glibc's default memory management.

Nothing is slowed down on purpose: neighbor lists come from the library that faenet-calc uses, and everything is
float32.
"""

import copy
import itertools
import random

import torch
from ase import Atoms
from torch import Tensor, nn
from torch.nn.functional import silu
from torch_geometric.data import Batch, Data
from torch_geometric.nn import GraphNorm, MessagePassing
from torch_geometric.utils import scatter

from faenet_calc.graphs.neighbors import neighbor_list
from faenet_calc.network.faenet import FAENet
from faenet_calc.network.layers import Interaction

FLIPS = [torch.diag(torch.tensor([a, b, 1.0])) for a, b in itertools.product([1.0, -1.0], repeat=2)]


def sample(atoms: Atoms, cutoff: float, max_neighbors: int | None, mode: str) -> Data:
    """Structure as returned by upstream's data set, with frames ``mode`` "stochastic" or "all"."""
    edges = neighbor_list(atoms.positions, atoms.cell.array, atoms.pbc, cutoff, max_neighbors=max_neighbors)
    tags = torch.tensor(atoms.get_tags())
    kept, row = tags != 0, torch.cumsum((tags != 0).long(), 0) - 1
    edge_index = torch.stack([torch.tensor(edges.neighbor), torch.tensor(edges.centre)])
    of_kept = kept[edge_index].all(dim=0)
    data = Data(
        pos=torch.tensor(atoms.positions, dtype=torch.float32)[kept],
        cell=torch.tensor(atoms.cell.array, dtype=torch.float32)[None],
        atomic_numbers=torch.tensor(atoms.numbers)[kept],
        tags=tags[kept],
        edge_index=row[edge_index[:, of_kept]],
        cell_offsets=torch.tensor(edges.shift)[of_kept],
        neighbors=int(of_kept.sum()),
        natoms=int(kept.sum()),
        y=torch.tensor([atoms.get_potential_energy()], dtype=torch.float32),
        force=torch.tensor(atoms.get_forces(), dtype=torch.float32)[kept],
    )
    return with_frames(data, mode)


def with_frames(data: Data, mode: str) -> Data:
    """Positions, cells and rotations of a sample in its frames: in-plane principal axes and their signs."""
    centred = data.pos - data.pos.mean(dim=0)
    values, axes = torch.linalg.eigh(centred[:, :2].T @ centred[:, :2])
    basis = torch.eye(3)
    basis[:2, :2] = axes[:, values.argsort(descending=True)]
    rotations = [basis @ flip for flip in FLIPS]
    positions = [torch.cat([centred[:, :2], data.pos[:, 2:]], dim=1) @ u for u in rotations]
    cells = [data.cell @ u for u in rotations]
    chosen = range(len(FLIPS)) if mode == "all" else [random.randrange(len(FLIPS))]
    data.fa_pos, data.fa_cell = [positions[k] for k in chosen], [cells[k] for k in chosen]
    data.fa_rot = [rotations[k][None] for k in chosen]
    return data


class Block(MessagePassing):
    """Interaction block updownscale_base with the weights of a faenet-calc block."""

    def __init__(self, ours: Interaction) -> None:
        super().__init__(aggr="add")
        assert ours.kind == "updownscale_base" and ours.lin_geom is not None and ours.graph_norm is not None
        assert ours.other_mlp is not None
        self.lin_geom, self.lin_down, self.lin_up = ours.lin_geom, ours.lin_down, ours.lin_up
        self.other_mlp, self.graph_norm = ours.other_mlp, GraphNorm(len(ours.graph_norm.weight))
        self.graph_norm.load_state_dict(ours.graph_norm.state_dict())

    def forward(self, h: Tensor, edge_index: Tensor, e: Tensor) -> Tensor:
        """The change of atom states h [n, H]."""
        filters = silu(self.lin_geom(torch.cat([e, h[edge_index[0]], h[edge_index[1]]], dim=1)))
        h = self.propagate(edge_index, x=silu(self.lin_down(h)), filters=filters)
        h = silu(self.graph_norm(h))
        h = silu(self.lin_up(h))
        return silu(self.other_mlp(h))

    def message(self, x_j: Tensor, filters: Tensor) -> Tensor:
        """x_j ⊙ f_ij."""
        return x_j * filters


class UpstreamStyle(nn.Module):
    """S2EF network of the paper with the weights of a faenet-calc network."""

    def __init__(self, ours: FAENet) -> None:
        super().__init__()
        assert ours.decoder is not None and ours.edge_embedding.lin_e12 is not None
        self.basis, self.embedding = ours.distance_expansion, ours.atom_embedding
        self.lin_e1, self.lin_e12 = ours.edge_embedding.lin_e1, ours.edge_embedding.lin_e12
        self.blocks = nn.ModuleList(Block(block) for block in ours.interaction_blocks)
        self.output, self.decoder = ours.output_block, ours.decoder
        for module in self.modules():  # the activation as upstream calls it
            if hasattr(module, "act"):
                module.act = silu

    def energy_and_force(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Energies [n_graphs] and in-frame forces [n_atoms, 3] of positions and cells as they are."""
        source, centre = batch.edge_index
        cell = torch.repeat_interleave(batch.cell, batch.neighbors, dim=0)
        offsets = torch.bmm(batch.cell_offsets.float()[:, None], cell)[:, 0]
        r = batch.pos[source] - batch.pos[centre] + offsets
        d = r.norm(dim=1)
        e = silu(torch.cat([self.lin_e1(r), self.lin_e12(self.basis(d))], dim=1))
        h = self.embedding(batch.atomic_numbers, batch.tags)
        for block in self.blocks:
            h = h + block(h, batch.edge_index, e)
        return scatter(self.output(h, None), batch.batch, dim=0, reduce="sum"), self.decoder(h)

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """Energies, forces and the constant -dE/dx, averaged over frames."""
        energies, forces, targets = [], [], []
        for pos, cell, rotation in zip(batch.fa_pos, batch.fa_cell, batch.fa_rot, strict=True):
            batch.pos, batch.cell = pos, cell
            one = copy.deepcopy(batch)
            one.pos.requires_grad_(True)
            energy, force = self.energy_and_force(one)
            (slope,) = torch.autograd.grad(energy.sum(), one.pos, create_graph=True)
            back = rotation[batch.batch].transpose(1, 2)
            energies.append(energy)
            forces.append(torch.bmm(force[:, None], back)[:, 0])
            targets.append(torch.bmm(-slope.detach()[:, None], back)[:, 0])
        return torch.stack(energies).mean(0), torch.stack(forces).mean(0), torch.stack(targets).mean(0)


def collate(samples: list[Data]) -> Batch:
    """Batch in which frame k of all samples is evaluated together."""
    names = ("fa_pos", "fa_cell", "fa_rot")
    frames = {name: [torch.cat(parts) for parts in zip(*(s[name] for s in samples), strict=True)] for name in names}
    batch = Batch.from_data_list(samples, exclude_keys=list(names))
    for name, values in frames.items():
        setattr(batch, name, values)
    return batch
