"""Settings of a training run: one dataclass per section of its YAML file.

``config_file.py`` reads the file; defaults that depend on the preset are in ``preset_hyperparameters.py``.
"""

from dataclasses import dataclass, field, fields, replace
from typing import Annotated, Literal

from annotated_types import Ge, Gt, Interval

from faenet_calc.errors import InputError
from faenet_calc.frames.config import FrameMode, FramesConfig
from faenet_calc.graphs.config import GraphConfig
from faenet_calc.network.config import ModelConfig
from faenet_calc.potential.config import EnergyConfig, ForceKind, RepulsionConfig

LossKind = Literal["mae", "mse", "huber", "l2"]
Fit = Literal["fit"]

Count = Annotated[int, Ge(1)]
NotNegativeInt = Annotated[int, Ge(0)]
Positive = Annotated[float, Gt(0)]
NotNegative = Annotated[float, Ge(0)]
Share = Annotated[float, Interval(ge=0, lt=1)]


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """Output folder, duration, device and bookkeeping of a run.

    Attributes:
        out_dir: Output folder.
        seed: Random seed of the initial weights, the order of structures and random frames.
        device: "auto" (cuda, else cpu) or a torch device.
        dtype: Floating-point type of the network.
        time_limit_s: Training time of the whole run (s), including resumed parts, over which the learning rate decays.
        max_epochs: Number of passes over the training set. Without it and without a time limit, a run takes one hour.
        threads: Number of CPU threads; None for torch's default.
        log_every: Steps between rows of steps.csv.
        save_every_s: Seconds between writes of the resume file.
        save_every_steps: Additionally write the resume file every so many steps.
        validate_every: Epochs between validations; None validates at most once per 100 steps.
        validation_frames: Frame mode of validation during the run; "auto" is "one" for lattice frames, "all" otherwise.
        precision: "bf16" uses mixed precision on cuda; no effect on the CPU.
        tensorboard: Write TensorBoard events if tensorboard is installed.
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
    """Training, validation and test data.

    Attributes:
        train: Files of the training set; validation and test sets are split off where they are not given.
        repeat: File or data set in ``train`` → how many times an epoch goes through its structures (1 if not named).
        val: Files of the validation set.
        test: Files of the test set.
        energy_key: Name of the energy in files; "auto" is ASE's calculator result.
        forces_key: Name of the forces in files; "auto" as above.
        max_force: Leave out training structures with a larger force (eV/Å); validation and test sets are not filtered.
        split: How validation and test sets are split off: auto, random, trajectory, composition, adsorbate, slab, file,
            info or key:NAME (see ``faenet-calc data split``).
        val_fraction: Fraction of structures in the validation set.
        test_fraction: Fraction of structures in the test set.
        seed: Random seed of the split. Independent of run.seed, so that runs with other seeds share a test set.
        cache_dir: Folder of the graph cache.
    """

    train: tuple[str, ...] = ()
    repeat: dict[str, Count] = field(default_factory=dict)
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
    """The network: a preset and the settings that differ from it.

    Attributes:
        preset: Source of the defaults of model, frames, graph and energy, and of the hyperparameters of training.
        forces: Kind of forces that the potential predicts.
        name: Display name of the model.
    """

    preset: str = "modern-s"
    forces: ForceKind = "gradient"
    name: str = ""


@dataclass(frozen=True, kw_only=True)
class FramesSection(FramesConfig):
    """Frames of the potential, and of its training.

    Attributes:
        training: Frame mode of training steps; "stochastic" draws one frame per structure and epoch.
    """

    training: FrameMode = "stochastic"


@dataclass(frozen=True, kw_only=True)
class NormalizationSection:
    """Constants that are fitted to the training set before the first step; a given number or mapping is used as is.

    Attributes:
        references: Energy per atom of each element.
        shift: Energy per structure; "fit" is the mean (not extensive, as for the paper's OC20 tasks).
        scale: Scale of the energy; "fit" is the root mean square force × 1 Å, or the spread of energies for data
            without forces or with a fitted shift.
        force_scale: Scale of direct forces; "fit" is their root mean square.
        mean_neighbors: Replaces ``model.mean_neighbors``; None keeps it.
    """

    references: Literal["fit", "none"] | dict[str, float] = "fit"
    shift: Fit | float = 0.0
    scale: Fit | Positive = "fit"
    force_scale: Fit | Positive = "fit"
    mean_neighbors: Fit | Positive | None = "fit"


@dataclass(frozen=True, kw_only=True)
class LossConfig:
    """The loss function: weight (0 omits a term) and kind of each term.

    Energies in eV (per atom if ``per_atom``), forces in eV/Å, stress in eV/Å³.

    Attributes:
        energy, forces, stress: Weights.
        rotation: Weight of the torque per atom (eV/rad): the energy should not depend on the orientation in the frame.
        conservation: Weight of the paper's energy-conservation term: direct forces compared with -dE/dx.
        conservation_target: "detached" treats -dE/dx as constant (upstream), "full" differentiates both.
        energy_kind, forces_kind, stress_kind: mae, mse, huber, or l2 (mean length of the error vector).
        rotation_kind: The same for the torque. With l2 and a large weight, training from random weights may end in a
            network that does not use directions at all; mse leaves small torques alone.
        huber_delta: Error at which huber changes from quadratic to linear, in the units above.
        per_atom: Divide energy errors by the number of atoms.
        free_atoms_only: Ignore the forces on constrained atoms.
        adsorbate_weight: Relative weight of the forces on adsorbate atoms (tag 2).
    """

    energy: NotNegative = 1.0
    forces: NotNegative = 1.0
    stress: NotNegative = 0.0
    rotation: NotNegative = 0.0
    conservation: NotNegative = 0.0
    conservation_target: Literal["detached", "full"] = "detached"
    energy_kind: LossKind = "mae"
    forces_kind: LossKind = "l2"
    stress_kind: LossKind = "mae"
    rotation_kind: LossKind = "mse"
    huber_delta: Positive = 0.01
    per_atom: bool = True
    free_atoms_only: bool = False
    adsorbate_weight: NotNegative = 1.0


@dataclass(frozen=True, kw_only=True)
class OptimConfig:
    """The optimizer and the learning-rate schedule.

    Attributes:
        kind: adamw, or muon: orthogonalized steps for the matrices inside the network, AdamW for the other parameters.
        lr: Peak learning rate; for fine-tuning at most 1e-3 by default.
        min_lr: Final learning rate.
        weight_decay: Decoupled weight decay; not applied to biases, norms and embeddings.
        beta2: Decay rate of Adam's second moment.
        schedule: cosine (over max_epochs or the time limit, whichever ends first), plateau, or constant.
        warmup_steps: Steps of linear warm-up; None for 5 % of the run, at most 500.
        plateau_factor, plateau_patience: Reduction factor of the plateau schedule and its patience in validations.
        batch_size: Structures per step and process; None for about 120 atoms on a CPU, 1200 on a GPU.
        accumulate: Batches whose gradients are accumulated per step.
        grad_clip: Maximum norm of the gradient; None disables clipping.
        ema_decay: Decay rate of the exponential moving average of the weights; 0 disables averaging.
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
            ``energy_forces_within`` are maximized, all others minimized.
        patience: Validations without improvement before the run stops; None disables early stopping.
        min_lr: A run with the plateau schedule stops below this learning rate.
    """

    metric: str = "loss"
    patience: NotNegativeInt | None = None
    min_lr: NotNegative = 0.0


@dataclass(frozen=True, kw_only=True)
class FinetuneConfig:
    """Fine-tuning of a trained model.

    Attributes:
        checkpoint: Path or name of the model; None starts from random weights.
        feed_forward: Add per-atom feed-forward layers of this width (see ``model.feed_forward``), or widen existing
            ones; the energy does not change until they are trained. None keeps the architecture.
        edge_channels: Replace the edge embedding by a narrower one (see ``model.edge_channels``) that is fitted to give
            nearly the same filters, for a faster network. None keeps the width.
        freeze: Names of modules of the network that are not trained, e.g. "atom_embedding", "edge_embedding",
            "interaction_blocks.0".
        replay: Files of earlier training data to mix into the training set.
        replay_fraction: Fraction of each batch that is drawn from them.
        replay_energies: Train on the energies of replayed structures, which then must have the level of theory and the
            zero of energy of the new data. False trains on their forces and stress only, of any level of theory; the
            trained elements and the domain are then those of the new data.
        refit_references: Fit the element references to the new training set. Otherwise only those of elements that the
            model has not seen are fitted.
    """

    checkpoint: str | None = None
    feed_forward: Count | None = None
    edge_channels: Count | None = None
    freeze: tuple[str, ...] = ()
    replay: tuple[str, ...] = ()
    replay_fraction: Annotated[float, Interval(gt=0, lt=1)] = 0.2
    replay_energies: bool = True
    refit_references: bool = True


@dataclass(frozen=True, kw_only=True)
class RepulsionSection:
    """Short-range repulsion (:class:`RepulsionConfig`).

    What is None is that of the preset or, in fine-tuning, that of the initial model. If no limit is stated, the limits
    are moved below the contacts in the training data.
    """

    kind: Literal["none", "zbl"] | None = None
    outer: Positive | None = None
    inner: Positive | None = None
    crowding_start: Positive | None = None
    crowding_end: Positive | None = None

    @property
    def states_limits(self) -> bool:
        """Whether any of the limits is stated."""
        return any(x is not None for x in (self.outer, self.inner, self.crowding_start, self.crowding_end))

    def applied_to(self, own: RepulsionConfig) -> RepulsionConfig:
        """Settings of a preset or a model with those of this section."""
        stated = {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) is not None}
        try:
            return replace(own, **stated)
        except ValueError as error:
            raise InputError(str(error)) from error


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """All settings of a training run."""

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
    repulsion: RepulsionSection = field(default_factory=RepulsionSection)
