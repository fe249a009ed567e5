"""Import of official ``faenet`` and RolnickLab/ocp weights: their words and files -> our Potential.

The facts about their configurations, key names and files are those of PyPI ``faenet`` 0.1.3 and of the ocp trainer; the
imported potential gives their numbers for one structure per call.
"""

from collections.abc import Mapping
from typing import Any, get_args

import numpy as np
import torch
from torch import Tensor

from faenet_calc import elements
from faenet_calc.errors import InputError
from faenet_calc.frames.config import FramesConfig
from faenet_calc.graphs.config import GraphConfig
from faenet_calc.network.config import Activation, AtomEmbeddingConfig, DecoderConfig, ModelConfig
from faenet_calc.potential.config import EnergyConfig, ForceKind, NormalizationConfig, PotentialConfig
from faenet_calc.potential.potential import Potential

_HEADS = {
    None: "none", "": "none", False: "none",
    "weighted-av-initial-embeds": "initial", "weighted-av-final-embeds": "final",
}  # fmt: skip
_JUMPING = {
    None: "none", "": "none", False: "none", True: "none",  # True computes the extra outputs and ignores them
    "concat": "concat_energies", "add": "add", "concat_atom": "concat_atom",
}  # fmt: skip
# torch's own silu, as upstream calls it, whose round-off is then theirs too.
_ACTIVATIONS = {**{name: name for name in get_args(Activation)}, "swish": "silu"}
_FORCES: dict[Any, ForceKind] = {
    None: "none", "": "none", False: "none", "direct": "direct", "direct_with_gradient_target": "direct",
    "from_energy": "gradient",
}  # fmt: skip
_METHODS = {
    "": "all", "all": "all", "full": "all", "e3": "all", "multiple": "all", "det": "one", "stochastic": "stochastic",
    "random": "stochastic",
}  # fmt: skip
_MESSAGES = ("simple", "base", "updownscale", "updownscale_base", "updown_local_env")


def load_upstream(
    config: Mapping[str, Any],
    state_dict: Mapping[str, Any],
    *,
    frame_averaging: str = "3D",
    fa_method: str = "all",
    normalizers: Mapping[str, Any] | None = None,
) -> Potential:
    """A potential with the weights of upstream's FAENet.

    Args:
        config: Upstream's constructor arguments (or the ``model`` section of an ocp config). Widths, and choices that
            are not given, are read off the weights; ``act`` is swish and ``skip_co`` none where nothing tells.
        state_dict: Upstream's weights as tensors or arrays; leading ``module.`` is removed from the keys.
        frame_averaging: Upstream's word: "" (none), "2D", "3D" or "DA".
        fa_method: Upstream's word: "" or "all", "det", "stochastic" ("random"), each also as "se3-…".
        normalizers: ``{"target": {"mean", "std"}, "grad_target": {"std"}}`` as in ocp checkpoints, and optionally
            ``"references"``: energies per atom (eV) by element symbol. Without it the numbers are the network's own.

    Returns:
        Potential: In evaluation mode, in the dtype of the weights.
    """
    weights = {_strip(key): torch.as_tensor(np.asarray(value) if not isinstance(value, Tensor) else value)
               for key, value in state_dict.items()}  # fmt: skip
    model = _model_config(config, weights)
    regress = config.get("regress_forces", "direct" if model.decoder is not None else None)
    forces = _choice(_FORCES, regress, "regress_forces")
    settings = PotentialConfig(
        model=model,
        frames=_frames_config(frame_averaging, fa_method),
        graph=_graph_config(config),
        energy=EnergyConfig(reference="as in the imported checkpoint", level_of_theory="unknown (imported)"),
        normalization=_normalization(normalizers),
        forces=forces,
        forces_on_free_atoms_only=forces == "direct" and bool(config.get("graph_rewiring")),
        supported_elements=_embedded_elements(model, weights),
        name="imported FAENet",
    )
    with torch.random.fork_rng(devices=[]):
        potential = Potential(settings)
    potential.model.to(weights["embed_block.lin.weight"].dtype)
    _load_weights(potential, weights)
    return potential.eval().requires_grad_(False)


def _strip(key: str) -> str:
    while key.startswith("module."):
        key = key.removeprefix("module.")
    return key


def _choice(table: Mapping[Any, Any], value: Any, name: str) -> Any:
    if value not in table:
        raise InputError(f"upstream option {name}={value!r} cannot be imported; known: {', '.join(map(repr, table))}")
    return table[value]


def _model_config(config: Mapping[str, Any], weights: Mapping[str, Tensor]) -> ModelConfig:
    """Widths from the weights, choices from upstream's words."""
    for key in ("embed_block.lin.weight", "embed_block.lin_e1.weight", "distance_expansion.offset"):
        if key not in weights:
            raise InputError(f"the state dict has no {key!r}; is it a FAENet? It has {sorted(weights)[:5]} …")
    offset = weights["distance_expansion.offset"]
    blocks = {key.split(".")[1] for key in weights if key.startswith("interaction_blocks.")}
    radial = weights.get("embed_block.lin_e12.weight")
    features = config.get("edge_embed_type", "all_rij")
    if features not in ("all_rij", "rij"):
        raise InputError(f"edge_embed_type={features!r} cannot be imported; only 'all_rij' and 'rij' can")
    filters = len(weights["embed_block.lin_e1.weight"]) + (0 if radial is None else len(radial))
    return ModelConfig(
        hidden_channels=len(weights["embed_block.lin.weight"]),
        filters=filters,
        interactions=len(blocks),
        gaussians=len(offset),
        cutoff=float(config.get("cutoff", offset[-1])),
        activation=_choice(_ACTIVATIONS, config.get("act") or "swish", "act"),
        envelope_power=0,
        message=_message(config, weights),
        edge_features="r_and_distance" if radial is not None else "r",
        split_filter=False,
        extra_layer="interaction_blocks.0.other_mlp.weight" in weights,
        graph_norm="interaction_blocks.0.graph_norm.weight" in weights,
        jumping=_choice(_JUMPING, config.get("skip_co", _skip_of(weights)), "skip_co"),
        energy_weighting=_choice(_HEADS, config.get("energy_head", _head_of(weights)), "energy_head"),
        atoms=_atoms_config(weights),
        decoder=_decoder(config, weights),
    )


def _message(config: Mapping[str, Any], weights: Mapping[str, Tensor]) -> Any:
    """Our word for the message; the older "simple" and "sfarinet" are told apart by their weights."""
    geometric = weights.get("interaction_blocks.0.lin_geom.weight")
    name = config.get("mp_type") or _message_of(weights)
    if name in ("simple", "sfarinet"):
        return "simple" if geometric is None else "edge_filter"
    if name not in _MESSAGES:
        raise InputError(f"mp_type={name!r} cannot be imported; known: {', '.join((*_MESSAGES, 'sfarinet'))}")
    return name


def _message_of(weights: Mapping[str, Tensor]) -> str:
    """Upstream's ``mp_type`` from the shapes of the first block."""
    block = "interaction_blocks.0."
    geometric, up = weights.get(block + "lin_geom.weight"), weights.get(block + "lin_up.weight")
    if geometric is None:
        return "simple"
    filters = len(weights["embed_block.lin_e1.weight"]) + len(weights.get("embed_block.lin_e12.weight", ()))
    if up is None:
        return "simple" if geometric.shape[1] == filters else "base"
    if up.shape[1] == 2 * filters:
        return "updown_local_env"
    return "updownscale" if geometric.shape[1] == filters else "updownscale_base"


def _skip_of(weights: Mapping[str, Tensor]) -> str | None:
    mixing = weights.get("mlp_skip_co.weight")
    if mixing is None:
        return None
    return "concat" if len(mixing) == 1 else "concat_atom"


def _head_of(weights: Mapping[str, Tensor]) -> str | None:
    if "output_block.w_lin.weight" in weights:
        return "weighted-av-final-embeds"
    return "weighted-av-initial-embeds" if "w_lin.weight" in weights else None


def _atoms_config(weights: Mapping[str, Tensor]) -> AtomEmbeddingConfig:
    def width(key: str, axis: int) -> int:
        return weights[key].shape[axis] if key in weights else 0

    prefix = "embed_block."
    total = width(prefix + "lin.weight", 1)
    used = (
        width(prefix + "emb.weight", 1)
        + width(prefix + "tag_embedding.weight", 1)
        + 2 * width(prefix + "period_embedding.weight", 1)
    )
    return AtomEmbeddingConfig(
        n_elements=elements.MAX_Z,
        tag_channels=width(prefix + "tag_embedding.weight", 1),
        group_period_channels=width(prefix + "period_embedding.weight", 1),
        properties="upstream" if total > used else "none",
        properties_channels=width(prefix + "phys_lin.weight", 0),
        second_layer=prefix + "lin_2.weight" in weights,
    )


def _decoder(config: Mapping[str, Any], weights: Mapping[str, Tensor]) -> DecoderConfig | None:
    """The force head, its width read off the weights."""
    if not any(key.startswith("decoder.") for key in weights):
        return None
    last = {
        "simple": "decoder.model.2",
        "mlp": "decoder.model.3",
        "res": "decoder.mlp_3.3",
        "res_updown": "decoder.mlp_4.3",
    }
    fitting = [kind for kind, key in last.items() if f"{key}.weight" in weights]
    kind = config.get("force_decoder_type") or (fitting[0] if fitting else None)
    if kind not in last or f"{last[kind]}.weight" not in weights:
        raise InputError(f"force_decoder_type={kind!r} does not fit the weights; known: {', '.join(last)}")
    norm_key = {"mlp": "decoder.model.1", "res": "decoder.mlp_1.1", "res_updown": "decoder.mlp_1.1"}.get(kind, "")
    norm = "none"
    if f"{norm_key}.running_mean" in weights:
        norm = "batch"
    elif f"{norm_key}.weight" in weights:
        norm = "layer"
    return DecoderConfig(kind=kind, channels=weights[f"{last[kind]}.weight"].shape[1], norm=norm)  # type: ignore[arg-type]


def _frames_config(frame_averaging: str | None, fa_method: str | None) -> FramesConfig:
    kinds = {"": "none", None: "none", False: "none", "2D": "pca2d", "3D": "pca3d", "DA": "augment2d"}
    kind = _choice(kinds, frame_averaging, "frame_averaging")
    words = fa_method or ""
    proper = words.startswith("se3")
    method = words.removeprefix("se3").removeprefix("-")
    return FramesConfig(kind=kind, mode=_choice(_METHODS, method, "fa_method"), proper=proper, differentiable=False)


def _graph_config(config: Mapping[str, Any]) -> GraphConfig:
    rewiring: Any = config.get("graph_rewiring") or "none"
    if rewiring not in ("none", "remove-tag-0"):
        raise InputError(
            f"graph_rewiring={rewiring!r} cannot be imported; only 'remove-tag-0' can (supernodes are not supported)"
        )
    return GraphConfig(rewiring=rewiring)


def _normalization(normalizers: Mapping[str, Any] | None) -> NormalizationConfig:
    """Energy = std · network + mean, force = grad std · network; identity where nothing is given."""
    given = normalizers or {}
    unknown = set(given) - {"target", "grad_target", "references"}
    if unknown:
        raise InputError(f"normalizers has {sorted(unknown)}; known are target, grad_target and references")
    target, gradient = given.get("target") or {}, given.get("grad_target") or {}
    if target.get("hof_stats"):
        raise InputError(
            "the energies of this checkpoint are ratios to summed heats of formation (hof_stats), which cannot be "
            "undone by a scale and a shift; pass normalizers without hof_stats to have the network's own numbers"
        )
    return NormalizationConfig(
        scale=float(target.get("std", 1.0)),
        shift=float(target.get("mean", 0.0)),
        force_scale=float(gradient.get("std", 1.0)),
        references=dict(given.get("references") or {}),
    )


def _embedded_elements(model: ModelConfig, weights: Mapping[str, Tensor]) -> tuple[int, ...]:
    """Elements that upstream's tables hold: the rows of its embedding, and with groups only those that have a row."""
    rows = len(weights["embed_block.emb.weight"])
    numbers = range(1, rows)
    if not model.atoms.group_period_channels:
        return tuple(numbers)
    group, period = weights["embed_block.phys_emb.group"], weights["embed_block.phys_emb.period"]
    n_group = len(weights["embed_block.group_embedding.weight"])
    n_period = len(weights["embed_block.period_embedding.weight"])
    return tuple(z for z in numbers if int(group[z]) < n_group and int(period[z]) < n_period)


_EDGE_KEYS = ("embed_block.lin_e1.", "embed_block.lin_e12.", "embed_block.lin_e2.")


def _our_key(key: str) -> str:
    if key.startswith(_EDGE_KEYS):
        return key.replace("embed_block.", "edge_embedding.", 1)
    return key.replace("embed_block.", "atom_embedding.", 1)


def _load_weights(potential: Potential, weights: Mapping[str, Tensor]) -> None:
    """Copy upstream's weights; tables indexed by element are padded to ours, everything else must fit exactly."""
    own = potential.model.state_dict()
    renamed = {_our_key(key): value for key, value in weights.items()}
    ignored = {"atom_embedding.phys_emb.properties"} - set(own)
    missing, foreign = set(own) - set(renamed), set(renamed) - set(own) - ignored
    missing -= {"atom_embedding.phys_emb.period", "atom_embedding.phys_emb.group"}
    if missing or foreign:
        raise InputError(
            f"the state dict does not fit the config: missing {sorted(missing)}, unexpected {sorted(foreign)}; "
            "check mp_type, skip_co, energy_head and force_decoder_type"
        )
    tables = ("emb.weight", "properties", "period", "group", "period_embedding.weight", "group_embedding.weight")
    for key, target in own.items():
        value = renamed.get(key)
        if value is None:
            continue
        if key.startswith("atom_embedding.") and key.endswith(tables):
            target[: len(value)].copy_(value[: len(target)])
        elif value.shape == target.shape:
            target.copy_(value)
        else:
            raise InputError(
                f"{key}: the weights have shape {tuple(value.shape)}, the config needs {tuple(target.shape)}"
            )
