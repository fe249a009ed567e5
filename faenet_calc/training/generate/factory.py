"""Runs a recipe's tasks, in parallel and resumably.

One process writes. A finished task is appended to ``labels.extxyz`` in one piece and then to ``journal.jsonl`` with the
length of the label file. After a kill, whatever lies beyond the last journalled length is cut off and its task runs
again, so at most the tasks under way are lost.
"""

import fcntl
import json
import multiprocessing
import os
import time
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from ase.calculators.calculator import Calculator
from tqdm import tqdm

from faenet_calc.config import to_mapping
from faenet_calc.errors import InputError
from faenet_calc.training.generate.labels import build_calculator, fingerprint, label, to_text
from faenet_calc.training.generate.recipe import Recipe
from faenet_calc.training.generate.sampling import snapshots
from faenet_calc.training.generate.tasks import Task, plan

LABELS, JOURNAL, RECIPE, LOCK = "labels.extxyz", "journal.jsonl", "recipe.json", "lock"


@dataclass(frozen=True, kw_only=True)
class Progress:
    """What an output folder holds.

    Attributes:
        tasks: Finished tasks, failed ones included.
        labels: Structures written.
        duplicates: Structures left out because an equal one was there.
        dropped: Structures left out for a force beyond the limit or a value that is not finite.
        failed: Tasks that ended with an error of the calculator; the journal has its words.
    """

    tasks: int = 0
    labels: int = 0
    duplicates: int = 0
    dropped: int = 0
    failed: int = 0


@dataclass(frozen=True, kw_only=True)
class _Result:
    """What a worker hands back for one task."""

    task: int
    texts: tuple[str, ...]
    fingerprints: tuple[str, ...]
    dropped: int
    error: str
    cpu_s: float


def generate(
    recipe: Recipe, out: Path, *, workers: int = 1, time_limit_s: float | None = None, progress: bool = False
) -> Progress:
    """Make the labels of a recipe, or what is missing of them.

    Args:
        out: Folder for ``labels.extxyz``, ``journal.jsonl`` and ``recipe.json``; one that holds a run of the same
            recipe is continued.
        workers: Processes, each with its own calculator.
        time_limit_s: No task is begun after this many seconds.
        progress: Show a bar.

    Raises:
        InputError: The folder belongs to another recipe or is in use by another process.
    """
    if workers < 1:
        raise InputError(f"workers = {workers}, expected at least 1")
    out.mkdir(parents=True, exist_ok=True)
    with _locked(out):
        writer = _Writer(out, recipe)
        todo = [task for task in plan(recipe) if task.index not in writer.done]
        end = None if time_limit_s is None else time.monotonic() + time_limit_s
        total = len(todo) + writer.progress.tasks
        with tqdm(total=total, initial=writer.progress.tasks, unit="task", disable=not progress) as bar:
            for result in _results(recipe, todo, workers, end):
                writer.append(result)
                bar.set_postfix(labels=writer.progress.labels, failed=writer.progress.failed)
                bar.update()
        return writer.progress


def _results(recipe: Recipe, todo: list[Task], workers: int, end: float | None) -> Iterator[_Result]:
    """Results as they come; in this process for one worker."""
    if workers == 1:
        calculator = build_calculator(recipe.calculator)
        for task in todo:
            if end is not None and time.monotonic() > end:
                return
            yield _run(task, recipe, calculator)
        return
    waiting = iter(todo)
    running: set[Future[_Result]] = set()
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context, initializer=_begin, initargs=(recipe,)) as pool:
        while True:
            while len(running) < workers and (end is None or time.monotonic() < end):
                following = next(waiting, None)
                if following is None:
                    break
                running.add(pool.submit(_run_in_worker, following))
            if not running:
                return
            finished, running = wait(running, return_when=FIRST_COMPLETED)
            for future in finished:
                yield future.result()


_worker: dict[str, Any] = {}  # of a worker process: its recipe and calculator


def _begin(recipe: Recipe) -> None:
    _worker.update(recipe=recipe, calculator=build_calculator(recipe.calculator))


def _run_in_worker(task: Task) -> _Result:
    return _run(task, _worker["recipe"], _worker["calculator"])


def _run(task: Task, recipe: Recipe, calculator: Calculator) -> _Result:
    """One task. An error of the calculator ends the task, not the run; labels made before it are kept."""
    texts: list[str] = []
    marks: list[str] = []
    dropped, error, begin = 0, "", time.process_time()
    try:
        for number, snapshot in enumerate(snapshots(task, recipe, calculator)):
            atoms = label(snapshot, task, recipe, number)
            if atoms is None:
                dropped += 1
                continue
            texts.append(to_text(atoms))
            marks.append(fingerprint(atoms))
    except Exception as problem:
        error = f"{type(problem).__name__}: {problem}"
    return _Result(
        task=task.index,
        texts=tuple(texts),
        fingerprints=tuple(marks),
        dropped=dropped,
        error=error,
        cpu_s=round(time.process_time() - begin, 3),
    )


class _Writer:
    """The label file and its journal.

    Attributes:
        done: Indices of finished tasks.
        progress: Counts over all runs.
    """

    def __init__(self, out: Path, recipe: Recipe) -> None:
        self._labels, self._journal = out / LABELS, out / JOURNAL
        self._seen: set[str] = set()
        self.done: set[int] = set()
        self.progress = Progress()
        if self._journal.exists():
            self._resume(out, recipe)
        else:
            self._labels.write_text("")
            mapping = {"digest": recipe.digest(), "recipe": to_mapping(recipe)}
            (out / RECIPE).write_text(json.dumps(mapping, indent=1) + "\n")
            self._journal.write_text(json.dumps({"digest": recipe.digest()}) + "\n")

    def append(self, result: _Result) -> None:
        """Write the new structures of a task, then its line in the journal."""
        fresh: dict[str, str] = {}
        for mark, text in zip(result.fingerprints, result.texts, strict=True):
            if mark not in self._seen:
                fresh.setdefault(mark, text)
        _append(self._labels, "".join(fresh.values()))
        line = {
            "task": result.task,
            "labels": len(fresh),
            "duplicates": len(result.texts) - len(fresh),
            "dropped": result.dropped,
            "error": result.error,
            "cpu_s": result.cpu_s,
            "end": self._labels.stat().st_size,
            "fingerprints": list(fresh),
        }
        _append(self._journal, json.dumps(line) + "\n")
        self._count(line)

    def _count(self, line: dict[str, Any]) -> None:
        self.done.add(line["task"])
        self._seen.update(line["fingerprints"])
        before = self.progress
        self.progress = Progress(
            tasks=before.tasks + 1,
            labels=before.labels + line["labels"],
            duplicates=before.duplicates + line["duplicates"],
            dropped=before.dropped + line["dropped"],
            failed=before.failed + bool(line["error"]),
        )

    def _resume(self, out: Path, recipe: Recipe) -> None:
        whole, _, torn = self._journal.read_text().rpartition("\n")
        if torn:
            os.truncate(self._journal, len(whole.encode()) + 1)
        first, *lines = [json.loads(line) for line in whole.splitlines()]
        if first["digest"] != recipe.digest():
            raise InputError(
                f"{out} holds labels of another recipe (digest {first['digest']}, this one {recipe.digest()}); "
                "choose another folder, or restore the recipe from its recipe.json"
            )
        end = 0
        for line in lines:
            self._count(line)
            end = line["end"]
        if self._labels.stat().st_size < end:
            raise InputError(f"{self._labels} is shorter than its journal says ({end} bytes); it was edited or damaged")
        os.truncate(self._labels, end)


def _append(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def _locked(out: Path) -> Iterator[TextIO]:
    """Hold the folder; the lock ends with the process, however it ends."""
    with (out / LOCK).open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise InputError(f"{out} is in use by another process; wait for it or choose another folder") from error
        yield file
