"""Batches that are built while earlier ones are used."""

import threading

import pytest

from faenet_calc.training.batches import AHEAD, made_ahead


def test_batches_come_in_order_and_the_next_ones_are_begun():
    begun, third = [], threading.Event()

    def make(number):
        begun.append(number)
        if number == AHEAD:
            third.set()
        return number**2

    made = made_ahead(make, range(10))
    assert next(made) == 0
    assert third.wait(timeout=60), "the batches after the first are not begun while it is used"
    assert len(begun) <= AHEAD + 1, "more batches in memory than asked for"
    assert [0, *made] == [number**2 for number in range(10)]
    assert begun == list(range(10))


def test_they_are_made_in_another_thread():
    assert next(made_ahead(lambda _: threading.current_thread(), [0])) is not threading.current_thread()


@pytest.mark.parametrize("wrong", [0, 5, 9])
def test_an_error_is_raised_at_its_batch(wrong):
    def make(number):
        if number == wrong:
            raise OSError("the file is gone")
        return number

    found = []
    with pytest.raises(OSError, match="gone"):
        found.extend(made_ahead(make, range(10)))  # extend keeps what came before the error
    assert found == list(range(wrong))


def test_leaving_early_ends_the_thread():
    before = threading.active_count()
    made = made_ahead(lambda number: number, range(1000))
    assert next(made) == 0
    assert threading.active_count() == before + 1
    made.close()
    assert threading.active_count() == before
