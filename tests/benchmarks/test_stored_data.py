"""Data that benchmarks keep: they belong to the recipe as it is, and hold nothing that models were trained on."""

import heldout_errors
import heldout_relaxations
from ase.io import read
from rows import Rows

from faenet_calc.training.generate import load_recipe
from faenet_calc.training.generate.tasks import plan

TASKS_RUN = 882  # of the recipe's list


def test_heldout_labels_are_those_of_the_recipe():
    recipe = load_recipe(heldout_errors.RECIPE)
    systems = {task.index: task.system for task in plan(recipe)[:TASKS_RUN] if task.split == "heldout"}
    structures = read(heldout_errors.HELDOUT, ":")
    assert {structure.info["recipe"] for structure in structures} == {f"{recipe.name}:sha256-{recipe.digest()}"}
    assert {structure.info["task"]: structure.info["system"] for structure in structures} == systems
    assert all(structure.info["split"] == "heldout" for structure in structures)


def test_minima_are_those_of_the_recipe():
    recipe = load_recipe(heldout_relaxations.RECIPE)
    rows = Rows(heldout_relaxations.MINIMA)
    assert rows.rows[0]["recipe"] == f"{recipe.name}:{recipe.digest()}"
    stored = rows.of("system")
    assert sum(map(heldout_relaxations.is_sane, stored)) == 50
    walk = heldout_relaxations.heldout_systems(recipe)
    for row, system in zip(stored, walk, strict=False):
        start, site = system.start(recipe.vacuum_A)
        assert (row["slab"], row["adsorbate"], row["site"]) == (system.slab_name, system.adsorbate, site)
        assert abs(heldout_relaxations.from_json(row["start"]).positions - start.positions).max() < 1e-5
