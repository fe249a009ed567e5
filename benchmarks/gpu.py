"""How fast is a GPU, and how many kernel launches and host synchronizations does a call make?

    python benchmarks/gpu.py [--model metals-m] [--frames one pair all] [--sizes 40 200 2000] [--compile]

With a CUDA device: wall time of energy and forces by size and frame mode, median of 10 calls, with and without
`torch.compile` of the network. Without one: counts for a slab of 40 atoms on a pretended device ("meta" tensors,
which have shapes but no values). Every operation that is neither a view nor an allocation counts as one launch, with
one more where PyTorch first copies an argument into the result. Operators of the package count as the Triton kernel
that they are on a GPU (metric "kernel launches"), or as what they consist of where Triton is missing ("without
Triton"). Every value that Python reads from the device and every blocking copy in either direction is a
synchronization. An operation that mixes the device and the CPU raises an error. Reading energy and forces adds two
synchronizations.

Counted is the second call: tables of elements and, for lattice frames, the frames of this cell are on the device by
then. "new cell" is a call whose cell changed since the last one. The graph is on the device before the call; moving a
graph there takes 9 copies, which do not wait.

The package has never been run on a GPU: the counts are all that is known.
"""

import argparse
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from rows import Row, model_words, show
from speed import LAYERS, slab
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from faenet_calc import load_potential
from faenet_calc.network.kernels import device, device_plain, plain
from faenet_calc.potential.potential import Potential

DEVICE = "meta"
MEMORY_BYTES = 4 << 30  # of the pretended device
_ALLOCATIONS = {"empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided", "lift_fresh", "_unsafe_view"}
# Out of place, these copy their first argument before they add to it; a vector is added by the product itself.
_COPY_FIRST = {"addmm", "baddbmm", "index_add"}


class PretendedDevice(TorchDispatchMode):
    """Counts what a real device would do with operations on "meta" tensors.

    Args:
        triton: Whether the pretended device has Triton.

    Attributes:
        launches: Number of calls of each operation that launches a kernel.
        synchronizations: What Python waited for.
    """

    def __init__(self, *, triton: bool = True) -> None:
        super().__init__()
        self.triton = triton
        self.launches: Counter[str] = Counter()
        self.synchronizations: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Count an operation and compute the shape of its result."""
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        fused = func.namespace == "faenet_calc" and name in device.SCHEMAS
        if func.namespace == "faenet_calc" and not (fused and self.triton):  # not one kernel: count what it consists of
            with self:
                return getattr(device_plain if fused else plain, name)(*args, **kwargs)
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        devices = {tensor.device.type for tensor in tensors if tensor.dim() > 0}
        if name == "_local_scalar_dense" and tensors[0].device.type == DEVICE:
            self.synchronizations.append("value")
            return False
        if name == "_to_copy" and DEVICE in devices and str(kwargs.get("device")) == "cpu":
            self.synchronizations.append("copy to the CPU")
            return torch.zeros(tensors[0].shape, dtype=kwargs.get("dtype") or tensors[0].dtype)
        if len(devices) > 1 and name != "copy_":
            raise RuntimeError(f"{func} mixes tensors on {' and '.join(sorted(devices))}")
        result = func(*args, **kwargs)
        on_device = any(leaf.device.type == DEVICE for leaf in tree_leaves(result) if isinstance(leaf, Tensor))
        if on_device and name in ("_to_copy", "copy_") and tensors[-1].device.type == "cpu":
            waits = not (kwargs.get("non_blocking") or (name == "copy_" and len(args) > 2 and args[2]))
            self.synchronizations += ["copy from the CPU"] * waits
        if (on_device or fused) and not func.is_view and name not in _ALLOCATIONS:
            self.launches[name] += 1 + (name in _COPY_FIRST and tensors[0].dim() > 1)
        return result


def count(
    potential: Potential,
    n_atoms: int,
    frames: str,
    properties: Sequence[str],
    *,
    triton: bool = True,
    new_cell: bool = False,
) -> PretendedDevice:
    """The operations of one call on a pretended device, after a first call that fills tables.

    Args:
        potential: It is moved to the device.
        n_atoms: Size of the slab.
        frames: Frame mode.
        properties: What is predicted.
        triton: Whether the device has Triton.
        new_cell: Strain the cell between the two calls.
    """
    atoms = slab(n_atoms)
    graphs = [potential.graph(atoms)]
    if new_cell:
        atoms.set_cell(atoms.cell.array * 1.001, scale_atoms=True)
    graphs.append(potential.graph(atoms))
    potential = potential.to(DEVICE)
    counted = PretendedDevice(triton=triton)
    for graph in graphs:
        counted = PretendedDevice(triton=triton)
        moved = graph.to(device=DEVICE)
        with counted, torch.no_grad():
            potential.evaluate(moved, properties=properties, frames=frames, memory_bytes=MEMORY_BYTES)  # type: ignore[arg-type]
    return counted


def milliseconds(potential: Potential, n_atoms: int, frames: str, repeats: int = 10) -> float:
    """Median wall time of energy and forces on the device of a potential; the graph is built before."""
    graph, times = potential.graph(slab(n_atoms)), []
    for repeat in range(-3, repeats):
        torch.cuda.synchronize()
        start = time.perf_counter()
        with torch.no_grad():
            found = potential.evaluate(graph, properties=("energy", "forces"), frames=frames)  # type: ignore[arg-type]
        assert found.forces is not None
        found.energy.cpu(), found.forces.cpu()
        if repeat >= 0:  # the first calls warm up
            times.append(1e3 * (time.perf_counter() - start))
    return float(np.median(times))


def main(arguments: list[str] | None = None) -> None:
    """Measure on the GPU, or count without one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="metals-m", help="Shipped name or path.")
    parser.add_argument("--frames", nargs="+", default=["one", "pair", "all"], choices=["one", "pair", "all"])
    parser.add_argument("--sizes", type=int, nargs="+", default=[40, 200, 2000], choices=LAYERS)
    parser.add_argument("--compile", action="store_true", help="Also measure with torch.compile.")
    chosen = parser.parse_args(arguments)
    words: Row = {"benchmark": "gpu", **model_words(chosen.model)}
    if not torch.cuda.is_available():
        cases: dict[str, dict[str, bool]] = {
            "": {},
            ", new cell": {"new_cell": True},
            ", without Triton": {"triton": False},
        }
        for frames in chosen.frames:
            words |= {"device": "pretended", "atoms": 40, "frames": frames}
            for suffix, options in cases.items():
                found = count(load_potential(chosen.model, device="cpu"), 40, frames, ("energy", "forces"), **options)
                show({**words, "metric": f"kernel launches{suffix}", "value": found.launches.total()})
                show({**words, "metric": f"synchronizations{suffix}", "value": len(found.synchronizations) + 2})
        return
    words["device"] = torch.cuda.get_device_name()
    for compiled in (False, True) if chosen.compile else (False,):
        potential = load_potential(chosen.model, device="cuda")
        if compiled:
            potential.model.compile(dynamic=True)
        for n_atoms in chosen.sizes:
            for frames in chosen.frames:
                case = {"atoms": n_atoms, "frames": frames, "compiled": compiled}
                value = milliseconds(potential, n_atoms, frames)
                show({**words, **case, "metric": "energy and forces", "value": value, "unit": "ms"})


if __name__ == "__main__":
    main()
