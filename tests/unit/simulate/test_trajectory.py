"""A trajectory whose writing is interrupted holds complete snapshots only."""

import numpy as np
import pytest
from ase.build import bulk
from ase.calculators.emt import EMT
from ase.io.ulm import Writer

from faenet_calc.simulate.trajectory import STEP, RunTrajectory, read_snapshots


@pytest.mark.parametrize("n_writes", range(8))
def test_interrupted_snapshot_is_not_counted(tmp_path, monkeypatch, n_writes):
    """Ctrl-C after the first ``n_writes`` of the writes that make up a snapshot."""
    atoms = bulk("Cu", cubic=True)
    atoms.calc = EMT()
    atoms.get_forces()
    done = 0
    write = Writer.write

    def interrupted(self, *arguments, **values):
        nonlocal done
        if done == n_writes:
            raise KeyboardInterrupt
        done += 1
        write(self, *arguments, **values)

    path = tmp_path / "run.traj"
    with pytest.raises(KeyboardInterrupt), RunTrajectory(path, atoms, resume=False, overwrite=False) as trajectory:
        trajectory.write(atoms.copy(), 0)
        trajectory.write(atoms.copy(), 2)
        with monkeypatch.context() as patch:
            patch.setattr(Writer, "write", interrupted)
            snapshot = atoms.copy()
            snapshot.calc = atoms.calc
            trajectory.write(snapshot, 4)
    assert [snapshot.info[STEP] for snapshot in read_snapshots(path)] == [0, 2]

    with RunTrajectory(path, atoms, resume=True, overwrite=False) as trajectory:
        assert trajectory.n_done == 2
        trajectory.write(atoms.copy(), 4)
    resumed = read_snapshots(path)
    assert [snapshot.info[STEP] for snapshot in resumed] == [0, 2, 4]
    assert np.array_equal(resumed[-1].positions, atoms.positions)
