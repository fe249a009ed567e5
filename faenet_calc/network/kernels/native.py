"""The functions of ``plain.py``, compiled from ``native/messages.c``: every large array is read once."""

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from faenet_calc.network.native import library, n_threads

_REAL = {torch.float32: "float", torch.float64: "double"}
_NUMBERS_PER_THREAD = 1 << 16
_MIN_COLUMNS_PER_THREAD = 16  # shorter pieces of rows would share cache lines


def serves(*values: Tensor | None) -> bool:
    """Whether these tensors can be processed together: float32 or float64, all alike, and the library was built."""
    dtypes = {value.dtype for value in values if value is not None}
    found = library()
    if found is None or len(dtypes) != 1 or not dtypes <= _REAL.keys():
        return False
    return found.threaded or torch.get_num_threads() == 1


def swish_backward(grad_output: Tensor, z: Tensor, s: Tensor) -> Tensor:
    """grad_output ⊙ σ'(z), of any shape."""
    _check_shape(z.shape, grad_output, s)
    result = z.new_empty(z.shape)
    _call("swish_backward", (grad_output, z, s), (result,), z.numel(), blocks=_blocks(1, z.numel()))
    return result


def swish_double_backward(grad_grad: Tensor, grad_output: Tensor, z: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
    """Derivatives of <grad_grad, grad_output ⊙ σ'(z)> with respect to grad_output and z."""
    _check_shape(z.shape, grad_grad, grad_output, s)
    results = z.new_empty(z.shape), z.new_empty(z.shape)
    inputs = (grad_grad, grad_output, z, s)
    _call("swish_double_backward", inputs, results, z.numel(), blocks=_blocks(1, z.numel()))
    return results


def messages(z: Tensor, s: Tensor, x: Tensor, weight: Tensor | None, centre: Tensor, neighbor: Tensor) -> Tensor:
    """Messages m [n_nodes, F]."""
    _check_shape(z.shape, s)
    _check_shape((len(x), z.shape[1]), x)
    _check_shape((len(z), 1), weight)
    total = x.new_zeros(x.shape)
    ends = _checked(centre, len(x), len(z)), _checked(neighbor, len(x), len(z))
    _call("messages", (z, s, x, weight, *ends), (total,), *z.shape, blocks=_blocks(*z.shape))
    return total


def messages_backward(
    grad_output: Tensor, z: Tensor, s: Tensor, x: Tensor, weight: Tensor | None, centre: Tensor, neighbor: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Derivatives of <grad_output, m> with respect to z, x and weight (empty without weights)."""
    _check_shape(z.shape, s)
    _check_shape((len(x), z.shape[1]), x, grad_output)
    _check_shape((len(z), 1), weight)
    blocks = _blocks(*z.shape)
    grad_z, grad_x, grad_weight = z.new_empty(z.shape), x.new_zeros(x.shape), _per_block(z, weight, blocks)
    inputs = (grad_output, z, s, x, weight, _checked(centre, len(x), len(z)), _checked(neighbor, len(x), len(z)))
    _call("messages_backward", inputs, (grad_z, grad_x, grad_weight), *z.shape, blocks=blocks)
    return grad_z, grad_x, _over_blocks(grad_weight, z)


def messages_double_backward(
    grad_grad_z: Tensor,
    grad_grad_x: Tensor,
    grad_grad_weight: Tensor | None,
    grad_output: Tensor,
    z: Tensor,
    s: Tensor,
    x: Tensor,
    weight: Tensor | None,
    centre: Tensor,
    neighbor: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Derivatives of <grad_grad, messages_backward> with respect to grad_output, z, x and weight."""
    _check_shape(z.shape, s, grad_grad_z)
    _check_shape((len(x), z.shape[1]), x, grad_output, grad_grad_x)
    _check_shape((len(z), 1), weight, grad_grad_weight)
    blocks = _blocks(*z.shape)
    grad_grad_output, grad_z, grad_x = grad_output.new_zeros(x.shape), z.new_empty(z.shape), x.new_zeros(x.shape)
    grad_weight = _per_block(z, weight, blocks)
    ends = _checked(centre, len(x), len(z)), _checked(neighbor, len(x), len(z))
    inputs = (grad_grad_z, grad_grad_x, grad_grad_weight, grad_output, z, s, x, weight, *ends)
    outputs = (grad_grad_output, grad_z, grad_x, grad_weight)
    _call("messages_double_backward", inputs, outputs, *z.shape, blocks=blocks)
    return grad_grad_output, grad_z, grad_x, _over_blocks(grad_weight, z)


def gather_sum(values: Sequence[Tensor], indices: Sequence[Tensor]) -> Tensor:
    """Σ_k values_k[index_k], [n_edges, F]."""
    if len(values) == 1:
        return values[0].index_select(0, indices[0])
    total = values[0].new_empty(len(indices[0]), values[0].shape[1])
    size, blocks = total.shape, _blocks(*total.shape)
    (one, at_one), (other, at_other), *rest = (
        (value, _checked(index, len(value), len(total))) for value, index in zip(values, indices, strict=True)
    )
    for value in values:
        _check_shape((len(value), total.shape[1]), value)
    _call("gather_two", (one, at_one, other, at_other), (total,), *size, blocks=blocks)
    for value, index in rest:
        _call("gather_add", (value, index), (total,), *size, blocks=blocks)
    return total


def scatter_sum(rows: Tensor, index: Tensor, size: int) -> Tensor:
    """[size, F] sums of the rows [n_edges, F] with the same index."""
    total = rows.new_zeros(size, rows.shape[1])
    inputs = rows, _checked(index, size, len(rows))
    _call("scatter_add", inputs, (total,), *rows.shape, blocks=_blocks(*rows.shape))
    return total


def _call(
    name: str, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor | None], *sizes: int, blocks: int
) -> None:
    """Call a compiled function.

    Args:
        name: Name in messages.c.
        inputs: Arrays that are read, of one floating-point type, and int64 indices.
        outputs: Contiguous arrays that are written.
        sizes: Rows and columns, or the number of elements.
        blocks: Number of threads that share the columns.
    """
    real = next(array.dtype for array in outputs if array is not None)
    arrays = [None if array is None else array.contiguous() for array in inputs]
    wrong = {array.dtype for array in arrays if array is not None} - {real, torch.int64}
    if wrong:
        raise TypeError(f"{name} got arrays of {wrong}, expected {real} and indices of torch.int64")
    addresses = [ctypes.c_void_p(None if array is None else array.data_ptr()) for array in (*arrays, *outputs)]
    found = library()
    assert found is not None
    found.function(f"{name}_{_REAL[real]}")(*addresses, *map(ctypes.c_int64, (*sizes, blocks)))


# Compiled code does not check bounds: a wrong shape or index would read memory of others.


def _check_shape(shape: Sequence[int], *arrays: Tensor | None) -> None:
    for array in arrays:
        if array is not None and array.shape != torch.Size(shape):
            raise ValueError(f"an array has shape {tuple(array.shape)}, expected {tuple(shape)}")


def _checked(index: Tensor, size: int, n_edges: int) -> Tensor:
    """The indices [n_edges], if all are rows of an array with ``size`` rows."""
    if index.dtype != torch.int64:
        raise TypeError(f"indices have dtype {index.dtype}, expected torch.int64")
    _check_shape((n_edges,), index)
    if n_edges:
        first, last = map(int, index.aminmax())
        if first < 0 or last >= size:
            raise IndexError(f"indices range from {first} to {last}, expected 0 to {size - 1}")
    return index


def _blocks(rows: int, columns: int) -> int:
    """Number of threads among which the columns of [rows, columns] numbers are divided."""
    found = library()
    assert found is not None
    return max(1, min(n_threads(found), rows * columns // _NUMBERS_PER_THREAD, columns // _MIN_COLUMNS_PER_THREAD))


def _per_block(z: Tensor, weight: Tensor | None, blocks: int) -> Tensor | None:
    """Memory for a number per edge and block; None without weights."""
    return None if weight is None else z.new_empty(blocks, len(weight))


def _over_blocks(sums: Tensor | None, z: Tensor) -> Tensor:
    """[n, 1] from sums per block [blocks, n]; empty from None."""
    if sums is None:
        return z.new_empty(0)
    return (sums[0] if len(sums) == 1 else sums.sum(dim=0))[:, None]
