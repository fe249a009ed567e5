"""Compiled kernels against the same functions in PyTorch, for any number of threads, and their operators."""

from contextlib import nullcontext

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from faenet_calc.network.kernels import native, ops, plain
from faenet_calc.network.native import INSTRUCTION_SETS, Library, library, unavailable

needs_library = pytest.mark.skipif(library() is None, reason=f"no compiled library: {unavailable()}")
N_NODES, N_EDGES, WIDTH = 60, 2500, 112


@pytest.fixture
def threads():
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def _arrays(dtype: torch.dtype) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    rows = {"z": N_EDGES, "x": N_NODES, "grad_output": N_NODES, "grad_grad_z": N_EDGES, "grad_grad_x": N_NODES}
    found = {name: torch.randn(n, WIDTH, generator=generator, dtype=torch.float64) for name, n in rows.items()}
    found["s"] = torch.sigmoid(found["z"])
    found["weight"], found["grad_grad_weight"] = torch.randn(2, N_EDGES, 1, generator=generator, dtype=torch.float64)
    ends = torch.randint(N_NODES, (2, N_EDGES), generator=generator)
    return {name: value.to(dtype) for name, value in found.items()} | {"centre": ends[0], "neighbor": ends[1]}


def _all_results(kernels, a: dict[str, torch.Tensor], weighted: bool) -> list[torch.Tensor]:
    """What every function of a module gives."""
    weight = a["weight"] if weighted else None
    grad_grads = (a["grad_grad_z"], a["grad_grad_x"], a["grad_grad_weight"] if weighted else None)
    edges = (weight, a["centre"], a["neighbor"])
    transposed = a["grad_grad_z"].t().contiguous().t()  # not contiguous, as gradients may be
    return [
        kernels.swish_backward(transposed, a["z"], a["s"]),
        *kernels.swish_double_backward(a["grad_grad_z"], transposed, a["z"], a["s"]),
        kernels.messages(a["z"], a["s"], a["x"], *edges),
        *kernels.messages_backward(a["grad_output"], a["z"], a["s"], a["x"], *edges),
        *kernels.messages_double_backward(*grad_grads, a["grad_output"], a["z"], a["s"], a["x"], *edges),
        kernels.gather_sum([a["x"], a["grad_output"]], [a["centre"], a["neighbor"]]),
        kernels.gather_sum([a["x"], a["grad_output"], a["grad_grad_x"]], [a["centre"], a["neighbor"], a["centre"]]),
        kernels.scatter_sum(transposed, a["centre"], N_NODES),
    ]


@needs_library
@pytest.mark.parametrize("instructions", INSTRUCTION_SETS)
@pytest.mark.parametrize("n_threads", [1, 3])
@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize(("dtype", "relative"), [(torch.float64, 1e-12), (torch.float32, 1e-4)])
def test_compiled_is_what_torch_gives(dtype, relative, weighted, n_threads, instructions, threads, monkeypatch):
    chosen = library(instructions)
    if chosen is None:
        pytest.skip(f"this processor has no {instructions}")
    monkeypatch.setattr(native, "library", lambda: chosen)
    threads(n_threads)
    arrays = _arrays(dtype)
    expected = _all_results(plain, arrays, weighted)
    found = _all_results(native, arrays, weighted)
    for one, right in zip(found, expected, strict=True):
        assert one.shape == right.shape and one.dtype == dtype
        assert right.numel() == 0 or (one - right).abs().max() <= relative * right.abs().max()
    others = _all_results(native, arrays | {"z": arrays["z"] * (1 + 10 * relative)}, weighted)
    assert any(
        right.numel() and (one - right).abs().max() > relative * right.abs().max()
        for one, right in zip(others, expected, strict=True)
    )


@needs_library
def test_threads_do_not_change_sums_over_edges(threads):
    arrays = _arrays(torch.float32)
    edges = (arrays["weight"], arrays["centre"], arrays["neighbor"])
    found = []
    for n_threads in (1, 4):
        threads(n_threads)
        found.append(native.messages(arrays["z"], arrays["s"], arrays["x"], *edges))
    assert torch.equal(*found)


@needs_library
@pytest.mark.parametrize("n_edges", [0, 1])
def test_hardly_any_edges(n_edges):
    arrays = _arrays(torch.float64)
    few = {name: value[:n_edges] if len(value) == N_EDGES else value for name, value in arrays.items()}
    for one, right in zip(_all_results(native, few, True), _all_results(plain, few, True), strict=True):
        assert torch.allclose(one, right, rtol=1e-12)


@needs_library
def test_slope_of_large_arguments_is_zero_and_one():
    z = torch.tensor([-1e8, 1e8])
    for kernels in (native, plain):
        assert kernels.swish_backward(torch.ones(2), z, torch.sigmoid(z)).tolist() == [0.0, 1.0]


@needs_library
def test_what_does_not_fit_together_is_an_error():
    values, index = torch.ones(3, 4), torch.tensor([0, 1])
    for wrong in (-1, 3):
        with pytest.raises(IndexError, match="expected 0 to 2"):
            native.gather_sum([values, values], [torch.tensor([0, wrong]), index])
    with pytest.raises(TypeError, match="float64"):
        native.gather_sum([values, values.double()], [index, index])
    with pytest.raises(TypeError, match="int32"):
        native.gather_sum([values, values], [index, index.int()])
    with pytest.raises(ValueError, match=r"shape \(3, 2\), expected \(3, 4\)"):
        native.gather_sum([values, values[:, :2]], [index, index])
    with pytest.raises(ValueError, match=r"expected \(2, 1\)"):
        native.messages(values[:2], values[:2], values, values[:1, :1], index, index)


@needs_library
def test_what_is_compiled():
    values = torch.zeros(2)
    assert native.serves(values) and native.serves(values.double()) and native.serves(values, None)
    assert not native.serves(values, values.double()) and not native.serves(values.bfloat16())


@needs_library
def test_a_library_without_threads_serves_one_thread_only(monkeypatch, threads):
    found = library()
    monkeypatch.setattr(native, "library", lambda: Library(found.functions, found.instructions, threaded=False))
    for n_threads in (1, 2):
        threads(n_threads)
        assert native.serves(torch.zeros(1)) is (n_threads == 1)


@pytest.mark.parametrize("weighted", [True, False])
def test_operators_are_the_functions_of_plain(weighted):
    arrays = _arrays(torch.float64)
    for one, right in zip(_all_results(ops, arrays, weighted), _all_results(plain, arrays, weighted), strict=True):
        assert torch.allclose(one, right, rtol=1e-11, atol=1e-11)
    assert not torch.allclose(ops.messages(*_messages(arrays)), ops.messages(*_messages(arrays, flip=True)))


def _messages(arrays: dict[str, torch.Tensor], flip: bool = False) -> tuple[torch.Tensor, ...]:
    ends = (arrays["neighbor"], arrays["centre"]) if flip else (arrays["centre"], arrays["neighbor"])
    return arrays["z"], arrays["s"], arrays["x"], arrays["weight"], *ends


@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize(("mode", "device"), [(FakeTensorMode, "cpu"), (nullcontext, "meta")])
def test_operators_know_the_shapes_of_their_outputs(mode, device, weighted):
    arrays = _arrays(torch.float32)
    expected = _all_results(plain, arrays, weighted)
    with mode():
        fakes = {name: torch.empty(value.shape, dtype=value.dtype, device=device) for name, value in arrays.items()}
        found = _all_results(ops, fakes, weighted)
    for one, right in zip(found, expected, strict=True):
        assert one.shape == right.shape and one.dtype == right.dtype and one.device.type == device


def test_other_number_types_are_left_to_torch():
    arrays = _arrays(torch.bfloat16)
    assert torch.equal(ops.messages(*_messages(arrays)), plain.messages(*_messages(arrays)))
