"""Every shipped model: its golden values in float64, its card, and that the comparison can fail."""

import json
import re

import embed_card
import numpy as np
import pytest
from ase import Atoms

from faenet_calc import load_potential
from faenet_calc.elements import symbol
from faenet_calc.potential import shipped

NAMES = shipped.names()


def _golden(name):
    return json.loads((shipped.path(name).parent / "golden.json").read_text())


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
    weight = next(potential.model.output_block.parameters()).data
    weight.view(-1)[weight.abs().argmax()] *= 1.001
    assert _worst(potential, _golden(name))[0] > 1e-9


SECTIONS = [
    "Model",
    "Intended use",
    "Out of scope",
    "Training data",
    "Evaluation",
    "Limitations",
    "Licence and citation",
    "Reproduce",
]


def _headings(card):
    return [line.removeprefix("## ") for line in card.splitlines() if line.startswith("## ")]


@pytest.mark.parametrize("name", NAMES)
def test_card_is_one_page_with_the_sections_of_a_model_card(name):
    card = shipped.card(name).read_text()
    assert _headings(card) == SECTIONS
    assert len(card.splitlines()) <= 80
    evaluation = card.partition("## Evaluation")[2].partition("\n## ")[0]
    assert evaluation.count("|---|") >= 1 and "**against" in evaluation and "DFT" in evaluation
    for target in re.findall(r"\]\(([^)]+)\)", card):
        assert (shipped.card(name).parent / target).exists(), target


@pytest.mark.parametrize("name", NAMES)
def test_card_states_the_size_of_the_file(name):
    assert f"{shipped.path(name).stat().st_size / 1e6:.1f} MB" in " ".join(shipped.card(name).read_text().split())


@pytest.mark.parametrize("name", ["catalysis-m", "catalysis-s", "metals-m", "metals-s"])
def test_card_states_the_times_of_the_readme(name, repository):
    rows = re.findall(rf"^\| `{name}` \| ([\d./ ]+) \|", (repository / "README.md").read_text(), flags=re.MULTILINE)
    assert f"default / single / all frames (ms) | {rows[0]} |" in shipped.card(name).read_text()


def test_card_states_the_times_of_other_potentials_in_the_results(repository):
    lines = (repository / "benchmarks/results/speed.jsonl").read_text().splitlines()
    times = {row["case"]: row["value"] for row in map(json.loads, lines) if row["atoms"] == 40}
    expected = f"CHGNet {times['CHGNet']:.0f}, SevenNet-0 {times['SevenNet-0']:.0f} |"
    assert expected in shipped.card("catalysis-m").read_text() and expected in shipped.card("metals-m").read_text()


@pytest.mark.parametrize("name", NAMES)
def test_the_machine_readable_card_is_embedded(name):
    inside = load_potential(name, device="cpu").metadata["extra"]["model_card"]
    assert inside == embed_card.model_card(name), f"run scripts/embed_card.py {name}"


@pytest.mark.parametrize("name", NAMES)
def test_the_machine_readable_card_agrees_with_the_model_and_the_benchmarks(name):
    potential, card = load_potential(name, device="cpu"), embed_card.model_card(name)
    assert sorted(card["elements"]) == sorted(symbol(z) for z in potential.config.trained_elements)
    assert card["forces"] == potential.config.forces
    heldout = card["measured"].get("heldout_errors", {})
    case = "domain=inside" if card["errors"]["set"].endswith("inside the domain") else "all"
    measured = card["measured"].get("test_errors") or heldout[case]
    for quantity, unit, tolerance in (("energy", "meV/atom", 0.05), ("forces", "meV/Å", 0.5)):
        stated = card["errors"][f"{quantity} ({unit})"]
        assert stated == pytest.approx(measured[f"{quantity}_mae ({unit})"], abs=tolerance)
        assert f"{stated:g}" in shipped.card(name).read_text()


@pytest.mark.parametrize("name", ["catalysis-m", "catalysis-s", "metals-m", "metals-s", "metals-direct"])
def test_errors_against_dft_are_measured_and_lead_the_evaluation(name):
    errors = embed_card.model_card(name)["measured"]["dft_adsorption"]["DFT geometry"]
    assert errors["all"]["pairs"] == sum(errors[adsorbate]["pairs"] for adsorbate in ("O", "OH", "CO", "H", "NO"))
    evaluation = shipped.card(name).read_text().partition("## Evaluation")[2].partition("\n## ")[0]
    first = evaluation.partition("|---|---|---|\n")[2].splitlines()[0]
    parts = ", ".join(f"{adsorbate} {errors[adsorbate]['mae_eV']:.2f}" for adsorbate in ("O", "OH", "CO", "H", "NO"))
    assert f"{errors['all']['pairs']} adsorption energies" in first
    assert f"| {errors['all']['mae_eV']:.3f} ({parts}) |" in first


@pytest.mark.parametrize("name", NAMES)
def test_measured_numbers_are_of_these_weights(name):
    weights = embed_card.weights_digest(shipped.path(name).read_bytes())
    rows = [
        row
        for kind in ("heldout_relaxations", "properties", "nve_systems", "dft_adsorption")
        for row in embed_card.rows_of(name, kind)
    ]
    stated = [row for row in rows if row.get("summary") or "drift_meV_per_atom_ps" in row or "functional" in row]
    assert {row["weights"] for row in stated} <= {weights}
    assert not re.fullmatch(r"(catalysis|metals)-[sm]", name) or any(row.get("weights") == weights for row in rows)


def test_measured_numbers_come_from_the_rows(tmp_path, monkeypatch):
    results = tmp_path / "benchmarks" / "results"
    results.mkdir(parents=True)
    row = {"model": "tiny", "case": "all", "metric": "forces_mae", "value": 60.0, "unit": "meV/Å", "n_structures": 7}
    rows = [row, {**row, "model": "tiny:one", "value": 70.0}]
    (results / "tiny-heldout_errors.jsonl").write_text("".join(json.dumps(one) + "\n" for one in rows))
    monkeypatch.setattr(embed_card, "ROOT", tmp_path)
    assert embed_card.measured("tiny") == {"heldout_errors": {"all": {"structures": 7, "forces_mae (meV/Å)": 60.0}}}
    assert embed_card.measured("other") == {}


def test_a_default_model_is_shipped():
    assert shipped.default_name() in NAMES
