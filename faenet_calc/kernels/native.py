"""The functions of ``plain.py`` in one pass each, compiled from ``messages.c`` (L1)."""

import ctypes
from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor

from faenet_calc.kernels.building import compiled

_REAL = {torch.float32: "float", torch.float64: "double"}
_NUMBERS_PER_THREAD = 1 << 16
_LEAST_COLUMNS = 16  # of a thread: shorter pieces of rows share lines of the cache


def serves(values: Tensor) -> bool:
    """Whether tensors like this one can be computed here: real numbers of this processor, and a compiler was found."""
    here = type(values) is Tensor and values.device.type == "cpu" and values.dtype in _REAL
    return here and not torch.compiler.is_compiling() and _library(_REAL[values.dtype]) is not None


def swish_slope(slope: Tensor, z: Tensor, s: Tensor) -> Tensor:
    """The product slope ⊙ σ'(z), of any shape."""
    result = z.new_empty(z.shape)
    _call("swish_slope", (slope, z, s), (result,), z.numel(), blocks=_blocks(1, z.numel()))
    return result


def swish_slope_backward(second: Tensor, slope: Tensor, z: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
    """Derivatives of <second, slope ⊙ σ'(z)> by slope and z."""
    results = z.new_empty(z.shape), z.new_empty(z.shape)
    _call("swish_slope_backward", (second, slope, z, s), results, z.numel(), blocks=_blocks(1, z.numel()))
    return results


def messages(z: Tensor, s: Tensor, x: Tensor, weight: Tensor | None, centre: Tensor, neighbor: Tensor) -> Tensor:
    """Messages m [n_nodes, F]."""
    total = x.new_zeros(x.shape)
    ends = _within(centre, len(x)), _within(neighbor, len(x))
    _call("messages", (z, s, x, weight, *ends), (total,), *z.shape, blocks=_blocks(*z.shape))
    return total


def messages_slope(
    slope: Tensor, z: Tensor, s: Tensor, x: Tensor, weight: Tensor | None, centre: Tensor, neighbor: Tensor
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Derivatives of <slope, m> by z, x and weight."""
    blocks = _blocks(*z.shape)
    of_z, of_x, of_weight = z.new_empty(z.shape), x.new_zeros(x.shape), _of_weight(weight, blocks)
    inputs = (slope, z, s, x, weight, _within(centre, len(slope)), _within(neighbor, len(x)))
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
    blocks = _blocks(*z.shape)
    of_slope, of_z, of_x = slope.new_zeros(slope.shape), z.new_empty(z.shape), x.new_zeros(x.shape)
    of_weight = _of_weight(weight, blocks)
    inputs = (slope, z, s, x, weight, *seconds, _within(centre, len(slope)), _within(neighbor, len(x)))
    _call("messages_slope_backward", inputs, (of_slope, of_z, of_x, of_weight), *z.shape, blocks=blocks)
    return of_slope, of_z, of_x, _over_blocks(of_weight)


def sum_of_rows(values: Sequence[Tensor], indices: Sequence[Tensor]) -> Tensor:
    """Σ_k values_k[index_k], [n_edges, F]."""
    if len(values) == 1:
        return values[0].index_select(0, indices[0])
    total = values[0].new_empty(len(indices[0]), values[0].shape[1])
    size, blocks = total.shape, _blocks(*total.shape)
    (one, at_one), (other, at_other), *rest = (
        (value, _within(index, len(value))) for value, index in zip(values, indices, strict=True)
    )
    _call("look_up_two_rows", (one, at_one, other, at_other), (total,), *size, blocks=blocks)
    for value, index in rest:
        _call("add_looked_up_rows", (value, index), (total,), *size, blocks=blocks)
    return total


def rows_summed_at(index: Tensor, rows: Tensor, size: int) -> Tensor:
    """[size, F] sums of the rows [n_edges, F] with the same index."""
    total = rows.new_zeros(size, rows.shape[1])
    _call("add_rows_where_indexed", (rows, _within(index, size)), (total,), *rows.shape, blocks=_blocks(*rows.shape))
    return total


@cache
def _library(real: str) -> ctypes.CDLL | None:
    path = compiled("messages.c", real)
    return None if path is None else ctypes.CDLL(str(path))


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
    getattr(_library(_REAL[real]), name)(*addresses, *map(ctypes.c_int64, (*sizes, blocks)))


def _within(index: Tensor, size: int) -> Tensor:
    """The indices, if all are rows of an array with ``size`` of them: compiled code would not notice others."""
    if index.numel():
        first, last = map(int, index.aminmax())
        if first < 0 or last >= size:
            raise IndexError(f"rows {first} to {last} are asked for, and there are {size}")
    return index


def _blocks(rows: int, columns: int) -> int:
    """Among how many threads the columns of [rows, columns] numbers are divided."""
    threads = torch.get_num_threads()
    return max(1, min(threads, rows * columns // _NUMBERS_PER_THREAD, columns // _LEAST_COLUMNS))


def _of_weight(weight: Tensor | None, blocks: int) -> Tensor | None:
    """Room for a number per edge from each block."""
    return None if weight is None else weight.new_empty(blocks, len(weight))


def _over_blocks(sums: Tensor | None) -> Tensor | None:
    """[n, 1] from sums per block [blocks, n]."""
    if sums is None:
        return None
    return (sums[0] if len(sums) == 1 else sums.sum(dim=0))[:, None]
