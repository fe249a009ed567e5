"""Data that benchmarks keep: they belong to the recipe as it is, and hold nothing that models were trained on."""

import io
import lzma
import re

import heldout_errors
import heldout_relaxations
import properties
from ase.io import read
from rows import Rows
from same_site import match_sites

from faenet_calc.data.formats import find_files
from faenet_calc.labelling import load_recipe
from faenet_calc.labelling.adsorbates import species
from faenet_calc.labelling.tasks import plan

TASKS_RUN = 882  # of the recipe's list
LBFGS = "metals-minima-lbfgs.jsonl"


def test_heldout_labels_are_those_of_the_recipe():
    recipe = load_recipe(heldout_errors.RECIPE)
    systems = {task.index: task.system for task in plan(recipe)[:TASKS_RUN] if task.split == "heldout"}
    text = lzma.decompress(heldout_errors.HELDOUT.read_bytes()).decode()  # ASE alone decompresses it again and again
    structures = read(io.StringIO(text), ":", format="extxyz")
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


def test_properties_are_those_of_the_recipe():
    recipe = load_recipe(properties.RECIPE)
    first, *stored = Rows(properties.REFERENCE).rows
    assert first["calculator"] == recipe.calculator.name
    assert [(row["row"], row["name"]) for row in stored] == list(properties.items(recipe))


def words_of(path):
    """(metal, facet, adsorbate) of every structure of a packed file, as its comment lines say."""
    text = lzma.decompress(path.read_bytes()).decode()
    return re.findall(r"metal=(\S+) facet=(\S+) .*?adsorbate=(\S+)", text)


def rules_that_match(words, rules):
    metal, facet, adsorbate = words
    said = {"substrate": {metal.replace("-", "")}, "facet": {facet}, "adsorbate": {adsorbate, *species(adsorbate)}}
    return [rule for rule in rules if all(getattr(rule, key) in {None, *values} for key, values in said.items())]


def test_labels_for_training_hold_nothing_that_is_held_out():
    rules = load_recipe(heldout_errors.RECIPE).heldout
    assert all(rules_that_match(words, rules) for words in words_of(heldout_errors.HELDOUT)), "the test can fail"
    assert rules_that_match(("Pd", "fcc100", "2CO+O"), rules) and not rules_that_match(("Pd", "fcc100", "2O"), rules)
    for file in find_files([f"{data}:{split}" for data in heldout_errors.SETS for split in ("train", "val")]):
        found = words_of(file)
        assert len(found) > 300
        assert not any(rules_that_match(words, rules) for words in set(found)), file


def test_ends_of_the_reference_move_with_the_tighter_limit():
    """What the card of metals-m says of 0.05 eV/Å."""
    loose, tight = minima_of("metals-minima-lbfgs-0.05.jsonl", "LBFGS", 0.05), minima_of(LBFGS, "LBFGS", 0.02)
    lower_ev = other_ends(loose, tight).values()
    assert len(lower_ev) == 3 and min(lower_ev) > 0.05
    assert not other_ends(tight, tight)


def test_the_reference_ends_elsewhere_with_another_optimizer_in_two_systems():
    """What the card of metals-m says of FIRE and LBFGS."""
    assert len(other_ends(minima_of(LBFGS, "LBFGS", 0.02), minima_of("metals-minima.jsonl", "FIRE", 0.02))) == 2


def minima_of(name, optimizer, fmax):
    """Stored rows, which are of an optimiser and a limit (eV/Å)."""
    rows = Rows(heldout_relaxations.MINIMA.with_name(name))
    limits = heldout_relaxations.limits_of(rows)
    assert (limits["optimizer"], limits["fmax"]) == (optimizer, fmax)
    return rows


def other_ends(first, second):
    """Systems whose ends in two files differ, and by how much (eV) the second is lower."""
    before = {(row["name"], row["site"]): row for row in first.of("system")}
    moved = {}
    for row in second.of("system"):
        other = before.get((row["name"], row["site"]))
        if other is None:
            continue
        ends = [heldout_relaxations.from_json(row["start"], one["minimum"]) for one in (other, row)]
        if not match_sites(heldout_relaxations.from_json(row["start"]), *ends).same:
            moved[row["name"]] = other["energy"] - row["energy"]
    return moved
