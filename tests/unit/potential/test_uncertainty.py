"""Last-layer uncertainty: algebra against dense formulas, calibration, distances, checkpoint."""

import copy
import dataclasses

import numpy as np
import pytest
import torch
from ase import Atoms
from ase.build import bulk, fcc111, molecule

from faenet_calc import build_potential, load_potential
from faenet_calc.errors import InputError
from faenet_calc.frames.frames import build_frames
from faenet_calc.graphs.graph import AtomGraph
from faenet_calc.network.native import INSTRUCTION_SETS, library
from faenet_calc.potential.checkpoint import save_potential
from faenet_calc.potential.domain import DomainGuard, TrainingDomain
from faenet_calc.potential.edge_lengths import EdgeLengths
from faenet_calc.potential.examination import Examiner
from faenet_calc.potential.uncertainty import REGULARIZER, FeatureStatistics, calibrated, grouped_quantile

OURS = ("energy_uncertainty", "energies_uncertainty", "forces_uncertainty", "domain_distance")


def _structures(n=40):
    rng = np.random.default_rng(0)
    made = []
    for number in range(n):
        atoms = [bulk("Cu", cubic=True), fcc111("Cu", (2, 2, 2), vacuum=8.0), molecule("CO")][number % 3]
        atoms.set_cell(atoms.cell * rng.uniform(0.97, 1.03), scale_atoms=True)
        atoms.rattle(0.1, rng=rng)
        made.append(atoms)
    return made


@pytest.fixture(scope="module")
def plain():
    return build_potential("modern-s", hidden_channels=64, filters=32, interactions=1, seed=1)


@pytest.fixture(scope="module")
def statistics(plain):
    statistics = FeatureStatistics()
    for atoms in _structures():
        prediction = plain.predict(atoms, ("energy", "atom_features"))
        statistics.add(prediction.atom_features, torch.tensor(atoms.numbers))
    return statistics


@pytest.fixture(scope="module")
def fitted(plain, statistics):
    domain = TrainingDomain(lowest_energy=-1.0, highest_energy=1.0, largest_force=5.0, uncertainty=1.0)
    return plain.with_domain(domain, statistics.fit())


def test_energy_is_linear_in_the_features(plain):
    atoms = _structures(2)[1]
    prediction = plain.predict(atoms, ("energy", "energies", "atom_features"))
    head, mixing = plain.model.output_block, plain.model.mlp_skip_co.weight[0]
    weights = torch.outer(mixing, head.lin2.weight[0]).flatten()
    energies = prediction.atom_features @ weights + mixing.sum() * head.lin2.bias
    scale = plain.config.normalization.scale
    assert torch.allclose(energies.double() * scale, prediction.energies, atol=1e-5)


def test_variance_is_that_of_regularized_linear_regression(statistics, fitted):
    rows = torch.stack(statistics.sums) / torch.tensor(statistics.sizes)[:, None]
    scale = rows.square().mean(dim=0).sqrt()
    scale = scale.clamp(min=1e-6 * float(scale.max()))
    scaled = rows / scale
    hessian = scaled.t() @ scaled
    hessian += REGULARIZER * hessian.diagonal().mean() * torch.eye(len(hessian))
    features = torch.stack(statistics.sums[:5])
    expected = ((features / scale) @ torch.linalg.inv(hessian) * (features / scale)).sum(dim=1).sqrt()
    found = fitted.uncertainty.deviation(features)
    assert torch.allclose(found, expected, rtol=2e-2)
    assert not torch.allclose(found, 1.2 * expected, rtol=2e-2)


def test_calibration_makes_the_mean_square_of_the_standardized_error_one(statistics):
    uncertainty, features = statistics.fit(), torch.stack(statistics.sums)
    deviation = uncertainty.deviation(features)
    error = 3.0 * deviation * torch.tensor([1.0, -1.0]).repeat(len(deviation) // 2)
    scaled = calibrated(uncertainty, deviation, error, torch.arange(len(error)))
    assert torch.allclose(scaled.deviation(features), 3.0 * deviation, rtol=1e-2)
    assert float(scaled.half_width) == pytest.approx(1.0)  # all errors are as large as the standard deviation


def test_half_width_covers_new_groups_of_a_heavy_tailed_distribution():
    """Errors of a group share a factor: 1.96 standard deviations and a quantile over structures cover too little."""
    rng = np.random.default_rng(0)
    covered = {"grouped": [], "ungrouped": [], "normal": []}
    for _ in range(200):
        values = torch.as_tensor(np.abs(rng.standard_t(3, (41, 1)) * (1 + 0.1 * rng.normal(size=(41, 20)))))
        known, new = values[:40].reshape(-1), values[40]
        group = torch.arange(40).repeat_interleave(20)
        widths = {
            "grouped": grouped_quantile(known, group, 0.95),
            "ungrouped": grouped_quantile(known, torch.arange(len(known)), 0.95),
            "normal": 1.96 * float(known.square().mean().sqrt()),
        }
        for name, width in widths.items():
            covered[name].append(float((new <= width).float().mean()))
    share = {name: sum(found) / len(found) for name, found in covered.items()}
    assert share["grouped"] > 0.94
    assert share["grouped"] > share["ungrouped"]


def test_interval_is_the_half_width_times_the_standard_deviation(fitted):
    found = fitted.predict(_structures(2)[1], ("energy_uncertainty", "energy_uncertainty_95"))
    expected = found.energy_uncertainty * fitted.uncertainty.half_width
    assert torch.allclose(found.energy_uncertainty_95, expected)
    assert float(fitted.uncertainty.half_width) > 0


def test_differences_of_shared_atoms_are_more_certain_than_independent_energies(fitted):
    slab = fcc111("Cu", (2, 2, 2), vacuum=8.0)
    moved = slab.copy()
    moved.positions[-1, 2] += 0.05
    features = [fitted.predict(atoms, ("atom_features",)).atom_features.sum(dim=0) for atoms in (slab, moved)]
    separate = fitted.uncertainty.deviation(torch.stack(features))
    together = fitted.uncertainty.deviation((features[1] - features[0])[None])
    assert float(together[0]) < 0.5 * float(separate.square().sum().sqrt())


def test_farthest_training_atoms_have_distance_one(statistics, fitted):
    for row, number in enumerate(fitted.uncertainty.elements.tolist()):
        atoms = statistics._atoms[number].float()
        distance = fitted.uncertainty.distance(atoms, torch.full((len(atoms),), number))
        assert float(torch.quantile(distance, 0.999)) == pytest.approx(1.0, rel=1e-2), row


def test_foreign_environments_are_far_and_unknown_elements_infinitely_far(fitted):
    near = fitted.predict(_structures(2)[1], ("domain_distance",)).domain_distance
    squeezed = bulk("Cu", a=2.6, cubic=True)
    far = fitted.predict(squeezed, ("domain_distance",)).domain_distance
    assert float(near.max()) < 2.0 < float(far.min())
    zinc = fitted.predict(bulk("Zn"), ("domain_distance",)).domain_distance
    assert bool(torch.isinf(zinc).all())


def test_forces_uncertainty_is_the_spread_over_drawn_last_layers(fitted):
    """Against the exact covariance of the force on one coordinate, by finite differences of the features."""
    atoms = _structures(3)[2]
    step, features = 1e-3, []
    double = fitted.with_domain(fitted.config.domain, fitted.uncertainty)
    for sign in (1, -1):
        per_axis = []
        for axis in range(3):
            moved = atoms.copy()
            moved.positions[0, axis] += sign * step
            per_axis.append(double.predict(moved, ("atom_features",)).atom_features.sum(dim=0).double())
        features.append(torch.stack(per_axis))
    exact = fitted.uncertainty.deviation((features[0] - features[1]) / (2 * step)).square().sum().sqrt()
    found = fitted.predict(atoms, ("forces_uncertainty",)).forces_uncertainty
    assert float(found[0]) == pytest.approx(float(exact), rel=0.35)


def test_batches_and_single_structures_agree(fitted):
    structures = _structures(6)
    batched = fitted.predict(structures, OURS).split()
    for atoms, one in zip(structures, batched, strict=True):
        alone = fitted.predict(atoms, OURS)
        for name in OURS:
            assert torch.allclose(getattr(one, name), getattr(alone, name), rtol=2e-2, atol=1e-6), name


def test_checkpoint_keeps_uncertainty_and_domain(fitted, tmp_path):
    path = save_potential(fitted, tmp_path / "fitted.safetensors")
    loaded = load_potential(path, device="cpu")
    assert loaded.config.domain == fitted.config.domain
    atoms = _structures(2)[1]
    expected, found = fitted.predict(atoms, ("energy", *OURS)), loaded.predict(atoms, ("energy", *OURS))
    for name in ("energy", *OURS):
        assert torch.allclose(getattr(expected, name), getattr(found, name), rtol=1e-2, atol=0.0), name


def test_without_a_fit_there_is_no_uncertainty(plain, tmp_path):
    loaded = load_potential(save_potential(plain, tmp_path / "plain.safetensors"), device="cpu")
    assert loaded.uncertainty is None and "energy_uncertainty" not in loaded.capabilities.properties()
    with pytest.raises(InputError, match="no fitted uncertainty"):
        loaded.predict(bulk("Cu"), ("energy_uncertainty",))


def _guard(**changes):
    settings = {"lowest_energy": -50.0, "highest_energy": 50.0, "largest_force": 1e3, "uncertainty": 1e3}
    return DomainGuard(TrainingDomain(**(settings | changes)), (0.0,) * 120, 6.0)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"highest_energy": -49.9}, "eV/atom above the element references"),
        ({"largest_force": 1e-6}, "eV/Å"),
        ({"shortest": {"Cu-Cu": 3.5}}, "Å apart"),
        ({"uncertainty": 1e-9}, "energy uncertainty"),
    ],
)
def test_guard_gives_a_reason_for_every_range(fitted, changes, words):
    atoms = bulk("Cu", a=2.2, cubic=True) if "shortest" in changes else _structures(2)[1]
    graph = fitted.graph(atoms)
    properties = ("energy", "forces", "energy_uncertainty", "domain_distance")
    prediction = fitted.evaluate(graph, properties=properties)

    def reasons(guard):
        contact = guard.domain.closest_contact(graph, EdgeLengths.of(graph, graph.edge_vectors()))
        return " ".join(guard.reasons(graph, dataclasses.replace(prediction, closest_contact=contact)))

    assert words in reasons(_guard(**changes))
    assert words not in reasons(_guard())


@pytest.mark.skipif(library() is None, reason="needs the compiled library")
@pytest.mark.parametrize("instructions", INSTRUCTION_SETS)
@pytest.mark.parametrize("width", [64, 50])  # 50: neither whole vectors nor whole panels
@pytest.mark.parametrize("frames", ["pair", "one"])
def test_compiled_code_examines_structures_as_torch_does(instructions, width, frames):
    if library(instructions) is None:
        pytest.skip(f"this processor has no {instructions}")
    plain = build_potential("modern-s", hidden_channels=width, filters=32, interactions=1, seed=1)
    statistics = FeatureStatistics()
    for atoms in _structures(20):
        statistics.add(plain.predict(atoms, ("atom_features",)).atom_features, torch.tensor(atoms.numbers))
    domain = TrainingDomain(lowest_energy=0, highest_energy=1, uncertainty=1, shortest={"Cu-Cu": 2.4, "C-O": 1.1})
    uncertainty = statistics.fit()
    examiner = Examiner(uncertainty, domain, library(instructions))
    slab = fcc111("Cu", (2, 2, 2), vacuum=8.0)
    slab += Atoms("OZnCO", slab.positions[-1] + [(0, 0, 1.9), (1, 0, 3.3), (0, 0, 3.0), (0, 1.0, 4.4)])  # Zn: unknown
    slab.rattle(0.1, seed=1)
    graph = plain.graph(slab)
    made = build_frames(graph, plain.config.frames, frames, vacuum=plain.cutoff)
    features = torch.randn(made.n_frames, graph.n_atoms, uncertainty.n_features)
    lengths = EdgeLengths.of(graph, graph.edge_vectors())
    found = examiner.examine(features.flatten(0, 1), made.weight, graph.atomic_numbers, lengths)
    averaged = torch.einsum("f,fnd->nd", made.weight.float(), features)
    expected = {
        "energy_uncertainty": uncertainty.deviation(averaged.sum(dim=0, keepdim=True)),
        "domain_distance": uncertainty.distance(averaged, graph.atomic_numbers),
        "closest_contact": domain.closest_contact(graph, lengths),
    }
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.allclose(found[name], value, rtol=1e-4), name
    assert torch.isinf(found["domain_distance"]).tolist() == (graph.atomic_numbers == 30).tolist()
    others = examiner.examine(1.01 * features.flatten(0, 1), made.weight, graph.atomic_numbers, lengths)
    assert not torch.allclose(others["energy_uncertainty"], expected["energy_uncertainty"], rtol=1e-4)


def test_copies_of_an_uncertainty_in_other_types_are_examined_anew(fitted):
    atoms, wanted = _structures(2)[1], ("energy", "energy_uncertainty", "domain_distance")
    first = fitted.predict(atoms, wanted)
    changed = copy.deepcopy(fitted.uncertainty)
    changed.factor *= 2
    doubled = fitted.with_domain(fitted.config.domain, changed).predict(atoms, wanted)
    assert torch.allclose(doubled.energy_uncertainty, 2 * first.energy_uncertainty, rtol=1e-5)
    double = copy.deepcopy(fitted).double().predict(atoms, wanted)
    assert torch.allclose(double.domain_distance.float(), first.domain_distance, rtol=1e-3)
    assert double.domain_distance.dtype == torch.float64


def test_closest_contacts_of_a_batch_are_those_of_its_structures(fitted):
    domain = TrainingDomain(lowest_energy=0, highest_energy=1, uncertainty=1, shortest={"Cu-Cu": 2.4, "Cu-O": 1.7})
    batch = [bulk("Cu", a=3.0, cubic=True), bulk("Cu"), Atoms("Cu"), Atoms("CuO", [(0, 0, 0), (0, 0, 1.2)])]
    graphs = [fitted.graph(atoms) for atoms in batch]
    together = AtomGraph.batch(graphs)
    found = domain.closest_contact(together, EdgeLengths.of(together, together.edge_vectors()))
    alone = [float(domain.closest_contact(one, EdgeLengths.of(one, one.edge_vectors()))) for one in graphs]
    assert found.tolist() == pytest.approx(alone)
    assert alone[0] == pytest.approx(3.0 / 2**0.5 / (0.85 * 2.4)) and alone[2] == float("inf")
    assert alone[3] < 1 < alone[1]


def test_guard_names_the_atom_that_is_unlike_the_training_data(fitted):
    graph = fitted.graph(bulk("Cu", a=2.6, cubic=True))
    prediction = fitted.evaluate(graph, properties=("energy", "energy_uncertainty", "domain_distance"))
    (reason,) = (text for text in _guard().reasons(graph, prediction) if "environment" in text)
    assert "(Cu)" in reason


def test_energies_below_the_references_are_called_so(fitted):
    graph = fitted.graph(bulk("Cu", cubic=True))
    prediction = dataclasses.replace(fitted.evaluate(graph), energy=torch.tensor([-177.6 * 4]))
    (reason,) = _guard(lowest_energy=-1.0, highest_energy=1.0).reasons(graph, prediction)
    expected = (
        "energy 177.6 eV/atom below the element references (training data: -1.00 to 1.00 eV/atom relative to them)"
    )
    assert reason == expected
