"""The functions of ``plain.py`` in one pass each, compiled from ``messages.c``."""

import ctypes
import os
from collections.abc import Sequence

import torch
from torch import Tensor

from faenet_calc.network.kernels.building import Library, library

_REAL = {torch.float32: "float", torch.float64: "double"}
_NUMBERS_PER_THREAD = 1 << 16
_LEAST_COLUMNS = 16  # of a thread: shorter pieces of rows share lines of the cache


def serves(values: Tensor) -> bool:
    """Whether tensors like this one are computed here: real numbers of this processor, and a compiler was found."""
    here = type(values) is Tensor and values.device.type == "cpu" and values.dtype in _REAL
    if not here or torch.compiler.is_compiling():
        return False
    found = _library(values.dtype)
    return found is not None and (found.threaded or torch.get_num_threads() == 1)


def swish_slope(slope: Tensor, z: Tensor, s: Tensor) -> Tensor:
    """The product slope ⊙ σ'(z), of any shape."""
    _shaped(z.shape, slope, s)
    result = z.new_empty(z.shape)
    _call("swish_slope", (slope, z, s), (result,), z.numel(), blocks=_blocks(1, z.numel()))
    return result


def swish_slope_backward(second: Tensor, slope: Tensor, z: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
    """Derivatives of <second, slope ⊙ σ'(z)> by slope and z."""
    _shaped(z.shape, second, slope, s)
    results = z.new_empty(z.shape), z.new_empty(z.shape)
    _call("swish_slope_backward", (second, slope, z, s), results, z.numel(), blocks=_blocks(1, z.numel()))
    return results


def messages(z: Tensor, s: Tensor, x: Tensor, weight: Tensor | None, centre: Tensor, neighbor: Tensor) -> Tensor:
    """Messages m [n_nodes, F]."""
    _shaped(z.shape, s)
    _shaped((len(x), z.shape[1]), x)
    _shaped((len(z), 1), weight)
    total = x.new_zeros(x.shape)
    ends = _within(centre, len(x), len(z)), _within(neighbor, len(x), len(z))
    _call("messages", (z, s, x, weight, *ends), (total,), *z.shape, blocks=_blocks(*z.shape))
    return total


def messages_slope(
    slope: Tensor, z: Tensor, s: Tensor, x: Tensor, weight: Tensor | None, centre: Tensor, neighbor: Tensor
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Derivatives of <slope, m> by z, x and weight."""
    _shaped(z.shape, s)
    _shaped((len(x), z.shape[1]), x, slope)
    _shaped((len(z), 1), weight)
    blocks = _blocks(*z.shape)
    of_z, of_x, of_weight = z.new_empty(z.shape), x.new_zeros(x.shape), _of_weight(weight, blocks)
    inputs = (slope, z, s, x, weight, _within(centre, len(x), len(z)), _within(neighbor, len(x), len(z)))
    _call("messages_slope", inputs, (of_z, of_x, of_weight), *z.shape, blocks=blocks)
    return of_z, of_x, _over_blocks(of_weight)


def messages_slope_backward(
    seconds: tuple[Tensor, Tensor, Tensor | None],
    slope: Tensor,
    z: Tensor,
    s: Tensor,
    x: Tensor,
    weight: Tensor | None,
    centre: Tensor,
    neighbor: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """With D = <seconds, derivatives of messages_slope>: dD by slope, z, x and weight."""
    by_z, by_x, by_weight = seconds
    _shaped(z.shape, s, by_z)
    _shaped((len(x), z.shape[1]), x, slope, by_x)
    _shaped((len(z), 1), weight, by_weight)
    blocks = _blocks(*z.shape)
    of_slope, of_z, of_x = slope.new_zeros(slope.shape), z.new_empty(z.shape), x.new_zeros(x.shape)
    of_weight = _of_weight(weight, blocks)
    inputs = (slope, z, s, x, weight, *seconds, _within(centre, len(x), len(z)), _within(neighbor, len(x), len(z)))
    _call("messages_slope_backward", inputs, (of_slope, of_z, of_x, of_weight), *z.shape, blocks=blocks)
    return of_slope, of_z, of_x, _over_blocks(of_weight)


def sum_of_rows(values: Sequence[Tensor], indices: Sequence[Tensor]) -> Tensor:
    """Σ_k values_k[index_k], [n_edges, F]."""
    if len(values) == 1:
        return values[0].index_select(0, indices[0])
    total = values[0].new_empty(len(indices[0]), values[0].shape[1])
    size, blocks = total.shape, _blocks(*total.shape)
    (one, at_one), (other, at_other), *rest = (
        (value, _within(index, len(value), len(total))) for value, index in zip(values, indices, strict=True)
    )
    for value in values:
        _shaped((len(value), total.shape[1]), value)
    _call("look_up_two_rows", (one, at_one, other, at_other), (total,), *size, blocks=blocks)
    for value, index in rest:
        _call("add_looked_up_rows", (value, index), (total,), *size, blocks=blocks)
    return total


def rows_summed_at(index: Tensor, rows: Tensor, size: int) -> Tensor:
    """[size, F] sums of the rows [n_edges, F] with the same index."""
    total = rows.new_zeros(size, rows.shape[1])
    inputs = rows, _within(index, size, len(rows))
    _call("add_rows_where_indexed", inputs, (total,), *rows.shape, blocks=_blocks(*rows.shape))
    return total


def _library(real: torch.dtype) -> Library | None:
    return library("messages.c", _REAL[real])


def _call(
    name: str, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor | None], *sizes: int, blocks: int
) -> None:
    """Call a function with the addresses of its arrays, their sizes and the number of threads.

    Args:
        name: Of the function.
        inputs: Arrays that are read, of one real type or indices.
        outputs: Contiguous arrays that are written.
        sizes: Rows and columns, or all numbers.
        blocks: Threads that share the columns.
    """
    real = next(array.dtype for array in outputs if array is not None)
    arrays = [None if array is None else array.contiguous() for array in inputs]
    wrong = {array.dtype for array in arrays if array is not None} - {real, torch.int64}
    if wrong:
        raise TypeError(f"{name} computes in {real} with indices of torch.int64, and got {wrong}")
    addresses = [ctypes.c_void_p(None if array is None else array.data_ptr()) for array in (*arrays, *outputs)]
    found = _library(real)
    assert found is not None
    getattr(found.functions, name)(*addresses, *map(ctypes.c_int64, (*sizes, blocks)))


# Compiled code would not notice arrays of other shapes and rows that do not exist, and read what is not theirs.


def _shaped(shape: Sequence[int], *arrays: Tensor | None) -> None:
    for array in arrays:
        if array is not None and array.shape != torch.Size(shape):
            raise ValueError(f"arrays of shape {tuple(shape)} are expected, one has {tuple(array.shape)}")


def _within(index: Tensor, size: int, n_edges: int) -> Tensor:
    """The indices [n_edges], if all are rows of an array with ``size`` of them."""
    if index.dtype != torch.int64:
        raise TypeError(f"indices are torch.int64, not {index.dtype}")
    _shaped((n_edges,), index)
    if n_edges:
        first, last = map(int, index.aminmax())
        if first < 0 or last >= size:
            raise IndexError(f"rows {first} to {last} are asked for, and there are {size}")
    return index


_after_fork = False


def _remember_fork() -> None:
    global _after_fork
    _after_fork = True


os.register_at_fork(after_in_child=_remember_fork)


def _blocks(rows: int, columns: int) -> int:
    """Among how many threads the columns of [rows, columns] numbers are divided."""
    threads = 1 if _after_fork else torch.get_num_threads()  # libgomp's threads do not survive a fork
    return max(1, min(threads, rows * columns // _NUMBERS_PER_THREAD, columns // _LEAST_COLUMNS))


def _of_weight(weight: Tensor | None, blocks: int) -> Tensor | None:
    """Room for a number per edge from each block."""
    return None if weight is None else weight.new_empty(blocks, len(weight))


def _over_blocks(sums: Tensor | None) -> Tensor | None:
    """[n, 1] from sums per block [blocks, n]."""
    if sums is None:
        return None
    return (sums[0] if len(sums) == 1 else sums.sum(dim=0))[:, None]
