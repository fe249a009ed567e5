"""The domain guard of the calculator, of relax and md, and of the command line."""

import json
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from ase import Atoms
from ase.build import bulk, fcc111, molecule
from ase.calculators.calculator import CalculationFailed
from ase.calculators.emt import EMT
from ase.cluster import Icosahedron
from ase.io import write
from click.testing import CliRunner

from faenet_calc import FAENetCalculator, build_potential, load_potential, relax, run_md
from faenet_calc.cli import main
from faenet_calc.errors import InputError
from faenet_calc.potential.checkpoint import save_potential
from faenet_calc.potential.config import RepulsionConfig
from faenet_calc.potential.domain import TrainingDomain
from faenet_calc.potential.potential import Potential
from faenet_calc.potential.uncertainty import FeatureStatistics
from faenet_calc.simulate import MDStoppedWarning
from faenet_calc.training.config_file import config_from_mapping
from faenet_calc.training.loop import train


@pytest.fixture(scope="module")
def potential():
    """Random weights with the domain of slightly displaced copper."""
    plain = build_potential("modern-s", hidden_channels=64, filters=32, interactions=1, trained_elements=(6, 8, 29))
    statistics, rng = FeatureStatistics(), np.random.default_rng(0)
    for number in range(30):
        atoms = [bulk("Cu", cubic=True), fcc111("Cu", (2, 2, 2), vacuum=8.0), molecule("CO")][number % 3]
        atoms.rattle(0.1, rng=rng)
        graph = plain.graph(atoms)
        prediction = plain.evaluate(graph, properties=("atom_features",))
        statistics.add(prediction.atom_features, graph.atomic_numbers)
    domain = TrainingDomain(lowest_energy=-99.0, highest_energy=99.0, shortest={"Cu-Cu": 2.2}, uncertainty=99.0)
    return plain.with_domain(domain, statistics.fit())


@pytest.fixture
def inside():
    atoms = fcc111("Cu", (2, 2, 2), vacuum=8.0)
    atoms.info.clear()
    return atoms


@pytest.fixture
def outside():
    return bulk("Cu", a=2.4, cubic=True)


def test_inside_is_marked_without_a_warning(potential, inside):
    inside.calc = FAENetCalculator(potential)
    inside.get_potential_energy()
    assert inside.calc.results["domain"] == "inside" and "why" not in inside.calc.results
    assert not {"energy_uncertainty", "domain_distance"} & inside.calc.results.keys()


@pytest.mark.filterwarnings("ignore:structure 0. outside the domain")
@pytest.mark.parametrize(("distance", "repelled"), [(1.4, True), (2.0, False)])
def test_structures_where_the_repulsion_replaces_the_network_are_outside(potential, inside, distance, repelled):
    """Also if pairs as close as this were in the training data."""
    wide = replace(potential.config.domain, shortest={"Cu-Cu": 1.4})
    calc = FAENetCalculator(potential.with_domain(wide, potential.uncertainty))
    offset = inside.positions[1] - inside.positions[0]
    inside.positions[0] += offset * (1 - distance / np.linalg.norm(offset))
    (result,) = calc.predict([inside], ("energy",))
    why = str(result.get("why"))
    assert ("overlapping atoms, whose repulsion contributes" in why) == repelled
    assert "apart (training data" not in why


def test_outside_is_marked_and_warned_about_once(potential, outside):
    outside.calc = calc = FAENetCalculator(potential)
    with pytest.warns(UserWarning, match=r"outside the domain .* \(Cu-Cu\) 1\.70 Å apart"):
        outside.get_potential_energy()
    assert calc.results["domain"] == "outside" and "Cu-Cu" in calc.results["why"]
    outside.rattle(0.01, seed=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        outside.get_potential_energy()
    assert calc.results["domain"] == "outside"


def test_a_structure_that_leaves_the_domain_in_small_steps_is_marked(potential, inside):
    """Small moves of a structure well inside are not examined in full; their sum is."""
    calc = FAENetCalculator(potential)
    seen, marked = [], []
    evaluate = calc.predictor.predict_one
    calc.predictor.predict_one = lambda graphs, properties: seen.append(properties) or evaluate(graphs, properties)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(100):
            calc.calculate(inside, ["energy", "forces"])
            marked.append(calc.results["domain"])
            inside.positions[-1, 2] -= 0.02
    full = [bool(calc.guard.properties & properties) for properties in seen]
    assert full[0] and not all(full[:6]) and sum(full) >= 100 * 0.02 / 0.05 - 1
    assert marked[0] == "inside" and marked[-1] == "outside"
    calc.calculate(inside, ["energy", "energy_uncertainty"])
    assert calc.results["energy_uncertainty"] > 0


def test_metal_clusters_are_outside_of_a_model_of_surfaces():
    """Uncertainty and environments find few of the clusters, whose energies are wrong by 0.3 eV/atom."""
    potential = load_potential("metals-m")
    domain = potential.config.domain
    assert domain.closed_directions["Pt"] == (2, 3) and domain.closed_directions["O"] == (0, 2)
    cluster, slab = Icosahedron("Cu", 2), fcc111("Cu", (2, 2, 3), vacuum=8.0, periodic=True)
    calc = FAENetCalculator(potential, on_outside_domain="warn")
    with pytest.warns(
        UserWarning, match=r"Cu in molecules and clusters \(training data: Cu in slabs and bulk crystals\)"
    ):
        calc.calculate(cluster, ["energy"])
    for atoms in (slab, molecule("CO"), bulk("Cu", cubic=True), molecule("CO", vacuum=8.0, pbc=True)):
        calc.calculate(atoms, ["energy"])
        assert "training data: C" not in calc.results.get("why", "")
    # The same elements in the same cell, as a layer and in one piece.
    grid = [(4.0 * i, 4.0 * j, 15.0) for i in range(5) for j in range(5)]
    layer, piece = (
        Atoms("Cu25", positions, cell=(20, 20, 30), pbc=True)
        for positions in (grid, Icosahedron("Cu", 3).positions[:25])
    )
    assert ["clusters" in row.get("why", "") for row in calc.predict([layer, piece, layer])] == [False, True, False]
    unrecorded = replace(domain, closed_directions={})
    calc = FAENetCalculator(potential.with_domain(unrecorded, potential.uncertainty), on_outside_domain="warn")
    calc.calculate(cluster, ["energy"])
    assert "clusters" not in calc.results.get("why", "")


def test_small_steps_of_a_structure_of_another_kind_are_marked_too(potential, inside):
    domain = replace(potential.config.domain, closed_directions={"Cu": (3,)})
    calc = FAENetCalculator(potential.with_domain(domain, potential.uncertainty))
    with pytest.warns(UserWarning, match=r"Cu in slabs \(training data: Cu in bulk crystals\)"):
        calc.calculate(inside, ["energy"])
    inside.rattle(0.001, seed=1)
    calc.calculate(inside, ["energy"])
    assert calc.results["domain"] == "outside"


def test_both_precisions_have_the_same_uncertainty_and_domain(inside):
    found = {}
    for dtype in ("float32", "float64"):
        calc = FAENetCalculator("copper-s", dtype=dtype)
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # a structure inside the domain
            calc.calculate(inside, ["energy", "energy_uncertainty"])
        assert calc.results["domain"] == "inside"
        found[dtype] = calc.results["energy_uncertainty"]
    assert found["float64"] == pytest.approx(found["float32"], rel=1e-3)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("name", ["energy", "forces"])
@pytest.mark.parametrize("largest_force", [None, 5.0])
def test_results_that_are_not_finite_are_refused_not_marked(potential, inside, monkeypatch, bad, name, largest_force):
    domain = replace(potential.config.domain, largest_force=largest_force)
    calc = FAENetCalculator(potential.with_domain(domain, potential.uncertainty))
    calc.calculate(inside, ["energy", "forces"])  # finite: accepted
    evaluate = calc.predictor.predict_one

    def broken(graphs, properties):
        prediction = evaluate(graphs, properties)
        return replace(prediction, **{name: getattr(prediction, name) * bad})

    monkeypatch.setattr(calc.predictor, "predict_one", broken)
    inside.positions[0, 2] += 0.01
    with pytest.raises(CalculationFailed, match=f"NaN or infinite {name}"):
        calc.calculate(inside, ["energy", "forces"])


def test_error_raises_and_ignore_says_nothing(potential, inside, outside):
    strict = FAENetCalculator(potential, on_outside_domain="error")
    strict.get_property("energy", inside)
    with pytest.raises(CalculationFailed, match="outside the domain"):
        strict.get_property("energy", outside)
    quiet = FAENetCalculator(potential, on_outside_domain="ignore")
    quiet.get_property("energy", outside)
    assert "domain" not in quiet.results
    with pytest.raises(InputError, match="on_outside_domain='maybe'"):
        FAENetCalculator(potential, on_outside_domain="maybe")


def test_predict_marks_every_structure(potential, inside, outside):
    with pytest.warns(UserWarning, match="structure 1: outside the domain"):
        found = FAENetCalculator(potential).predict([inside, outside, inside])
    assert [result["domain"] for result in found] == ["inside", "outside", "inside"]


def test_untrained_elements_are_outside(potential):
    calc = FAENetCalculator(potential, on_unknown_element="ignore")
    with pytest.warns(UserWarning, match=r"\(Zn\) unlike any in the training data"):
        (found,) = calc.predict([bulk("Zn")], properties=("energy", "domain_distance"))
    assert np.isinf(found["domain_distance"]).all()


def test_uncertainties_are_properties(potential, inside):
    calc = FAENetCalculator(potential)
    for name, shape in {"energy_uncertainty": (), "energies_uncertainty": (8,), "forces_uncertainty": (8,)}.items():
        value = np.asarray(calc.get_property(name, inside))
        assert value.shape == shape and (value > 0).all()


def test_differences_of_similar_structures_are_more_certain(potential, inside):
    calc, moved = FAENetCalculator(potential), inside.copy()
    moved.positions[-1, 2] += 0.05
    alone = calc.uncertainty_of_difference([inside], [1.0])
    assert alone == pytest.approx(calc.get_property("energy_uncertainty", inside), rel=1e-3)
    assert calc.uncertainty_of_difference([moved, inside], [1.0, -1.0]) < 0.5 * alone
    assert calc.uncertainty_of_difference([inside, inside], [1.0, -1.0]) == pytest.approx(0.0, abs=1e-6)
    with pytest.raises(InputError, match="2 structures and 1 coefficients"):
        calc.uncertainty_of_difference([moved, inside], [1.0])


@pytest.mark.filterwarnings("ignore:structure 0. outside the domain")
@pytest.mark.parametrize("bare_first", [True, False])
@pytest.mark.parametrize(("distance", "repelled"), [(1.4, True), (2.0, False)])
def test_a_member_without_repulsion_does_not_hide_that_of_the_others(potential, inside, bare_first, distance, repelled):
    wide = replace(potential.config.domain, shortest={"Cu-Cu": 1.4})
    other = potential.with_domain(wide, potential.uncertainty)
    bare = Potential(replace(other.config, repulsion=RepulsionConfig(kind="none")))
    bare.model, bare.uncertainty = other.model, other.uncertainty
    calc = FAENetCalculator([bare, other] if bare_first else [other, bare])
    offset = inside.positions[1] - inside.positions[0]
    inside.positions[0] += offset * (1 - distance / np.linalg.norm(offset))
    (result,) = calc.predict([inside], ("energy",))
    assert ("overlapping atoms, whose repulsion contributes" in str(result.get("why"))) == repelled


def test_members_of_a_committee_must_all_agree_that_a_structure_is_inside(potential, inside, outside):
    calc = FAENetCalculator([potential, potential])
    assert calc.predict([inside])[0]["domain"] == "inside"
    with pytest.warns(UserWarning, match="outside the domain"):
        (found,) = calc.predict([outside], properties=("energy", "energy_uncertainty"))
    assert found["domain"] == "outside"
    assert "atom_features" not in calc.implemented_properties


def test_without_a_domain_nothing_is_marked(inside):
    calc = FAENetCalculator(build_potential("modern-s", hidden_channels=64, filters=32, interactions=1))
    calc.get_property("energy", inside)
    assert "domain" not in calc.results and "energy_uncertainty" not in calc.implemented_properties


def test_relax_flags_structures_outside(potential, inside, outside):
    assert "outside-domain" not in relax(inside, FAENetCalculator(potential), steps=0).anomalies
    with pytest.warns(UserWarning, match="outside the domain"):
        result = relax(outside, FAENetCalculator(potential), steps=0)
    assert "outside-domain" in result.anomalies and "Cu-Cu" in result.why


def test_md_stops_outside(potential, inside, outside):
    settings = {"ensemble": "nve", "timestep_fs": 0.01, "steps": 2, "temperature_K": 1.0}
    assert run_md(inside, FAENetCalculator(potential), **settings).stopped_because is None
    with pytest.warns(MDStoppedWarning, match="outside the domain"), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "outside the domain")
        result = run_md(outside, FAENetCalculator(potential), **settings)
    assert result.n_steps == 0 and "Cu-Cu" in result.why


@pytest.mark.parametrize("command", ["predict", "relax", "md"])
def test_command_line_marks_and_exits_with_3(potential, inside, outside, tmp_path, command):
    model = str(save_potential(potential, tmp_path / "model.safetensors"))
    options = {"predict": [], "relax": ["--steps", "0", "--fmax", "1000"], "md": ["--steps", "1", "--temperature", "1"]}
    for atoms, code in ((inside, 0), (outside, 3)):
        write(tmp_path / "in.extxyz", atoms)
        arguments = [command, "-m", model, str(tmp_path / "in.extxyz"), "--json", "-q", *options[command]]
        found = CliRunner().invoke(main, arguments)
        assert found.exit_code == code, found.output
        row = json.loads(found.stdout)
        row = row if command == "md" else row["results"][0]
        assert (row.get("domain") == "outside") == (code == 3)
        assert ("Cu-Cu" in row.get("why", "")) == (code == 3)


def test_evaluate_counts_structures_outside(potential, inside, outside, tmp_path):
    model = str(save_potential(potential, tmp_path / "model.safetensors"))
    for atoms in (inside, outside):
        atoms.calc = FAENetCalculator(potential, on_outside_domain="ignore")
        atoms.get_forces()
    for structures, code, expected in (
        ([inside, outside], 3, ("outside", 1, ["1"])),
        ([inside] * 2, 0, ("inside", 0, [])),
        ([outside, *[inside] * 99], 0, ("outside", 1, ["0"])),  # as rare as false alarms
    ):
        write(tmp_path / "data.extxyz", structures)
        arguments = ["evaluate", "-m", model, str(tmp_path / "data.extxyz"), "--json", "-q", "--symmetry", "0"]
        found = CliRunner().invoke(main, arguments)
        assert found.exit_code == code, found.output
        result = json.loads(found.stdout)
        assert (result["domain"], result["n_outside"], list(result["why"])) == expected


def test_bonds_that_are_not_in_the_training_data_are_marked(potential):
    """Elements that were trained apart: the training data of copper-s have C and H, but no C-H bonds."""
    calc = FAENetCalculator("copper-s", on_outside_domain="warn")
    assert "C-H" not in calc.predictor.committee.members[0].config.domain.shortest
    with pytest.warns(UserWarning, match=r"\([CH]-[CH]\) 1\.09 Å apart \(training data: no [CH]-[CH] bonds\)"):
        (methane,) = calc.predict([molecule("CH4")])
    assert methane["domain"] == "outside"
    assert "bonds)" not in calc.predict([molecule("CO")])[0].get("why", "")
    apart = Atoms("CH", [[0, 0, 0], [0, 0, 3.0]])
    assert "bonds)" not in calc.predict([apart])[0].get("why", "")
    # Metals that never met may touch, and a bond that was trained is known.
    domain = replace(
        potential.config.domain, shortest={"Cu-Cu": 2.3, "Pd-Pd": 2.4, "O-Cu": 1.7, "O-Pd": 3.0, "O-O": 1.2}
    )
    limits = domain.contact_limits(torch.float64, torch.device("cpu")).reshape(119, 119).sqrt()
    assert float(limits[29, 46]) == pytest.approx(0.85 * (1.32 + 1.39))
    assert float(limits[8, 29]) == pytest.approx(0.85 * 1.7)
    assert float(limits[46, 8]) == pytest.approx(1.2 * (0.66 + 1.39))


def test_models_of_few_structures_have_a_coarse_guard(potential, tmp_path):
    """Below 1,000 training structures there is no uncertainty, but absurd results are marked all the same."""
    structures = [bulk("Cu", a=a, cubic=True).repeat(2) for a in np.linspace(3.4, 3.9, 24)]
    for number, atoms in enumerate(structures):
        atoms.rattle(0.05, seed=number)
        atoms.calc = EMT()
        atoms.get_forces()
    write(tmp_path / "few.extxyz", structures)
    settings = {
        "run": {"out_dir": str(tmp_path / "run"), "max_epochs": 1, "report": False, "tensorboard": False},
        "data": {"train": [str(tmp_path / "few.extxyz")], "cache_dir": str(tmp_path / "cache")},
        "model": {"hidden_channels": 64, "filters": 32, "interactions": 1},
    }
    result = train(config_from_mapping(settings))
    trained = load_potential(result.checkpoint)
    assert trained.uncertainty is None and trained.config.domain.uncertainty is None
    assert trained.config.domain.closed_directions == {"Cu": (3,)}
    calc = FAENetCalculator(trained)
    assert calc.predict([structures[3]])[0]["domain"] == "inside"
    atoms = structures[3].copy()
    atoms.calc = calc
    atoms.get_forces()
    assert calc.results["domain"] == "inside"
    with pytest.warns(UserWarning, match="Cu in slabs"):
        (slab,) = calc.predict([fcc111("Cu", (2, 2, 2), vacuum=8.0)])
    assert slab["domain"] == "outside"
    squeezed = bulk("Cu", a=2.4, cubic=True)
    assert "Å apart" in calc.predict([squeezed])[0]["why"]
    absurd = replace(trained.config.domain, lowest_energy=-90.0, highest_energy=-89.0)
    with pytest.warns(UserWarning, match="eV/atom"):
        FAENetCalculator(trained.with_domain(absurd)).predict([structures[3]])
