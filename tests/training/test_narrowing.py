"""Narrower edge embeddings of trained networks."""

import dataclasses
import warnings

import pytest
import torch
from ase.build import add_adsorbate, fcc111, molecule

from faenet_calc import build_potential, load_potential
from faenet_calc.errors import InputError
from faenet_calc.training import narrowing
from faenet_calc.training.config_file import read_config
from faenet_calc.training.finetune import adopt_potential
from faenet_calc.training.narrowing import with_edge_channels


@pytest.fixture(autouse=True)
def few_points(monkeypatch):
    monkeypatch.setattr(narrowing, "_POINTS", 1500)
    monkeypatch.setattr(narrowing, "_STEPS", 10)


@pytest.fixture(scope="module")
def trained():
    return load_potential("metals-s", dtype="float64")


def slab_with_co():
    atoms = fcc111("Cu", (2, 2, 3), vacuum=7.0)
    add_adsorbate(atoms, molecule("CO"), 1.9, "ontop", mol_index=1)
    atoms.rattle(0.1, seed=1)
    return atoms


def test_narrow_network_has_nearly_the_same_filters_and_forces(trained):
    atoms = slab_with_co()
    before = trained.predict(atoms)
    errors = {}
    for width in (48, 12):
        narrow, error = with_edge_channels(trained, width, seed=0)
        assert narrow.model.edge_embedding.lin_e2.out_features == width == narrow.config.model.edge_channels
        after = narrow.predict(atoms)
        errors[width] = (
            error,
            float((after.forces - before.forces).abs().max()),
            float((after.energy - before.energy).abs()),
        )
    assert errors[48][0] < 0.01 and errors[48][1] < 0.05 and errors[48][2] < 0.05
    assert errors[12][0] > 3 * errors[48][0] and errors[12][1] > 2 * errors[48][1]  # too few channels for these filters


def test_everything_but_the_filters_of_edges_is_kept(trained):
    narrow, _ = with_edge_channels(trained, 48, seed=0)
    old, new = trained.model.state_dict(), narrow.model.state_dict()
    changed = {name for name in old if old[name].shape != new[name].shape or not torch.equal(old[name], new[name])}
    assert changed == {name for name in old if name.startswith("edge_embedding.lin_e2") or "lin_geom" in name}
    assert narrow.config == dataclasses.replace(
        trained.config, model=dataclasses.replace(trained.config.model, edge_channels=48)
    )


@pytest.mark.parametrize("width", [96, 200])
def test_width_must_be_smaller(trained, width):
    with pytest.raises(InputError, match=rf"finetune.edge_channels = {width} for a model .* 96 channels"):
        with_edge_channels(trained, width, seed=0)


def test_network_without_a_matrix_of_the_embedding_has_no_narrower_one():
    with pytest.raises(InputError, match=r"finetune.edge_channels: edge_channels = 8 with message = 'simple'"):
        with_edge_channels(build_potential("modern-s", message="simple", hidden_channels=64, filters=16), 8, seed=0)


def test_network_without_a_radial_part_is_refused():
    potential = build_potential("modern-s", hidden_channels=64, filters=16, edge_features="r")
    with pytest.raises(InputError, match=r"finetune.edge_channels for model.edge_features = 'r'"):
        with_edge_channels(potential, 8, seed=0)


@pytest.mark.parametrize(("width", "warns"), [(4, True), (64, False)])
def test_a_bad_fit_is_said(width, warns):
    config = read_config("", ["finetune.checkpoint=metals-s", f"finetune.edge_channels={width}"])
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        adopt_potential(config)
    assert any("changes the filters" in str(warning.message) for warning in seen) == warns
