"""The self-test itself: it passes what is exact, fails what is not, and leaves its input alone."""

import json
from dataclasses import replace

import pytest
from ase import Atoms
from ase.build import bulk, fcc111, molecule

from faenet_calc.errors import InputError
from faenet_calc.potential.potential import build_potential
from faenet_calc.testing import check_potential, laws


def crystal():
    atoms = bulk("Cu", cubic=True)
    atoms.rattle(0.05, seed=0)
    return atoms


def test_an_exact_surface_passes(modern):
    report = check_potential(modern, [crystal(), molecule("NH3")], nve_steps=20)
    assert report.passed, report.table()
    assert json.loads(report.to_json())["passed"]
    names = {row.law for row in report.rows}
    assert {"rotation: energy", "gradient forces = -dE/dx", "stress = dE/dε / V", "cutoff step"} <= names
    assert "0 failed" in report.table()
    assert "do not conserve" not in report.table()


def test_the_papers_network_fails_where_it_must(paper_network):
    report = check_potential(paper_network, {"crystal": crystal()}, nve_steps=0)
    failed = {row.law for row in report.rows if not row.passed}
    assert {"periodic images and wrapping: energy", "supercell: energy", "gradient forces = -dE/dx"} <= failed
    assert "FAIL" in report.table()


def test_direct_forces_are_compared_with_the_gradient():
    potential = build_potential("modern-s", forces="direct", hidden_channels=64, filters=32, interactions=1)
    report = check_potential(potential, crystal(), nve_steps=0)
    gap = next(row for row in report.rows if row.law.startswith("direct - gradient"))
    assert not gap.holds
    assert gap.verdict == "broken, not promised"
    assert "they do not conserve it" in report.table()
    assert not json.loads(report.to_json())["rows"][report.rows.index(gap)]["holds"]


def test_only_conservation_by_a_direct_head_is_not_promised():
    """Such a model passes if everything else holds; a number that is not finite fails whatever was promised."""
    potential = build_potential("modern-s", forces="direct", hidden_channels=64, filters=32, interactions=1)
    report = check_potential(potential, crystal(), nve_steps=20)
    assert {row.law for row in report.rows if not row.promised} == {
        "direct - gradient forces, mean",
        "NVE drift, 20 fs at 300 K",
    }
    assert report.passed
    assert not replace(report.rows[0], value=1.0).passed
    assert not replace(report.rows[0], value=float("nan"), promised=False).passed


def test_input_is_left_alone_and_must_be_something():
    potential = build_potential("modern-s", hidden_channels=64, filters=32, interactions=1, atoms={"tag_channels": 4})
    slab = fcc111("Cu", (1, 1, 3), vacuum=6.0)
    before = slab.get_tags().copy()
    check_potential(potential, slab, nve_steps=0)
    assert (slab.get_tags() == before).all()
    with pytest.raises(InputError, match="no structures"):
        check_potential(potential, [])


def test_an_atom_alone_feels_no_direct_force():
    potential = build_potential(
        "modern-s", forces="direct", dtype="float64", hidden_channels=64, filters=32, interactions=1
    )
    atom = Atoms("Cu")
    assert float(potential.predict(atom).forces.abs().max()) < 1e-14
    # One frame has a direction that the atom does not have.
    assert float(potential.predict(atom, frames="one").forces.abs().max()) > 1e-4
    assert check_potential(potential, {"Cu atom": atom, "crystal": crystal()}, nve_steps=0).passed


def test_round_off_counts_relative_to_large_forces(modern_float32):
    atoms = molecule("C6H6")
    rows = {}
    for factor in (1.0, 1e4):
        steep = laws.scaled(modern_float32, factor)
        report = check_potential(steep, {"C6H6": atoms}, nve_steps=0)
        rows[factor] = next(row for row in report.rows if row.law == "float32 - float64: forces")
        wide, narrow = (p.predict(atoms).forces for p in (laws.in_float64(steep), steep))
        found, largest = float((wide - narrow).abs().max()), float(wide.abs().max())
        assert rows[factor].value == pytest.approx(found / max(1.0, largest), rel=1e-6)
    assert largest > 100
    assert found > rows[factor].limit, "in absolute terms it would have failed"
    assert rows[factor].passed
