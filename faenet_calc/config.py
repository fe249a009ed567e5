"""Frozen settings and their strict reading and writing (L0).

Every setting of a potential lives in one of the dataclasses below; a checkpoint stores them as JSON and a training file
writes them as YAML. :func:`from_mapping` reads either strictly: unknown keys, wrong types and impossible choices are
collected and reported together, each with its dotted path and the nearest valid word.
"""

import dataclasses
import difflib
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from faenet_calc.errors import InputError

Activation = Literal[
    "swish", "silu", "relu", "gelu", "tanh", "softplus", "elu", "leaky_relu", "mish", "sigmoid", "selu", "celu",
    "relu6", "hardswish", "hardtanh", "softsign", "logsigmoid", "tanhshrink",
]  # fmt: skip
MessageKind = Literal[
    "simple", "edge_filter", "base", "updownscale", "updownscale_base", "updown_local_env", "attention"
]
EdgeFeatures = Literal["r_and_distance", "r", "harmonics", "all"]
JumpingConnection = Literal["none", "add", "concat", "concat_atom", "concat_energies"]
EnergyWeighting = Literal["none", "initial", "final"]
DecoderKind = Literal["simple", "mlp", "res", "res_updown"]
DecoderNorm = Literal["none", "batch", "layer"]
FrameKind = Literal["lattice", "pca3d", "pca2d", "none", "augment3d", "augment2d"]
FrameMode = Literal["one", "all", "exact", "stochastic"]
ForceKind = Literal["gradient", "direct", "none"]


@dataclass(frozen=True, kw_only=True)
class AtomEmbeddingConfig:
    """What an atom is described by before messages (paper, "Embedding Block").

    Attributes:
        n_elements: Rows of the atomic-number table minus one; Z up to this number can be embedded.
        tag_channels: Width of the tag embedding (0 sub-surface, 1 surface, 2 adsorbate); 0 leaves tags out.
        group_period_channels: Width of each of the group and period embeddings; 0 leaves both out.
        properties: Which table of physical properties is appended: none, our own, or upstream's 14 columns.
        properties_channels: Width of a linear layer on the properties; 0 appends them as they are.
        second_layer: Two linear layers instead of one (also in the edge embedding).
    """

    n_elements: int = 118
    tag_channels: int = 0
    group_period_channels: int = 16
    properties: Literal["none", "modern", "upstream"] = "modern"
    properties_channels: int = 0
    second_layer: bool = True


@dataclass(frozen=True, kw_only=True)
class DecoderConfig:
    """The direct-force head."""

    kind: DecoderKind = "mlp"
    channels: int = 128
    norm: DecoderNorm = "layer"


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """The network inside a potential.

    Attributes:
        hidden_channels: Width H of the atom state.
        filters: Width F of filters and messages (``simple`` and ``attention`` use H).
        interactions: Number L of interaction blocks.
        gaussians: Number G of radial basis functions.
        cutoff: Largest distance of an edge (Å).
        envelope_power: Exponent p of the polynomial cutoff envelope on every message; 0 leaves the jump of the paper.
        message: How messages are made (paper Eq. 7 and its ablations).
        edge_features: What an edge is described by; the paper's choice is ``r_and_distance``.
        split_filter: Compute the node parts of a filter's linear map once per node. Same function, about half the work;
            off for imported weights, whose round-off is then upstream's too.
        extra_layer: One more linear layer in every interaction ("complex MP").
        feed_forward: Width of a two-layer network of every atom after each interaction; 0 leaves it out. There are some
            forty edges to an atom, so width is cheap here.
        graph_norm: GraphNorm per structure and frame, as upstream weights need; off for a true energy surface.
        mean_neighbors: Messages are divided by the square root of this number; 1 leaves them as they are.
        jumping: How the outputs of all blocks are combined. ``concat`` mixes per-atom outputs without bias;
            ``concat_energies`` is upstream's mix of structure energies with a bias (not extensive).
        energy_weighting: Weights of the per-atom outputs from the initial or final atom state.
        decoder: Direct-force head, or None.
    """

    hidden_channels: int = 128
    filters: int = 128
    interactions: int = 4
    gaussians: int = 32
    cutoff: float = 5.0
    activation: Activation = "swish"
    envelope_power: int = 6
    message: MessageKind = "updownscale_base"
    edge_features: EdgeFeatures = "r_and_distance"
    split_filter: bool = True
    extra_layer: bool = False
    feed_forward: int = 0
    graph_norm: bool = False
    mean_neighbors: float = 1.0
    jumping: JumpingConnection = "concat"
    energy_weighting: EnergyWeighting = "none"
    atoms: AtomEmbeddingConfig = field(default_factory=AtomEmbeddingConfig)
    decoder: DecoderConfig | None = None

    def __post_init__(self) -> None:
        if self.feed_forward < 0:
            raise ValueError(f"feed_forward = {self.feed_forward}, expected a width, or 0 to leave it out")


@dataclass(frozen=True, kw_only=True)
class FramesConfig:
    """How structures are turned into frames.

    Attributes:
        kind: ``lattice`` (periodic: frame of the lattice; molecules: weighted pair frames), the paper's ``pca3d`` /
            ``pca2d``, ``none``, or random rotations as data augmentation (``augment3d``, ``augment2d`` about z).
        mode: The deterministic setting used when a caller says "auto".
        proper: Only rotations (SE(3)), no reflections.
        differentiable: Gradients go through the frames (exact forces); False is upstream's fixed frame.
    """

    kind: FrameKind = "lattice"
    mode: FrameMode = "all"
    proper: bool = False
    differentiable: bool = True


@dataclass(frozen=True, kw_only=True)
class GraphConfig:
    """How structures become graphs.

    Attributes:
        max_neighbors: Keep this many nearest neighbours of an atom (symmetric, ties kept); None keeps all.
        rewiring: ``remove-tag-0`` deletes sub-surface atoms, as upstream OC20 weights expect.
    """

    max_neighbors: int | None = None
    rewiring: Literal["none", "remove-tag-0"] = "none"


@dataclass(frozen=True, kw_only=True)
class EnergyConfig:
    """What the energy of a potential means.

    Attributes:
        kind: Total energy, adsorption energy, relaxed adsorption energy, formation energy, or another scalar.
        reference: In words, the zero of the energy.
        level_of_theory: In words, e.g. "PBE (VASP)".
        unit: Unit of the scalar; eV unless ``kind`` is "other".
    """

    kind: Literal["total", "adsorption", "relaxed-adsorption", "formation", "other"] = "total"
    reference: str = "unknown"
    level_of_theory: str = "unknown"
    unit: str = "eV"


@dataclass(frozen=True, kw_only=True)
class NormalizationConfig:
    """From the network's numbers to physical units: energy = scale · network + shift + Σ references.

    Attributes:
        scale: Of the energy (eV).
        shift: Per structure (eV); 0 for an extensive energy.
        force_scale: Of direct forces (eV/Å).
        references: Energy per atom (eV) by element symbol; missing elements count as 0.
    """

    scale: float = 1.0
    shift: float = 0.0
    force_scale: float = 1.0
    references: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class PotentialConfig:
    """Everything but the weights of a potential.

    Attributes:
        forces: The potential's own kind of forces.
        forces_on_free_atoms_only: Direct forces were trained on unconstrained atoms only.
        supported_elements: Atomic numbers that can be embedded; empty for all rows of the table.
        trained_elements: Atomic numbers that occurred in training; empty if unknown.
        name: Of the model, for people.
    """

    model: ModelConfig = field(default_factory=ModelConfig)
    frames: FramesConfig = field(default_factory=FramesConfig)
    graph: GraphConfig = field(default_factory=GraphConfig)
    energy: EnergyConfig = field(default_factory=EnergyConfig)
    normalization: NormalizationConfig = field(default_factory=NormalizationConfig)
    forces: ForceKind = "gradient"
    forces_on_free_atoms_only: bool = False
    supported_elements: tuple[int, ...] = ()
    trained_elements: tuple[int, ...] = ()
    name: str = ""

    def __post_init__(self) -> None:
        if self.forces == "direct" and self.model.decoder is None:
            raise ValueError("forces = 'direct' needs model.decoder, e.g. {kind: mlp, channels: 128, norm: layer}")


T = TypeVar("T")


def to_mapping(config: Any) -> dict[str, Any]:
    """A nested plain dictionary of a settings dataclass (tuples become lists), ready for JSON or YAML."""

    def plain(value: Any) -> Any:
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
        if isinstance(value, list | tuple):
            return [plain(item) for item in value]
        if isinstance(value, Mapping):
            return {key: plain(item) for key, item in value.items()}
        return value

    result = plain(config)
    assert isinstance(result, dict)
    return result


def from_mapping(cls: type[T], mapping: Mapping[str, Any], *, source: str = "settings") -> T:
    """Build the frozen dataclass ``cls`` from a nested mapping, strictly.

    Args:
        cls: A settings dataclass.
        mapping: Nested plain values, as read from YAML or JSON.
        source: What the mapping is, for the error message.

    Raises:
        InputError: With every mistake on its own line.
    """
    mistakes: list[str] = []
    value = _build(cls, mapping, "", mistakes)
    if mistakes:
        raise InputError(f"{source}: {len(mistakes)} mistake(s)\n" + "\n".join(f"  - {m}" for m in mistakes))
    return typing.cast(T, value)


def _build(kind: Any, value: Any, path: str, mistakes: list[str]) -> Any:
    """``value`` as ``kind``, or None after noting a mistake."""
    origin = typing.get_origin(kind)
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
        mistakes.extend(sorted(attempts, key=len)[0])
        return None
    if origin is Literal:
        choices = typing.get_args(kind)
        if value in choices and not (isinstance(value, bool) and not any(isinstance(c, bool) for c in choices)):
            return value
        mistakes.append(
            f"{path} = {value!r}, expected one of {', '.join(map(repr, choices))}{_nearest(value, choices)}"
        )
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
            return dict(value)
        mistakes.append(f"{path} = {value!r}, expected a mapping")
        return None
    return _build_scalar(kind, value, path, mistakes)


def _build_scalar(kind: Any, value: Any, path: str, mistakes: list[str]) -> Any:
    if kind is Any:
        return value
    if kind is float and isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    if isinstance(value, kind) and not (isinstance(value, bool) and kind is not bool):
        return value
    mistakes.append(f"{path} = {value!r} ({type(value).__name__}), expected {kind.__name__}")
    return None


def _build_dataclass(cls: type, value: Any, path: str, mistakes: list[str]) -> Any:
    if isinstance(value, cls):
        return value
    if not isinstance(value, Mapping):
        mistakes.append(f"{path or cls.__name__} = {value!r}, expected a mapping of {cls.__name__} settings")
        return None
    hints = typing.get_type_hints(cls)
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
