"""Compiled sums against those in torch, with any number of threads; where nothing can be compiled, torch does it."""

import os
import subprocess
import sys

import pytest
import torch

from faenet_calc.network.kernels import building, fastest_for, native, plain

needs_compiler = pytest.mark.skipif(
    building.library("messages.c", "float") is None, reason=f"no C compiler: {building.unavailable()}"
)
N_NODES, N_EDGES, WIDTH = 60, 2500, 112


@pytest.fixture
def threads():
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def _arrays(dtype: torch.dtype) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    rows = {"z": N_EDGES, "x": N_NODES, "slope": N_NODES, "by_z": N_EDGES, "by_x": N_NODES}
    found = {name: torch.randn(n, WIDTH, generator=generator, dtype=torch.float64) for name, n in rows.items()}
    found["s"] = torch.sigmoid(found["z"])
    found["weight"], found["by_w"] = torch.randn(2, N_EDGES, 1, generator=generator, dtype=torch.float64)
    ends = torch.randint(N_NODES, (2, N_EDGES), generator=generator)
    return {name: value.to(dtype) for name, value in found.items()} | {"centre": ends[0], "neighbor": ends[1]}


def _all_results(kernels, a: dict[str, torch.Tensor], weighted: bool) -> list[torch.Tensor]:
    """What every function of a module gives."""
    weight = a["weight"] if weighted else None
    seconds = (a["by_z"], a["by_x"], a["by_w"] if weighted else None)
    edges = (weight, a["centre"], a["neighbor"])
    transposed = a["by_z"].t().contiguous().t()  # not contiguous, as gradients may be
    results = [
        kernels.swish_slope(transposed, a["z"], a["s"]),
        *kernels.swish_slope_backward(a["by_z"], transposed, a["z"], a["s"]),
        kernels.messages(a["z"], a["s"], a["x"], *edges),
        *kernels.messages_slope(a["slope"], a["z"], a["s"], a["x"], *edges),
        *kernels.messages_slope_backward(seconds, a["slope"], a["z"], a["s"], a["x"], *edges),
        kernels.sum_of_rows([a["x"], a["slope"]], [a["centre"], a["neighbor"]]),
        kernels.sum_of_rows([a["x"], a["slope"], a["by_x"]], [a["centre"], a["neighbor"], a["centre"]]),
        kernels.rows_summed_at(a["centre"], transposed, N_NODES),
    ]
    return [result for result in results if result is not None]


@needs_compiler
@pytest.mark.parametrize("n_threads", [1, 3])
@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize(("dtype", "relative"), [(torch.float64, 1e-12), (torch.float32, 1e-4)])
def test_compiled_is_what_torch_gives(dtype, relative, weighted, n_threads, threads):
    threads(n_threads)
    arrays = _arrays(dtype)
    assert fastest_for(arrays["z"]) is native
    expected = _all_results(plain, arrays, weighted)
    found = _all_results(native, arrays, weighted)
    for one, right in zip(found, expected, strict=True):
        assert one.shape == right.shape and one.dtype == dtype
        assert (one - right).abs().max() <= relative * right.abs().max()
    others = _all_results(native, arrays | {"z": arrays["z"] * (1 + 10 * relative)}, weighted)
    assert any(
        (one - right).abs().max() > relative * right.abs().max() for one, right in zip(others, expected, strict=True)
    )


@needs_compiler
def test_threads_do_not_change_sums_over_edges(threads):
    arrays = _arrays(torch.float32)
    edges = (arrays["weight"], arrays["centre"], arrays["neighbor"])
    found = []
    for n_threads in (1, 4):
        threads(n_threads)
        found.append(native.messages(arrays["z"], arrays["s"], arrays["x"], *edges))
    assert torch.equal(*found)


@needs_compiler
@pytest.mark.parametrize("n_edges", [0, 1])
def test_hardly_any_edges(n_edges):
    arrays = _arrays(torch.float64)
    few = {name: value[:n_edges] if len(value) == N_EDGES else value for name, value in arrays.items()}
    for one, right in zip(_all_results(native, few, True), _all_results(plain, few, True), strict=True):
        assert torch.allclose(one, right, rtol=1e-12)


@needs_compiler
def test_slope_of_large_arguments_is_zero_and_one():
    z = torch.tensor([-1e8, 1e8])
    for kernels in (native, plain):
        assert kernels.swish_slope(torch.ones(2), z, torch.sigmoid(z)).tolist() == [0.0, 1.0]


@needs_compiler
def test_what_does_not_fit_together_is_an_error():
    values, index = torch.ones(3, 4), torch.tensor([0, 1])
    for wrong in (-1, 3):
        with pytest.raises(IndexError, match="there are 3"):
            native.sum_of_rows([values, values], [torch.tensor([0, wrong]), index])
    with pytest.raises(TypeError, match="float64"):
        native.sum_of_rows([values, values.double()], [index, index])
    with pytest.raises(TypeError, match="int32"):
        native.sum_of_rows([values, values], [index, index.int()])
    with pytest.raises(ValueError, match=r"\(3, 4\) are expected, one has \(3, 2\)"):
        native.sum_of_rows([values, values[:, :2]], [index, index])
    with pytest.raises(ValueError, match=r"\(2, 1\) are expected"):
        native.messages(values[:2], values[:2], values, values[:1, :1], index, index)
    assert fastest_for(values, values.double()) is plain and fastest_for(values, None) is native


@pytest.mark.parametrize("values", [torch.zeros(2, device="meta"), torch.zeros(2, dtype=torch.bfloat16)], ids=str)
def test_other_devices_and_numbers_are_left_to_torch(values):
    assert fastest_for(values) is plain


_ENERGY = """
from ase.build import molecule
from faenet_calc.network.kernels import building, native
from faenet_calc import build_potential
import logging, torch
logging.basicConfig(level="INFO")
potential = build_potential("modern-s")
found = potential.evaluate(potential.graph(molecule("CH3OH")))
print(native.serves(torch.zeros(1)), float(found.energy), float(found.forces.square().sum()))
"""


def _run(tmp_path, **environment: str) -> tuple[str, list[float], str]:
    """Whether compiled code was used, energy and squared forces of a molecule, and the log, from a new process."""
    environment = os.environ | {"XDG_CACHE_HOME": str(tmp_path)} | environment
    done = subprocess.run(
        [sys.executable, "-c", _ENERGY], env=environment, capture_output=True, text=True, check=True, timeout=300
    )
    used, *numbers = done.stdout.split()
    return used, [float(number) for number in numbers], done.stderr


@needs_compiler
def test_without_a_working_compiler_the_answer_is_the_same(tmp_path):
    used, expected, _ = _run(tmp_path)
    assert used == "True" and len(list(tmp_path.glob("faenet-calc/compiled/*-float-*.so"))) == 1
    broken, empty = tmp_path / "broken-cc", tmp_path / "empty-cc"
    broken.write_text("#!/bin/sh\n[ \"$1\" = --version ] && exit 0\necho 'no such instruction' >&2; exit 1\n")
    empty.write_text('#!/bin/sh\nfor last; do :; done; [ "$1" = --version ] || echo x > "$last"\n')
    for changes, reason in [
        ({"FAENET_CALC_NATIVE": "0"}, "FAENET_CALC_NATIVE=0 is set"),
        ({"CC": "no-such-compiler"}, "no C compiler"),
        ({"CC": f"sh {broken}"}, "no such instruction"),
        ({"CC": f"sh {empty}"}, "file too short"),
    ]:
        used, found, log = _run(tmp_path / "other", **changes)
        assert used == "False" and found == pytest.approx(expected, rel=1e-5) and reason in log
    assert not list(tmp_path.glob("other/faenet-calc/compiled/*"))  # nothing half-made is left behind


@needs_compiler
def test_a_folder_that_cannot_be_written_is_not_needed(tmp_path):
    (tmp_path / "file").write_text("in the way")
    used, _, _ = _run(tmp_path / "file")
    assert used == "True" and (tmp_path / "file").read_text() == "in the way"


@needs_compiler
def test_a_library_is_compiled_once_and_again_for_another_machine(tmp_path, monkeypatch):
    monkeypatch.setattr(building, "_folder", lambda: tmp_path)
    first = building._build("messages.c", "float", threaded=False)
    written = first.stat().st_mtime_ns
    assert building._build("messages.c", "float", threaded=False) == first and first.stat().st_mtime_ns == written
    monkeypatch.setattr(building, "_machine", lambda: b"another processor")
    assert building._build("messages.c", "float", threaded=False) != first


@needs_compiler
def test_a_library_without_threads_serves_one_thread_only(monkeypatch, threads):
    alone = building.Library(building.library("messages.c", "float").functions, threaded=False)
    monkeypatch.setattr(native, "library", lambda source, real: alone)
    for n_threads, module in ((1, native), (2, plain)):
        threads(n_threads)
        assert fastest_for(torch.zeros(1)) is module
