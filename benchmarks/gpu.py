"""How fast is a GPU, and how many kernel launches and host synchronizations does a call make?

    python benchmarks/gpu.py [--model metals-m] [--frames one pair all] [--sizes 40 200 2000] [--compile]

With a CUDA device: wall time of energy and forces by size and frame mode, median of 10 calls, with and without
`torch.compile` of the network. Without one: counts for a slab of 40 atoms on a pretended device ("meta" tensors,
which have shapes but no values). Every operation that is neither a view nor an allocation counts as one launch, every
value that Python reads from the device as one synchronization. An operation that mixes the device and the CPU raises
an error. Reading energy and forces adds two synchronizations.

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
from faenet_calc.network.kernels import plain
from faenet_calc.potential.potential import Potential

DEVICE = "meta"
MEMORY_BYTES = 4 << 30  # of the pretended device
_ALLOCATIONS = {"empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided", "lift_fresh", "_unsafe_view"}


class PretendedDevice(TorchDispatchMode):
    """Counts what a real device would do with operations on "meta" tensors.

    Attributes:
        launches: Number of calls of each operation that launches a kernel.
        synchronizations: What Python waited for.
    """

    def __init__(self) -> None:
        super().__init__()
        self.launches: Counter[str] = Counter()
        self.synchronizations: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Count an operation and compute the shape of its result."""
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        if func.namespace == "faenet_calc":  # not one kernel: count what it consists of
            with self:
                return getattr(plain, name)(*args, **kwargs)
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        devices = {tensor.device.type for tensor in tensors if tensor.dim() > 0}
        if name == "_local_scalar_dense" and tensors[0].device.type == DEVICE:
            self.synchronizations.append("value")
            return False
        if name == "_to_copy" and DEVICE in devices and str(kwargs.get("device")) == "cpu":
            self.synchronizations.append("copy to the CPU")
            return torch.zeros(tensors[0].shape, dtype=kwargs.get("dtype") or tensors[0].dtype)
        result = func(*args, **kwargs)
        on_device = any(leaf.device.type == DEVICE for leaf in tree_leaves(result) if isinstance(leaf, Tensor))
        if len(devices) > 1:
            raise RuntimeError(f"{func} mixes tensors on {' and '.join(sorted(devices))}")
        if on_device and not func.is_view and name not in _ALLOCATIONS:
            self.launches[name] += 1
        return result


def count(potential: Potential, n_atoms: int, frames: str, properties: Sequence[str]) -> PretendedDevice:
    """The operations of one call on a pretended device, after a first call that fills tables."""
    graph = potential.graph(slab(n_atoms)).to(device=DEVICE)
    potential = potential.to(DEVICE)
    counted = PretendedDevice()
    for counted in (PretendedDevice(), PretendedDevice()):
        with counted, torch.no_grad():
            potential.evaluate(graph, properties=properties, frames=frames, memory_bytes=MEMORY_BYTES)  # type: ignore[arg-type]
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
        for frames in chosen.frames:
            found = count(load_potential(chosen.model, device="cpu"), 40, frames, ("energy", "forces"))
            words |= {"device": "pretended", "atoms": 40, "frames": frames}
            show({**words, "metric": "kernel launches", "value": found.launches.total()})
            show({**words, "metric": "synchronizations", "value": len(found.synchronizations) + 2})
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
