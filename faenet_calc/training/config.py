"""The settings of a training run: what may stand in its YAML file, section by section.

The file is read in ``config.py``; defaults that belong to a preset are in ``recipes.py``.
"""

from dataclasses import dataclass, field
from typing import Annotated, Literal

from annotated_types import Ge, Gt, Interval

from faenet_calc.frames.config import FrameMode, FramesConfig
from faenet_calc.graphs.config import GraphConfig
from faenet_calc.network.config import ModelConfig
from faenet_calc.potential.config import EnergyConfig, ForceKind

LossKind = Literal["mae", "mse", "huber", "l2"]
Fit = Literal["fit"]

Count = Annotated[int, Ge(1)]
NotNegativeInt = Annotated[int, Ge(0)]
Positive = Annotated[float, Gt(0)]
NotNegative = Annotated[float, Ge(0)]
Share = Annotated[float, Interval(ge=0, lt=1)]


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """Where, how long and how carefully a run runs.

    Attributes:
        out_dir: Folder of everything the run writes.
        seed: Of weights, order of structures and random frames.
        device: "auto" (cuda, else cpu) or a torch device.
        dtype: Of the network.
        time_limit_s: Training time of the whole run (s), resumed parts included; the learning rate is annealed in it.
        max_epochs: Passes over the training set. Without it and without a time limit, a run takes one hour.
        threads: CPU threads; None leaves torch's choice.
        log_every: Steps between lines of the log.
        save_every_s: Seconds between resume states.
        save_every_steps: Steps between resume states, besides.
        validate_every: Epochs between validations; None: at most once per 100 steps.
        validation_frames: Frames of validation during the run; "auto" is one for lattice frames, all for the others.
        precision: Mixed precision of the network on cuda; no effect on the CPU.
        tensorboard: Write TensorBoard events where it is installed.
        report: Write report.html at the end.
    """

    out_dir: str = "run"
    seed: NotNegativeInt = 0
    device: str = "auto"
    dtype: Literal["float32", "float64"] = "float32"
    time_limit_s: Positive | None = None
    max_epochs: Count | None = None
    threads: Count | None = None
    log_every: Count = 20
    save_every_s: NotNegative = 60.0
    save_every_steps: Count | None = None
    validate_every: Count | None = None
    validation_frames: FrameMode | Literal["auto"] = "auto"
    precision: Literal["full", "bf16"] = "full"
    tensorboard: bool = True
    report: bool = True


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """What is learned from.

    Attributes:
        train: Files of the training set; validation and test sets are split off where they are not given.
        val: Files of the validation set.
        test: Files of the test set.
        energy_key: Name of the energy in files; "auto" is ASE's calculator result.
        forces_key: Name of the forces in files; "auto" as above.
        max_force: Training structures with a longer force (eV/Å) are left out; validation and test sets keep theirs.
        split: How sets are split off: auto, random, trajectory, composition, adsorbate, slab, file, info or key:NAME
            (see ``faenet-calc data split``).
        val_fraction: Share of the validation set.
        test_fraction: Share of the test set.
        seed: Of the split; part of what identifies a test set, so it does not follow run.seed.
        cache_dir: Folder of the graph cache.
    """

    train: tuple[str, ...] = ()
    val: tuple[str, ...] = ()
    test: tuple[str, ...] = ()
    energy_key: str = "auto"
    forces_key: str = "auto"
    max_force: Positive | None = None
    split: str = "auto"
    val_fraction: Share = 0.1
    test_fraction: Share = 0.0
    seed: NotNegativeInt = 0
    cache_dir: str | None = None

    def __post_init__(self) -> None:
        if self.val_fraction + self.test_fraction >= 1:
            total = self.val_fraction + self.test_fraction
            raise ValueError(f"val_fraction + test_fraction = {total:g} leaves nothing to train on, expected below 1")


@dataclass(frozen=True, kw_only=True)
class ModelSection(ModelConfig):
    """The network: a preset and what differs from it.

    Attributes:
        preset: Gives every setting of model, frames, graph and energy that is not stated, and the recipe of training.
        forces: The potential's kind of forces.
        name: Of the model, for people.
    """

    preset: str = "modern-s"
    forces: ForceKind = "gradient"
    name: str = ""


@dataclass(frozen=True, kw_only=True)
class FramesSection(FramesConfig):
    """Frames of the potential, and those of its training.

    Attributes:
        training: Frames of training steps; "stochastic" draws one per structure and epoch.
    """

    training: FrameMode = "stochastic"


@dataclass(frozen=True, kw_only=True)
class NormalizationSection:
    """What is fitted to the training set before the first step; a number or mapping is used as it stands.

    Attributes:
        references: Energy per atom of each element.
        shift: Energy per structure; "fit" is the mean (not extensive, as for the paper's OC20 tasks).
        scale: Of the energy; "fit" is the root mean square force × 1 Å, or the spread of energies without forces or
            with a fitted shift.
        force_scale: Of direct forces; "fit" is their root mean square.
        mean_neighbors: Replaces ``model.mean_neighbors``; None keeps that.
    """

    references: Literal["fit", "none"] | dict[str, float] = "fit"
    shift: Fit | float = 0.0
    scale: Fit | Positive = "fit"
    force_scale: Fit | Positive = "fit"
    mean_neighbors: Fit | Positive | None = "fit"


@dataclass(frozen=True, kw_only=True)
class LossConfig:
    """The loss: weights (0 leaves a term out) and kinds.

    Energies in eV (per atom if ``per_atom``), forces in eV/Å, stress in eV/Å³.

    Attributes:
        energy, forces, stress: Weights.
        conservation: Weight of the paper's energy-conservation term: direct forces against -dE/dx.
        conservation_target: "detached" compares with constant -dE/dx (upstream), "full" lets gradients through both.
        energy_kind, forces_kind, stress_kind: mae, mse, huber, or l2 (mean length of the error vector).
        huber_delta: Where huber turns from quadratic to linear, in the units above.
        per_atom: Energy errors are divided by the number of atoms.
        free_atoms_only: Forces of constrained atoms do not count.
        adsorbate_weight: How much a force on an adsorbate atom (tag 2) counts where one on another atom counts 1.
    """

    energy: NotNegative = 1.0
    forces: NotNegative = 1.0
    stress: NotNegative = 0.0
    conservation: NotNegative = 0.0
    conservation_target: Literal["detached", "full"] = "detached"
    energy_kind: LossKind = "mae"
    forces_kind: LossKind = "l2"
    stress_kind: LossKind = "mae"
    huber_delta: Positive = 0.01
    per_atom: bool = True
    free_atoms_only: bool = False
    adsorbate_weight: NotNegative = 1.0


@dataclass(frozen=True, kw_only=True)
class OptimConfig:
    """The optimiser and its schedule.

    Attributes:
        kind: adamw, or muon: orthogonal steps for the matrices inside the network, AdamW for the rest.
        lr: Highest learning rate.
        min_lr: Lowest learning rate.
        weight_decay: Not applied to biases, norms and embeddings.
        beta2: Second-moment memory of Adam.
        schedule: cosine (over max_epochs or the time limit, whichever ends first), plateau, or constant.
        warmup_steps: Steps of linear warm-up; None: a twentieth of the run, at most 500.
        plateau_factor, plateau_patience: Of the plateau schedule; patience in validations.
        batch_size: Structures per step and process; None: about 120 atoms on a CPU, 1200 on a GPU.
        accumulate: Batches per step.
        grad_clip: Largest norm of the gradient; None does not clip.
        ema_decay: Memory of the averaged weights; 0 leaves averaging out.
    """

    kind: Literal["adamw", "muon"] = "muon"
    lr: Positive = 5e-3
    min_lr: NotNegative = 1e-6
    weight_decay: NotNegative = 1e-4
    beta2: Share = 0.99
    schedule: Literal["cosine", "plateau", "constant"] = "cosine"
    warmup_steps: NotNegativeInt | None = None
    plateau_factor: Annotated[float, Interval(gt=0, lt=1)] = 0.8
    plateau_patience: NotNegativeInt = 10
    batch_size: Count | None = None
    accumulate: Count = 1
    grad_clip: Positive | None = 10.0
    ema_decay: Share = 0.995


@dataclass(frozen=True, kw_only=True)
class StopConfig:
    """Early stopping and the choice of the best weights.

    Attributes:
        metric: Name of a validation metric; "loss" is the validation loss. ``energy_within`` and
            ``energy_forces_within`` are better when higher.
        patience: Validations without improvement before the run stops; None never stops early.
        min_lr: A plateau schedule stops below this learning rate.
    """

    metric: str = "loss"
    patience: NotNegativeInt | None = None
    min_lr: NotNegative = 0.0


@dataclass(frozen=True, kw_only=True)
class FinetuneConfig:
    """Continuing from another model.

    Attributes:
        checkpoint: Path or name of the model; None starts from random weights.
        feed_forward: Add networks of single atoms of this width (see ``model.feed_forward``), or widen those that the
            model has; the energy is the same until they are trained. None leaves the model as it is.
        freeze: Parts of the network that stay as they are: names of its modules, e.g. "atom_embedding",
            "edge_embedding", "interaction_blocks.0".
        replay: Files of old data that are mixed into the training set.
        replay_fraction: Share of each epoch that is drawn from them.
        refit_references: Fit the element references to the new training set.
    """

    checkpoint: str | None = None
    feed_forward: Count | None = None
    freeze: tuple[str, ...] = ()
    replay: tuple[str, ...] = ()
    replay_fraction: Annotated[float, Interval(gt=0, lt=1)] = 0.2
    refit_references: bool = True


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """Everything that defines a training run."""

    run: RunConfig = field(default_factory=RunConfig)
    data: DataConfig = field(default_factory=DataConfig)
    model: ModelSection = field(default_factory=ModelSection)
    frames: FramesSection = field(default_factory=FramesSection)
    graph: GraphConfig = field(default_factory=GraphConfig)
    energy: EnergyConfig = field(default_factory=EnergyConfig)
    normalization: NormalizationSection = field(default_factory=NormalizationSection)
    loss: LossConfig = field(default_factory=LossConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    stop: StopConfig = field(default_factory=StopConfig)
    finetune: FinetuneConfig = field(default_factory=FinetuneConfig)
