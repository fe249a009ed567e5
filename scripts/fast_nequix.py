"""Tensor products of Nequix evaluated in chunks of edges (development only, not installed).

    PYTHONPATH=scripts:. python scripts/fast_nequix.py      comparison with nequix: largest differences, CPU time

The layers of `nequix` create many temporary tensors over all edges, and memory bandwidth limits their speed. Here,
chunks of edges that fit into the cache pass through the whole product, forward and backward. Weights are the same,
results are equal up to rounding:

    m[e, path, l3m3, u] = w[e, path, u] * sum_l1m1 ( sum_l2m2 C[l1m1, l2m2, l3m3] Y[e, l2m2] ) x[sender(e), l1m1, u]
"""

from types import MethodType
from typing import Any

import numpy as np
import torch
from e3nn import o3
from torch import Tensor

EDGES_AT_ONCE = 160


class _Block:
    """All paths from the input features of one degree l1.

    Attributes:
        degree, channels: l1 and the number of channels u.
        coupling: [spherical harmonics, D * (2 l1 + 1)], D = sum of 2 l3 + 1 over its paths.
        path_of: [D] path of each row of the result.
        weights: Columns of the radial weights, path by path.
        out: [D * channels] where e3nn's product puts each entry of the result.
    """

    def __init__(self, product: Any, number: int) -> None:
        irreps1, irreps2, irreps_out = product.irreps_in1, product.irreps_in2, product.irreps_out
        self.channels, (self.degree, _) = irreps1[number]
        offsets = np.cumsum([0, *(int(np.prod(ins.path_shape)) for ins in product.instructions)])
        width = 2 * self.degree + 1
        couplings, path_of, weights, out = [], [], [], []
        for ins, offset in zip(product.instructions, offsets, strict=False):
            if ins.i_in1 != number:
                continue
            degree2, degree3 = irreps2[ins.i_in2].ir.l, irreps_out[ins.i_out].ir.l
            full = torch.zeros(irreps2.dim, 2 * degree3 + 1, width)
            symbol = o3.wigner_3j(self.degree, degree2, degree3) * ins.path_weight  # [m1, m2, m3]
            full[irreps2.slices()[ins.i_in2]] = symbol.permute(1, 2, 0)
            couplings.append(full)
            start, size = irreps_out.slices()[ins.i_out].start, 2 * degree3 + 1
            for m in range(size):
                path_of.append(len(weights))
                out.append(start + np.arange(self.channels) * size + m)
            weights.append(offset + np.arange(self.channels))
        self.coupling = torch.cat(couplings, dim=1).flatten(1)
        self.path_of = torch.tensor(path_of)
        self.weights = torch.from_numpy(np.concatenate(weights))
        self.out = torch.from_numpy(np.concatenate(out))
        self.paths, self.rows, self.width = len(weights), len(path_of), width


class _Messages(torch.autograd.Function):
    """Sum over edges of the product, for one block: [nodes, D, channels]."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, harmonics: Tensor, weights: Tensor, senders: Tensor, receivers: Tensor, b: _Block):
        """X [nodes, 2 l1 + 1, channels], harmonics [edges, :], weights [edges, paths, channels]."""
        ctx.save_for_backward(x, harmonics, weights, senders, receivers)
        ctx.block = b
        result = x.new_zeros(len(x), b.rows, b.channels)
        for begin in range(0, len(senders), EDGES_AT_ONCE):
            part = slice(begin, begin + EDGES_AT_ONCE)
            matrix = (harmonics[part] @ b.coupling).view(-1, b.rows, b.width)
            message = torch.bmm(matrix, x.index_select(0, senders[part]))
            message *= weights[part].index_select(1, b.path_of)
            result.index_add_(0, receivers[part], message)
        return result

    @staticmethod
    def backward(ctx: Any, grad: Tensor):
        """First derivatives only."""
        x, harmonics, weights, senders, receivers = ctx.saved_tensors
        b: _Block = ctx.block
        grad_x = torch.zeros_like(x)
        grad_harmonics, grad_weights = torch.empty_like(harmonics), torch.zeros_like(weights)
        for begin in range(0, len(senders), EDGES_AT_ONCE):
            part = slice(begin, begin + EDGES_AT_ONCE)
            matrix = (harmonics[part] @ b.coupling).view(-1, b.rows, b.width)
            source = x.index_select(0, senders[part])
            coming = grad.index_select(0, receivers[part])
            product = torch.bmm(matrix, source)
            product *= coming
            grad_weights[part].index_add_(1, b.path_of, product)
            coming *= weights[part].index_select(1, b.path_of)
            grad_x.index_add_(0, senders[part], torch.bmm(matrix.transpose(1, 2), coming))
            grad_harmonics[part] = torch.bmm(coming, source.transpose(1, 2)).flatten(1) @ b.coupling.T
        return grad_x, grad_harmonics, grad_weights, None, None, None


def speed_up(model: Any) -> None:
    """Replace the convolutions of a `nequix.torch_impl.model.NequixTorch` in place."""
    for layer in model.layers:
        product = layer.tp
        layer.blocks = [_Block(product, number) for number in range(len(product.irreps_in1))]
        layer.columns = torch.cat([b.weights for b in layer.blocks])
        where = torch.cat([b.out for b in layer.blocks])
        order = torch.empty_like(where)
        order[where] = torch.arange(len(where))
        layer.order = torch.cat([order[part] for part in layer.sort.slices_sorted])
        layer.forward = MethodType(_forward, layer)


def _forward(
    layer: Any, features: Tensor, species: Tensor, sh: Tensor, radial_basis: Tensor, senders: Tensor, receivers: Tensor
) -> Tensor:
    """NequixTorchConvolution.forward with the tensor product in chunks."""
    x = layer.linear_1(features)
    hidden = radial_basis
    *inner, last = layer.radial_mlp.layers
    for linear in inner:
        hidden = layer.radial_mlp.activation(linear(hidden))
    weights = hidden @ last.weights[:, layer.columns]
    sizes = [len(b.weights) for b in layer.blocks]
    sums = []
    xs = x.split([b.channels * b.width for b in layer.blocks], dim=1)
    for b, x_l, w in zip(layer.blocks, xs, weights.split(sizes, dim=1), strict=True):
        x_l = x_l.view(-1, b.channels, b.width).transpose(1, 2).contiguous()
        w = w.reshape(-1, b.paths, b.channels)
        sums.append(_Messages.apply(x_l, sh, w, senders, receivers, b).flatten(1))
    gathered = torch.cat(sums, dim=1).index_select(1, layer.order) / np.sqrt(layer.avg_n_neighbors)
    result = layer.linear_2(gathered) + layer.skip(features)
    if layer.layer_norm is not None:
        result = layer.layer_norm(result)
    return layer.gate(result)


def main() -> None:
    """Compare both implementations on rattled CO/Pt(111)."""
    import statistics
    import time

    from ase.build import add_adsorbate, fcc111, molecule
    from nequix.calculator import NequixCalculator

    from faenet_calc.memory import keep_freed_memory

    keep_freed_memory()
    torch.set_num_threads(1)
    plain, parts = (NequixCalculator(model_name="nequix-oam-1", backend="torch", use_kernel=False) for _ in range(2))
    speed_up(parts.model)
    start = fcc111("Pt", (2, 3, 4), vacuum=7.5, a=3.98)
    add_adsorbate(start, molecule("CO"), 1.9, "ontop")
    start.pbc = True
    seconds: dict[bool, list[float]] = {True: [], False: []}
    for seed in range(12):
        atoms = start.copy()
        atoms.rattle(0.05, seed=seed)
        results = []
        for calculator in (plain, parts):
            began = time.process_time()
            atoms.calc = calculator
            results.append((atoms.get_potential_energy(), atoms.get_forces(), atoms.get_stress()))
            seconds[calculator is parts].append(time.process_time() - began)
        energy, forces, stress = (float(np.abs(np.subtract(*pair)).max()) for pair in zip(*results, strict=True))
        print(f"energy {energy:.1e} eV  forces {forces:.1e} eV/Å  stress {stress:.1e} eV/Å³")
    own, ours = (statistics.median(seconds[which]) for which in (False, True))
    print(f"CPU s per call, {len(start)} atoms: {own:.3f} with nequix, {ours:.3f} in chunks, ratio {own / ours:.2f}")


if __name__ == "__main__":
    main()
