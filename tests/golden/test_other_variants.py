"""Options of upstream's network without stored numbers, against the second implementation in ``spec_network.py``."""

import numpy as np
import pytest
import torch
from spec_network import DEFAULTS, predict, random_state_dict
from torch_geometric.data import Data

from faenet_calc import elements
from faenet_calc.potential.upstream import load_upstream

FRAMES = [("", ""), ("3D", "all"), ("3D", "se3-all"), ("2D", "all"), ("2D", "se3-all")]
DECODERS = DEFAULTS["force_decoder_model_config"]


def _decoder(kind, norm):
    return {
        "force_decoder_type": kind,
        "force_decoder_model_config": {**DECODERS, kind: {"hidden_channels": 10, "norm": norm}},
    }


VARIANTS = {
    "default": {},
    "updownscale": {"mp_type": "updownscale"},
    "base, complex": {"mp_type": "base", "complex_mp": True},
    "simple, complex, no norm": {"mp_type": "simple", "complex_mp": True, "graph_norm": False},
    "local environment, complex": {"mp_type": "updown_local_env", "complex_mp": True},
    "complex": {"complex_mp": True},
    "initial weights": {"energy_head": "weighted-av-initial-embeds"},
    "initial weights, no skip": {"energy_head": "weighted-av-initial-embeds", "skip_co": False},
    "final weights, add": {"energy_head": "weighted-av-final-embeds", "skip_co": "add"},
    "add": {"skip_co": "add"},
    "atom states": {"skip_co": "concat_atom"},
    "res, batch": _decoder("res", "batch1d"),
    "res, layer": _decoder("res", "layer"),
    "res, none": _decoder("res", None),
    "res_updown, layer": _decoder("res_updown", "layer"),
    "mlp, layer": _decoder("mlp", "layer"),
    "mlp, none": _decoder("mlp", None),
    "one layer": {"second_layer_MLP": False},
    "trained properties": {"phys_hidden_channels": 6},
    "bare": {"phys_embeds": False, "tag_hidden_channels": 0, "pg_hidden_channels": 0},
    "gradient target": {"regress_forces": "direct_with_gradient_target"},
    "from_energy": {"regress_forces": "from_energy"},
    "from_energy, no norm": {"regress_forces": "from_energy", "graph_norm": False, "mp_type": "updownscale"},
    "energy only": {"regress_forces": None},
    "IS2RE": {"mp_type": "base", "complex_mp": True, "second_layer_MLP": False, "regress_forces": "",
              "energy_head": "weighted-av-final-embeds"},
    **{f"act {name}": {"act": name} for name in ("relu", "gelu", "tanh", "softplus", "elu", "leaky_relu")},
    **{f"act {name}": {"act": name} for name in ("mish", "sigmoid", "silu", "selu", "softsign", "hardswish")},
}  # fmt: skip


def _tables():
    """Upstream's period and group tables have 101 rows; here with a group for every element."""
    period, group = np.ones(101, dtype=np.int64), np.ones(101, dtype=np.int64)
    period[:101], group[:101] = np.minimum(elements.period()[:101], 6), np.minimum(elements.group()[:101], 18)
    return period, group


@pytest.fixture(scope="module")
def structure():
    """Seven atoms in a periodic, skewed cell, with a random half of all neighbours: edges need not be symmetric."""
    random = np.random.default_rng(5)
    cell = np.array([[5.1, 0.2, 0.0], [1.3, 4.6, 0.1], [0.3, -0.2, 9.0]])
    pos = random.uniform(0, 1, (7, 3)) @ cell
    images = np.array([[a, b, 0] for a in (-1, 0, 1) for b in (-1, 0, 1)])
    edges, offsets = [], []
    for j in range(7):
        for i in range(7):
            for image in images:
                distance = np.linalg.norm(pos[j] + image @ cell - pos[i])
                if 0.5 < distance < 6.0 and random.uniform() < 0.5:
                    edges.append([j, i])
                    offsets.append(image)
    return {
        "pos": torch.tensor(pos),
        "atomic_numbers": torch.tensor([29, 29, 78, 8, 6, 1, 1]),
        "tags": torch.tensor([0, 0, 1, 2, 2, 2, 2]),
        "edge_index": torch.tensor(np.array(edges).T),
        "cell_offsets": torch.tensor(np.array(offsets, dtype=float)),
        "cell": torch.tensor(cell)[None],
    }


def _compare(changes, structure, frames, seed=0):
    config = DEFAULTS | changes
    state = random_state_dict(config, *_tables(), seed=seed)
    potential = load_upstream(config, state, frame_averaging=frames[0], fa_method=frames[1])
    found = potential.predict(Data(**structure))
    energy, forces = predict(config, state, structure | {"cell": structure["cell"][0]}, *frames)
    return found, energy, forces


@pytest.mark.parametrize("name", VARIANTS)
def test_against_the_formulas(structure, name):
    for frames in FRAMES:
        found, energy, forces = _compare(VARIANTS[name], structure, frames)
        assert found.energy.item() == pytest.approx(energy, rel=1e-9, abs=1e-10), frames
        if forces is None:
            assert found.forces is None
        else:
            assert np.abs(found.forces.numpy() - forces).max() < 1e-9, frames


@pytest.mark.parametrize("name", ["updownscale", "add", "complex", "initial weights", "res, batch", "act relu"])
def test_the_options_matter(structure, name):
    """Negative control: read as the default option, the same weights give other numbers or do not fit."""
    config = DEFAULTS | VARIANTS[name]
    state = random_state_dict(config, *_tables())
    energy, forces = predict(config, state, structure | {"cell": structure["cell"][0]}, "", "")
    wrong = {key: DEFAULTS[key] for key in VARIANTS[name]}
    if name == "complex":  # read off the weights, so the word does not matter
        found = load_upstream(config | wrong, state, frame_averaging="").predict(Data(**structure))
        assert found.energy.item() == pytest.approx(energy, rel=1e-9)
        return
    try:
        found = load_upstream(config | wrong, state, frame_averaging="").predict(Data(**structure))
    except ValueError:
        return
    assert abs(found.energy.item() - energy) > 1e-6 or np.abs(found.forces.numpy() - forces).max() > 1e-6


@pytest.mark.parametrize(
    "name", ["default", "updownscale", "base, complex", "local environment, complex", "res, layer", "initial weights",
             "atom states", "simple, complex, no norm", "energy only"]
)  # fmt: skip
def test_choices_are_read_off_the_weights(structure, name):
    config = DEFAULTS | VARIANTS[name]
    state = random_state_dict(config, *_tables())
    energy, forces = predict(config, state, structure | {"cell": structure["cell"][0]}, "3D", "all")
    found = load_upstream({}, state).predict(Data(**structure))
    assert found.energy.item() == pytest.approx(energy, rel=1e-9)
    assert (found.forces is None) == (forces is None)
