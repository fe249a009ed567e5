"""Training hyperparameters of each preset, from the paper's table and the released configurations."""

from typing import Any

# OC20 energies scatter around one mean: normalized by mean and standard deviation, not by element.
_BY_MEAN: dict[str, Any] = {"references": "none", "shift": "fit", "scale": "fit", "mean_neighbors": None}
_BY_ELEMENT: dict[str, Any] = {
    "references": "fit",
    "shift": 0.0,
    "scale": 1.0,
    "force_scale": 1.0,
    "mean_neighbors": None,
}
_PLATEAU: dict[str, Any] = {"schedule": "plateau", "plateau_patience": 15, "min_lr": 1e-6, "warmup_steps": 0}
# torch's default decay and no clipping, as in the released configurations.
_ADAMW: dict[str, Any] = {"kind": "adamw", "weight_decay": 0.01, "beta2": 0.999, "grad_clip": None}

FINETUNING_LR = 1e-3
"""Largest default learning rate of fine-tuning. On OC20 systems, larger rates can make fine-tuning on few structures
worse than training from scratch (``benchmarks/finetune_curve.py``)."""

PRESET_HYPERPARAMETERS: dict[str, dict[str, dict[str, Any]]] = {
    "modern-s": {},
    "modern-m": {"optim": {"lr": 5e-3}},
    "modern-l": {"optim": {"lr": 3e-3}},
    "paper-is2re": {
        "run": {"max_epochs": 12},
        "normalization": _BY_MEAN,
        "loss": {"energy": 1.0, "forces": 0.0, "energy_kind": "mae", "per_atom": False},
        "optim": {**_ADAMW, "lr": 2e-3, "batch_size": 256, "warmup_steps": 6000, "min_lr": 1e-7, "ema_decay": 0.0},
        "stop": {"metric": "energy_mae"},
    },
    "paper-s2ef": {
        "run": {"max_epochs": 12},
        "normalization": _BY_MEAN,
        "loss": {
            "energy": 1.0,
            "forces": 100.0,
            "conservation": 5.0,
            "energy_kind": "mae",
            "forces_kind": "mae",
            "per_atom": False,
            "free_atoms_only": True,
        },
        "optim": {**_ADAMW, "lr": 2.5e-4, "batch_size": 192, "warmup_steps": 30000, "min_lr": 1e-7, "ema_decay": 0.0},
        "stop": {"metric": "energy_forces_within"},
    },
    "paper-qm7x": {
        "run": {"max_epochs": 100},
        "normalization": _BY_ELEMENT,
        "loss": {
            "energy": 1.0,
            "forces": 100.0,
            "conservation": 15.0,
            "energy_kind": "mae",
            "forces_kind": "mse",
            "per_atom": False,
        },
        "optim": {**_ADAMW, **_PLATEAU, "lr": 2e-4, "batch_size": 100, "plateau_factor": 0.75, "ema_decay": 0.999},
        "stop": {"metric": "forces_mae"},
    },
    "paper-qm9": {
        "run": {"max_epochs": 1500},
        "normalization": _BY_ELEMENT,
        "loss": {"energy": 1.0, "forces": 0.0, "energy_kind": "mse", "per_atom": False},
        "optim": {**_ADAMW, **_PLATEAU, "lr": 1e-3, "batch_size": 64, "plateau_factor": 0.9, "ema_decay": 0.999},
        "stop": {"metric": "energy_mae", "patience": 20},
    },
}
