"""Keywords of other calculators, each with its equivalent here."""

import difflib
from collections.abc import Collection, Iterable
from typing import Any, NoReturn

from faenet_calc.errors import InputError

OURS = (
    "checkpoint",
    "device",
    "dtype",
    "forces",
    "frames",
    "tags",
    "skin",
    "remove_net_force",
    "seed",
    "on_unknown_element",
    "on_outside_domain",
    "on_isolated_atoms",
    "check_finite",
)

_CHECKPOINT = "checkpoint=, the first argument (a name, a path, a list or glob of paths, or a Potential)"
_MODEL_KEEPS = "is part of the checkpoint and cannot be set here; train or import a model with the value you want"
_NOT_ELECTRONIC = "nothing: charge and spin are no inputs of the model; it predicts what its training data have"
_ANSWERS = {
    "default_dtype": "dtype= ('float32' or 'float64')",
    "precision": "dtype= ('float32' or 'float64')",
    "use_device": "device= ('cpu', 'cuda', 'mps'; None picks the best)",
    "cpu": "device='cpu'",
    "gpu": "device='cuda'",
    "use_gpu": "device='cuda'",
    "model_path": _CHECKPOINT,
    "model_paths": _CHECKPOINT,
    "models": _CHECKPOINT,
    "model": _CHECKPOINT,
    "model_name": _CHECKPOINT,
    "checkpoint_path": _CHECKPOINT,
    "potential": _CHECKPOINT,
    "predict_unit": _CHECKPOINT,
    "identifier": _CHECKPOINT,
    "local_cache": _CHECKPOINT,
    "neighbor_skin": "skin= (Å)",
    "frame_averaging": "frames= ('one', 'all', 'exact', 'stochastic'); the kind of frame is the checkpoint's",
    "fa_method": "frames= ('one', 'all', 'exact', 'stochastic')",
    "fa_frames": "frames= ('one', 'all', 'exact', 'stochastic')",
    "regress_forces": "forces= ('gradient' or 'direct')",
    "remove_drift": "remove_net_force=",
    "model_type": "nothing: the checkpoint knows what it is",
    "task_name": "nothing: a checkpoint has one task",
    "head": "nothing: a checkpoint has one head",
    "trainer": "nothing: no trainer is needed to predict",
    "config_yml": "nothing: settings are inside the checkpoint; `faenet-calc convert` makes one from upstream files",
    "compile_mode": "nothing: the model runs uncompiled",
    "enable_cueq": "nothing: FAENet has no equivariant tensor products to accelerate",
    "enable_oeq": "nothing: FAENet has no equivariant tensor products to accelerate",
    "stress_weight": "nothing: stress comes out in eV/Å³; faenet_calc.units converts",
    "compute_stress": "nothing: stress is computed when it is asked for",
    "energy_units_to_eV": "nothing: energies are in eV",
    "length_units_to_A": "nothing: lengths are in Å",
    "dispersion": "ase.calculators.mixing.SumCalculator([FAENetCalculator(...), your dispersion calculator])",
    "damping": "ase.calculators.mixing.SumCalculator([FAENetCalculator(...), your dispersion calculator])",
    "kpts": "nothing: a potential has no k-points",
    "xc": "nothing: the functional is that of the training data, see calc.level_of_theory",
    "charge": _NOT_ELECTRONIC,
    "magmoms": _NOT_ELECTRONIC,
    "spin": _NOT_ELECTRONIC,
    "cutoff": f"nothing: the cutoff {_MODEL_KEEPS}",
    "r_max": f"nothing: the cutoff {_MODEL_KEEPS}",
    "max_neighbors": f"nothing: max_neighbors {_MODEL_KEEPS}",
}


def reject(keywords: Collection[str]) -> NoReturn:
    """Raise a TypeError that names the equivalent of every keyword that :class:`FAENetCalculator` does not have."""
    lines = [f"{word}=: {_answer(word)}" for word in sorted(keywords)]
    raise TypeError("FAENetCalculator got unknown keywords:\n  " + "\n  ".join(lines))


def check_choice(name: str, value: Any, allowed: Iterable[Any]) -> None:
    """Raise an InputError for a value that is not allowed."""
    options = list(allowed)
    if not any(value is option or (isinstance(value, str) and value == option) for option in options):
        raise InputError(f"{name}={value!r}, expected one of {', '.join(map(repr, options))}")


def _answer(word: str) -> str:
    known = _ANSWERS.get(word)
    if known is not None:
        return f"use {known}" if not known.startswith("nothing") else f"not needed, {known.split(': ', 1)[1]}"
    close = difflib.get_close_matches(word, OURS, n=1)
    return f"did you mean {close[0]}=?" if close else f"known are {', '.join(OURS)}"
