"""The nearest orthogonal matrices of the Muon optimizer, by Newton-Schulz iterations.

Compiled code (``network/native/orthogonal.c``) does all matrices in one call; elsewhere PyTorch does them one by one.
"""

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from faenet_calc.network.native import Library, library, n_threads

# Quintic iteration: singular values go to about one in five rounds (coefficients of Jordan et al. 2024,
# https://kellerjordan.github.io/posts/muon).
_COEFFICIENTS, _ROUNDS = (3.4445, -4.7750, 2.0315), 5
_SMALLEST_NORM = 1e-12


def orthogonal(matrices: Sequence[Tensor]) -> list[Tensor]:
    """Approximately the nearest (semi-)orthogonal matrices: same singular vectors, singular values near one."""
    found = library()
    compiled = found is not None and (found.threaded or torch.get_num_threads() == 1)
    if not compiled or any(matrix.dtype != torch.float32 or matrix.device.type != "cpu" for matrix in matrices):
        return [_orthogonal(matrix) for matrix in matrices]
    assert found is not None
    return _compiled(found, matrices)


def _orthogonal(matrix: Tensor) -> Tensor:
    a, b, c = _COEFFICIENTS
    tall = matrix.shape[0] > matrix.shape[1]
    x = matrix.t() if tall else matrix
    x = x / x.norm().clamp(min=_SMALLEST_NORM)
    for _ in range(_ROUNDS):
        gram = x @ x.t()
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.t() if tall else x


def _compiled(found: Library, matrices: Sequence[Tensor]) -> list[Tensor]:
    panel = int(found.function("fused_panel")())

    def size(matrix: Tensor) -> int:
        n, m = sorted(-(-side // panel) * panel for side in matrix.shape)
        return 3 * n * (m + n)

    results = [matrix.clone(memory_format=torch.contiguous_format) for matrix in matrices]
    count, threads = len(results), min(n_threads(found), len(results))
    largest = max(map(size, results), default=0)
    work = torch.empty(threads * largest)
    found.function("orthogonalize")(
        ctypes.c_int64(count),
        (ctypes.c_void_p * count)(*(matrix.data_ptr() for matrix in results)),
        (ctypes.c_int64 * count)(*(matrix.shape[0] for matrix in results)),
        (ctypes.c_int64 * count)(*(matrix.shape[1] for matrix in results)),
        (ctypes.c_float * 3)(*_COEFFICIENTS),
        ctypes.c_int64(_ROUNDS),
        ctypes.c_void_p(work.data_ptr()),
        ctypes.c_int64(largest),
        ctypes.c_int64(threads),
    )
    return results
