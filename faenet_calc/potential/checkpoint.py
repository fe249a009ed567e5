"""One file per potential: a ``.safetensors`` file with the weights and, in its metadata, everything else.

Metadata (all values are strings, as the format wants):

| key | value |
|---|---|
| format, format_version | ``faenet-calc`` and the version of this layout |
| package_version | of faenet-calc when the file was written |
| config | JSON of :class:`~faenet_calc.potential.config.PotentialConfig` |
| extra | JSON: training data, metrics, commands, notes of an import |
| sha256 | of all other metadata and of every tensor (name, type, shape, bytes) |

Any damaged or edited bit is found on loading. In files of format version 1 the sha256 covers the config and the tensors
only. Before version 3, lattice frames were stored with the mode ``all``, the default of that time; they are loaded with
the present default. Control characters in the metadata are removed on loading, so that no text of a file can drive a
terminal. No file is ever unpickled here.
"""

import dataclasses
import hashlib
import json
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_bytes
from torch import Tensor

import faenet_calc
from faenet_calc.errors import InputError
from faenet_calc.files import write_atomically
from faenet_calc.potential import shipped
from faenet_calc.potential.config import PotentialConfig, RepulsionConfig
from faenet_calc.potential.device import as_dtype, pick_device
from faenet_calc.potential.potential import Potential
from faenet_calc.potential.uncertainty import LastLayerUncertainty
from faenet_calc.settings import from_mapping, to_mapping

FORMAT = "faenet-calc"
FORMAT_VERSION = 3
SUFFIX = ".safetensors"
UPSTREAM_SUFFIXES = (".pt", ".pth", ".ckpt")


@dataclass(frozen=True, kw_only=True, eq=False)
class _Content:
    """A checkpoint file as read: its metadata and, unless only that was asked for, its tensors."""

    metadata: dict[str, str]
    tensors: dict[str, Tensor]


def save_potential(potential: Potential, path: str | Path, *, extra: Mapping[str, Any] | None = None) -> Path:
    """Write a potential to one file; a file of that name is replaced at once and whole, or not at all.

    Args:
        potential: In any dtype, on any device.
        path: Ends in ``.safetensors``.
        extra: What else to remember, as JSON values. None keeps what the potential was loaded with.

    Returns:
        Path: The file.
    """
    target = Path(path)
    if target.suffix != SUFFIX:
        raise InputError(f"cannot save to {str(target)!r}: a checkpoint ends in {SUFFIX}, e.g. {target.stem}{SUFFIX}")
    remembered = potential.metadata.get("extra", {}) if extra is None else dict(extra)
    config = json.dumps(to_mapping(potential.config), sort_keys=True, allow_nan=False)
    tensors = {name: value.detach().cpu().contiguous() for name, value in potential.state_dict().items()}
    metadata = {
        "format": FORMAT,
        "format_version": str(FORMAT_VERSION),
        "package_version": faenet_calc.__version__,
        "config": config,
        "extra": _dump_extra(remembered),
    }
    write_atomically(target, to_bytes(tensors, metadata | {"sha256": _content_hash(metadata, tensors)}))
    return target


@torch.inference_mode(False)
def load_potential(
    name_or_path: str | Path,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
    *,
    repulsion: bool = True,
) -> Potential:
    """A potential ready for inference: evaluation mode, no gradients for its weights.

    Args:
        name_or_path: Name of a shipped model, a ``.safetensors`` checkpoint, or a ``.pt``/``.pth``/``.ckpt`` file of
            the original FAENet code (read without running code in it; ``faenet-calc convert`` has more options).
        device: None picks cuda, else mps, else cpu.
        dtype: "float32" or "float64"; None keeps the stored one.
        repulsion: False switches the short-range repulsion of the checkpoint off.

    Raises:
        InputError: For a file that is missing, damaged, too new, or not a checkpoint.
    """
    path = _locate(name_or_path)
    chosen, kind = pick_device(device), None if dtype is None else as_dtype(dtype)
    if path.suffix in UPSTREAM_SUFFIXES:
        from faenet_calc.potential.upstream_files import read_upstream

        potential = read_upstream(path)
    else:
        potential = _build(path, _read(path))
    if not repulsion:
        potential.config = dataclasses.replace(potential.config, repulsion=RepulsionConfig(kind="none"))
    if isinstance(name_or_path, str) and name_or_path in shipped.names():
        potential.metadata["name"] = name_or_path
    if chosen.type == "mps" and (kind or potential.dtype) == torch.float64:
        raise InputError("device 'mps' has no float64; use dtype='float32' or device='cpu'")
    potential.to(device=chosen).model.to(dtype=kind)
    return potential.eval().requires_grad_(False)


def read_metadata(path: str | Path) -> dict[str, Any]:
    """What a checkpoint says about itself, from its header alone (the hash is not checked).

    Returns:
        dict: path, format_version, package_version, config (mapping), extra (mapping), sha256.
    """
    file = _locate(path)
    return _describe(file, _read(file, with_tensors=False).metadata)


def _locate(name_or_path: str | Path) -> Path:
    """The file behind a shipped name or a path."""
    if isinstance(name_or_path, str) and name_or_path in shipped.names():
        return shipped.path(name_or_path)
    path = Path(name_or_path).expanduser()
    if path.is_dir():
        inside = sorted(file.name for file in path.glob(f"*{SUFFIX}"))
        hint = f"; it holds {', '.join(inside)}" if inside else ""
        raise InputError(f"{str(path)!r} is a folder, expected a checkpoint file{hint}")
    if not path.is_file():
        raise InputError(
            f"{str(path)!r} is neither a file nor the name of a shipped model{shipped.nearest(str(path))}; shipped: "
            f"{', '.join(shipped.names()) or 'none'}"
        )
    return path


def _read(path: Path, *, with_tensors: bool = True) -> _Content:
    """Read a checkpoint file; say what else it is if it is none."""
    with path.open("rb") as stream:
        start = stream.read(9)
    # A safetensors file begins with the length of its header, whose lowest byte may be any, and then a brace.
    if start[8:] != b"{" and (start[:2] == b"PK" or start[:1] == b"\x80"):
        raise InputError(
            f"{path} is a pickle (torch.save), not a {SUFFIX} file; if it holds weights of the original FAENet code, "
            f"use `faenet-calc convert {path.name} NEW{SUFFIX}`"
        )
    try:
        with safe_open(path, framework="pt") as file:
            metadata = dict(file.metadata() or {})
            tensors = {name: file.get_tensor(name) for name in file.keys()} if with_tensors else {}  # noqa: SIM118
    except SafetensorError as error:
        raise InputError(
            f"{path} ({path.stat().st_size} bytes) is cut off, damaged or not a {SUFFIX} file ({error}); copy it again"
        ) from error
    _check_format(path, metadata)
    return _Content(metadata=metadata, tensors=tensors)


def _check_format(path: Path, metadata: Mapping[str, str]) -> None:
    if metadata.get("format") != FORMAT:
        raise InputError(
            f"{path} is a {SUFFIX} file of format {metadata.get('format')!r}, expected {FORMAT!r}; weights of the "
            "original FAENet code are imported from their .pt file with `faenet-calc convert`"
        )
    missing = {"format_version", "package_version", "config", "extra", "sha256"} - set(metadata)
    if missing:
        raise InputError(f"{path} lacks the metadata {', '.join(sorted(missing))}; it is damaged, copy it again")
    version = metadata["format_version"]
    if not version.isdecimal() or int(version) > FORMAT_VERSION:
        raise InputError(
            f"{path} has format_version {_printable(version)}, written by faenet-calc "
            f"{_printable(metadata['package_version'])}; this is "
            f"faenet-calc {faenet_calc.__version__}, which reads up to {FORMAT_VERSION}: upgrade faenet-calc"
        )


def _build(path: Path, content: _Content) -> Potential:
    """The potential of a file, after checking that the file is whole and fits itself."""
    metadata, tensors = content.metadata, content.tensors
    found = _content_hash(metadata, tensors)
    if found != metadata["sha256"]:
        raise InputError(
            f"{path} is damaged: its content has sha256 {found[:12]}…, it was written with {metadata['sha256'][:12]}…; "
            "copy it again from where it came"
        )
    described = _describe(path, metadata)
    config = from_mapping(PotentialConfig, described["config"], source=str(path))
    if described["format_version"] < 3 and config.frames.kind == "lattice" and config.frames.mode == "all":
        config = dataclasses.replace(config, frames=dataclasses.replace(config.frames, mode="auto"))
    if "repulsion" not in described["config"] and config.frames.kind == "lattice" and config.forces == "gradient":
        config = dataclasses.replace(config, repulsion=RepulsionConfig(kind="zbl"))
    with torch.random.fork_rng(devices=[]):
        potential = Potential(config)
    prefix = "uncertainty."
    fitted = {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
    weights = {name: value for name, value in tensors.items() if not name.startswith(prefix)}
    _check_fit(path, potential.state_dict(), weights)
    floating = {value.dtype for value in weights.values() if value.is_floating_point()}
    if len(floating) != 1 or not floating <= {torch.float32, torch.float64}:
        raise InputError(f"{path} has weights of types {sorted(map(str, floating))}, expected float32 or float64 only")
    potential.to(floating.pop())
    potential.load_state_dict(weights, strict=True)
    potential.metadata = described
    if fitted:
        try:
            potential.uncertainty = LastLayerUncertainty(**fitted)
        except TypeError as error:
            raise InputError(f"{path}: its uncertainty is incomplete ({error}); fit it again") from error
    return potential


def _check_fit(path: Path, own: Mapping[str, Tensor], tensors: Mapping[str, Tensor]) -> None:
    missing, unknown = sorted(set(own) - set(tensors)), sorted(set(tensors) - set(own))
    if missing or unknown:
        raise InputError(
            f"the weights in {path} do not fit its config: missing {missing[:5]}, unknown {unknown[:5]} "
            f"({len(missing)} and {len(unknown)} in all); write it again with faenet-calc"
        )
    for name, value in own.items():
        if value.shape != tensors[name].shape:
            raise InputError(
                f"{path}: {name} has shape {tuple(tensors[name].shape)}, its config needs {tuple(value.shape)}; "
                "write it again with faenet-calc"
            )


def _describe(path: Path, metadata: Mapping[str, str]) -> dict[str, Any]:
    """The metadata of a file as Python values."""
    values: dict[str, Any] = {"path": str(path), "format_version": int(metadata["format_version"])}
    values |= {"package_version": _printable(metadata["package_version"]), "sha256": _printable(metadata["sha256"])}
    for key in ("config", "extra"):
        try:
            values[key] = _printable(json.loads(metadata[key]))
        except json.JSONDecodeError as error:
            raise InputError(f"{path}: the metadata {key!r} is not JSON ({error}); copy the file again") from error
    return values


def _dump_extra(extra: Mapping[str, Any]) -> str:
    try:
        return json.dumps(extra, sort_keys=True)
    except TypeError as error:
        raise InputError(f"extra is not JSON ({error}); use numbers, strings, lists and dicts") from None


def _content_hash(metadata: Mapping[str, str], tensors: Mapping[str, Tensor]) -> str:
    """sha256 of the metadata and of name, type, shape and bytes of every tensor, in the order of names."""
    if metadata["format_version"] == "1":
        text = metadata["config"]
    else:
        text = json.dumps({key: value for key, value in metadata.items() if key != "sha256"}, sort_keys=True)
    digest = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        value = tensors[name]
        digest.update(f"\0{name}\0{value.dtype}\0{tuple(value.shape)}\0".encode())
        digest.update(value.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _printable(value: Any) -> Any:
    """JSON values without control and format characters in their strings; line breaks and tabs stay."""
    if isinstance(value, str):
        return "".join(c for c in value if c in "\n\t" or unicodedata.category(c) not in ("Cc", "Cf"))
    if isinstance(value, list):
        return [_printable(item) for item in value]
    if isinstance(value, dict):
        return {_printable(key): _printable(item) for key, item in value.items()}
    return value
