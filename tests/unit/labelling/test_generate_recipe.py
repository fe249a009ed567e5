"""Recipes as files: strict reading, and recipes that are based on others."""

import json
from dataclasses import replace

import pytest
from small_recipe import SMALL, recipe

from faenet_calc.errors import InputError
from faenet_calc.labelling import load_recipe, plan


def test_recipes_of_the_examples_can_be_read(repository):
    for path in sorted((repository / "examples" / "recipes").glob("*.yaml")):
        assert plan(replace(load_recipe(path), tasks=50)), path


def test_a_file_that_is_no_recipe_is_refused(tmp_path):
    path = tmp_path / "r.yaml"
    path.write_text("- a\n- b\n")
    with pytest.raises(InputError, match="expected a mapping"):
        load_recipe(path)
    path.write_text("a: [1")
    with pytest.raises(InputError, match="not YAML"):
        load_recipe(path)


def test_a_recipe_is_based_on_others(tmp_path):
    (tmp_path / "base.yaml").write_text(json.dumps(SMALL))
    (tmp_path / "middle.yaml").write_text("based_on: base.yaml\nname: middle\nadsorbates: [O]\n")
    (tmp_path / "top.yaml").write_text("based_on: middle.yaml\nseed: 5\n")
    found = load_recipe(tmp_path / "top.yaml")
    assert found == recipe(name="middle", adsorbates=["O"], seed=5)
    assert found.digest() == recipe(name="middle", adsorbates=["O"], seed=5).digest() != recipe().digest()
    assert load_recipe(tmp_path / "top.yaml", {"seed": 7}).seed == 7


def test_bases_that_cannot_be_used_are_named(tmp_path):
    path = tmp_path / "r.yaml"
    path.write_text("based_on: nothing.yaml\n")
    with pytest.raises(InputError, match="there is no file"):
        load_recipe(path)
    path.write_text("based_on: r.yaml\n")
    with pytest.raises(InputError, match="based on itself"):
        load_recipe(path)
    (tmp_path / "base.yaml").write_text(json.dumps(SMALL))
    path.write_text("based_on: base.yaml\ncolour: red\n")
    with pytest.raises(InputError, match="colour"):
        load_recipe(path)
