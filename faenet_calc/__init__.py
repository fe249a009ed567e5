"""faenet-calc: FAENet as an interatomic potential.

The door of the package. Names are imported when they are first asked for, so that `import faenet_calc` (and the command
line's `--help`) does not import torch.
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_HOME = {
    "FAENetCalculator": "faenet_calc.calculator.calculator",
    "Potential": "faenet_calc.potential.potential",
    "build_potential": "faenet_calc.potential.potential",
    "load_potential": "faenet_calc.potential.checkpoint",
    "load_upstream": "faenet_calc.potential.upstream",
    "relax": "faenet_calc.simulate",
    "relax_batch": "faenet_calc.simulate.batch",
    "run_md": "faenet_calc.simulate",
    "run_md_batch": "faenet_calc.simulate.batch",
    "screen": "faenet_calc.screening.screen",
}

__all__ = [
    "FAENetCalculator",
    "Potential",
    "__version__",
    "build_potential",
    "load_potential",
    "load_upstream",
    "relax",
    "relax_batch",
    "run_md",
    "run_md_batch",
    "screen",
]


def __getattr__(name: str) -> Any:
    """Import a public name from its home on first use."""
    if name not in _HOME:
        raise AttributeError(f"module 'faenet_calc' has no attribute {name!r}; it has {', '.join(sorted(_HOME))}")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
