"""Synchronizations, kernel launches and device mixing of a call, on a pretended device."""

import json

import pytest
import torch
from gpu import DEVICE, PretendedDevice, count, main
from speed import slab

from faenet_calc import build_potential
from faenet_calc.potential.potential import Potential


def _potential(**settings):
    small = {"hidden_channels": 48, "filters": 32, "interactions": 4, "gaussians": 12, "feed_forward": 32}
    return build_potential("modern-s", **small, **settings)


@pytest.mark.parametrize("frames", ["one", "pair", "all"])
def test_a_call_waits_once_for_the_device(frames):
    found = count(_potential(), 12, frames, ("energy", "forces"))
    assert found.synchronizations == ["value"]
    assert found.launches.total() <= 125


def test_a_changed_cell_does_not_wait():
    found = count(_potential(), 12, "all", ("energy", "forces"), new_cell=True)
    assert found.synchronizations == ["value"]
    assert found.launches.total() <= 128


def test_without_triton():
    found = count(_potential(), 12, "all", ("energy", "forces"), triton=False)
    assert found.synchronizations == ["value"]
    assert found.launches.total() <= 343


def test_an_architecture_without_engine():
    found = count(_potential(message="base"), 12, "all", ("energy", "forces"))
    assert found.synchronizations == ["value"]
    assert found.launches.total() <= 480


def test_training_on_forces_waits_once():
    potential = _potential()
    graph = potential.graph(slab(12)).to(device=DEVICE)
    potential = potential.to(DEVICE).requires_grad_()
    for counted in (PretendedDevice(), PretendedDevice()):
        with counted:
            found = potential.evaluate(graph, properties=("energy", "forces"), frames="one", create_graph=True)
            (found.energy.sum() + found.forces.square().sum()).backward()
    assert counted.synchronizations == ["value"]
    assert all(parameter.grad is not None for parameter in potential.model.parameters() if parameter.numel() > 1)


def test_moving_a_graph_does_not_wait():
    potential = _potential().to(DEVICE)
    with PretendedDevice() as counted:
        potential.graph(slab(12))
    assert counted.synchronizations == []
    assert counted.launches == {"_to_copy": 9}


@pytest.mark.parametrize("properties", [["energy"], ["energy", "forces", "stress", "energies"]])
def test_no_property_waits_for_the_device(properties):
    assert count(_potential(), 12, "all", properties).synchronizations == ["value"]


def test_direct_forces_wait_once():
    assert len(count(_potential(forces="direct"), 12, "all", ["energy", "forces"]).synchronizations) == 1


def test_the_number_of_frames_does_not_change_the_number_of_launches():
    one, every = (count(_potential(), 12, frames, ("energy", "forces")).launches.total() for frames in ("one", "all"))
    assert every == pytest.approx(one, abs=20)


def test_a_new_synchronization_is_counted(monkeypatch):
    run = Potential.run

    def waiting(self, graph, request, **options):
        assert not bool((graph.positions > 1e9).any())
        graph.atomic_numbers.cpu()
        return run(self, graph, request, **options)

    monkeypatch.setattr(Potential, "run", waiting)
    found = count(_potential(), 12, "pair", ("energy", "forces"))
    assert sorted(found.synchronizations) == ["copy to the CPU", "value", "value"]


def test_a_blocking_copy_from_the_cpu_is_counted():
    with PretendedDevice() as counted:
        torch.zeros(3).to(DEVICE)
        torch.zeros(3).to(DEVICE, non_blocking=True)
        torch.zeros(3, device=DEVICE).copy_(torch.ones(3))
    assert counted.synchronizations == ["copy from the CPU"] * 2


def test_copies_inside_operations_are_counted():
    values, index = torch.zeros(3, 3, device=DEVICE), torch.zeros(3, dtype=torch.int64, device=DEVICE)
    with PretendedDevice() as counted:
        torch.addmm(values, values, values)
        torch.addmm(values[0], values, values)
        values.addmm_(values, values)
        values.index_add(0, index, values)
    assert counted.launches == {"addmm": 3, "addmm_": 1, "index_add": 2}


def test_mixed_devices_are_an_error():
    with PretendedDevice(), pytest.raises(RuntimeError, match="mixes"):
        torch.zeros(3, device=DEVICE).index_add(0, torch.tensor([0, 1]), torch.ones(2))


def test_the_command_counts_without_a_device(monkeypatch, capsys, repository):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    main(["--model", str(repository / "tests" / "data" / "emt-copper.safetensors"), "--frames", "pair"])
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    cases = ("", ", new cell", ", without Triton")
    names = [f"{name}{case}" for case in cases for name in ("kernel launches", "synchronizations")]
    assert [row["metric"] for row in rows] == names
    assert [row["value"] for row in rows[1::2]] == [3, 3, 3]
