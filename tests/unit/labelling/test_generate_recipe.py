"""Recipes as files: strict reading."""

import json
from dataclasses import replace

import pytest
from small_recipe import SMALL, recipe

from faenet_calc.errors import InputError
from faenet_calc.labelling import load_recipe, plan


def test_recipes_of_the_repository_can_be_read(repository):
    paths = [
        *repository.glob("examples/recipes/*.yaml"),
        *repository.glob("datasets/*/recipes/*.yaml"),
        *repository.glob("pretrained/*/recipe.yaml"),
    ]
    assert len(paths) > 10
    for path in paths:
        assert plan(replace(load_recipe(path), tasks=50)), path


def test_a_file_that_is_no_recipe_is_refused(tmp_path):
    path = tmp_path / "r.yaml"
    path.write_text("- a\n- b\n")
    with pytest.raises(InputError, match="expected a mapping"):
        load_recipe(path)
    path.write_text("a: [1")
    with pytest.raises(InputError, match="not YAML"):
        load_recipe(path)


def test_overrides_replace_settings_of_the_file(tmp_path):
    path = tmp_path / "r.yaml"
    path.write_text(json.dumps(SMALL))
    assert load_recipe(path) == recipe()
    assert load_recipe(path, {"seed": 7}) == recipe(seed=7)
