"""Runs a recipe's tasks, in parallel and resumably.

One process writes. A finished task is appended to the labels (``label_files.py``) in one piece and then to
``journal.jsonl`` with where the labels end. After a kill, whatever lies beyond the last journalled end is cut off and
its task runs again, so at most the tasks under way are lost.
"""

import json
import multiprocessing
import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ase import Atoms
from ase.calculators.calculator import Calculator

from faenet_calc.errors import InputError
from faenet_calc.files import locked
from faenet_calc.labelling.label_files import FILES, LabelFile, LabelFormat, append_text
from faenet_calc.labelling.labels import build_calculator, fingerprint, label
from faenet_calc.labelling.recipe import Recipe
from faenet_calc.labelling.sampling import snapshots
from faenet_calc.labelling.tasks import Task, plan
from faenet_calc.progress import progress_bar
from faenet_calc.settings import to_mapping

JOURNAL, RECIPE, LOCK = "journal.jsonl", "recipe.json", "lock"


@dataclass(frozen=True, kw_only=True)
class Progress:
    """What an output folder holds.

    Attributes:
        file: The labels.
        tasks: Finished tasks, failed ones included.
        labels: Structures written.
        duplicates: Structures left out because an equal one was there.
        dropped: Structures left out for a force beyond the limit or a value that is not finite.
        failed: Tasks that ended with an error of the calculator; the journal has its words.
    """

    file: Path
    tasks: int = 0
    labels: int = 0
    duplicates: int = 0
    dropped: int = 0
    failed: int = 0


@dataclass(frozen=True, kw_only=True)
class _Result:
    """What a worker hands back for one task."""

    task: int
    structures: tuple[Atoms, ...]
    fingerprints: tuple[str, ...]
    dropped: int
    error: str
    cpu_s: float


def generate(
    recipe: Recipe,
    out: Path,
    *,
    workers: int = 1,
    time_limit_s: float | None = None,
    progress: bool = False,
    form: LabelFormat | None = None,
) -> Progress:
    """Make the labels of a recipe, or what is missing of them.

    Args:
        out: Folder for the labels, ``journal.jsonl`` and ``recipe.json``; one that holds a run of the same recipe is
            continued.
        workers: Processes, each with its own calculator.
        time_limit_s: No task is begun after this many seconds.
        progress: Show a bar.
        form: Write ``labels.extxyz`` or ``labels.aselmdb``; None for what the folder has, extxyz in a new one.

    Raises:
        InputError: The folder belongs to another recipe, has another format, or is in use by another process.
    """
    if workers < 1:
        raise InputError(f"workers = {workers}, expected at least 1")
    out.mkdir(parents=True, exist_ok=True)
    with locked(out / LOCK, wait=False):
        writer = _Writer(out, recipe, form)
        wanted = [task for task in plan(recipe) if recipe.with_heldout or task.split != "heldout"]
        todo = [task for task in wanted if task.index not in writer.done]
        end = None if time_limit_s is None else time.monotonic() + time_limit_s
        total = len(todo) + writer.progress.tasks
        with progress_bar(shown=progress, total=total, initial=writer.progress.tasks, unit="task") as bar:
            for result in _results(recipe, todo, workers, end):
                writer.append(result)
                bar.set_postfix(labels=writer.progress.labels, failed=writer.progress.failed, refresh=False)
                bar.update()
        return writer.progress


def _results(recipe: Recipe, todo: list[Task], workers: int, end: float | None) -> Iterator[_Result]:
    """Results as they come; in this process for one worker."""
    if workers == 1:
        calculators = _build(recipe)
        for task in todo:
            if end is not None and time.monotonic() > end:
                return
            yield _run(task, recipe, *calculators)
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


_worker: dict[str, Any] = {}  # of a worker process: its recipe and calculators


def _begin(recipe: Recipe) -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _worker.update(recipe=recipe, calculators=_build(recipe))


def _build(recipe: Recipe) -> tuple[Calculator, Calculator]:
    """Who labels and who explores, often the same."""
    calculator = build_calculator(recipe.calculator)
    return calculator, calculator if recipe.explorer is None else build_calculator(recipe.explorer)


def _end_with_parent() -> None:
    """A worker whose run was killed would wait for its next task for ever."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _run_in_worker(task: Task) -> _Result:
    return _run(task, _worker["recipe"], *_worker["calculators"])


def _run(task: Task, recipe: Recipe, calculator: Calculator, explorer: Calculator) -> _Result:
    """One task. An error of the calculator ends the task, not the run; labels made before it are kept."""
    structures: list[Atoms] = []
    marks: list[str] = []
    dropped, error, begin = 0, "", time.process_time()
    try:
        for number, snapshot in enumerate(snapshots(task, recipe, explorer, calculator)):
            atoms = label(snapshot, calculator, task, recipe, number)
            if atoms is None:
                dropped += 1
                continue
            structures.append(atoms)
            marks.append(fingerprint(atoms))
    except Exception as problem:
        error = f"{type(problem).__name__}: {problem}"
    return _Result(
        task=task.index,
        structures=tuple(structures),
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

    def __init__(self, out: Path, recipe: Recipe, form: LabelFormat | None) -> None:
        self._journal = out / JOURNAL
        self._seen: set[str] = set()
        self.done: set[int] = set()
        first, lines = self._read() if self._journal.exists() else ({}, [])
        stored: LabelFormat | None = first.get("format", "extxyz") if first else None
        if stored and form and form != stored:
            raise InputError(
                f"{out} holds labels as {stored}, asked for {form}; choose another folder, or convert them"
            )
        self._labels: LabelFile = FILES[stored or form or "extxyz"](out)
        self.progress = Progress(file=self._labels.path)
        if first:
            self._resume(out, recipe, first, lines)
        else:
            mapping = {"digest": recipe.digest(), "recipe": to_mapping(recipe)}
            (out / RECIPE).write_text(json.dumps(mapping, indent=1) + "\n")
            header = {"digest": recipe.digest(), "format": form or "extxyz"}
            self._journal.write_text(json.dumps(header) + "\n")

    def append(self, result: _Result) -> None:
        """Write the new structures of a task, then its line in the journal."""
        fresh: dict[str, Atoms] = {}
        for mark, atoms in zip(result.fingerprints, result.structures, strict=True):
            if mark not in self._seen:
                fresh.setdefault(mark, atoms)
        line = {
            "task": result.task,
            "labels": len(fresh),
            "duplicates": len(result.structures) - len(fresh),
            "dropped": result.dropped,
            "error": result.error,
            "cpu_s": result.cpu_s,
            "end": self._labels.append(list(fresh.values())),
            "fingerprints": list(fresh),
        }
        append_text(self._journal, json.dumps(line) + "\n")
        self._count(line)

    def _count(self, line: dict[str, Any]) -> None:
        self.done.add(line["task"])
        self._seen.update(line["fingerprints"])
        before = self.progress
        self.progress = Progress(
            file=before.file,
            tasks=before.tasks + 1,
            labels=before.labels + line["labels"],
            duplicates=before.duplicates + line["duplicates"],
            dropped=before.dropped + line["dropped"],
            failed=before.failed + bool(line["error"]),
        )

    def _read(self) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """The journal's header and whole lines; a torn last line is cut off."""
        whole, _, torn = self._journal.read_text().rpartition("\n")
        if torn:
            os.truncate(self._journal, len(whole.encode()) + 1)
        first, *lines = [json.loads(line) for line in whole.splitlines()]
        return first, lines

    def _resume(self, out: Path, recipe: Recipe, first: dict[str, Any], lines: list[dict[str, Any]]) -> None:
        if first["digest"] != recipe.digest():
            raise InputError(
                f"{out} holds labels of another recipe (digest {first['digest']}, this one {recipe.digest()}); "
                "choose another folder, or restore the recipe from its recipe.json"
            )
        for line in lines:
            self._count(line)
        self._labels.cut(lines[-1]["end"] if lines else 0, self.progress.labels)
