"""Every shipped model: its golden values in float64, its card, and that the comparison can fail."""

import json

import numpy as np
import pytest
from ase import Atoms

from faenet_calc import load_potential, pretrained

NAMES = pretrained.names()


def _golden(name):
    return json.loads((pretrained.path(name).parent / "golden.json").read_text())


def _worst(potential, expected):
    """Largest differences of energy per atom (eV), forces (eV/Å) and stress (eV/Å³)."""
    worst = np.zeros(3)
    for values in expected.values():
        geometry = {key: values[key] for key in ("numbers", "positions", "cell", "pbc")}
        atoms = Atoms(**geometry)
        periodic = values["stress"] is not None
        found = potential.predict(atoms, ("energy", "forces", *(("stress",) if periodic else ())))
        energy = abs(float(found.energy[0]) - values["energy"]) / len(atoms)
        forces = np.abs(found.forces.numpy() - values["forces"]).max()
        stress = np.abs(found.stress[0].numpy() - values["stress"]).max() if periodic else 0.0
        worst = np.maximum(worst, [energy, forces, stress])
    return worst


@pytest.mark.parametrize("name", NAMES)
def test_golden_values(name):
    expected = _golden(name)
    assert len(expected) >= 2
    energy, forces, stress = _worst(load_potential(name, device="cpu", dtype="float64"), expected)
    assert energy < 1e-9
    assert forces < 1e-8
    assert stress < 1e-9


@pytest.mark.parametrize("name", NAMES)
def test_golden_values_notice_a_changed_weight(name):
    potential = load_potential(name, device="cpu", dtype="float64")
    next(potential.model.output_block.parameters()).data[0, 0] += 1e-3
    assert _worst(potential, _golden(name))[0] > 1e-9


@pytest.mark.parametrize("name", NAMES)
def test_card_says_what_a_user_must_know(name):
    card = (pretrained.path(name).parent / "card.md").read_text().lower()
    for word in ("data", "reference", "error", "domain", "bad at", "licence", "reproduce"):
        assert word in card, word


def test_a_default_model_is_shipped():
    assert pretrained.default_name() in NAMES
