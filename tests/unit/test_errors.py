"""Wording of messages, and the line that a warning points at."""

import sys
import types
import warnings

import greenlet
import pytest

from faenet_calc.errors import counted, did_you_mean, enumerated, warn_user


def test_counted():
    assert [counted(n, "structure") for n in (0, 1, 2)] == ["0 structures", "1 structure", "2 structures"]
    assert [counted(n, "trajectory", "trajectories") for n in (1, 3)] == ["1 trajectory", "3 trajectories"]


@pytest.mark.parametrize(
    ("words", "text"), [((), ""), (("a",), "a"), (("a", "b"), "a and b"), (("a", "b", "c"), "a, b and c")]
)
def test_enumerated(words, text):
    assert enumerated(words) == text


def test_did_you_mean():
    assert did_you_mean("COx", ["CO", "H2"]) == "; did you mean CO?"
    assert did_you_mean("xyz", ["CO", "H2"]) == ""


def _function_of(module, source, **names):
    """The function ``f`` of a module with this name."""
    home = types.ModuleType(module)
    vars(home).update(names)
    exec(compile(source, f"<{module}>", "exec"), vars(home))
    return home.f


@pytest.mark.parametrize("in_greenlet", [False, True])
def test_warnings_point_at_the_line_of_the_user(in_greenlet):
    ours = _function_of("faenet_calc.calculator", "def f(): warn('careful')", warn=warn_user)
    of_ase = _function_of("ase.calculators.calculator", "def f(): g()", g=ours)
    start = _function_of("faenet_calc.simulate", "def f(g): greenlet(g).switch()", greenlet=greenlet.greenlet)
    with pytest.warns(UserWarning, match="careful") as caught:
        start(of_ase) if in_greenlet else of_ase()
        line = sys._getframe().f_lineno - 1
    assert (caught[0].filename, caught[0].lineno) == (__file__, line)


def test_warnings_of_one_line_are_filtered_as_usual():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("once")
        for _ in range(3):
            warn_user("careful")
    assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match="careful"):
            warn_user("careful")
