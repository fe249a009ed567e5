"""Upstream's own numbers: every stored network, every kind of frames, edges given and edges built."""

import functools
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from ase import Atoms
from torch_geometric.data import Data

from faenet_calc.potential.upstream import load_upstream

DATA = Path(__file__).parent / "data"
VARIANTS = [
    "bare", "default", "force_res_updown", "force_simple", "head_weighted-av-final-embeds", "mp_base", "mp_simple",
    "mp_updown_local_env", "no_graphnorm", "no_pg", "no_phys", "no_tag", "skip_False", "skip_True", "skip_concat_atom",
]  # fmt: skip
MODES = {
    "none": ("", ""), "3D_all": ("3D", "all"), "3D_se3-all": ("3D", "se3-all"),
    "2D_all": ("2D", "all"), "2D_se3-all": ("2D", "se3-all"),
}  # fmt: skip
ENERGY_TOLERANCE, FORCE_TOLERANCE = 5e-6, 2e-5


@functools.cache
def _inputs(kind):
    """The structure as PyG data with upstream's edges and as ase.Atoms."""
    with np.load(DATA / f"input_{kind}.npz") as file:
        arrays = {key: torch.tensor(file[key]) for key in file}
    atoms = Atoms(numbers=arrays["atomic_numbers"].numpy(), positions=arrays["pos"].double().numpy())
    atoms.set_tags(arrays["tags"].numpy())
    if kind == "mol":
        close = torch.cdist(arrays["pos"], arrays["pos"]) < 6.0
        arrays["edge_index"] = torch.nonzero(close & ~torch.eye(len(close), dtype=torch.bool)).T
    else:
        atoms.set_cell(arrays["cell"][0].double().numpy())
        atoms.pbc = (True, True, False)
    return {"given edges": Data(**arrays), "built edges": atoms}


@functools.cache
def _stored(variant, kind):
    with np.load(DATA / f"{variant}__{kind}.npz") as file:
        arrays = {key: file[key] for key in file}
    config = json.loads(str(arrays.pop("__config__")))
    state = {key[3:]: value for key, value in arrays.items() if key.startswith("sd/")}
    return config, state, {key[4:]: value for key, value in arrays.items() if key.startswith("out/")}


def _errors(config, state, expected, structure, mode):
    """Relative energy error and largest force error of one call."""
    frame_averaging, fa_method = MODES[mode]
    potential = load_upstream(config, state, frame_averaging=frame_averaging, fa_method=fa_method)
    found = potential.predict(structure)
    energy = float(expected[f"energy_{mode}"][0])
    de = abs(found.energy.item() - energy) / abs(energy)
    return de, np.abs(found.forces.numpy() - expected[f"forces_{mode}"]).max()


@pytest.mark.parametrize("kind", ["mol", "slab"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_upstream_numbers(variant, kind):
    config, state, expected = _stored(variant, kind)
    for edges, structure in _inputs(kind).items():
        for mode in MODES:
            de, df = _errors(config, state, expected, structure, mode)
            assert de <= ENERGY_TOLERANCE and df <= FORCE_TOLERANCE, f"{edges}, {mode}: {de:.1e}, {df:.1e} eV/Å"


def test_every_stored_variant_is_tested():
    stored = {file.name.split("__")[0] for file in DATA.glob("*__*.npz")}
    assert stored == set(VARIANTS)


@pytest.mark.parametrize(
    "key", ["embed_block.lin_e1.weight", "interaction_blocks.1.lin_geom.weight", "decoder.model.3.weight"]
)
def test_a_perturbed_weight_is_noticed(key):
    config, state, expected = _stored("default", "slab")
    changed = state[key].copy()
    changed.flat[0] += 0.01
    structure = _inputs("slab")["given edges"]
    de, df = _errors(config, state | {key: changed}, expected, structure, "2D_all")
    assert de > ENERGY_TOLERANCE or df > FORCE_TOLERANCE


def test_a_reversed_edge_convention_is_noticed():
    config, state, expected = _stored("default", "slab")
    data = _inputs("slab")["given edges"]
    reversed_edges = data.clone()
    reversed_edges.cell_offsets = -data.cell_offsets
    reversed_edges.edge_index = data.edge_index.flip(0)
    de, df = _errors(config, state, expected, data, "none")
    assert de <= ENERGY_TOLERANCE and df <= FORCE_TOLERANCE
    # The list is symmetric, so swapping both ends changes nothing; swapping one of them does.
    assert _errors(config, state, expected, reversed_edges, "none")[0] <= ENERGY_TOLERANCE
    reversed_edges.cell_offsets = data.cell_offsets
    assert _errors(config, state, expected, reversed_edges, "none")[0] > ENERGY_TOLERANCE


def test_hidden_state_of_the_network():
    from faenet_calc.frames.frames import build_frames, copy_into_frames

    config, state, expected = _stored("default", "mol")
    potential = load_upstream(config, state, frame_averaging="")
    graph = potential.graph(_inputs("mol")["given edges"])
    frames = build_frames(graph, potential.config.frames, "all", vacuum=6.0)
    framed = copy_into_frames(graph, frames.graph)
    vectors = graph.edge_vectors().float()
    output = potential.model(framed, vectors, vectors.norm(dim=1), None)
    assert np.abs(output.hidden.numpy() - expected["hidden_state"]).max() < 1e-4
