"""Preparation of a run: open the data sets, fit the normalization, resolve open settings, build the potential."""

import dataclasses
import math
from dataclasses import dataclass

import numpy as np
import torch

from faenet_calc import elements
from faenet_calc.data import statistics
from faenet_calc.data.dataset import GraphDataset, open_dataset
from faenet_calc.data.formats import find_files
from faenet_calc.data.splits import split_dataset, uncovered
from faenet_calc.errors import InputError
from faenet_calc.potential.config import NormalizationConfig
from faenet_calc.potential.device import as_dtype
from faenet_calc.potential.potential import Potential
from faenet_calc.training.batches import Indices, Replay
from faenet_calc.training.config import DataConfig, TrainConfig
from faenet_calc.training.config_file import potential_config
from faenet_calc.training.contacts import fit_repulsion
from faenet_calc.training.finetune import (
    adopt_potential,
    build_replay,
    described_energy,
    freeze,
    open_replay,
    refitted,
)

DEFAULT_TIME_S = 3600.0
# Small batches, as long as one fills the device. CO2/Ni(100), 39 atoms, six epochs on a CPU at lr 5e-3, one seed each:
# validation force MAE 42 meV/Å with 4 structures per step, 37 with 2. Equal epochs, not time; not tried on other data.
ATOMS_PER_STEP = {"cpu": 120, "cuda": 1200}
LARGEST_BATCH = 64
_FEW = 5  # validation structures


@dataclass(frozen=True, kw_only=True, eq=False)
class Part:
    """A subset of a data set."""

    dataset: GraphDataset
    indices: Indices

    def __len__(self) -> int:
        return len(self.indices)


@dataclass(frozen=True, kw_only=True, eq=False)
class Prepared:
    """Everything that a run starts from.

    Attributes:
        config: Settings with every default resolved.
        train, val, test: The data sets; ``test`` may be None.
        potential: Potential with random or given weights, ready to train.
        replay: Earlier data to mix in, or None.
        data_hashes: Setting that names files → sha256 of their contents; a resumed run must find the same.
        notes: Messages about resolved settings.
    """

    config: TrainConfig
    train: Part
    val: Part
    test: Part | None
    potential: Potential
    replay: Replay | None
    data_hashes: dict[str, str]
    notes: tuple[str, ...]


def open_parts(
    data: DataConfig,
    *,
    cutoff: float,
    max_neighbors: int | None,
    trust_pickle: bool = False,
    progress: bool = False,
) -> tuple[dict[str, Part], list[str]]:
    """Open the training, validation and test sets; sets without files are split off the training files.

    Returns:
        The sets by name, and messages.
    """
    if not data.train:
        raise InputError("data.train names no file; give data files on the command line or in the config")

    def open_files(files: tuple[str, ...]) -> GraphDataset:
        return open_dataset(
            list(files),
            cutoff=cutoff,
            max_neighbors=max_neighbors,
            cache_dir=data.cache_dir,
            energy_key=None if data.energy_key == "auto" else data.energy_key,
            forces_key=None if data.forces_key == "auto" else data.forces_key,
            trust_pickle=trust_pickle,
            progress=progress,
        )

    parts: dict[str, Part] = {}
    for name, files in (("val", data.val), ("test", data.test)):
        if files:
            dataset = open_files(files)
            parts[name] = Part(dataset=dataset, indices=np.arange(len(dataset)))
    dataset = open_files(data.train)
    found, notes = _split(dataset, data, has_val="val" in parts, has_test="test" in parts)
    parts |= found
    notes += [
        f"data.train names {name} {data.train.count(name)} times, which counts once; data.repeat repeats a file"
        for name in dict.fromkeys(data.train)
        if data.train.count(name) > 1
    ]
    if data.max_force is not None:
        parts["train"], note = _without_large_forces(parts["train"], data.max_force)
        notes.append(note)
    if not len(parts["train"]):
        raise InputError(f"{len(dataset)} structures leave none for training; look at data.val_fraction and max_force")
    return parts, notes + uncovered({name: (part.dataset, part.indices) for name, part in parts.items()})


def drawn_per_epoch(part: Part, data: DataConfig) -> tuple[Indices, Indices]:
    """The structures of the training set that an epoch goes through.

    Returns:
        Indices of the structures, those of repeated files several times, and the number of each copy (0 is the first).
    """
    times = np.ones(len(part), dtype=np.int64)
    if data.repeat:
        times_of = {str(path): n for name, n in data.repeat.items() for path in find_files(name)}
        sources = [part.dataset.info(index)["source"] for index in part.indices.tolist()]
        if unknown := sorted(set(times_of) - set(sources)):
            raise InputError(f"data.repeat names {', '.join(unknown)}, expected files with structures in data.train")
        times = np.array([times_of.get(source, 1) for source in sources], dtype=np.int64)
    first = np.cumsum(times) - times
    return np.repeat(part.indices, times), np.arange(times.sum()) - np.repeat(first, times)


def _without_large_forces(part: Part, limit: float) -> tuple[Part, str]:
    kept = part.indices[statistics.largest_forces(part.dataset)[part.indices] <= limit]
    left_out = len(part.indices) - len(kept)
    return Part(dataset=part.dataset, indices=kept), f"{left_out} training structures have forces beyond {limit} eV/Å"


def _split(
    dataset: GraphDataset, data: DataConfig, *, has_val: bool, has_test: bool
) -> tuple[dict[str, Part], list[str]]:
    """Split validation and test sets off a data set, unless they have files of their own."""
    shares = {"val": 0.0 if has_val else data.val_fraction, "test": 0.0 if has_test else data.test_fraction}
    shares = {name: share for name, share in shares.items() if share * len(dataset) >= 1}
    notes = []
    if shares:
        split = split_dataset(
            dataset, kind=data.split, fractions={"train": 1 - sum(shares.values()), **shares}, seed=data.seed
        )
        notes = [split.note] if split.note else []
        found = {name: Part(dataset=dataset, indices=split[name]) for name in ("train", *shares) if name in split}
    else:
        found = {"train": Part(dataset=dataset, indices=np.arange(len(dataset)))}
    if not has_val and "val" not in found:
        notes.append("no validation set: validation errors are those of the training set")
        found["val"] = found["train"]
    elif "val" in found and len(found["val"].indices) < _FEW:
        notes.append(
            f"few validation structures ({len(found['val'].indices)}): their errors mean little, and they choose the "
            "best weights; give a validation file (data.val) or a larger data.val_fraction"
        )
    return found, notes


def prepare(
    config: TrainConfig, device: torch.device, *, trust_pickle: bool = False, progress: bool = False
) -> Prepared:
    """Open the data, fit the normalization and build the potential."""
    before = None
    if config.finetune.checkpoint is not None:
        config, before = adopt_potential(config)
    reading = {"trust_pickle": trust_pickle, "progress": progress}
    parts, split_notes = open_parts(
        config.data, cutoff=config.model.cutoff, max_neighbors=config.graph.max_neighbors, **reading
    )
    train = parts["train"]
    config, notes = _decide(config, train, parts["val"], ATOMS_PER_STEP[device.type])
    energy, energy_notes = described_energy(
        config.energy, train.dataset, None if before is None else before.config.energy
    )
    config = dataclasses.replace(config, energy=energy)
    notes += [*split_notes, *energy_notes]
    replay = None
    if before is None:
        normalization, mean_neighbors = fit_normalization(config, train)
        potential = _build(config, normalization, mean_neighbors, train)
    else:
        before.check_elements(torch.tensor(train.dataset.numbers))
        old_data = open_replay(config, before, **reading)
        potential, more = refitted(before, train.dataset, train.indices, config, old_data)
        if old_data is not None:
            replay = build_replay(config, old_data, train.dataset, before, potential)
        normalization, mean_neighbors = potential.config.normalization, None
        n_frozen = freeze(potential, config.finetune.freeze)
        notes += [*more, f"{n_frozen:,} parameters are frozen" if n_frozen else "all parameters are trained"]
    potential.check_elements(torch.tensor(train.dataset.numbers))
    if not config.repulsion.states_limits:
        repulsion, more = fit_repulsion(
            potential.config.repulsion, train.dataset, train.indices, cutoff=potential.cutoff
        )
        potential.config = dataclasses.replace(potential.config, repulsion=repulsion)
        notes += more
    potential.model.to(device)
    section = dataclasses.replace(
        config.normalization,
        references=normalization.references,
        shift=normalization.shift,
        scale=normalization.scale,
        force_scale=normalization.force_scale,
        mean_neighbors=mean_neighbors,
    )
    notes += [
        f"references (eV): {', '.join(f'{s} {v:.3f}' for s, v in normalization.references.items()) or 'none'}",
        f"energy scale {normalization.scale:.4g} eV, mean neighbors {potential.config.model.mean_neighbors:.1f}, "
        f"{sum(p.numel() for p in potential.parameters()):,} parameters",
    ]
    return Prepared(
        config=dataclasses.replace(config, normalization=section),
        train=train,
        val=parts["val"],
        test=parts.get("test"),
        potential=potential,
        replay=replay,
        data_hashes=_hashes(parts, replay, before),
        notes=tuple(notes),
    )


def _hashes(parts: dict[str, Part], replay: Replay | None, before: Potential | None) -> dict[str, str]:
    hashes = {f"data.{name}": part.dataset.content_hash for name, part in parts.items()}
    if replay is not None:
        hashes["finetune.replay"] = replay.dataset.content_hash
    if before is not None:
        hashes["finetune.checkpoint"] = str(before.metadata.get("sha256", ""))
    return hashes


def _decide(config: TrainConfig, train: Part, val: Part, atoms_per_step: int) -> tuple[TrainConfig, list[str]]:
    """Resolve settings that depend on the size and labels of the training set."""
    n_train, labels, drawn = len(train), train.dataset.n_labels, drawn_per_epoch(train, config.data)[0]
    run, optim, loss, model = config.run, config.optim, config.loss, config.model
    shared = val.dataset is train.dataset and bool(np.isin(val.indices, train.indices).any())
    notes = [
        f"{n_train} training {'' if shared else f'and {len(val)} validation '}structures of "
        f"{', '.join(map(elements.symbol, train.dataset.numbers))}"
    ]
    if not labels.get("energy"):
        raise InputError("no structure has an energy; name it with data.energy_key")
    if not labels.get("forces") and (loss.forces > 0 or model.forces != "none"):
        notes.append("no forces in the data: training on energies alone")
        loss = dataclasses.replace(loss, forces=0.0, conservation=0.0)
        model = dataclasses.replace(model, forces="none")
    if not labels.get("stress") and loss.stress > 0:
        notes.append("no stress in the data: loss.stress is set to 0")
        loss = dataclasses.replace(loss, stress=0.0)
    if run.max_epochs is None and run.time_limit_s is None:
        notes.append("neither run.max_epochs nor run.time_limit_s is set: training for one hour")
        run = dataclasses.replace(run, time_limit_s=DEFAULT_TIME_S)
    if optim.batch_size is None:
        size = round(atoms_per_step / float(train.dataset.n_atoms[drawn].mean()))
        optim = dataclasses.replace(optim, batch_size=max(1, min(size, LARGEST_BATCH, n_train // 8)))
    assert optim.batch_size is not None
    per_epoch = max(1, -(-len(drawn) // optim.batch_size))
    if run.validate_every is None:
        run = dataclasses.replace(run, validate_every=max(1, round(100 / per_epoch)))
    if run.validation_frames == "auto":
        run = dataclasses.replace(run, validation_frames="one" if config.frames.kind == "lattice" else "all")
    if optim.warmup_steps is None:
        total = per_epoch * run.max_epochs if run.max_epochs else 10_000
        optim = dataclasses.replace(optim, warmup_steps=min(500, max(1, total // 20)))
    return dataclasses.replace(config, run=run, optim=optim, loss=loss, model=model), notes


def fit_normalization(config: TrainConfig, train: Part) -> tuple[NormalizationConfig, float | None]:
    """Fit scales, shift and references to the training set, and its mean number of neighbors (None: the model's)."""
    section, dataset, indices = config.normalization, train.dataset, train.indices
    references: dict[str, float] = {}
    if isinstance(section.references, dict):
        references = {str(symbol): float(value) for symbol, value in section.references.items()}
    elif section.references == "fit":
        references = statistics.fit_references(dataset, indices)
    by_number = np.zeros(elements.MAX_Z + 1)
    for symbol, value in references.items():
        by_number[elements.atomic_number(symbol)] = value
    energy = np.asarray(dataset.energy)[indices] - dataset.compositions(indices) @ by_number
    energy = energy[~np.isnan(energy)]
    shift = float(energy.mean()) if section.shift == "fit" else float(section.shift)
    forces_rms = statistics.force_scale(dataset, indices)
    if section.scale != "fit":
        scale = float(section.scale)
    elif section.shift == "fit":
        scale = float(energy.std()) or 1.0
    elif config.model.forces != "none":
        scale = forces_rms
    else:
        scale = float(energy.std()) / math.sqrt(float(dataset.n_atoms[indices].mean())) or 1.0
    force_scale = section.force_scale
    if force_scale == "fit":
        force_scale = scale if section.shift == "fit" else forces_rms
    mean_neighbors = section.mean_neighbors
    if mean_neighbors == "fit":
        mean_neighbors = max(1.0, statistics.mean_neighbors(dataset, indices))
    normalization = NormalizationConfig(scale=scale, shift=shift, force_scale=float(force_scale), references=references)
    return normalization, mean_neighbors


def _build(
    config: TrainConfig, normalization: NormalizationConfig, mean_neighbors: float | None, train: Part
) -> Potential:
    """Build a trainable potential with random weights."""
    settings = potential_config(
        config,
        normalization=normalization,
        mean_neighbors=mean_neighbors,
        trained_elements=tuple(train.dataset.numbers),
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.run.seed)
        potential = Potential(settings)
    potential.model.to(as_dtype(config.run.dtype))
    return potential.train().requires_grad_(True)
