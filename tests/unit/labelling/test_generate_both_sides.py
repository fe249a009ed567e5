"""The label factory: adsorbates on both sides of a slab."""

import numpy as np
import pytest
from ase.calculators.emt import EMT
from small_recipe import SMALL, recipe

from faenet_calc.labelling import plan
from faenet_calc.labelling.sampling import snapshots
from faenet_calc.labelling.structures import Substrate, place, sites, slab, turned_over, with_both_sides

ALLOY = Substrate(name="CuPd", symbols=("Cu", "Pd"), crystal="fcc", a=3.75, fraction=0.4)
SIZES = {"fcc111": (2, 2, 3), "fcc100": (2, 2, 4), "fcc110": (2, 2, 5), "fcc211": (3, 2, 3)}


def energy(atoms) -> float:
    return EMT().get_property("energy", atoms)


@pytest.mark.parametrize("facet", SIZES)
def test_a_slab_turned_over_is_its_mirror_image_with_its_other_surface_on_top(facet):
    above = slab(ALLOY, facet, SIZES[facet], 8.0, np.random.default_rng(3))
    above.rattle(0.05, seed=2)
    below = turned_over(above, ALLOY)
    assert energy(below) == pytest.approx(energy(above), abs=1e-9)
    assert np.array_equal(below.numbers, above.numbers)
    lowest, highest = above.positions[:, 2].argmin(), above.positions[:, 2].argmax()
    assert (below.get_tags()[lowest], below.get_tags()[highest]) == (1, 0)
    assert (above.get_tags()[lowest], above.get_tags()[highest]) == (0, 1)
    assert {site.kind for site in sites(below)} >= {"ontop", "bridge"}


@pytest.mark.parametrize("facet", SIZES)
def test_an_adsorbate_below_has_the_energy_that_it_has_on_the_slab_turned_over(facet):
    rng = np.random.default_rng(4)
    surface = slab(ALLOY, facet, SIZES[facet], 8.0, rng)
    turned = turned_over(surface, ALLOY)
    below = place(turned, "CO", sites(turned)[0], 0.1, 20.0, rng)
    assert energy(with_both_sides(surface, below)) == pytest.approx(energy(below), abs=1e-9)
    # One with the same heights on the side where it does not belong is somewhere else.
    wrong = surface + below[below.get_tags() == 2]
    assert abs(energy(wrong) - energy(below)) > 1e-3
    above = place(surface, "CO", sites(surface)[0], 0.1, 20.0, rng)
    both = with_both_sides(above, below)
    assert len(both) == len(surface) + 4
    assert both.get_tags()[: len(surface)].tolist() == np.maximum(surface.get_tags(), turned.get_tags()).tolist()


@pytest.mark.parametrize(("both_sides", "sides"), [(False, {1}), (True, {-1, 1})])
@pytest.mark.parametrize("kind", ["relax", "rattle", "md"])
def test_recipes_put_adsorbates_on_one_side_or_both(kind, both_sides, sides):
    sampling = {**SMALL["sampling"], "both_sides": both_sides}
    settings = recipe(tasks=60, sampling=sampling, mix={"adsorbate_kinds": [kind]})
    fixed = []
    for task in [task for task in plan(settings) if task.facet and task.molecule][:12]:
        for found in snapshots(task, settings, EMT()):
            tags, z = found.atoms.get_tags(), found.atoms.positions[:, 2]
            middle = z[tags < 2].mean()
            assert set(np.sign(z[tags == 2] - middle)) == sides
            assert (tags == 2).sum() == len(sides) * (1 if task.molecule == "O" else 2)
            fixed.append(len(found.atoms.constraints))
    assert max(fixed) == int(kind != "rattle" and not both_sides)


def test_approach_curves_stay_on_one_side():
    settings = recipe(tasks=60, sampling={**SMALL["sampling"], "both_sides": True}, mix={"adsorbate_kinds": ["curve"]})
    task = next(task for task in plan(settings) if task.molecule == "O" and task.facet)
    assert all((found.atoms.get_tags() == 2).sum() == 1 for found in snapshots(task, settings, EMT()))


def test_the_setting_belongs_to_the_recipe_only_where_it_is_used():
    sampling = SMALL["sampling"]
    assert recipe(sampling={**sampling, "both_sides": False}).digest() == recipe().digest()
    assert recipe(sampling={**sampling, "both_sides": True}).digest() != recipe().digest()
