"""Many simulations in lockstep: each is ordinary sequential code, and all of them share one model call per step.

A simulation (a relaxation, a molecular dynamics run) runs in its own greenlet. Where it needs a prediction it calls
:meth:`Lockstep.ask`, which suspends it. As soon as every active simulation waits for a prediction, all requests are
answered together and the simulations continue. Finished simulations leave, waiting ones enter. Because every
simulation runs the same code as it would alone, it takes the same steps and ends at the same structure.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
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


class Lockstep(Generic[Request, Answer]):
    """Runs functions concurrently in one thread and answers their requests together.

    Args:
        answer: Answers a list of requests. An exception in place of an answer is raised in the simulation that asked.
        cost: Share of the capacity that one request takes, e.g. its memory in bytes.
        capacity: Simulations are active at the same time as long as their costs add up to at most this; always at least
            one.
        max_active: Upper limit on the number of active simulations.
    """

    def __init__(
        self,
        answer: Callable[[Sequence[Request]], Sequence[Answer | Exception]],
        *,
        cost: Callable[[Request], float] = lambda request: 0.0,
        capacity: float = float("inf"),
        max_active: int | None = None,
    ) -> None:
        self._answer, self._cost = answer, cost
        self._capacity, self._max_active = capacity, max_active
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
        waiting, active = deque(enumerate(functions)), list[_Simulation[Request]]()
        answered = deque[tuple[_Simulation[Request], Answer | Exception]]()
        try:
            while waiting or active:
                while waiting and self._has_room(active):
                    index, function = waiting.popleft()
                    yield from self._advance(active, index, greenlet(function))
                answers = self._answer([simulation.request for simulation in active]) if active else []
                answered.extend(zip(active, answers, strict=True))
                active = []
                while answered:
                    simulation, answer = answered.popleft()
                    yield from self._advance(active, simulation.index, simulation.greenlet, answer)
        finally:
            for simulation in [*active, *(one for one, _ in answered)]:
                simulation.greenlet.throw()  # raises GreenletExit in it, so that it closes its files
            self._hub = None

    def _has_room(self, active: list[_Simulation[Request]]) -> bool:
        if not active:
            return True
        used = sum(simulation.cost for simulation in active)
        mean = used / len(active)  # the cost of the next one is known only after it has started
        return used + mean <= self._capacity and (self._max_active is None or len(active) < self._max_active)

    def _advance(
        self, active: list[_Simulation[Request]], index: int, running: greenlet, *answer: Any
    ) -> Iterator[tuple[int, Any]]:
        """Continue a simulation until its next request, or to its end."""
        value = running.switch(*answer)
        if running.dead:
            yield index, value
        else:
            active.append(_Simulation(index, running, value, self._cost(value)))
