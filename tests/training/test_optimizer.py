import copy

import pytest
import torch
from torch import nn

from faenet_calc.network.native import INSTRUCTION_SETS, library
from faenet_calc.training import orthogonal as orthogonal_module
from faenet_calc.training.config import OptimConfig
from faenet_calc.training.optimizer import Muon, build_optimizer
from faenet_calc.training.orthogonal import orthogonal


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(20, 24), nn.SiLU(), nn.LayerNorm(24), nn.Linear(24, 20), nn.SiLU(), nn.Linear(20, 1))


def train(model, optimizer, steps):
    inputs = torch.randn(64, 20, generator=torch.Generator().manual_seed(1))
    target = inputs[:, :1] * inputs[:, 1:2]
    for _ in range(steps):
        optimizer.zero_grad()
        loss = (model(inputs) - target).square().mean()
        loss.backward()
        optimizer.step()
    return float(loss.detach())


def test_no_decay_on_biases_norms_and_embeddings():
    model = nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2), nn.Embedding(3, 2))
    decayed, plain = build_optimizer(model, OptimConfig(kind="adamw", weight_decay=0.1)).param_groups
    assert [tuple(p.shape) for p in decayed["params"]] == [(2, 2)] and decayed["weight_decay"] == 0.1
    assert len(plain["params"]) == 4 and plain["weight_decay"] == 0.0


@pytest.mark.parametrize("shape", [(20, 20), (20, 60), (60, 20)])
def test_orthogonal_keeps_singular_vectors_and_levels_singular_values(shape):
    matrix = torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    left, values, right = torch.linalg.svd(matrix, full_matrices=False)
    levelled = left.t() @ orthogonal([matrix])[0] @ right.t()
    assert values.max() / values.min() > 3  # not level before
    off_diagonal = levelled - torch.diag(torch.diag(levelled))
    assert float(off_diagonal.abs().max()) < 1e-9
    assert float(torch.diag(levelled).min()) > 0.6 and float(torch.diag(levelled).max()) < 1.3


@pytest.mark.parametrize("instructions", INSTRUCTION_SETS)
def test_compiled_iterations_are_those_of_pytorch(instructions, monkeypatch):
    if library(instructions) is None:
        pytest.skip("no compiled library for these instructions")
    monkeypatch.setattr(orthogonal_module, "library", lambda: library(instructions))
    generator = torch.Generator().manual_seed(0)
    shapes = [(16, 16), (96, 33), (17, 200), (128, 128), (64, 64), (128, 512)]
    matrices = [torch.randn(*shape, generator=generator) for shape in shapes]
    matrices[4] = matrices[4].t()  # not contiguous
    given = [matrix.clone() for matrix in matrices]
    expected = orthogonal([matrix.double() for matrix in matrices])
    for found, wanted in zip(orthogonal(matrices), expected, strict=True):
        assert found.dtype == torch.float32 and found.shape == wanted.shape
        assert float((found - wanted).abs().max()) < 2e-5
    assert all(torch.equal(one, other) for one, other in zip(matrices, given, strict=True))
    assert float((orthogonal([1.01 * matrices[0] + 0.01])[0] - expected[0]).abs().max()) > 2e-5
    assert torch.equal(orthogonal([torch.zeros(20, 20)])[0], torch.zeros(20, 20))


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_muon_takes_the_inner_matrices_and_every_parameter_has_one_optimiser(weight_decay):
    model = network()
    optimizer = build_optimizer(model, OptimConfig(kind="muon", weight_decay=weight_decay))
    muon = next(part for part in optimizer.parts if isinstance(part, Muon))
    assert [tuple(p.shape) for p in muon.param_groups[0]["params"]] == [(24, 20), (20, 24)]
    owned = [id(p) for group in optimizer.param_groups for p in group["params"]]
    assert sorted(owned) == sorted(id(p) for p in model.parameters())


def test_a_step_of_muon_has_a_fifth_of_the_rate_as_root_mean_square():
    model = network()
    before = model[3].weight.detach().clone()
    train(model, build_optimizer(model, OptimConfig(kind="muon", lr=1e-3, weight_decay=0.0)), 1)
    length = float((model[3].weight.detach() - before).square().mean().sqrt())
    assert length == pytest.approx(0.2e-3, rel=0.3)


def test_muon_learns_and_goes_on_from_its_state_bit_for_bit():
    config = OptimConfig(kind="muon", lr=5e-3)
    whole, model = network(), network()
    untrained = train(network(), build_optimizer(network(), config), 1)
    assert train(whole, build_optimizer(whole, config), 60) < 0.3 * untrained
    optimizer = build_optimizer(model, config)
    train(model, optimizer, 25)
    state = copy.deepcopy(optimizer.state_dict())
    resumed = build_optimizer(model, config)
    resumed.load_state_dict(state)
    train(model, resumed, 35)
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), model.parameters(), strict=True))


def test_frozen_parameters_are_left_out():
    model = network()
    for parameter in model[0].parameters():
        parameter.requires_grad_(False)
    optimizer = build_optimizer(model, OptimConfig(kind="muon"))
    frozen = {id(p) for p in model[0].parameters()}
    assert not frozen & {id(p) for group in optimizer.param_groups for p in group["params"]}


@pytest.mark.parametrize("instructions", INSTRUCTION_SETS)
def test_compiled_code_takes_subnormal_numbers_as_zero_and_leaves_the_mode_of_the_thread(instructions, monkeypatch):
    if library(instructions) is None:
        pytest.skip("no compiled library for these instructions")
    monkeypatch.setattr(orthogonal_module, "library", lambda: library(instructions))
    subnormal = torch.tensor([1e-40, 1e-40])
    assert (subnormal * 0.5 > 0).all()  # in the mode of this thread
    matrix = torch.diag(torch.tensor([1.0, 1e-40]))
    assert orthogonal([matrix.double()])[0][1, 1] > 1e-39
    (found,) = orthogonal([matrix])
    assert found[0, 0] > 0.5 and found[1, 1] == 0
    assert (subnormal * 0.5 > 0).all()
