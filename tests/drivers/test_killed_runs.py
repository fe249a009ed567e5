"""Runs that were killed: the trajectory is readable and the run goes on."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from ase.build import molecule
from ase.calculators.calculator import all_changes
from ase.calculators.emt import EMT
from ase.io import read
from ase.io.trajectory import TrajectoryWriter

from faenet_calc.errors import InputError
from faenet_calc.simulate import relax, run_md
from faenet_calc.simulate.trajectory import read_snapshots


class FreshEMT(EMT):
    """EMT without memory: its neighbor list, whose order decides the last bits, is built anew every time."""

    def calculate(self, atoms=None, properties=("energy",), system_changes=all_changes):
        super().calculate(atoms, properties, all_changes)


# Each copy is killed a random number of events after it has written a random number of bytes; the last run is not.
KILLER = """
import random, sys
sys.path[:0] = sys.argv[1:3]
from ase.io import read
from faenet_calc.simulate.trajectory import read_snapshots
from signalled import killed, size
from test_killed_runs import work
kind, start, path, seed, n_kills = sys.argv[3:]
dice = random.Random(int(seed))
for _ in range(int(n_kills)):
    goal = size(path) + dice.randrange(9000)
    killed(lambda: work(kind, read(start), path), lambda: size(path) >= goal, dice.randrange(3000))
    print(len(read_snapshots(path)) if size(path) else 0)
work(kind, read(start), path)
"""


def work(kind, atoms, path):
    """What the killed processes do. MDMin takes many steps, so that a kill can fall anywhere."""
    if kind == "relax":
        relax(atoms, FreshEMT(), optimizer="MDMin", fmax=0.0005, steps=5000, trajectory=path, resume=True)
    else:
        run_md(atoms, FreshEMT(), ensemble=kind, steps=180, interval=2, trajectory=path, resume=True)


def kill_again_and_again(kind, atoms, folder, *, seed, n_kills=12):
    """The trajectory of a run that was killed and continued ``n_kills`` times."""
    start, path = folder / "start.traj", folder / "run.traj"
    atoms.write(start)
    tests = Path(__file__).parents[1]
    arguments = [str(tests / "drivers"), str(tests), kind, str(start), str(path), str(seed), str(n_kills)]
    done = subprocess.run([sys.executable, "-c", KILLER, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    counts = [int(line) for line in done.stdout.split()]
    assert len(counts) == n_kills and counts == sorted(counts), "snapshots were lost"
    assert len(set(counts)) > n_kills // 2, "most of the runs were killed before their first snapshot"
    return path


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2, 3))])
def test_relaxation_killed_at_random_moments_is_finished_by_the_same_call(slab, tmp_path, seed):
    path = kill_again_and_again("relax", slab, tmp_path, seed=seed)
    straight = relax(slab, EMT(), fmax=0.0005, steps=5000)
    snapshots = read(path, ":")
    assert snapshots[-1].get_potential_energy() == pytest.approx(straight.energy, abs=1e-5)
    assert np.abs(snapshots[-1].positions - straight.atoms.positions).max() < 0.01
    assert [s.info["faenet_calc_step"] for s in snapshots] == list(range(len(snapshots))), "every step once"


@pytest.mark.parametrize(
    ("ensemble", "seed"),
    [("nve", 1), *(pytest.param(f"nvt-{name}", 2, marks=pytest.mark.slow) for name in ("langevin", "bussi"))],
)
def test_dynamics_killed_at_random_moments_continues_exactly(slab, tmp_path, ensemble, seed):
    path = kill_again_and_again(ensemble, slab, tmp_path, seed=seed)
    straight = run_md(slab, FreshEMT(), ensemble=ensemble, steps=180, interval=2)
    snapshots = read(path, ":")
    assert [s.info["faenet_calc_step"] for s in snapshots] == list(range(0, 181, 2)), "every snapshot once"
    assert np.array_equal(snapshots[-1].positions, straight.atoms.positions)
    assert np.array_equal(snapshots[-1].get_momenta(), straight.atoms.get_momenta())


def test_steps_are_counted_over_all_calls(slab, tmp_path):
    path = tmp_path / "run.traj"
    first = relax(slab, EMT(), steps=3, fmax=1e-4, trajectory=path)
    again = relax(slab, EMT(), steps=3, fmax=1e-4, trajectory=path, resume=True)
    assert first.n_steps == again.n_steps == 3 and len(read(path, ":")) == 4
    assert again.energy == pytest.approx(first.energy, abs=1e-12)
    further = relax(slab, EMT(), steps=7, fmax=1e-4, trajectory=path, resume=True)
    assert further.n_steps == 7 and len(read(path, ":")) == 8


def test_a_converged_run_is_not_continued(slab, tmp_path):
    path = tmp_path / "run.traj"
    first = relax(slab, EMT(), trajectory=path)
    again = relax(slab, EMT(), trajectory=path, resume=True)
    assert again.converged and again.n_steps == first.n_steps
    assert again.energy == pytest.approx(first.energy, abs=1e-12)


def test_anomalies_are_of_the_whole_run(slab, tmp_path):
    path = tmp_path / "run.traj"
    relax(slab, EMT(), steps=2, trajectory=path)
    gone = read(path)
    gone.positions[-2:] += [0, 0, 4.0]
    with TrajectoryWriter(path, "a") as writer:
        writer.write(gone)
    result = relax(slab, EMT(), steps=2, trajectory=path, resume=True)
    assert result.anomalies == ("desorbed",)


def test_a_trajectory_cut_anywhere_is_mended(slab, tmp_path):
    whole = tmp_path / "whole.traj"
    relax(slab, EMT(), steps=8, fmax=1e-4, trajectory=whole)
    content = whole.read_bytes()
    n_whole = len(read(whole, ":"))
    counts = []
    for n_bytes in np.linspace(len(content) // 2, len(content) - 1, 12).astype(int):
        cut = tmp_path / f"cut-{n_bytes}.traj"
        cut.write_bytes(content[:n_bytes])
        good = read_snapshots(cut)
        counts.append(len(good))
        result = relax(slab, EMT(), fmax=0.05, trajectory=cut, resume=True)
        mended = read(cut, ":")
        assert result.converged and len(mended) == result.n_steps + 1 >= len(good)
        for a, b in zip(good, mended, strict=False):
            assert np.array_equal(a.positions, b.positions)
    assert counts == sorted(counts) and 2 <= counts[0] < counts[-1] == n_whole - 1


@pytest.mark.parametrize("content", [b"", b"- of Ulm", None])
def test_a_run_killed_before_its_first_snapshot_starts_again(slab, tmp_path, content):
    path = tmp_path / "run.traj"
    if content is None:
        relax(slab, EMT(), steps=0, trajectory=path)
        head = bytearray(path.read_bytes()[:200])
        head[32:40] = bytes(8)  # no snapshot was counted yet
        content = bytes(head)
    path.write_bytes(content)
    result = relax(slab, EMT(), steps=2, trajectory=path, resume=True)
    assert result.n_steps == 2 and len(read(path, ":")) == 3


def test_other_files_are_not_taken_for_trajectories(slab, tmp_path):
    path = tmp_path / "run.traj"
    path.write_text("notes of a whole summer, which nobody wants to lose, certainly not to a relaxation")
    with pytest.raises(InputError, match="not a readable ASE trajectory"):
        relax(slab, EMT(), trajectory=path, resume=True)
    assert path.read_text().startswith("notes")


def test_trajectories_of_other_systems_are_refused(slab, tmp_path):
    path = tmp_path / "run.traj"
    relax(molecule("CO"), EMT(), steps=1, trajectory=path)
    with pytest.raises(InputError, match=r"is a trajectory of .* not of"):
        relax(slab, EMT(), trajectory=path, resume=True)


def run_twice(slab, tmp_path, ensemble, calc=FreshEMT):
    arguments = {"ensemble": ensemble, "timestep_fs": 2.0, "temperature_K": 400.0, "seed": 7, "interval": 20}
    straight = run_md(slab, calc(), steps=200, trajectory=tmp_path / "straight.traj", **arguments)
    path = tmp_path / "halves.traj"
    run_md(slab, calc(), steps=100, trajectory=path, **arguments)
    resumed = run_md(slab, calc(), steps=200, trajectory=path, resume=True, **arguments)
    assert resumed.n_steps == straight.n_steps == 200
    return straight, resumed


@pytest.mark.parametrize("ensemble", ["nve", "nvt-langevin", "nvt-bussi"])
def test_restart_is_exact_to_the_bit(slab, tmp_path, ensemble):
    straight, resumed = run_twice(slab, tmp_path, ensemble)
    assert np.array_equal(straight.atoms.positions, resumed.atoms.positions)
    assert np.array_equal(straight.atoms.get_momenta(), resumed.atoms.get_momenta())
    assert straight.atoms.get_potential_energy() == resumed.atoms.get_potential_energy()
    ours, theirs = (read(tmp_path / f"{name}.traj", ":") for name in ("halves", "straight"))
    assert len(ours) == len(theirs) == 11
    for a, b in zip(ours, theirs, strict=True):
        assert np.array_equal(a.positions, b.positions) and np.array_equal(a.get_momenta(), b.get_momenta())


def test_the_equality_above_can_fail(slab, tmp_path):
    straight = run_md(slab, FreshEMT(), ensemble="nve", steps=60)
    half = run_md(slab, FreshEMT(), ensemble="nve", steps=30).atoms
    half.positions = half.positions.round(8)  # what text files keep
    rounded = run_md(half, FreshEMT(), ensemble="nve", steps=30)
    assert not np.array_equal(straight.atoms.positions, rounded.atoms.positions)
    assert np.abs(straight.atoms.positions - rounded.atoms.positions).max() < 1e-5
