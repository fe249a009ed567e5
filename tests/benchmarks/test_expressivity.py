"""The expressivity benchmark: congruence of its pairs, and what networks learn of them."""

import numpy as np
import pytest
import torch
from expressivity import CONGRUENT, NETWORKS, mismatch, orient, pairs, tell_apart

PAIRS = {f"{pair.table}, {pair.name}": pair for pair in pairs()}
SMALL = {name: pair for name, pair in PAIRS.items() if len(pair.first) <= 6}


@pytest.mark.parametrize("name", SMALL)
def test_vectors_are_given_for_congruent_pairs_only(name):
    pair = PAIRS[name]
    assert (mismatch(pair.first, pair.second) < CONGRUENT) == (pair.vectors is not None)


def test_relabelled_and_reflected_structures_are_congruent_and_moved_ones_are_not():
    random = np.random.default_rng(0)
    atoms = random.normal(size=(6, 3))
    turn = np.linalg.qr(random.normal(size=(3, 3)))[0]
    assert mismatch(atoms, atoms[[3, 1, 0, 5, 4, 2]] @ turn * [1, 1, -1] + 3.0) < CONGRUENT
    moved = atoms.copy()
    moved[0] += 0.3
    assert mismatch(atoms, moved) > 0.05


def test_only_networks_with_directions_tell_the_2_body_pair_apart():
    torch.manual_seed(0)
    pair = PAIRS["counterexamples, 2-body"]
    found = {name: tell_apart(pair, build(1, 0), 60) for name, build in NETWORKS.items()}
    assert found.pop("SchNet") == found.pop("E(n)-GNN") == 0.5
    assert set(found.values()) == {1.0}


def test_orientation_is_learned_by_equivariant_networks_and_not_without_frames():
    pair = PAIRS["counterexamples, 4-body chiral"]
    right, error = orient(pair, NETWORKS["this package"](1, 0), 60)
    assert right == 1.0 and error < 0.05
    right, error = orient(pair, NETWORKS["FAENet, no frames"](1, 0), 60)
    assert right == 0.0 and error > 1.0
