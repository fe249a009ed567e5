"""Data-parallel training with ``torchrun``: ranks, sums over processes, one writer.

Gradients are summed in one flat tensor after the backward pass; the networks are small (≤ 30 MB). PyTorch's
DistributedDataParallel gives the same gradients, including second derivatives (2 gloo processes), at 1.0 to 1.3 times
the CPU time, but fails if a loss leaves parameters unused (unless it searches for them at every step) and needs a
structure for every process in every batch, including the last and smallest one.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from faenet_calc.errors import InputError
from faenet_calc.potential.device import pick_device


@dataclass(frozen=True, kw_only=True)
class Ranks:
    """This process and the number of processes of the run.

    Attributes:
        rank: Index of this process.
        world: Number of processes.
        local_rank: Index of this process on its machine, and of its GPU.
    """

    rank: int = 0
    world: int = 1
    local_rank: int = 0

    @property
    def writes(self) -> bool:
        """Whether this process writes files and prints."""
        return self.rank == 0

    def sum(self, values: Sequence[float], device: torch.device) -> list[float]:
        """Sum each of a few numbers over all processes."""
        if self.world == 1:
            return list(values)
        tensor = torch.tensor(list(values), dtype=torch.float64, device=device)
        dist.all_reduce(tensor)
        return [float(x) for x in tensor.tolist()]

    def gather(self, value: Any) -> list[Any]:
        """Collect a picklable value of every process on every process."""
        if self.world == 1:
            return [value]
        values: list[Any] = [None] * self.world
        dist.all_gather_object(values, value)
        return values

    def sum_gradients(self, parameters: Sequence[Tensor]) -> None:
        """Replace the gradients of trainable parameters by their sums over processes."""
        if self.world == 1:
            return
        owners = [p for p in parameters if p.requires_grad]
        for parameter in owners:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        flat = torch.cat([p.grad.reshape(-1) for p in owners if p.grad is not None])
        dist.all_reduce(flat)
        start = 0
        for parameter in owners:
            size = parameter.numel()
            assert parameter.grad is not None
            parameter.grad.copy_(flat[start : start + size].view_as(parameter))
            start += size

    def copy_from_first(self, tensors: Sequence[Tensor]) -> None:
        """Copy the tensors of process 0 to all processes."""
        if self.world > 1:
            for tensor in tensors:
                dist.broadcast(tensor, src=0)

    def barrier(self) -> None:
        """Wait for all processes."""
        if self.world > 1:
            dist.barrier()


@contextmanager
def joined_ranks() -> Iterator[Ranks]:
    """Join the process group that ``torchrun`` describes in the environment; without it, there is one process."""
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world == 1:
        yield Ranks()
        return
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    try:
        yield Ranks(rank=dist.get_rank(), world=world, local_rank=int(os.environ.get("LOCAL_RANK", "0")))
    finally:
        dist.destroy_process_group()


def training_device(name: str, ranks: Ranks) -> torch.device:
    """Return the device of a run; "auto" picks the CUDA device of this process, or the CPU.

    Total energies need float64, which mps lacks.
    """
    if name == "auto":
        device = pick_device(local_rank=ranks.local_rank)
        return torch.device("cpu") if device.type == "mps" else device
    device = pick_device(name)
    if device.type == "mps":
        raise InputError("run.device = 'mps': training needs float64 energies, which mps lacks; use cpu or cuda")
    return device
