"""Many simulations in lockstep: each is ordinary sequential code, and all of them share one model call per step.

A simulation (a relaxation, a molecular dynamics run) runs in its own greenlet. Where it needs a prediction it calls
:meth:`Lockstep.ask`, which suspends it. As soon as every active simulation of a group waits for a prediction, all
requests of the most frequent kind are answered together and their simulations continue; those of other kinds wait
until theirs is the most frequent, so that batches stay large. Finished simulations leave, waiting ones enter. Because
every simulation runs the same code as it would alone, it takes the same steps and ends at the same structure.

Several groups keep several processor cores busy: while the requests of one group are answered in a thread, the
simulations of another advance. All simulations run in the thread of the caller. Which simulations form a group does
not depend on timing, so that results are reproducible.
"""

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from greenlet import getcurrent, greenlet

Request = TypeVar("Request")
Answer = TypeVar("Answer")


@dataclass(eq=False)
class _Simulation(Generic[Request]):
    """A suspended simulation.

    Attributes:
        index: Position in the input.
        greenlet: Its execution state.
        request: What it waits for.
        cost: Share of the capacity that its request takes.
    """

    index: int
    greenlet: greenlet
    request: Request
    cost: float


@dataclass(eq=False)
class _Group(Generic[Request, Answer]):
    """Simulations whose requests are answered together.

    Attributes:
        waiting: Functions that have not been started.
        active: Simulations that wait for an answer.
        asked: Those of them whose answers are computed now.
        answers: The answers, while they are computed.
    """

    waiting: deque[tuple[int, Callable[[], Any]]]
    active: list[_Simulation[Request]] = field(default_factory=list)
    asked: list[_Simulation[Request]] = field(default_factory=list)
    answers: "Future[Sequence[Answer | Exception]] | None" = None


class Lockstep(Generic[Request, Answer]):
    """Runs functions concurrently in one thread and answers their requests together.

    Args:
        answer: Answers requests of one kind. An exception in place of an answer is raised in the simulation that asked.
        kind: Requests that can be answered together have equal kinds.
        cost: Share of the capacity that one request takes, e.g. its memory in bytes.
        capacity: Simulations are active at the same time as long as their costs add up to at most this; always at least
            one per group.
        max_active: Upper limit on the number of active simulations.
        n_groups: Number of groups; more than one needs an ``executor``.
        executor: Runs ``answer``; None runs it in the thread of the caller.
    """

    def __init__(
        self,
        answer: Callable[[Sequence[Request]], Sequence[Answer | Exception]],
        *,
        kind: Callable[[Request], Hashable] = lambda request: None,
        cost: Callable[[Request], float] = lambda request: 0.0,
        capacity: float = float("inf"),
        max_active: int | None = None,
        n_groups: int = 1,
        executor: Executor | None = None,
    ) -> None:
        self._answer, self._kind, self._cost = answer, kind, cost
        self._n_groups, self._executor = n_groups, executor
        self._capacity = capacity / n_groups
        self._max_active = None if max_active is None else max(1, max_active // n_groups)
        self._hub: greenlet | None = None

    def ask(self, request: Request) -> Answer:
        """Suspend the calling simulation until its request is answered.

        Raises:
            RuntimeError: If the caller is not a simulation started by :meth:`run`.
        """
        if self._hub is None or getcurrent() is self._hub:
            raise RuntimeError("Lockstep.ask was called outside a simulation started by Lockstep.run")
        answer: Answer | Exception = self._hub.switch(request)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def run(self, functions: Iterable[Callable[[], Any]]) -> Iterator[tuple[int, Any]]:
        """Run every function and yield (index, return value) in the order in which they finish.

        An exception that a function does not handle ends the run and is raised here; functions that must not harm each
        other return their exception.
        """
        self._hub = getcurrent()
        tasks, n = list(enumerate(functions)), self._n_groups
        groups = [_Group[Request, Answer](deque(tasks[first::n])) for first in range(n)]
        suspended = set[greenlet]()
        try:
            for group in groups:
                yield from self._start(group, suspended)
            while running := {group.answers: group for group in groups if group.answers is not None}:
                finished, _ = wait(running, return_when=FIRST_COMPLETED)
                for answers in [one for one in running if one in finished]:
                    group = running[answers]
                    answered, group.asked, group.answers = group.asked, [], None
                    for simulation, answer in zip(answered, answers.result(), strict=True):
                        yield from self._advance(group, suspended, simulation.index, simulation.greenlet, answer)
                    yield from self._start(group, suspended)
        finally:
            for simulation in suspended:
                simulation.throw()  # raises GreenletExit in it, so that it closes its files
            self._hub = None

    def _start(self, group: _Group[Request, Answer], suspended: set[greenlet]) -> Iterator[tuple[int, Any]]:
        """Start waiting simulations as long as there is room, and ask for the answers of the most frequent kind."""
        while group.waiting and self._has_room(group.active):
            index, function = group.waiting.popleft()
            yield from self._advance(group, suspended, index, greenlet(function))
        kinds: dict[Hashable, list[_Simulation[Request]]] = {}
        for simulation in group.active:
            kinds.setdefault(self._kind(simulation.request), []).append(simulation)
        if not kinds:
            return
        asked = max(kinds, key=lambda kind: len(kinds[kind]))
        group.asked = kinds.pop(asked)
        group.active = [simulation for others in kinds.values() for simulation in others]
        requests = [simulation.request for simulation in group.asked]
        if self._executor is not None:
            group.answers = self._executor.submit(self._answer, requests)
        else:
            group.answers = Future()
            group.answers.set_result(self._answer(requests))

    def _has_room(self, active: list[_Simulation[Request]]) -> bool:
        if not active:
            return True
        used = sum(simulation.cost for simulation in active)
        mean = used / len(active)  # the cost of the next one is known only after it has started
        return used + mean <= self._capacity and (self._max_active is None or len(active) < self._max_active)

    def _advance(
        self,
        group: _Group[Request, Answer],
        suspended: set[greenlet],
        index: int,
        running: greenlet,
        *answer: Any,
    ) -> Iterator[tuple[int, Any]]:
        """Continue a simulation until its next request, or to its end."""
        suspended.discard(running)
        value = running.switch(*answer)
        if running.dead:
            yield index, value
        else:
            suspended.add(running)
            group.active.append(_Simulation(index, running, value, self._cost(value)))
