"""Runs the tasks of a recipe, in parallel and resumably.

Only the main process writes. The labels of a finished task are appended to the label file (``label_files.py``) at once;
then a line with the new end of that file is appended to ``journal.jsonl``. After a crash, labels beyond the last end in
the journal are removed and their task is repeated, so no journaled label is lost and none is doubled.
"""

import json
import multiprocessing
import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ase import Atoms

from faenet_calc.errors import InputError
from faenet_calc.files import locked, write_atomically
from faenet_calc.labelling.calculators import Calculators, in_own_folders, load_calculators
from faenet_calc.labelling.label_files import FILES, LabelFile, LabelFormat, append_text
from faenet_calc.labelling.labels import fingerprint, label
from faenet_calc.labelling.recipe import Recipe, SelectionConfig
from faenet_calc.labelling.sampling import Snapshot, snapshots
from faenet_calc.labelling.tasks import Task, plan
from faenet_calc.progress import progress_bar
from faenet_calc.settings import to_mapping

JOURNAL, RECIPE, LOCK = "journal.jsonl", "recipe.json", "lock"


@dataclass(frozen=True, kw_only=True)
class Progress:
    """Contents of an output folder.

    Attributes:
        file: The label file.
        tasks: Finished tasks, including failed ones.
        labels: Structures written.
        duplicates: Structures skipped because an equal one had been written.
        dropped: Structures skipped because a force exceeds the limit or a value is not finite.
        failed: Tasks that ended with an error of the calculator; the journal has the messages.
    """

    file: Path
    tasks: int = 0
    labels: int = 0
    duplicates: int = 0
    dropped: int = 0
    failed: int = 0


@dataclass(frozen=True, kw_only=True)
class _Result:
    """The result of one task.

    Attributes:
        models: Digests of the model files that the worker loaded, by role.
    """

    task: int
    structures: tuple[Atoms, ...]
    fingerprints: tuple[str, ...]
    dropped: int
    error: str
    cpu_s: float
    models: dict[str, str]


def generate(
    recipe: Recipe,
    out: Path,
    *,
    workers: int = 1,
    time_limit_s: float | None = None,
    progress: bool = False,
    form: LabelFormat | None = None,
    trust_code: bool = False,
) -> Progress:
    """Generate the labels of a recipe, or those that are missing.

    Args:
        recipe: What to generate.
        out: Folder for the labels, ``journal.jsonl`` and ``recipe.json``. A folder with a run of the same recipe is
            resumed.
        workers: Number of processes, each with its own calculator.
        time_limit_s: No task is started after this time (s).
        progress: Show a progress bar.
        form: Write ``labels.extxyz`` or ``labels.aselmdb``; None for the format of the folder, extxyz in a new one.
        trust_code: Allow any ``factory`` in the recipe; see :mod:`faenet_calc.labelling.calculators`.

    Raises:
        InputError: The folder belongs to another recipe, has another format or labels without a journal, is used by
            another process, or was generated with other model files; or a factory is not trusted.
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
        with progress_bar(shown=progress, total=total, initial=writer.progress.tasks, unit="tasks") as bar:
            for result in _results(recipe, todo, workers, end, trust_code):
                writer.append(result)
                bar.set_postfix(labels=writer.progress.labels, failed=writer.progress.failed, refresh=False)
                bar.update()
        return writer.progress


def _results(recipe: Recipe, todo: list[Task], workers: int, end: float | None, trust_code: bool) -> Iterator[_Result]:
    """Results in the order in which tasks finish; a single worker runs in this process."""
    if not todo:
        return
    if workers == 1:
        calculators = load_calculators(recipe, trust_code=trust_code)
        for task in todo:
            if end is not None and time.monotonic() > end:
                return
            yield _run(task, recipe, calculators)
        return
    waiting = iter(todo)
    running: set[Future[_Result]] = set()
    context = multiprocessing.get_context("spawn")
    arguments = (recipe, trust_code)
    with ProcessPoolExecutor(workers, mp_context=context, initializer=_start_worker, initargs=arguments) as pool:
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


_worker: dict[str, Any] = {}  # recipe and calculators of a worker process


def _start_worker(recipe: Recipe, trust_code: bool) -> None:
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    _worker["recipe"] = recipe
    try:
        own = in_own_folders(recipe, multiprocessing.current_process().name)
        _worker["calculators"] = load_calculators(own, trust_code=trust_code)
    except InputError as error:  # an exception here would only be reported as a broken pool
        _worker["error"] = error


def _exit_with_parent() -> None:
    """Exit when the main process ends; otherwise a worker would wait for tasks forever after a kill."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _run_in_worker(task: Task) -> _Result:
    if "error" in _worker:
        raise _worker["error"]
    return _run(task, _worker["recipe"], _worker["calculators"])


def _run(task: Task, recipe: Recipe, calculators: Calculators) -> _Result:
    """Run one task. An error of the calculator ends the task, not the run; labels from before the error are kept."""
    structures: list[Atoms] = []
    marks: list[str] = []
    dropped, error, begin = 0, "", time.process_time()
    try:
        explored = snapshots(task, recipe, calculators.explores.calculator, calculators.labels.calculator)
        for number, snapshot in _selected(explored, recipe.selection):
            atoms = label(snapshot, calculators, task, recipe, number)
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
        models=calculators.models,
    )


def _selected(explored: Iterator[Snapshot], selection: SelectionConfig | None) -> Iterator[tuple[int, Snapshot]]:
    """Numbered snapshots to label: all of them as they come, or those with the largest uncertainty of the explorer."""
    if selection is None:
        yield from enumerate(explored)
        return
    candidates = []
    for number, snapshot in enumerate(explored):
        deviation = snapshot.atoms.calc.get_property("energy_uncertainty", snapshot.atoms) / len(snapshot.atoms)
        candidates.append((deviation, number, replace(snapshot, atoms=snapshot.atoms.copy())))
    candidates.sort(key=lambda one: (-one[0], one[1]))
    kept = candidates[: max(round(selection.share * len(candidates)), 1)]
    yield from ((number, snapshot) for deviation, number, snapshot in kept if deviation > selection.above)


class _Writer:
    """Appends to the label file and its journal.

    Attributes:
        done: Indices of finished tasks.
        progress: Counts over all runs.
    """

    def __init__(self, out: Path, recipe: Recipe, form: LabelFormat | None) -> None:
        self._out = out
        self._journal = out / JOURNAL
        self._seen: set[str] = set()
        self._models: dict[str, str] | None = None
        self.done: set[int] = set()
        first, lines = self._read() if self._journal.exists() else ({}, [])
        stored: LabelFormat | None = first.get("format", "extxyz") if first else None
        if stored and form and form != stored:
            raise InputError(
                f"{out} holds labels as {stored}, asked for {form}; choose another folder, or convert them"
            )
        if not first:
            self._refuse_labels_without_journal()
        self._labels: LabelFile = FILES[stored or form or "extxyz"](out)
        self.progress = Progress(file=self._labels.path)
        if first:
            self._resume(recipe, first, lines)
        else:
            settings = {"digest": recipe.digest(), "recipe": to_mapping(recipe)}
            write_atomically(out / RECIPE, (json.dumps(settings, indent=1) + "\n").encode())
            header = {"digest": recipe.digest(), "format": form or "extxyz"}
            write_atomically(self._journal, (json.dumps(header) + "\n").encode())

    def _refuse_labels_without_journal(self) -> None:
        """Without the journal nobody knows which tasks are done, and every label would be written again."""
        for file in (self._out / f"labels.{form}" for form in FILES):
            if file.exists() and file.stat().st_size:
                raise InputError(
                    f"{file} has labels, but {JOURNAL} is missing from the folder, so finished tasks are unknown; "
                    f"restore {JOURNAL}, move the labels away, or choose another folder"
                )

    def append(self, result: _Result) -> None:
        """Write the new structures of a task, then its line in the journal."""
        if self._models not in (None, result.models):
            raise InputError(
                f"{self._out} was generated with model files {_short(self._models)}, now {_short(result.models)} were "
                "loaded; choose another folder, or restore the earlier files"
            )
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
            "models": result.models,
            "fingerprints": list(fresh),
        }
        append_text(self._journal, json.dumps(line) + "\n")
        self._count(line)

    def _count(self, line: dict[str, Any]) -> None:
        self.done.add(line["task"])
        self._seen.update(line["fingerprints"])
        self._models = line.get("models")
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
        """Header and complete lines of the journal; an incomplete last line is removed."""
        whole, _, torn = self._journal.read_text(encoding="utf-8").rpartition("\n")
        if torn:
            os.truncate(self._journal, len(whole.encode()) + 1 if whole else 0)
        try:
            first, *lines = [json.loads(line) for line in whole.splitlines()]
        except ValueError as error:
            raise InputError(f"{self._journal} is damaged ({error}); restore it, or choose another folder") from error
        return first, lines

    def _resume(self, recipe: Recipe, first: dict[str, Any], lines: list[dict[str, Any]]) -> None:
        if first["digest"] != recipe.digest():
            raise InputError(
                f"{self._out} holds labels of another recipe (digest {first['digest']}, this one {recipe.digest()}); "
                "choose another folder, or restore the recipe from its recipe.json"
            )
        for line in lines:
            self._count(line)
        self._labels.cut(lines[-1]["end"] if lines else 0, self.progress.labels)


def _short(models: dict[str, str] | None) -> str:
    return ", ".join(f"{role} {digest[:12] or 'none'}" for role, digest in (models or {}).items())
