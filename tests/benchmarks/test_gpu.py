"""Synchronizations, kernel launches and device mixing of a call, on a pretended device."""

import json

import pytest
import torch
from gpu import DEVICE, PretendedDevice, count, main

from faenet_calc import build_potential
from faenet_calc.potential.potential import Potential


def _potential(**settings):
    small = {"hidden_channels": 48, "filters": 32, "interactions": 4, "gaussians": 12, "feed_forward": 32}
    return build_potential("modern-s", **small, **settings)


@pytest.mark.parametrize("frames", ["one", "pair", "all"])
def test_a_call_waits_once_for_the_device(frames):
    found = count(_potential(), 12, frames, ("energy", "forces"))
    assert found.synchronizations == ["value"]
    assert found.launches.total() <= 480


@pytest.mark.parametrize("properties", [["energy"], ["energy", "forces", "stress", "energies"]])
def test_no_property_waits_for_the_device(properties):
    assert len(count(_potential(), 12, "all", properties).synchronizations) == 1


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


def test_mixed_devices_are_an_error():
    with PretendedDevice(), pytest.raises(RuntimeError, match="device"):
        torch.zeros(3, device=DEVICE).index_add(0, torch.tensor([0, 1]), torch.ones(2))


def test_the_command_counts_without_a_device(monkeypatch, capsys, repository):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    main(["--model", str(repository / "tests" / "data" / "emt-copper.safetensors"), "--frames", "pair"])
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["metric"] for row in rows] == ["kernel launches", "synchronizations"]
    assert rows[1]["value"] == 3
