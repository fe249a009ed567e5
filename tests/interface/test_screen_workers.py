"""Workers that die: a chunk is tried again, split, and the configuration at fault is recorded with an error."""

import gc
import os
from types import SimpleNamespace

import pytest

from faenet_calc.screening import dask_runner

pytestmark = pytest.mark.slow


class _Store:
    """Remembers the keys that were recorded with an error."""

    recorded: list = []  # noqa: RUF012

    def __init__(self, folder):
        pass

    def finished(self):
        return set()

    def record(self, row):
        self.recorded.append(row)


def relax_chunk_or_die(context, chunk):
    """Ends the worker process if the chunk has the poison."""
    if any(one.key == "poison" for one in chunk):
        os._exit(139)
    return [one.key for one in chunk]


def test_poison_ends_alone(monkeypatch, tmp_path):
    monkeypatch.setattr(dask_runner, "relax_chunk", relax_chunk_or_die)
    monkeypatch.setattr(dask_runner, "ScreenStore", _Store)
    monkeypatch.setattr(dask_runner, "failed_row", lambda one, reason: (one.key, reason))
    keys = [["a", "b", "poison", "c", "g"], ["d", "e"], ["f"]]
    chunks = iter([[SimpleNamespace(key=key) for key in chunk] for chunk in keys])
    finished: list[int] = []
    with dask_runner.dask_client(workers=2) as client:
        dask_runner.run_on_dask(client, SimpleNamespace(folder=tmp_path), chunks, finished.append)
    assert [key for key, _ in _Store.recorded] == ["poison"]
    assert all("worker" in reason for _, reason in _Store.recorded)
    assert sum(finished) == sum(map(len, keys))


class Item:
    """Stands for a configuration."""

    def __init__(self, key):
        self.key = key


def keys_of_chunk(context, chunk):
    """Finishes a chunk at once."""
    return [one.key for one in chunk]


@pytest.mark.parametrize("logged", [dask_runner._LOGGED_MESSAGES, 1000])
def test_the_driver_forgets_finished_configurations(logged, monkeypatch, tmp_path):
    monkeypatch.setattr(dask_runner, "relax_chunk", keys_of_chunk)
    monkeypatch.setattr(dask_runner, "_LOGGED_MESSAGES", logged)
    chunks = ([Item(str(number))] for number in range(120))
    with dask_runner.dask_client(workers=2) as client:
        dask_runner.run_on_dask(client, SimpleNamespace(folder=tmp_path), chunks, lambda count: None)
        gc.collect()
        kept = sum(type(one) is Item for one in gc.get_objects())  # also copies, in the scheduler
    assert (kept < 60) == (logged < 1000), f"{kept} of 120 are kept; Dask's default log keeps them all"


def test_slurm_jobs_are_described_by_the_options():
    cluster = dask_runner.slurm_cluster({"partition": "long", "time": "02:00:00", "memory": "8GB"})
    try:
        script = cluster.job_script()
    finally:
        cluster.close()
    assert "#SBATCH -p long" in script and "#SBATCH -t 02:00:00" in script and "--mem=8G" in script
