"""Chunks of a screening on a Dask cluster: embedded in this process, running elsewhere, or started through SLURM.

Chunks are submitted as workers become free, so the driver holds a bounded number of structures. A chunk whose worker
dies is tried again elsewhere; after the second death it is split. A single configuration that lost its worker twice
runs once more at the end, with nothing else on the cluster; if it ends its worker again, it is recorded with an error.
"""

import hashlib
import logging
import pickle
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

from faenet_calc.errors import InputError
from faenet_calc.files import write_atomically
from faenet_calc.screening.placement import Configuration
from faenet_calc.screening.results import failed_row
from faenet_calc.screening.store import ScreenStore
from faenet_calc.screening.worker import Context, calculator_of, relax_chunk

log = logging.getLogger(__name__)

_QUEUED_PER_WORKER = 2  # chunks in flight per worker: one running, one waiting
_DEATHS = 1  # times that a chunk may lose its worker and be tried again elsewhere
# Dask keeps its last 1000 messages per connection for developers: every one of ours holds the structures of a chunk.
_LOGGED_MESSAGES = 10
# Dask gives up a worker that has not started again after this time. Its default of 15 s is too short on a busy machine:
# without any worker the screening would wait forever.
_RESTART_TIMEOUT = "10 minutes"


@contextmanager
def dask_client(
    *, workers: int = 1, scheduler: str | None = None, slurm: dict[str, str] | None = None
) -> Iterator[Any]:
    """A Dask client; an embedded or SLURM cluster is closed at the end.

    Args:
        workers: Worker processes of an embedded cluster, or SLURM jobs.
        scheduler: Address of a running scheduler, e.g. ``tcp://host:8786``.
        slurm: Options of dask_jobqueue.SLURMCluster: partition, account, cores, memory, walltime, …

    Raises:
        InputError: If Dask is not installed, or the scheduler cannot be reached.
    """
    try:
        import dask
        from distributed import Client, LocalCluster
    except ImportError as error:
        raise InputError("several workers need Dask: pip install 'faenet-calc[screen]'") from error
    settings = {
        "distributed.scheduler.allowed-failures": _DEATHS,
        "distributed.admin.low-level-log-length": _LOGGED_MESSAGES,
        "distributed.deploy.lost-worker-timeout": _RESTART_TIMEOUT,
    }
    with dask.config.set(settings):
        if scheduler is not None:
            try:
                remote = Client(scheduler, timeout="30s")
            except (OSError, ValueError) as error:
                raise InputError(f"no Dask scheduler answers at {scheduler!r} ({error})") from error
            with remote:
                yield remote
            return
        cluster: Any
        if slurm is not None:
            cluster = slurm_cluster(slurm)
            cluster.scale(jobs=workers)
        else:
            cluster = LocalCluster(
                n_workers=workers, threads_per_worker=1, dashboard_address=":0", silence_logs=logging.CRITICAL
            )
        with cluster, Client(cluster) as client:
            yield client


def slurm_cluster(options: dict[str, str]) -> Any:
    """A Dask cluster of SLURM jobs; ``cluster.job_script()`` shows what is submitted."""
    try:
        from dask_jobqueue import SLURMCluster
    except ImportError as error:
        raise InputError("--slurm needs dask-jobqueue: pip install 'faenet-calc[screen]'") from error
    settings: dict[str, Any] = {"cores": 1, "processes": 1, "memory": "4GB", "walltime": "12:00:00"}
    names = {"partition": "queue", "time": "walltime", "cpus": "cores"}
    for name, value in options.items():
        settings[names.get(name, name)] = int(value) if value.isdecimal() else value
    return SLURMCluster(**settings)


def run_on_dask(
    client: Any,
    context: Context,
    chunks: Iterator[list[Configuration]],
    done: Callable[[int], object] = lambda n_configurations: None,
) -> None:
    """Relax chunks on the workers of a client.

    Args:
        client: Dask client.
        context: The same for all chunks; workers read it from its folder once.
        chunks: Read only as fast as workers take them.
        done: Called with the number of configurations of every finished chunk.
    """
    from distributed.scheduler import KilledWorker

    queue = _Queue(client, context, chunks)
    for future in queue:
        chunk, error = queue.take(future)
        if future.status == "cancelled":
            queue.again(chunk)
        elif error is None:
            done(len(chunk))
        elif not isinstance(error, KilledWorker):
            queue.give_up(chunk, str(error))
            done(len(chunk))
        elif len(chunk) > 1:
            log.warning("a chunk of %d configurations lost its worker twice; it is split", len(chunk))
            queue.split(chunk)
        elif queue.is_suspect(chunk):
            queue.give_up(chunk, "its relaxation ended the worker process")
            done(1)
        else:
            queue.suspect(chunk)


def warm_up(client: Any, model: Any, device: str | None) -> None:
    """Let every worker that is there load the packages and the model, without waiting for it."""
    from distributed import fire_and_forget

    for worker in client.nthreads():
        fire_and_forget(client.submit(_load, model, device, workers=[worker], pure=False))


def _load(model: Any, device: str | None) -> None:
    calculator_of(model, device)


def _write_context(context: Context) -> Path:
    """Store the context in its folder, which workers share.

    As the result of a task it would be lost with the workers that hold it, and be blamed for their death.
    """
    content = pickle.dumps(context)
    path = Path(context.folder) / f"context-{hashlib.sha256(content).hexdigest()[:12]}.pickle"
    write_atomically(path, content)
    return path.resolve()


@lru_cache(maxsize=1)
def _read_context(path: Path) -> Context:
    """The context, read once per process."""
    context: Context = pickle.loads(path.read_bytes())
    return context


def _in_context(function: Callable[[Context, list[Configuration]], Any], path: Path, chunk: list[Configuration]) -> Any:
    """The task of a worker."""
    return function(_read_context(path), chunk)


class _Queue:
    """Chunks on their way through the cluster.

    Args:
        client: Dask client.
        context: Stored for the workers.
        chunks: Further chunks.
    """

    def __init__(self, client: Any, context: Context, chunks: Iterator[list[Configuration]]) -> None:
        from distributed import as_completed

        self._client, self._chunks = client, chunks
        self._store = ScreenStore(context.folder)
        self._context = _write_context(context)
        self._running: dict[str, list[Configuration]] = {}
        self._parts: deque[list[Configuration]] = deque()
        self._suspects: deque[list[Configuration]] = deque()
        self._suspected: set[str] = set()
        self._pool = as_completed()

    def __iter__(self) -> Iterator[Any]:
        """Futures as they finish; more chunks are submitted as there is room."""
        self._submit()
        for future in self._pool:
            yield future
            self._submit()

    def take(self, future: Any) -> tuple[list[Configuration], BaseException | None]:
        """The chunk of a finished future, and its exception."""
        error = None if future.status == "cancelled" else future.exception()
        return self._running.pop(future.key), error

    def again(self, chunk: list[Configuration]) -> None:
        """Submit a chunk once more, after the cluster has dropped it."""
        self._parts.append(chunk)

    def split(self, chunk: list[Configuration]) -> None:
        """Try the halves of a chunk separately."""
        middle = len(chunk) // 2
        self._parts.extend([chunk[:middle], chunk[middle:]])

    def suspect(self, chunk: list[Configuration]) -> None:
        """Try a single configuration once more when nothing else runs: another one may have ended its worker."""
        self._suspected.add(chunk[0].key)
        self._suspects.append(chunk)

    def is_suspect(self, chunk: list[Configuration]) -> bool:
        """Whether this configuration has been tried alone."""
        return chunk[0].key in self._suspected

    def give_up(self, chunk: list[Configuration], reason: str) -> None:
        """Record an error for every configuration of a chunk that is not finished."""
        finished = self._store.finished()
        for one in chunk:
            if one.key not in finished:
                self._store.record(failed_row(one, reason))

    def _submit(self) -> None:
        capacity = _QUEUED_PER_WORKER * max(1, len(self._client.nthreads()))
        while len(self._running) < capacity:
            chunk = self._parts.popleft() if self._parts else next(self._chunks, None)
            if chunk is None:
                break
            self._start(chunk)
        if not self._running and self._suspects:
            self._start(self._suspects.popleft())

    def _start(self, chunk: list[Configuration]) -> None:
        future = self._client.submit(_in_context, relax_chunk, self._context, chunk, pure=False)
        self._running[future.key] = chunk
        self._pool.add(future)
