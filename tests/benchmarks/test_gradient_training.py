"""The benchmark of compiled derivatives compares what it times and the sides differ in what computes them."""

import gradient_training as benchmark
import pytest
import torch

from faenet_calc.network.native import library
from faenet_calc.potential import forward
from faenet_calc.training import orthogonal

pytestmark = pytest.mark.skipif(library() is None, reason="no compiled library")


def test_only_one_side_is_compiled(monkeypatch):
    chosen = []
    for side in benchmark.SIDES:
        with monkeypatch.context() as patch:
            patch.setattr(benchmark, "keep_freed_memory", lambda: True)
            patch.setattr(forward, "fits_training_engine", forward.fits_training_engine)
            patch.setattr(orthogonal, "library", orthogonal.library)
            run = benchmark.Side(side, "modern-s", 2)
            before = run.potential.model.output_block.lin1.weight.detach().clone()
            run.step()
            assert not torch.equal(before, run.potential.model.output_block.lin1.weight)
            batch = run.maker.make(run.batches[0], 0)
            names, stack = set(), [run.loss.predict(run.potential, batch.labelled, batch.frames).forces.grad_fn]
            while stack:
                node = stack.pop()
                if node is not None and node not in names:
                    names.add(node)
                    stack += [following for following, _ in node.next_functions]
            chosen.append(any(node.name().startswith("_Energies") for node in names))
    assert chosen == [True, False]


def test_rows():
    rows = []
    benchmark.measure("modern-s", 2, 1, lambda *row: rows.append(row))
    assert [metric for _, metric, *_ in rows] == [
        "relative difference of the gradients, float32",
        "CPU time of a step (compiled)",
        "CPU time of a step (autograd)",
        "ratio",
    ]
    assert 0 < rows[0][2] < 1e-3 and rows[3][2] == pytest.approx(rows[2][2] / rows[1][2])
