import ase.stress
import ase.units
import numpy as np
import pytest
import torch

from faenet_calc import units


@pytest.mark.parametrize(
    ("ours", "theirs"), [(units.K, ase.units.kB), (units.FS, ase.units.fs), (units.GPA, ase.units.GPa)]
)
def test_factors_are_those_of_ase(ours, theirs):
    assert ours == pytest.approx(theirs, rel=1e-12)


def test_voigt_order_is_that_of_ase():
    tensor = np.random.default_rng(0).normal(size=(3, 3))
    tensor = tensor + tensor.T
    np.testing.assert_allclose(units.full_to_voigt(tensor), ase.stress.full_3x3_to_voigt_6_stress(tensor))
    np.testing.assert_allclose(units.voigt_to_full(units.full_to_voigt(tensor)), tensor)


@pytest.mark.parametrize("shape", [(), (4,), (2, 5)])
def test_voigt_keeps_leading_axes_and_works_in_torch(shape):
    components = torch.randn(*shape, 6, dtype=torch.float64)
    full = units.voigt_to_full(components)
    assert full.shape == (*shape, 3, 3)
    torch.testing.assert_close(full, full.transpose(-1, -2))
    torch.testing.assert_close(units.full_to_voigt(full), components)


def test_voigt_takes_the_symmetric_part():
    tensor = np.zeros((3, 3))
    tensor[0, 1] = 2.0
    np.testing.assert_array_equal(units.full_to_voigt(tensor), [0, 0, 0, 0, 0, 1.0])


def test_wrong_shapes_are_refused():
    with pytest.raises(ValueError, match=r"expected \[\.\.\., 3, 3\]"):
        units.full_to_voigt(np.zeros(9))
    with pytest.raises(ValueError, match=r"expected \[\.\.\., 6\]"):
        units.voigt_to_full(np.zeros((3, 3)))
