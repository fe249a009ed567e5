"""How much faster is the compiled library (engine and kernels) than the same computation in PyTorch?

    python benchmarks/compiled_code.py [--repeats 30] [--models metals-s metals-m]

One process, one thread; calls with and without compiled code alternate, and medians of their CPU times are compared.
Rows are JSON: benchmark, case, metric, value, unit.
"""

import argparse
import json
import time
from collections.abc import Callable
from contextlib import ExitStack
from unittest.mock import patch

import numpy as np
import torch
from training_throughput import our_step, slabs

from faenet_calc import FAENetCalculator
from faenet_calc.memory import keep_freed_memory
from faenet_calc.network.native import library, unavailable
from faenet_calc.potential.checkpoint import load_potential
from faenet_calc.training.config import LossConfig

Call = Callable[[], object]


def row(case: str, metric: str, value: float, unit: str) -> None:
    """Print one result."""
    print(json.dumps({"benchmark": "compiled_code", "case": case, "metric": metric, "value": value, "unit": unit}))


def in_turns(call: Call, repeats: int) -> tuple[float, float]:
    """Median CPU times (ms) with compiled code and in PyTorch alone."""
    times: dict[bool, list[float]] = {True: [], False: []}
    for repeat in range(-2, repeats):
        for is_compiled, spent in times.items():
            with ExitStack() as replaced:
                if not is_compiled:
                    replaced.enter_context(patch("faenet_calc.network.kernels.native.serves", lambda *values: False))
                    replaced.enter_context(patch("faenet_calc.potential.forward.engine_for", lambda model: None))
                start = time.process_time()
                call()
            if repeat >= 0:  # the first ones warm up
                spent.append(1e3 * (time.process_time() - start))
    return float(np.median(times[True])), float(np.median(times[False]))


def step_of_relaxation(calculator: FAENetCalculator) -> Call:
    """Energy and forces of a slab with an adsorbate (54 atoms) that has moved a little."""
    atoms, draw = slabs(1)[0], np.random.default_rng(0)
    atoms.pbc = (True, True, False)
    atoms.calc = calculator

    def call() -> None:
        atoms.positions += draw.normal(scale=0.01, size=atoms.positions.shape)
        atoms.get_forces()

    return call


def main() -> None:
    """Time relaxation and training steps of every model."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--models", nargs="+", default=["metals-s", "metals-m"])
    arguments = parser.parse_args()
    if library() is None:
        raise SystemExit(f"nothing to compare: {unavailable()}")
    torch.set_num_threads(1)
    keep_freed_memory()
    for model in arguments.models:
        losses = LossConfig(energy=20.0, forces=1.0)
        cases = {
            "forces, 54 atoms, all frames": step_of_relaxation(FAENetCalculator(model, device="cpu")),
            "training step, 4 slabs of 54 atoms": our_step(load_potential(model), slabs(4), "stochastic", losses),
        }
        for case, call in cases.items():
            compiled, plain = in_turns(call, arguments.repeats)
            row(f"{model}: {case}", "compiled", compiled, "ms")
            row(f"{model}: {case}", "torch", plain, "ms")
            row(f"{model}: {case}", "torch / compiled", plain / compiled, "x")


if __name__ == "__main__":
    main()
