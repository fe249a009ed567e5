"""Shipped models by name: where their files are, and that they are what was shipped.

A model is a folder with ``model.safetensors``, ``sha256`` (the digest of that file, as ``sha256sum`` prints it) and
``card.md``. The file ``default`` beside the folders holds the name of the default model. This module imports no torch.
"""

import difflib
import hashlib
from functools import lru_cache
from pathlib import Path

from faenet_calc.errors import InputError

_PACKAGE = Path(__file__).resolve().parents[1]


def _root() -> Path:
    """The folder of models: inside an installed package, beside the package in a clone."""
    installed = _PACKAGE / "pretrained_models"
    return installed if installed.is_dir() else _PACKAGE.parent / "pretrained"


def names() -> tuple[str, ...]:
    """The names of the shipped models, sorted."""
    return tuple(sorted(file.parent.name for file in _root().glob("*/model.safetensors")))


def path(name: str) -> Path:
    """The checkpoint of a shipped model, after comparing it with its recorded sha256.

    Raises:
        InputError: For an unknown name, or for a file that is not the one that was shipped.
    """
    folder = _folder(name)
    file = folder / "model.safetensors"
    expected = _recorded(folder)
    found = _digest(file, file.stat().st_mtime_ns)
    if found != expected:
        raise InputError(
            f"the shipped model {name!r} is damaged: {file} has sha256 {found[:12]}…, {folder / 'sha256'} says "
            f"{expected[:12]}…; reinstall faenet-calc"
        )
    return file


def card(name: str) -> Path:
    """The card (data, errors, domain, licence) of a shipped model; the file may be missing."""
    return _folder(name) / "card.md"


def default_name() -> str:
    """The name of the default model.

    Raises:
        InputError: If no model is shipped, or if the default names none of them.
    """
    shipped = names()
    if not shipped:
        raise InputError(
            f"no model is shipped with this installation ({_root()} has none); give the path of a checkpoint, or "
            "train one with `faenet-calc train`"
        )
    file = _root() / "default"
    chosen = file.read_text(encoding="utf-8").strip() if file.is_file() else ""
    if chosen not in shipped:
        raise InputError(
            f"{file} names {chosen!r} as the default model; shipped are {', '.join(shipped)}: name one of them"
        )
    return chosen


def nearest(name: str) -> str:
    """A hint at the shipped model with the most similar name; empty if none is similar."""
    close = difflib.get_close_matches(name, names(), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


def _folder(name: str) -> Path:
    shipped = names()
    if name not in shipped:
        raise InputError(f"no shipped model is called {name!r}{nearest(name)}; shipped: {', '.join(shipped) or 'none'}")
    return _root() / name


def _recorded(folder: Path) -> str:
    """The digest in a model's ``sha256`` file."""
    file = folder / "sha256"
    words = file.read_text(encoding="utf-8").split() if file.is_file() else []
    if not words or len(words[0]) != 64:
        raise InputError(f"{file} does not hold a sha256; write it with: sha256sum model.safetensors > sha256")
    return words[0].lower()


@lru_cache(maxsize=32)
def _digest(file: Path, modified_ns: int) -> str:
    """sha256 of a file, computed once as long as it is not written again."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
