"""The evaluation for GPUs, on CPU tensors: against autograd, and its Triton kernels in Triton's interpreter."""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from ase import Atoms
from ase.build import add_adsorbate, bulk, fcc100, fcc111, molecule
from torch._subclasses.fake_tensor import FakeTensorMode

from faenet_calc.frames.frames import build_frames
from faenet_calc.network import device_engine
from faenet_calc.network.device_engine import DeviceEngine
from faenet_calc.network.engine import engine_for
from faenet_calc.network.kernels import device
from faenet_calc.potential import forward as forward_module
from faenet_calc.potential.potential import Potential, build_potential

SETTINGS = {
    "plain": {},
    "feed_forward": {"feed_forward": 24},
    "hard cutoff, sum of states": {"envelope_power": 0, "jumping": "add"},
    "last state, scaled": {"jumping": "none", "mean_neighbors": 20.0},
}
EVERY = ("energy", "energies", "forces", "stress")


def _rattled(atoms: Atoms, seed: int = 0) -> Atoms:
    atoms.rattle(0.1, seed=seed)
    return atoms


def _structures() -> dict[str, Atoms | list[Atoms]]:
    slab = fcc111("Cu", (2, 2, 3), vacuum=8.0)
    add_adsorbate(slab, "O", 1.2, "fcc")
    return {
        "slab": _rattled(slab),
        "slabs": [_rattled(fcc100("Pt", (2, 1, 3), vacuum=8.0)), slab],
        "bulk": _rattled(bulk("Cu", cubic=True)),
        "molecule": _rattled(molecule("CH3OH")),
        "slab, crystal and molecule": [slab, bulk("Pd"), molecule("H2O")],
        "overlapping": Atoms(
            "Cu4", [[0, 0, 0], [1.75, 0, 0], [0, 2.4, 0.3], [1.2, 1.1, 2.2]], cell=[9, 9, 9], pbc=True
        ),
        "crowded": _rattled(bulk("Cu", a=3.2, cubic=True)),
        "without neighbors": Atoms("Cu2", [[0, 0, 0], [0, 0, 9]]),
    }


def _potential(dtype: str = "float64", **settings: object) -> Potential:
    small = {"hidden_channels": 48, "filters": 20, "interactions": 3, "gaussians": 12}
    potential = build_potential("modern-s", dtype=dtype, seed=1, **small, **settings)
    generator = torch.Generator().manual_seed(2)
    for parameter in potential.model.parameters():
        parameter.copy_(0.2 * torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype))
    return potential


def _both(potential: Potential, monkeypatch: pytest.MonkeyPatch, structures, **request):
    """Predictions of the engine and of autograd."""
    graph, engine = potential.graph(structures), DeviceEngine(potential.model)
    monkeypatch.setattr(forward_module, "engine_for", lambda model: engine)
    found = potential.evaluate(graph, **request)
    monkeypatch.setattr(forward_module, "engine_for", lambda model: None)
    return found, potential.evaluate(graph, **request)


def _check(found, expected, relative: float) -> None:
    compared = 0
    for field in dataclasses.fields(expected):
        value = getattr(expected, field.name)
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            size = float(value.abs().max()) + 1e-12
            error = float((getattr(found, field.name) - value).abs().max())
            assert error <= relative * size, f"{field.name} differs by {error}, of {size}"
            compared += 1
    assert compared >= 2


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
@pytest.mark.parametrize("name", _structures())
def test_the_engine_gives_what_autograd_gives(name, settings, monkeypatch):
    found, expected = _both(_potential(**settings), monkeypatch, _structures()[name], properties=EVERY, frames="all")
    _check(found, expected, 1e-11)


@pytest.mark.parametrize("frames", ["one", "pair"])
@pytest.mark.parametrize("name", ["slab", "slabs", "molecule"])
def test_fewer_frames(name, frames, monkeypatch):
    found, expected = _both(_potential(), monkeypatch, _structures()[name], properties=EVERY, frames=frames)
    _check(found, expected, 1e-11)


def test_single_precision(monkeypatch):
    found, expected = _both(_potential("float32"), monkeypatch, _structures()["slab"], properties=EVERY, frames="all")
    _check(found, expected, 1e-4)


@pytest.mark.parametrize("name", ["slab", "slabs", "molecule"])
def test_spreads_over_frames_and_features(name, monkeypatch):
    request = {"properties": ("energy", "forces", "energy_frame_std", "forces_frame_std", "atom_features")}
    found, expected = _both(_potential(), monkeypatch, _structures()[name], frames="all", **request)
    _check(found, expected, 1e-8)  # spreads are differences


@pytest.mark.parametrize("name", ["slab", "slabs", "molecule"])
def test_direct_forces(name, monkeypatch):
    found, expected = _both(
        _potential(forces="direct"), monkeypatch, _structures()[name], properties=("energy", "forces"), frames="all"
    )
    _check(found, expected, 1e-11)


def test_tags(monkeypatch):
    potential = _potential(atoms={"tag_channels": 4, "group_period_channels": 8})
    slab = _structures()["slab"]
    slab.set_tags([0, 1, 2] * 4 + [1])
    found, expected = _both(potential, monkeypatch, slab, properties=("energy", "forces"), frames="all")
    _check(found, expected, 1e-11)


@pytest.mark.parametrize("name", ["slab", "slabs", "molecule"])
@pytest.mark.parametrize("copies", [0.4, 1.5, 3.0])
def test_a_memory_budget_divides_the_frames(name, copies):
    potential = _potential()
    graph = potential.graph(_structures()[name])
    frames = build_frames(graph, potential.config.frames, "all", vacuum=potential.cutoff)
    engine = DeviceEngine(potential.model)
    budget = int(copies * graph.n_edges * engine._per_copy)
    whole, parts = (
        engine.evaluate(
            graph,
            frames.detach(),
            graph.edge_vectors(),
            frames.weight.detach(),
            factor=torch.linspace(0, 1, graph.n_edges, dtype=torch.float64),
            outputs=("gradients", "hidden", "features"),
            memory_bytes=memory_bytes,
        )
        for memory_bytes in (None, budget)
    )
    for field in dataclasses.fields(whole):
        if getattr(whole, field.name) is not None:
            torch.testing.assert_close(getattr(parts, field.name), getattr(whole, field.name), rtol=1e-9, atol=1e-12)


def test_which_models_have_an_engine():
    model = build_potential("modern-s").model.to("meta")
    assert isinstance(engine_for(model), DeviceEngine)
    for name in ("modern-s", "modern-m", "modern-l"):
        assert device_engine.supports(build_potential(name).model)
    for changes in ({"message": "base"}, {"graph_norm": True}, {"split_filter": False}, {"jumping": "concat_energies"}):
        assert not device_engine.supports(build_potential("modern-s", **changes).model)
    model.compile()
    assert engine_for(model) is None


def test_operators_have_the_shapes_of_their_results():
    potential = _potential(feed_forward=24)
    graph = potential.graph(_structures()["slab"])
    frames = build_frames(graph, potential.config.frames, "pair", vacuum=potential.cutoff)
    engine, calls = DeviceEngine(potential.model), []

    class Recording:
        def __getattr__(self, name):
            def call(*arguments):
                result = getattr(device.ops, name)(*arguments)
                calls.append((name, arguments, result))
                return result

            return call

    before, device_engine.ops = device_engine.ops, Recording()
    try:
        engine.evaluate(graph, frames, graph.edge_vectors(), frames.weight, outputs=("gradients",))
    finally:
        device_engine.ops = before
    assert {name for name, _, _ in calls} == set(device.SCHEMAS)
    for name, arguments, result in calls:
        with FakeTensorMode() as mode:
            fake = [mode.from_tensor(x) if isinstance(x, torch.Tensor) else x for x in arguments]
            shapes = getattr(device.ops, name)(*fake)
        for expected, found in zip(_tensors(result), _tensors(shapes), strict=True):
            assert (expected.shape, expected.dtype) == (found.shape, found.dtype), name


def _tensors(value) -> list[torch.Tensor]:
    return [value] if isinstance(value, torch.Tensor) else list(value or ())


@pytest.fixture(scope="module")
def interpreted() -> dict[str, dict[str, float]]:
    """Relative differences of the Triton kernels from PyTorch, found by a process with Triton's interpreter."""
    pytest.importorskip("triton")
    script = Path(__file__).with_name("interpreted_kernels.py")
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    done = subprocess.run([sys.executable, str(script)], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "relative"), [("float64", 1e-12), ("float32", 2e-5)])
@pytest.mark.parametrize("case", ["slab", "slabs", "molecule"])
def test_triton_kernels_give_what_torch_gives(case, dtype, relative, interpreted):
    differences = interpreted[f"{case} {dtype}"]
    assert len(differences) == 7
    assert max(differences.values()) <= relative, differences
