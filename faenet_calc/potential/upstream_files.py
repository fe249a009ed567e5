"""Files of the original FAENet code: .pt -> Potential.

Reads state dicts saved from PyPI ``faenet`` and checkpoints of the RolnickLab/ocp trainer of all generations. They are
pickles; torch's restricted unpickler reads them, which builds tensors, plain containers and the few harmless types
listed below, and runs no code of the file unless ``trust_pickle`` is given.
"""

import argparse
import collections
import dataclasses
import datetime
import hashlib
import pathlib
import pickle
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NoReturn

import numpy as np
import torch
from torch import Tensor
from torch.serialization import safe_globals

from faenet_calc import elements
from faenet_calc.errors import InputError
from faenet_calc.frames.config import FramesConfig
from faenet_calc.potential.config import EnergyConfig, PotentialConfig
from faenet_calc.potential.potential import Potential
from faenet_calc.potential.upstream import load_upstream
from faenet_calc.settings import load_yaml

# Neighbours per atom in the OC20 graphs that upstream trained on, nearest first.
OC20_MAX_NEIGHBORS = 50

# Energies per atom (eV) that upstream subtracted from the QM7-X energies (least squares over the training set).
QM7X_REFERENCES = {
    "H": -16.48365429710017, "C": -1035.230325647512, "N": -1488.1741712581756, "O": -2045.3532693858685,
    "S": -10832.70108036143, "Cl": -12520.741665730922,
}  # fmt: skip

_ADSORPTION = "clean slab plus adsorbate from N2, H2O, CO and H2 in the gas phase (the zero of {data})"


class _PlainDict:
    """Stands in for dictionary classes whose code is not needed: making one gives an empty ordered dictionary."""

    def __new__(cls, *arguments: Any) -> Any:
        return collections.OrderedDict()


def read_upstream(
    path: str | Path,
    *,
    config: Mapping[str, Any] | None = None,
    trust_pickle: bool = False,
    use_ema: bool = True,
) -> Potential:
    """A potential from a file of the original code.

    Args:
        path: A state dict saved with ``torch.save`` or a checkpoint of the ocp trainer.
        config: Constructor arguments, or a whole ocp config; needed for a bare state dict unless a .json, .yaml or .yml
            file of the same name lies beside it, and wins over the config inside a checkpoint.
        trust_pickle: Let the file run any code while it is read. Only for files whose origin you trust.
        use_ema: Take the averaged weights where a checkpoint has both; False takes the raw ones.

    Returns:
        Potential: With notes on what was assumed in ``metadata["extra"]["notes"]``.
    """
    file = Path(path)
    content = _unpickle(file, trust_pickle)
    given = config if config is not None else _sibling_config(file)
    source = _Source(file=file, notes=[])
    if isinstance(content, Mapping) and "state_dict" in content:
        trainer = dict(content.get("config") or {}) if given is None else dict(given)
        weights = _weights(content, use_ema, source)
        return _import(trainer, weights, content, source)
    if hasattr(content, "state_dict"):
        content = content.state_dict()
    if not isinstance(content, Mapping) or not all(isinstance(value, Tensor) for value in content.values()):
        raise InputError(
            f"{file} holds a {type(content).__name__}, expected a state dict or an ocp checkpoint (with state_dict)"
        )
    if given is None:
        raise InputError(
            f"{file} holds weights only; the activation, skip connection and frames cannot be read off them. Give the "
            f"constructor arguments with --config, or beside it as {file.with_suffix('.json').name} or .yaml, e.g. "
            '{"act": "swish", "skip_co": "concat", "energy_head": "", "frame_averaging": "3D", "fa_method": "all"}'
        )
    return _import(dict(given), _strip(content), {}, source)


def read_config(path: str | Path) -> dict[str, Any]:
    """A JSON or YAML file as plain values; YAML tags of upstream's tools (paths) are read as lists."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is neither JSON nor YAML: {error}") from error
    value = _plain(load_yaml(text, source=str(path)))
    if not isinstance(value, dict):
        raise InputError(f"{path} holds a {type(value).__name__}, expected a mapping of constructor arguments")
    return value


@dataclass(frozen=True, kw_only=True)
class _Source:
    """Where weights come from, and what was assumed about them on the way."""

    file: Path
    notes: list[str] = field(default_factory=list)


def _sibling_config(file: Path) -> dict[str, Any] | None:
    for suffix in (".json", ".yaml", ".yml"):
        if file.with_suffix(suffix).is_file():
            return read_config(file.with_suffix(suffix))
    return None


# Reading the pickle.


def _harmless() -> list[Any]:
    """Types that upstream's checkpoints hold besides tensors, under the names that old and new libraries give them."""
    paths: list[Any] = []
    for module in ("pathlib", "pathlib._local"):
        paths += [(pathlib.PurePosixPath, f"{module}.{name}") for name in ("PosixPath", "PurePosixPath")]
        paths += [(pathlib.PureWindowsPath, f"{module}.{name}") for name in ("WindowsPath", "PureWindowsPath")]
    scalar = np.float64(0).__reduce__()[0]
    array = np.zeros(1).__reduce__()[0]
    arrays: list[Any] = []
    for core in ("numpy.core", "numpy._core"):
        arrays += [(scalar, f"{core}.multiarray.scalar"), (array, f"{core}.multiarray._reconstruct")]
    kinds = "?bBhHiIlLqQefdSU"
    arrays += [
        np.ndarray,
        np.dtype,
        *{type(np.dtype(kind)) for kind in kinds},
        *{np.dtype(kind).type for kind in kinds},
    ]
    others = [(_PlainDict, "minydra.dict.MinyDict"), argparse.Namespace, datetime.datetime, datetime.timedelta]
    return [*paths, *arrays, *others]


def _unpickle(file: Path, trust_pickle: bool) -> Any:
    if not file.is_file():
        raise InputError(f"{str(file)!r} is not a file")
    try:
        if trust_pickle:
            return torch.load(file, map_location="cpu", weights_only=False)
        with safe_globals(_harmless()):
            return torch.load(file, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        _refuse(file, error)
    except Exception as error:  # torch raises all kinds of errors on files that are not its own
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError(
            f"{file} cannot be read as a torch file ({reason}); it is damaged or of another kind"
        ) from error


def _refuse(file: Path, error: pickle.UnpicklingError) -> NoReturn:
    """Say which foreign object stopped the restricted reading."""
    found = re.search(r"GLOBAL ([\w.]+)", str(error))
    if found is None:
        told = re.search(r"Unpickler error:\s*(.*)", str(error))
        reason = told.group(1).strip() if told else str(error).splitlines()[0]
        raise InputError(
            f"{file} is damaged, not written by torch.save, or holds things that cannot be read safely ({reason}); if "
            "it is whole and you trust where it comes from, use `faenet-calc convert --trust-pickle`"
        ) from error
    raise InputError(
        f"{file} holds an object of {found.group(1)}, which could run code of the file or of another package; "
        "nothing was run. If you trust where the file comes from, use `faenet-calc convert --trust-pickle`, which lets "
        "it run"
    ) from error


# From the content of a checkpoint to weights.


def _strip(state: Mapping[str, Any]) -> dict[str, Tensor]:
    """The state dict without what wrappers (module., model.…) put before the keys of FAENet."""
    anchor = "embed_block.lin.weight"
    prefix = next((key.removesuffix(anchor) for key in state if key.endswith(anchor)), "")
    return {key.removeprefix(prefix): value for key, value in state.items()}


def _weights(content: Mapping[str, Any], use_ema: bool, source: _Source) -> dict[str, Tensor]:
    weights = _strip(content["state_dict"])
    averaged = content.get("ema") or {}
    shadow = averaged.get("shadow_params")
    if not shadow:
        source.notes.append("weights as stored (the checkpoint has no separate average)")
        return weights
    if not use_ema:
        source.notes.append("raw weights; the checkpoint's moving average was left aside")
        return weights
    for names in (_parameter_names(weights, trained_table=True), _parameter_names(weights, trained_table=False)):
        if [weights[name].shape for name in names] == [value.shape for value in shadow]:
            source.notes.append(f"moving average of the weights (decay {float(averaged.get('decay', 0)):g})")
            return weights | dict(zip(names, shadow, strict=True))
    raise InputError(
        f"{source.file}: the moving average has {len(shadow)} tensors that do not match the {len(weights)} weights; "
        "use `faenet-calc convert --raw-weights`"
    )


def _parameter_names(weights: Mapping[str, Tensor], *, trained_table: bool) -> list[str]:
    """The names of parameters (not buffers), in upstream's order."""
    buffers = ["distance_expansion.offset", "phys_emb.group", "phys_emb.period"]
    buffers += ["running_mean", "running_var", "num_batches_tracked"]
    if not (trained_table and "embed_block.phys_lin.weight" in weights):
        buffers.append("phys_emb.properties")
    return [name for name in weights if not name.endswith(tuple(buffers))]


# From a trainer's config to settings.


def _import(
    trainer: Mapping[str, Any], weights: Mapping[str, Tensor], content: Mapping[str, Any], source: _Source
) -> Potential:
    """The potential, with frames, graph, units and meaning as the trainer's config says."""
    model = dict(trainer["model"]) if isinstance(trainer.get("model"), Mapping) else dict(trainer)
    rewiring = trainer.get("graph_rewiring") or model.get("graph_rewiring")
    model["graph_rewiring"] = rewiring
    task = _task(trainer)
    kind, method = _frame_words(trainer, task, source)
    normalizers = _normalizers(trainer, content, task, source)
    potential = load_upstream(model, weights, frame_averaging=kind, fa_method=method, normalizers=normalizers)
    settings = potential.config
    free_only = bool((_section(trainer, "task")).get("train_on_free_atoms")) and settings.forces == "direct"
    potential.config = dataclasses.replace(
        settings,
        frames=_deterministic(settings.frames, source),
        graph=dataclasses.replace(settings.graph, max_neighbors=_max_neighbors(trainer, model, task, source)),
        energy=_energy(trainer, task, source),
        forces_on_free_atoms_only=settings.forces_on_free_atoms_only or free_only,
        trained_elements=tuple(sorted(map(elements.atomic_number, QM7X_REFERENCES))) if task == "qm7x" else (),
        name=f"FAENet imported from {source.file.name}",
    )
    _note_surface(potential.config, source)
    potential.metadata = {
        "path": str(source.file),
        "sha256": hashlib.sha256(source.file.read_bytes()).hexdigest(),
        "extra": {
            "imported_from": source.file.name,
            "notes": source.notes,
            "upstream_model": _plain(model),
            "upstream_task": task,
            **{key: _plain(content[key]) for key in ("epoch", "step", "val_metrics") if content.get(key) is not None},
        },
    }
    return potential


def _section(mapping: Mapping[str, Any], *keys: str) -> Mapping[str, Any]:
    """A nested section, empty where it is missing or something else."""
    value: Any = mapping
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value if isinstance(value, Mapping) else {}


Task = Literal["is2re", "s2ef", "qm7x", "qm9", ""]


def _task(trainer: Mapping[str, Any]) -> Task:
    """Upstream's task from the places where its generations wrote it; "" if none says."""
    task, train = trainer.get("task"), _section(trainer, "dataset", "train")
    places = [task, _section(trainer, "task").get("name"), trainer.get("task_name"), trainer.get("config")]
    places += [_section(trainer, "task").get("dataset"), train.get("src")]
    words: dict[str, Task] = {
        "is2re": "is2re", "s2ef": "s2ef", "qm7x": "qm7x", "qm9": "qm9", "single_point_lmdb": "is2re",
        "trajectory_lmdb": "s2ef",
    }  # fmt: skip
    for place in places:
        for word, name in words.items():
            if isinstance(place, str) and word in place.lower():
                return name
    return ""


def _frame_words(trainer: Mapping[str, Any], task: Task, source: _Source) -> tuple[str, str]:
    """Upstream's frame_averaging and fa_method in the words of ``load_upstream``."""
    if "frame_averaging" not in trainer and not task:
        source.notes.append("the config says nothing about frames; taken as 3D frame averaging over all frames")
        return "3D", "all"
    kind = trainer.get("frame_averaging") or ""
    method = trainer.get("fa_method", trainer.get("fa_frames")) or "all"
    if kind not in ("", "2D", "3D", "DA"):
        flat = "2d" in str(kind).lower() or ("3d" not in str(kind).lower() and task in ("is2re", "s2ef"))
        source.notes.append(f"frames {kind!r} are not known here; taken as {'2D' if flat else '3D'} PCA frames")
        kind = "2D" if flat else "3D"
    proper = "se3-" if str(method).startswith("se3") else ""
    base = str(method).removeprefix("se3").removeprefix("-")
    if base not in ("", "all", "full", "e3", "multiple", "det", "stochastic", "random"):
        source.notes.append(f"frame method {method!r} is not known here; taken as the average over all {kind} frames")
        base = "all"
    return kind, f"{proper}{base or 'all'}"


def _deterministic(frames: FramesConfig, source: _Source) -> FramesConfig:
    if frames.mode != "stochastic":
        return frames
    source.notes.append(
        "trained with one random frame per structure; predicts with the average over all frames (frames='stochastic' "
        "gives upstream's random choice)"
    )
    return dataclasses.replace(frames, mode="all")


def _normalizers(trainer: Mapping[str, Any], content: Mapping[str, Any], task: Task, source: _Source) -> dict[str, Any]:
    """Means and standard deviations from the checkpoint or else the config; references where energies were shifted."""
    train = _section(trainer, "dataset", "train")
    found = {key: dict(value) for key, value in (content.get("normalizers") or {}).items() if value}
    if found:
        return found
    shifted = bool(train.get("lse_shift", task in ("qm7x", "qm9")))
    if shifted and task == "qm7x":
        source.notes.append("energies per atom of upstream's QM7-X fit are added; the energy is the total energy")
        return {"references": QM7X_REFERENCES}
    if shifted:
        source.notes.append("upstream subtracted energies per atom that the file does not hold; they are not added")
        return {}
    if train.get("normalize_labels") and "target_mean" in train:
        found["target"] = {"mean": train["target_mean"], "std": train["target_std"]}
        if "grad_target_std" in train:
            found["grad_target"] = {"std": train["grad_target_std"]}
        source.notes.append("mean and standard deviation of the labels are those of the config")
        return found
    source.notes.append("no normalisation of the labels found; the numbers are the network's own")
    return found


def _max_neighbors(trainer: Mapping[str, Any], model: Mapping[str, Any], task: Task, source: _Source) -> int | None:
    periodic = bool(model.get("use_pbc", trainer.get("use_pbc", task in ("is2re", "s2ef"))))
    if not periodic or task not in ("is2re", "s2ef"):
        return None
    source.notes.append(
        f"graphs keep the {OC20_MAX_NEIGHBORS} nearest neighbours as upstream's data did, but symmetrically (if i "
        "keeps j, j keeps i), where upstream's had one-way edges"
    )
    return OC20_MAX_NEIGHBORS


def _energy(trainer: Mapping[str, Any], task: Task, source: _Source) -> EnergyConfig:
    """What the energy means, by task."""
    if task in ("is2re", "s2ef"):
        oc22 = "oc22" in str(_section(trainer, "dataset", "train").get("src", "")).lower()
        data = "OC22" if oc22 else "OC20"
        return EnergyConfig(
            kind="relaxed-adsorption" if task == "is2re" else "adsorption",
            reference=_ADSORPTION.format(data=data),
            level_of_theory="PBE+U (VASP), as in OC22" if oc22 else "RPBE (VASP), as in OC20",
        )
    if task == "qm7x":
        return EnergyConfig(reference="isolated electrons and nuclei", level_of_theory="PBE0+MBD, as in QM7-X")
    if task == "qm9":
        target = _section(trainer, "dataset", "train").get("target", "unknown")
        return EnergyConfig(
            kind="other",
            reference=f"QM9 target {target}, relative to upstream's energies per atom",
            level_of_theory="B3LYP/6-31G(2df,p), as in QM9",
        )
    source.notes.append("the config names no known task; the meaning of the energy is unknown")
    return EnergyConfig(kind="other", reference="unknown (imported)", level_of_theory="unknown (imported)")


def _note_surface(settings: PotentialConfig, source: _Source) -> None:
    if settings.graph.rewiring == "remove-tag-0":
        source.notes.append("sub-surface atoms (tag 0) are deleted before the network; they get no forces")
    if settings.model.graph_norm:
        source.notes.append("GraphNorm statistics are per structure; upstream's were over whole batches")


def _plain(value: Any) -> Any:
    """JSON values of what checkpoints and YAML files hold."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, Tensor | np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, list | tuple | set):
        return [_plain(item) for item in value]
    for kind in (bool, int, float, str):
        if isinstance(value, kind):
            return kind(value)
    return None if value is None else str(value)
