"""Settings: YAML files, and strict conversion between frozen dataclasses and nested mappings (JSON, YAML).

:func:`from_mapping` collects unknown keys, wrong types, invalid choices and numbers out of range and reports them
together, each with its dotted path and the nearest valid name. Ranges are part of a field's type, in the vocabulary of
``annotated_types``: ``lr: Annotated[float, Gt(0)]``.
"""

import dataclasses
import difflib
import math
import operator
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, TypeVar

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from faenet_calc.errors import InputError, counted

T = TypeVar("T")

_MAX_VALUES, _MAX_DEPTH = 100_000, 50  # of a YAML document with its aliases expanded

_BOUNDS: dict[str, tuple[Callable[[Any, Any], bool], str]] = {
    "gt": (operator.gt, "above"),
    "ge": (operator.ge, "at least"),
    "lt": (operator.lt, "below"),
    "le": (operator.le, "at most"),
}


def load_yaml(text: str, *, source: str) -> Any:
    """Parse YAML 1.2, e.g. ``1e-3`` as a number and ``No`` as a string.

    Args:
        text: The document.
        source: Its name in error messages.

    Returns:
        The value; mappings are ruamel's round-trip mappings, which know the lines of their keys.

    Raises:
        InputError: The text is not YAML, or aliases (``*name``) make it larger than any configuration.
    """
    yaml = YAML(typ="rt")
    yaml.version = "1.2"
    try:
        document = yaml.load(text)
    except (YAMLError, RecursionError) as error:
        raise InputError(f"{source} is not YAML: {error}") from error
    waiting, n_values = [(document, 0)], 0
    while waiting:
        value, depth = waiting.pop()
        n_values += 1
        if n_values > _MAX_VALUES or depth > _MAX_DEPTH:
            raise InputError(
                f"{source} has more than {_MAX_VALUES} values or {_MAX_DEPTH} levels once its aliases are expanded; "
                "write out what is meant without aliases"
            )
        items = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
        waiting += [(item, depth + 1) for item in items]
    return document


def plain(value: Any) -> Any:
    """Round-trip YAML values as plain Python values."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, bool):
        return bool(value)
    for kind in (int, float, str):
        if isinstance(value, kind):
            return kind(value)
    return value


def to_mapping(config: Any) -> dict[str, Any]:
    """Convert a settings dataclass to nested plain values (tuples become lists), ready for JSON or YAML."""

    def nested(value: Any) -> Any:
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return {f.name: nested(getattr(value, f.name)) for f in dataclasses.fields(value)}
        if isinstance(value, list | tuple):
            return [nested(item) for item in value]
        if isinstance(value, Mapping):
            return {key: nested(item) for key, item in value.items()}
        return value

    result = nested(config)
    assert isinstance(result, dict)
    return result


def from_mapping(cls: type[T], mapping: Mapping[str, Any], *, source: str = "settings") -> T:
    """Build the frozen dataclass ``cls`` from a nested mapping, strictly.

    Args:
        cls: A settings dataclass.
        mapping: Nested plain values, as read from YAML or JSON.
        source: Name of the mapping in the error message.

    Raises:
        InputError: Lists every mistake on its own line.
    """
    mistakes: list[str] = []
    value = _build(cls, mapping, "", mistakes)
    if mistakes:
        raise InputError(f"{source}: {counted(len(mistakes), 'mistake')}\n" + "\n".join(f"  - {m}" for m in mistakes))
    return typing.cast(T, value)


def checked(config: T) -> T:
    """The same settings, after the checks of :func:`from_mapping`: for settings that were built in Python."""
    return from_mapping(type(config), to_mapping(config), source=type(config).__name__)


def _build(kind: Any, value: Any, path: str, mistakes: list[str]) -> Any:
    """Convert ``value`` to ``kind``; on a mistake, append it to ``mistakes`` and return None."""
    origin = typing.get_origin(kind)
    if origin is Annotated:
        base, *metadata = typing.get_args(kind)
        before = len(mistakes)
        built = _build(base, value, path, mistakes)
        if len(mistakes) == before:
            mistakes.extend(_out_of_range(built, metadata, path))
        return built
    if dataclasses.is_dataclass(kind):
        return _build_dataclass(typing.cast(type, kind), value, path, mistakes)
    if origin in (typing.Union, types.UnionType):
        options = typing.get_args(kind)
        if value is None and type(None) in options:
            return None
        others = [option for option in options if option is not type(None)]
        attempts: list[list[str]] = []
        for option in others:
            trial: list[str] = []
            built = _build(option, value, path, trial)
            if not trial:
                return built
            attempts.append(trial)
        mistakes.extend(_combined(attempts, path))
        return None
    if origin is Literal:
        choices = typing.get_args(kind)
        if value in choices and not (isinstance(value, bool) and not any(isinstance(c, bool) for c in choices)):
            return value
        listed = f"{'one of ' if len(choices) > 1 else ''}{', '.join(map(repr, choices))}"
        mistakes.append(f"{path} = {value!r}, expected {listed}{_nearest(value, choices)}")
        return None
    if origin in (tuple, list):
        if not isinstance(value, list | tuple):
            mistakes.append(f"{path} = {value!r}, expected a list")
            return None
        item_kind = typing.get_args(kind)[0]
        items = [_build(item_kind, item, f"{path}[{n}]", mistakes) for n, item in enumerate(value)]
        return tuple(items) if origin is tuple else items
    if origin is dict or kind is dict:
        if isinstance(value, Mapping):
            item_kind = (*typing.get_args(kind), Any, Any)[1]
            return {key: _build(item_kind, item, f"{path}.{key}", mistakes) for key, item in value.items()}
        mistakes.append(f"{path} = {value!r}, expected a mapping")
        return None
    return _build_scalar(kind, value, path, mistakes)


def _build_scalar(kind: Any, value: Any, path: str, mistakes: list[str]) -> Any:
    if kind is Any:
        return value
    if kind is float and isinstance(value, int | float) and not isinstance(value, bool):
        if not math.isfinite(value):
            mistakes.append(f"{path} = {value}, expected a finite number")
        return float(value)
    if isinstance(value, kind) and not (isinstance(value, bool) and kind is not bool):
        return value
    mistakes.append(f"{path} = {value!r} ({type(value).__name__}), expected {kind.__name__}")
    return None


def _out_of_range(value: Any, metadata: Sequence[Any], path: str) -> list[str]:
    """The mistake of a number beyond the bounds in the metadata of its type; empty if it is within them."""
    limits = [
        (name, limit) for item in metadata for name in _BOUNDS if (limit := getattr(item, name, None)) is not None
    ]
    if all(_BOUNDS[name][0](value, limit) for name, limit in limits):
        return []
    return [f"{path} = {value!r}, expected {' and '.join(f'{_BOUNDS[name][1]} {limit:g}' for name, limit in limits)}"]


def _combined(attempts: Sequence[list[str]], path: str) -> list[str]:
    """The mistakes of a value that fits no member of a union, given those for each member.

    A member whose mistakes are inside the value has the right form and is the one that was meant; otherwise the
    expectations of all members are listed.
    """
    for attempt in attempts:
        if not attempt[0].startswith(f"{path} = "):
            return attempt
    came, _, _ = attempts[0][0].partition(", expected ")
    return [f"{came}, expected {' or '.join(attempt[0].partition(', expected ')[2] for attempt in attempts)}"]


def _build_dataclass(cls: type, value: Any, path: str, mistakes: list[str]) -> Any:
    if isinstance(value, cls):
        return value
    if not isinstance(value, Mapping):
        mistakes.append(f"{path or cls.__name__} = {value!r}, expected a mapping of {cls.__name__} settings")
        return None
    hints = typing.get_type_hints(cls, include_extras=True)
    names = [f.name for f in dataclasses.fields(cls)]
    before = len(mistakes)
    arguments = {}
    for key, item in value.items():
        where = f"{path}.{key}" if path else str(key)
        if key in names:
            arguments[key] = _build(hints[key], item, where, mistakes)
        else:
            mistakes.append(f"{where} is not a setting{_nearest(key, names)}; known: {', '.join(names)}")
    for f in dataclasses.fields(cls):
        required = f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
        if required and f.name not in value:
            mistakes.append(f"{path + '.' if path else ''}{f.name} is missing")
    if len(mistakes) > before:
        return None
    try:
        return cls(**arguments)
    except ValueError as error:
        mistakes.append(f"{path or cls.__name__}: {error}")
        return None


def _nearest(word: Any, choices: typing.Iterable[Any]) -> str:
    close = difflib.get_close_matches(str(word), [str(choice) for choice in choices], n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""
