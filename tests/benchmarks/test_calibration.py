"""Scores of the calibration benchmark on numbers whose answers are known."""

import numpy as np
import pytest
from calibration import agreement, auroc, cross_calibrated, far_outside, groups, intervals, left_out_coverage

from faenet_calc import FAENetCalculator


@pytest.fixture(scope="module")
def normal():
    """Deviations, and errors that are drawn with them."""
    rng = np.random.default_rng(0)
    deviation = rng.uniform(0.01, 0.3, 4000)
    return deviation, rng.normal(0.0, deviation)


def test_drawn_errors_are_covered_and_ranked(normal):
    deviation, error = normal
    half, group = np.arange(len(error)) % 2 == 0, np.arange(len(error))
    width, n_atoms = intervals(deviation, error, half, group), np.ones(len(error))
    found = agreement(deviation, width, error, n_atoms)
    assert found["coverage_interval"] == pytest.approx(0.95, abs=0.02)
    assert found["coverage_68"] == pytest.approx(0.683, abs=0.03)
    assert found["coverage_95"] == pytest.approx(0.95, abs=0.02)
    assert found["rank_correlation"] > 0.3
    wrong = agreement(deviation[::-1], width, error, n_atoms)
    assert abs(wrong["rank_correlation"]) < 0.1
    narrow = agreement(0.3 * deviation, 0.3 * width, error, n_atoms)
    assert narrow["coverage_68"] < 0.4 and narrow["coverage_interval"] < 0.6


def test_halves_calibrate_each_other(normal):
    deviation, error = normal
    scaled = cross_calibrated(7.0 * deviation, error, np.arange(len(error)) % 2 == 0)
    assert np.median(scaled / deviation) == pytest.approx(1.0, rel=0.1)


def test_intervals_do_not_cover_a_kind_of_system_whose_errors_are_larger(normal):
    deviation, error = normal
    group = np.arange(len(error))
    labels, systems = np.array(["a", "b", "c", "d"])[group % 4], group % 40
    assert left_out_coverage(deviation, error, labels, group) == pytest.approx(0.95, abs=0.03)
    harder = np.where(labels == "d", 9.0 * error, error)
    assert left_out_coverage(deviation, harder, labels, group) < 0.85
    assert left_out_coverage(deviation, harder, systems.astype(str), systems) > 0.9  # others like it were seen


def test_reliability_groups_lie_on_the_diagonal_only_if_calibrated(normal):
    predicted, found = groups(*normal)
    assert np.allclose(predicted, found, rtol=0.2)
    predicted, found = groups(2.0 * normal[0], normal[1])
    assert not np.allclose(predicted, found, rtol=0.2)


def test_auroc_is_one_for_separated_and_a_half_for_equal_scores():
    assert auroc(np.arange(5.0), np.array([9.0, 8.0])) == 1.0
    assert auroc(np.ones(5), np.ones(3)) == 0.5
    assert auroc(np.arange(5.0), np.array([-1.0])) == 0.0


def test_the_guard_marks_everything_far_outside():
    calc = FAENetCalculator("metals-m", frames="one", on_unknown_element="ignore", check_finite=False)
    structures = far_outside()
    with pytest.warns(UserWarning, match="outside the domain"):
        found = calc.predict(list(structures.values()), properties=("energy",))
    assert [name for name, result in zip(structures, found, strict=True) if result["domain"] == "inside"] == []
