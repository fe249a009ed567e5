"""The benchmark of NVE runs: its systems, its line through the energy, and going on after a stop."""

import numpy as np
import nve_systems as benchmark
import pytest
from ase.build import bulk
from rows import Rows

from faenet_calc import FAENetCalculator, run_md

CRYSTAL = benchmark.System(build=lambda: bulk("Cu", cubic=True, a=3.61), temperature_K=300)


def test_systems_are_small_and_their_time_steps_follow_the_lightest_atom():
    steps = {}
    for name, system in benchmark.SYSTEMS.items():
        atoms = system.build()
        assert 12 <= len(atoms) <= 54
        assert 300 <= system.temperature_K <= 1000
        steps[name] = benchmark.timestep_fs(atoms)
        if atoms.pbc.sum() == 2:
            assert len(atoms.constraints[0].get_indices()) == 4
            assert (atoms.get_tags() == 2).any()
    assert steps == {
        "CO on Cu(111)": 2.0,
        "OH on Pt(111)": 1.0,
        "O on Ru(0001)": 2.0,
        "Au bulk": 4.0,
        "NO on CuPd(100)": 2.0,
        "three CO on Rh(111)": 2.0,
        "three H2O on Pt(111)": 1.0,
        "Pt19 particle": 4.0,
        "CO on CuZn(111)": 2.0,
        "W bulk": 4.0,
    }


def test_line_finds_slope_and_deviation():
    times = np.linspace(0, 10, 2001)
    slope, deviation = benchmark.line(times, 5.0 + 2e-3 * times + 1e-3 * np.sin(40 * times))
    assert slope == pytest.approx(2.0, abs=0.01)
    assert deviation == pytest.approx(np.sqrt(0.5), rel=0.02)


@pytest.fixture
def calc(emt_potential, monkeypatch):
    monkeypatch.setattr(benchmark, "EQUILIBRATION_PS", 0.04)
    monkeypatch.setattr(benchmark, "CHUNK_PS", 0.06)
    monkeypatch.setattr(benchmark, "SYSTEMS", {"Cu bulk": CRYSTAL, "Au bulk": benchmark.SYSTEMS["Au bulk"]})
    return FAENetCalculator(emt_potential, frames="one")


def run(calc, folder, ps):
    rows = Rows(folder / "rows.jsonl", {"row": "header"})
    return list(benchmark.run(calc, rows, list(benchmark.SYSTEMS), folder, ps))


def test_a_run_conserves_energy_and_is_not_repeated(calc, tmp_path):
    first, skipped = run(calc, tmp_path, 0.2)
    assert skipped == {"row": "skipped", "system": "Au bulk", "elements_not_trained": ["Au"]}
    assert (first["ps"], first["timestep_fs"], first["blown_up"], first["flags"]) == (0.2, 4.0, False, [])
    assert 50 < first["mean_temperature_K"] < 900
    assert first["std_meV_per_atom"] < 1
    assert benchmark.summary([first, skipped])["not_blown_up"] == "1 of 1"
    trajectory = tmp_path / "Cu-bulk" / "nve.traj"
    written = trajectory.stat().st_mtime_ns
    assert run(calc, tmp_path, 0.2) == [first, skipped]
    assert trajectory.stat().st_mtime_ns == written


def test_a_stopped_run_gives_the_numbers_of_a_whole_one(calc, tmp_path):
    (whole, _), (short, _) = run(calc, tmp_path / "whole", 0.2), run(calc, tmp_path / "stopped", 0.1)
    assert short["ps"] == 0.1
    (tmp_path / "stopped" / "rows.jsonl").unlink()  # as if it had been killed before its end
    again, _ = run(calc, tmp_path / "stopped", 0.2)
    same = ("ps", "drift_meV_per_atom_ps", "std_meV_per_atom", "mean_temperature_K")
    assert [again[key] for key in same] == [whole[key] for key in same]


@pytest.mark.filterwarnings("ignore:stopped after:UserWarning")
def test_a_run_that_blows_up_says_so(calc, tmp_path, monkeypatch):
    def strict(*args, **kwargs):
        # Any change of the potential energy counts as an explosion, as soon as the run is left alone.
        return run_md(*args, **kwargs | ({"max_energy_change": 1e-9} if kwargs["ensemble"] == "nve" else {}))

    monkeypatch.setattr(benchmark, "run_md", strict)
    row, skipped = run(calc, tmp_path, 0.2)
    assert row["blown_up"]
    assert "exploded" in row["stopped_because"]
    assert row["ps"] < 0.1
    assert row["drift_meV_per_atom_ps"] is None
    assert benchmark.summary([row, skipped])["not_blown_up"] == "0 of 1"
