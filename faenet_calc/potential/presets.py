"""Named settings: the ``modern`` surface in three sizes and the networks of the paper."""

from typing import Any, Literal

from faenet_calc.errors import InputError
from faenet_calc.frames.config import FramesConfig
from faenet_calc.graphs.config import GraphConfig
from faenet_calc.network.config import AtomEmbeddingConfig, DecoderConfig, ModelConfig
from faenet_calc.potential.config import EnergyConfig, ForceKind, PotentialConfig, RepulsionConfig

_NEIGHBORS_IN_COPPER = 42.0  # within the default cutoff; training replaces it by the mean of its data

_MODERN: dict[str, dict[str, Any]] = {
    "modern-s": {"hidden_channels": 96, "filters": 96, "interactions": 3, "gaussians": 32},
    "modern-m": {"hidden_channels": 160, "filters": 160, "interactions": 4, "gaussians": 40},
    "modern-l": {"hidden_channels": 256, "filters": 256, "interactions": 5, "gaussians": 48},
}


def _paper(
    *,
    frames: FramesConfig,
    rewiring: Literal["none", "remove-tag-0"] = "none",
    forces: ForceKind = "none",
    atoms: AtomEmbeddingConfig,
    energy: EnergyConfig,
    max_neighbors: int | None,
    **model: Any,
) -> PotentialConfig:
    """A network of the paper: hard cutoff, no message scaling, widths from its hyperparameter table."""
    return PotentialConfig(
        model=ModelConfig(envelope_power=0, mean_neighbors=1.0, atoms=atoms, **model),
        frames=frames,
        graph=GraphConfig(max_neighbors=max_neighbors, rewiring=rewiring),
        energy=energy,
        forces=forces,
        forces_on_free_atoms_only=rewiring == "remove-tag-0" and forces == "direct",
    )


_PAPER = {
    "paper-is2re": _paper(
        frames=FramesConfig(kind="pca2d", proper=True, differentiable=False),
        rewiring="remove-tag-0",
        atoms=AtomEmbeddingConfig(
            tag_channels=64, group_period_channels=64, properties="upstream", second_layer=False, n_elements=118
        ),
        energy=EnergyConfig(kind="relaxed-adsorption"),
        max_neighbors=40,
        hidden_channels=384,
        filters=480,
        interactions=5,
        gaussians=104,
        cutoff=6.0,
        message="base",
        extra_layer=True,
        graph_norm=True,
        jumping="concat_energies",
        energy_weighting="final",
    ),
    "paper-s2ef": _paper(
        frames=FramesConfig(kind="pca2d", differentiable=False),
        rewiring="remove-tag-0",
        forces="direct",
        atoms=AtomEmbeddingConfig(tag_channels=32, group_period_channels=64, properties="none", second_layer=False),
        energy=EnergyConfig(kind="adsorption"),
        max_neighbors=30,
        hidden_channels=256,
        filters=480,
        interactions=7,
        gaussians=136,
        cutoff=6.0,
        message="updownscale_base",
        extra_layer=True,
        graph_norm=True,
        jumping="none",
        energy_weighting="final",
        decoder=DecoderConfig(kind="mlp", channels=256, norm="batch"),
    ),
    "paper-qm7x": _paper(
        frames=FramesConfig(kind="pca3d", differentiable=False),
        forces="direct",
        atoms=AtomEmbeddingConfig(group_period_channels=32, properties="upstream"),
        energy=EnergyConfig(kind="total"),
        max_neighbors=40,
        hidden_channels=500,
        filters=400,
        interactions=5,
        gaussians=50,
        cutoff=5.0,
        message="updownscale_base",
        extra_layer=True,
        jumping="concat_energies",
        decoder=DecoderConfig(kind="res_updown", channels=256, norm="batch"),
    ),
    "paper-qm9": _paper(
        frames=FramesConfig(kind="pca3d", differentiable=False),
        atoms=AtomEmbeddingConfig(group_period_channels=32, properties="none"),
        energy=EnergyConfig(kind="other"),
        max_neighbors=30,
        hidden_channels=400,
        filters=480,
        interactions=5,
        gaussians=100,
        cutoff=6.0,
        message="updownscale_base",
        extra_layer=True,
        graph_norm=True,
        jumping="none",
    ),
}

PRESETS = (*_MODERN, *_PAPER)


def preset(name: str) -> PotentialConfig:
    """The settings of a named preset.

    ``modern-s|m|l`` give a smooth, extensive, conservative surface. ``paper-is2re|s2ef|qm7x|qm9`` give the published
    networks: widths from the paper's table of hyperparameters, the rest (embedding layers, skip connections, heads,
    frames) from the authors' released configurations.
    """
    if name in _MODERN:
        model = ModelConfig(mean_neighbors=_NEIGHBORS_IN_COPPER, **_MODERN[name])
        return PotentialConfig(model=model, repulsion=RepulsionConfig(kind="zbl"))
    if name in _PAPER:
        return _PAPER[name]
    raise InputError(f"preset={name!r} is not known; choose one of {', '.join(PRESETS)}")
