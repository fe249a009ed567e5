"""Simulations in lockstep: shared calls, independent failures, bounded activity."""

import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from faenet_calc.simulate.lockstep import Lockstep


class _Doubler:
    """Doubles numbers, refuses 13, and remembers how many came together."""

    def __init__(self):
        self.batches = []

    def __call__(self, requests):
        self.batches.append(len(requests))
        return [ValueError("13 is refused") if request == 13 else 2 * request for request in requests]


def _doubling(lockstep, start, times):
    def run():
        value = start
        for _ in range(times):
            value = lockstep.ask(value)
        return value

    return run


def test_requests_are_answered_together():
    doubler = _Doubler()
    lockstep = Lockstep(doubler)
    results = dict(lockstep.run([_doubling(lockstep, 1, 3), _doubling(lockstep, 5, 1), _doubling(lockstep, 7, 0)]))
    assert results == {0: 8, 1: 10, 2: 7}
    assert doubler.batches == [2, 1, 1]


def test_waiting_simulations_enter_as_others_leave():
    doubler = _Doubler()
    lockstep = Lockstep(doubler, max_active=2)
    assert len(list(lockstep.run([_doubling(lockstep, 1, 2) for _ in range(5)]))) == 5
    assert max(doubler.batches) == 2
    assert sum(doubler.batches) == 10


def test_requests_of_the_most_frequent_kind_are_answered_first():
    answered = []

    def answer(requests):
        answered.append(sorted(requests))
        return [request + 10 for request in requests]

    lockstep = Lockstep(answer, kind=lambda request: request % 2)

    def staged(first, second):
        def run():
            lockstep.ask(first)
            return lockstep.ask(second)

        return run

    # The odd request waits until the even ones have turned odd, and is then answered together with them.
    results = dict(lockstep.run([staged(1, 3), staged(0, 1), staged(2, 1), staged(4, 1)]))
    assert results == {0: 13, 1: 11, 2: 11, 3: 11}
    assert answered == [[0, 2, 4], [1, 1, 1, 1], [3]]


def test_capacity_limits_the_active_cost_but_never_starves():
    doubler = _Doubler()
    lockstep = Lockstep(doubler, cost=lambda request: 10.0, capacity=25.0)
    assert len(list(lockstep.run([_doubling(lockstep, 1, 1) for _ in range(4)]))) == 4
    assert doubler.batches == [2, 2]
    doubler.batches.clear()
    small = Lockstep(doubler, cost=lambda request: 10.0, capacity=1.0)
    assert len(list(small.run([_doubling(small, 1, 1) for _ in range(3)]))) == 3
    assert doubler.batches == [1, 1, 1]


def test_a_refused_request_is_raised_where_it_was_made():
    lockstep = Lockstep(_Doubler())

    def careful():
        try:
            return lockstep.ask(13)
        except ValueError as error:
            return str(error)

    results = dict(lockstep.run([careful, _doubling(lockstep, 3, 2)]))
    assert results == {0: "13 is refused", 1: 12}


def test_an_unhandled_error_ends_the_run_and_closes_the_others():
    lockstep, closed = Lockstep(_Doubler()), []

    def careful():
        try:
            while True:
                lockstep.ask(1)
        finally:
            closed.append(True)

    with pytest.raises(ValueError, match="13"):
        list(lockstep.run([careful, _doubling(lockstep, 13, 1), careful]))
    assert closed == [True, True]


@pytest.mark.parametrize("n_groups", [2, 3])
def test_groups_are_answered_in_threads_and_simulations_run_in_the_caller(n_groups):
    threads, doubler = {"answer": set(), "simulation": set()}, _Doubler()

    def answer(requests):
        threads["answer"].add(threading.get_ident())
        return doubler(requests)

    with ThreadPoolExecutor(n_groups) as pool:
        lockstep = Lockstep(answer, n_groups=n_groups, executor=pool)

        def simulation(start):
            threads["simulation"].add(threading.get_ident())
            return lockstep.ask(lockstep.ask(start))

        results = dict(lockstep.run([partial(simulation, start) for start in range(7)]))
    assert results == {start: 4 * start for start in range(7)}
    assert threads["simulation"] == {threading.get_ident()}
    assert threading.get_ident() not in threads["answer"]
    sizes = [len(range(first, 7, n_groups)) for first in range(n_groups)]
    assert sorted(doubler.batches) == sorted(2 * sizes), "the groups do not depend on timing"


def test_an_error_in_one_group_closes_all():
    closed = []
    with ThreadPoolExecutor(2) as pool:
        lockstep = Lockstep(_Doubler(), n_groups=2, executor=pool)

        def careful():
            try:
                while True:
                    lockstep.ask(1)
            finally:
                closed.append(True)

        with pytest.raises(ValueError, match="13"):
            list(lockstep.run([careful, _doubling(lockstep, 13, 1), careful]))
    assert closed == [True, True]


def test_asking_outside_a_simulation_is_an_error():
    with pytest.raises(RuntimeError, match="outside"):
        Lockstep(_Doubler()).ask(1)
