"""Strict reading and writing of the YAML file of a training run, with line numbers in error messages.

A file contains only the settings that differ from its preset. In increasing precedence: defaults of the dataclasses,
the preset's potential, the preset's hyperparameters, the file, and every ``--set section.key=value``.
"""

import dataclasses
import io
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from faenet_calc.errors import InputError
from faenet_calc.frames.config import FramesConfig
from faenet_calc.network.config import DecoderConfig, ModelConfig
from faenet_calc.potential.config import NormalizationConfig, PotentialConfig
from faenet_calc.potential.presets import preset as preset_config
from faenet_calc.settings import from_mapping, load_yaml, plain, to_mapping
from faenet_calc.training.config import ModelSection, OptimConfig, TrainConfig
from faenet_calc.training.preset_hyperparameters import FINETUNING_LR, PRESET_HYPERPARAMETERS

_COMMAND_LINE = 0  # stands for the line of a setting that came with --set


def load_config(path: str | Path, settings: Iterable[str] = ()) -> TrainConfig:
    """Read a YAML file and apply ``section.key=value`` settings.

    Raises:
        InputError: Lists every mistake with its line and the nearest valid name.
    """
    path = Path(path)
    if not path.is_file():
        raise InputError(f"{path} does not exist; give a YAML file of settings or data files")
    return read_config(path.read_text(), settings, source=str(path))


def read_config(text: str, settings: Iterable[str] = (), *, source: str = "settings") -> TrainConfig:
    """As :func:`load_config`, from the text of a file."""
    document = load_yaml(text, source=source) or {}
    if not isinstance(document, Mapping):
        raise InputError(
            f"{source} holds {type(document).__name__}, expected a mapping of sections: run, data, model, …"
        )
    lines = dict(_lines(document))
    mapping = plain(document)
    for setting in settings:
        path, value = parse_setting(setting)
        _put(mapping, path, value)
        for known in [name for name in lines if name == path or name.startswith(path + ".")]:
            del lines[known]
        lines[path] = _COMMAND_LINE
    return config_from_mapping(mapping, source=source, lines=lines)


def config_from_mapping(
    mapping: Mapping[str, Any], *, source: str = "settings", lines: Mapping[str, int] | None = None
) -> TrainConfig:
    """Build the settings of a run from plain values; missing ones come from the preset and its hyperparameters."""
    complete = _with_preset(mapping)
    try:
        return from_mapping(TrainConfig, complete, source=source)
    except InputError as error:
        raise InputError(_with_lines(str(error), lines or {})) from None


def parse_setting(setting: str) -> tuple[str, Any]:
    """Split ``"optim.lr=1e-3"`` into ("optim.lr", 0.001); the value is parsed as YAML."""
    name, equals, text = setting.partition("=")
    if not equals or "." not in name.strip():
        raise InputError(f"--set {setting!r}, expected section.key=value, e.g. --set optim.lr=1e-3")
    return name.strip(), plain(load_yaml(text, source=f"the value of --set {setting!r}"))


def config_to_mapping(config: TrainConfig) -> dict[str, Any]:
    """Convert settings to nested plain values; :func:`config_from_mapping` is the inverse."""
    return to_mapping(config)


def dump_config(config: TrainConfig) -> str:
    """Write all settings as YAML."""
    yaml, stream = YAML(), io.StringIO()
    yaml.default_flow_style = False
    yaml.dump(config_to_mapping(config), stream)
    return stream.getvalue()


def resumed_config(asked: TrainConfig, stored: Mapping[str, Any], *, source: str | Path) -> TrainConfig:
    """Settings of a resumed run: those it was started with, and the new ``run`` section.

    Args:
        asked: Current settings.
        stored: ``asked`` and ``resolved`` settings of the stored run.
        source: File that they were read from.

    Raises:
        InputError: A setting outside of ``run`` has changed.
    """
    # Settings that a run of an earlier version did not have are those that it used: their defaults.
    now, then = config_to_mapping(asked), config_to_mapping(config_from_mapping(stored["asked"], source=str(source)))
    changed = [
        f"{section}.{key}: {then.get(section, {}).get(key)!r} → {value!r}"
        for section in now
        if section != "run"
        for key, value in now[section].items()
        if value != then.get(section, {}).get(key)
    ]
    if changed:
        raise InputError(
            f"{source} belongs to a run with other settings:\n  - "
            + "\n  - ".join(changed)
            + "\nuse the same settings, "
            "another run.out_dir, or --overwrite"
        )
    resolved = dict(stored["resolved"])
    fresh = {key: value for key, value in now["run"].items() if value != then["run"].get(key)}
    resolved["run"] = {**resolved["run"], **fresh}
    return config_from_mapping(resolved, source=str(source))


def potential_config(
    config: TrainConfig,
    *,
    normalization: NormalizationConfig,
    mean_neighbors: float | None = None,
    trained_elements: tuple[int, ...] = (),
) -> PotentialConfig:
    """Settings of the potential that a run trains."""
    section = config.model
    model = ModelConfig(**{f.name: getattr(section, f.name) for f in dataclasses.fields(ModelConfig)})
    if mean_neighbors is not None:
        model = dataclasses.replace(model, mean_neighbors=mean_neighbors)
    if model.decoder is None and (section.forces == "direct" or config.loss.conservation > 0):
        model = dataclasses.replace(model, decoder=DecoderConfig())
    return PotentialConfig(
        model=model,
        frames=FramesConfig(**{f.name: getattr(config.frames, f.name) for f in dataclasses.fields(FramesConfig)}),
        graph=config.graph,
        energy=config.energy,
        normalization=normalization,
        forces=section.forces,
        forces_on_free_atoms_only=section.forces == "direct" and config.loss.free_atoms_only,
        trained_elements=trained_elements,
        repulsion=config.repulsion.applied_to(preset_config(section.preset).repulsion),
        name=section.name,
    )


def _with_preset(mapping: Mapping[str, Any]) -> dict[str, Any]:
    """Merge ``mapping`` into its preset; values of a wrong type are left to the strict reader."""
    model = mapping.get("model")
    name = model.get("preset", ModelSection().preset) if isinstance(model, Mapping) else ModelSection().preset
    if not isinstance(name, str) or name not in PRESET_HYPERPARAMETERS:
        raise InputError(f"model.preset = {name!r}, expected one of {', '.join(PRESET_HYPERPARAMETERS)}")
    potential = to_mapping(preset_config(name))
    base: dict[str, Any] = {
        "model": {**potential["model"], "forces": potential["forces"], "preset": name},
        "frames": potential["frames"],
        "graph": potential["graph"],
        "energy": potential["energy"],
    }
    base = _merged(base, PRESET_HYPERPARAMETERS[name])
    finetune = mapping.get("finetune")
    if isinstance(finetune, Mapping) and finetune.get("checkpoint") is not None:
        own = base.get("optim", {})
        base["optim"] = {**own, "lr": min(own.get("lr", OptimConfig().lr), FINETUNING_LR)}
    return _merged(base, mapping)


def _merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    result = dict(base)
    for key, value in changes.items():
        old = result.get(key)
        # An empty section in a file reads as None and changes nothing.
        if isinstance(old, Mapping) and value is None and key not in ("decoder",):
            continue
        mergeable = isinstance(old, Mapping) and isinstance(value, Mapping) and key != "references"
        result[key] = _merged(old, value) if mergeable else value  # type: ignore[arg-type]
    return result


def _lines(node: Any, path: str = "") -> Iterable[tuple[str, int]]:
    """(dotted path, line) of every key in a round-trip document."""
    if isinstance(node, Mapping) and hasattr(node, "lc"):
        for key, value in node.items():
            where = f"{path}.{key}" if path else str(key)
            yield where, node.lc.key(key)[0] + 1
            yield from _lines(value, where)


def _put(mapping: dict[str, Any], path: str, value: Any) -> None:
    *parents, last = path.split(".")
    section = mapping
    for parent in parents:
        inner = section.get(parent)
        if not isinstance(inner, dict):
            inner = section[parent] = {}
        section = inner
    section[last] = value


def _with_lines(message: str, lines: Mapping[str, int]) -> str:
    """Prefix every mistake whose key is in the file with "line n: "."""

    def locate(match: re.Match[str]) -> str:
        path = re.sub(r"\[\d+\].*", "", match.group(2))
        while path and path not in lines:
            path = path.rpartition(".")[0]
        if not path:
            return match.group(0)
        where = "--set: " if lines[path] == _COMMAND_LINE else f"line {lines[path]}: "
        return f"{match.group(1)}{where}{match.group(2)}"

    return re.sub(r"(?m)^(  - )([\w.\[\]-]+)", locate, message)
