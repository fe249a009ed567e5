"""Fine-tuning: the network of a trained potential, new element references, frozen parts, replay of old data.

The fine-tuned potential describes itself by its own data: name, level of theory, energy reference and trained elements
are never those of the model it started from, unless the new data are of the same level of theory.
"""

import dataclasses

import numpy as np
import torch

from faenet_calc import elements
from faenet_calc.data.dataset import GraphDataset, open_dataset
from faenet_calc.errors import InputError, warn_user
from faenet_calc.graphs.tags import NONMETALS
from faenet_calc.potential.checkpoint import load_potential
from faenet_calc.potential.config import EnergyConfig, PotentialConfig
from faenet_calc.potential.potential import Potential
from faenet_calc.training.alignment import aligned
from faenet_calc.training.batches import Indices, Replay
from faenet_calc.training.config import FramesSection, ModelSection, TrainConfig
from faenet_calc.training.narrowing import with_edge_channels

UNKNOWN = EnergyConfig().reference
_LARGEST_FILTER_ERROR = 0.05  # relative; 64 of 128 channels in a trained model: 0.002
_LARGEST_CHANGE = 1.0  # eV per atom: a larger change of element references means another zero of energy


def adopt_potential(config: TrainConfig) -> tuple[TrainConfig, Potential]:
    """Settings with the network, frames and graph of the model to start from, and that model.

    The meaning of the energy is that of the new data, as far as the settings state it.
    """
    assert config.finetune.checkpoint is not None
    potential = load_potential(config.finetune.checkpoint, device="cpu", dtype=config.run.dtype)
    if config.finetune.feed_forward is not None:
        potential = with_feed_forward(potential, config.finetune.feed_forward, seed=config.run.seed)
    if config.finetune.edge_channels is not None:
        potential, error = with_edge_channels(potential, config.finetune.edge_channels, seed=config.run.seed)
        if error > _LARGEST_FILTER_ERROR:
            warn_user(
                f"finetune.edge_channels = {config.finetune.edge_channels} changes the filters of the trained network "
                f"by {100 * error:.0f} %; training starts far from the trained model. Choose more channels"
            )
    own: PotentialConfig = potential.config
    model = ModelSection(
        **{f.name: getattr(own.model, f.name) for f in dataclasses.fields(own.model)},
        preset=config.model.preset,
        forces=own.forces,
        name=config.model.name or f"{own.name or 'model'} (fine-tuned)",
    )
    frames = FramesSection(
        **{f.name: getattr(own.frames, f.name) for f in dataclasses.fields(own.frames)}, training=config.frames.training
    )
    stated = config.energy
    kind = own.energy.kind if stated.kind == EnergyConfig().kind else stated.kind
    energy = dataclasses.replace(stated, kind=kind, unit=own.energy.unit if kind == own.energy.kind else stated.unit)
    return dataclasses.replace(config, model=model, frames=frames, graph=own.graph, energy=energy), potential


def described_energy(
    stated: EnergyConfig, train: GraphDataset, before: EnergyConfig | None
) -> tuple[EnergyConfig, list[str]]:
    """The meaning of the energy of a training set, and notes.

    Args:
        stated: From the settings; what they state holds.
        train: Its files may name the level of theory or the calculator.
        before: Of the model that is fine-tuned, or None. Its energy reference also holds for new data of the same level
            of theory.
    """
    found = stated
    if found.level_of_theory == UNKNOWN:
        found = dataclasses.replace(found, level_of_theory=train.level_of_theory or UNKNOWN)
    if before is None:
        return found, []
    if found.reference == UNKNOWN and found.level_of_theory == before.level_of_theory != UNKNOWN:
        found = dataclasses.replace(found, reference=before.reference)
    if UNKNOWN not in (found.level_of_theory, found.reference):
        return found, []
    return found, [
        f"recorded for the new data: level of theory {found.level_of_theory}, energy reference {found.reference}; "
        "set energy.level_of_theory and energy.reference to describe the labels (those of the initial model need not "
        "hold for them)"
    ]


def with_feed_forward(potential: Potential, width: int, *, seed: int) -> Potential:
    """Add or widen the per-atom feed-forward layers of a potential without changing its energy surface.

    New neurons have random input weights and zero output weights.
    """
    present = potential.config.model.feed_forward
    if width <= present:
        raise InputError(
            f"finetune.feed_forward = {width} for a model with model.feed_forward = {present}; it takes a larger width "
            "than the model has: leave it out to train the model as it is"
        )
    model = dataclasses.replace(potential.config.model, feed_forward=width)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        wider = Potential(dataclasses.replace(potential.config, model=model))
    wider.model.to(next(potential.model.parameters()).dtype)
    tensors = wider.model.state_dict()
    for name, old in potential.model.state_dict().items():
        tensors[name][tuple(slice(length) for length in old.shape)] = old
    return wider


def refitted(
    potential: Potential, dataset: GraphDataset, indices: Indices, config: TrainConfig, replay: GraphDataset | None
) -> tuple[Potential, list[str]]:
    """The potential with references fitted to the new data and the description of the new one, ready to train; notes.

    Trained elements are those of the new data and of the replayed data; the old ones remain trained only if the
    meaning of the energy is unchanged.
    """
    notes = []
    known = potential.config.trained_elements
    twins: dict[int, int] = {}
    if known:
        twins = start_as_twins(potential, sorted(set(dataset.numbers) - set(known)))
        notes += [f"{elements.symbol(new)} starts as a copy of {elements.symbol(old)}" for new, old in twins.items()]
    if config.finetune.refit_references or twins:
        only = None if config.finetune.refit_references else sorted(twins)
        potential, change = aligned(potential, dataset, indices, only)
        words = ", ".join(f"{symbol} {value:+.3f}" for symbol, value in change.items())
        notes.append(f"references refitted to the new data (eV): {words}")
    same = config.energy == potential.config.energy and config.energy.level_of_theory != UNKNOWN
    replayed = () if replay is None or not config.finetune.replay_energies else replay.numbers
    kept = {*(known if same else ()), *replayed}
    settings = dataclasses.replace(
        potential.config,
        name=config.model.name,
        energy=config.energy,
        trained_elements=tuple(sorted({*kept, *dataset.numbers})),
        repulsion=config.repulsion.applied_to(potential.config.repulsion),
        domain=None,
    )
    fresh = Potential(settings)
    fresh.model = potential.model
    return fresh.train().requires_grad_(True), notes


def start_as_twins(potential: Potential, new: list[int]) -> dict[int, int]:
    """Initialize the embeddings of new elements with those of the trained elements of most similar properties.

    Nonmetals start as nonmetals, others as others, if there are any.

    Messages multiply embeddings in every block: a random embedding, far from all trained ones, can give energies of
    1e15 eV, from which training does not recover.

    Returns:
        New atomic number → trained atomic number.
    """
    embedding = potential.model.atom_embedding
    tables = [embedding.emb.weight, embedding.phys_emb.period, embedding.phys_emb.group]
    tables += [embedding.phys_emb.properties] if embedding.uses_properties else []
    properties = elements.properties()
    known = np.array(potential.config.trained_elements)
    twins = {}
    with torch.no_grad():
        for number in new:
            alike = known[np.isin(known, NONMETALS) == (number in NONMETALS)]
            relatives = alike if len(alike) else known
            distance = np.linalg.norm(properties[relatives] - properties[number], axis=1)
            twins[number] = int(relatives[distance.argmin()])
            for table in tables:
                table[number] = table[twins[number]]
    return twins


def open_replay(config: TrainConfig, before: Potential, *, trust_pickle: bool, progress: bool) -> GraphDataset | None:
    """The data set of ``finetune.replay``, or None."""
    if not config.finetune.replay:
        return None
    return open_dataset(
        list(config.finetune.replay),
        cutoff=before.cutoff,
        max_neighbors=before.config.graph.max_neighbors,
        cache_dir=config.data.cache_dir,
        trust_pickle=trust_pickle,
        progress=progress,
    )


def build_replay(
    config: TrainConfig, replay: GraphDataset, train: GraphDataset, before: Potential, after: Potential
) -> Replay:
    """Replayed data, with the small change of the element references applied to its energies.

    A level of theory that the settings state holds for all files, whatever names of calculators they have.

    Raises:
        InputError: The old and the new data have different energy references or levels of theory.
    """
    if not config.finetune.replay_energies:
        used = [name for name in ("forces", "stress") if getattr(config.loss, name) > 0]
        if not any(replay.n_labels.get(name) for name in used):
            raise InputError(
                "finetune.replay_energies=false leaves nothing to learn from finetune.replay: its files have no forces "
                "or stress with a weight in the loss (loss.forces, loss.stress)"
            )
        return Replay(dataset=replay, share=config.finetune.replay_fraction, references=None)
    theories = {"finetune.replay": replay.level_of_theory, "data.train": train.level_of_theory}
    stated = config.energy.level_of_theory not in (UNKNOWN, train.level_of_theory)
    if not stated and len(set(theories.values()) - {""}) > 1:
        raise InputError(
            f"finetune.replay mixes levels of theory: {', '.join(f'{k} is of {v}' for k, v in theories.items())}; "
            "replay data of the same level of theory, state it in energy.level_of_theory if their names differ only, "
            "or replay forces only (finetune.replay_energies=false)"
        )
    old, new = before.config.energy, config.energy
    for name in ("level_of_theory", "reference"):
        first, second = getattr(old, name), getattr(new, name)
        if UNKNOWN not in (first, second) and first != second:
            raise InputError(
                f"finetune.replay mixes energies: energy.{name} of the model and its data is {first!r}, that of the "
                f"new data {second!r}; replay data of the same energy, or forces only (finetune.replay_energies=false)"
            )
    references, refitted_to = before.config.normalization.references, after.config.normalization.references
    table = np.zeros(elements.MAX_Z + 1)
    for symbol, value in refitted_to.items():
        table[elements.atomic_number(symbol)] = value - references.get(symbol, 0.0)
    shared = sorted(set(train.numbers) & set(replay.numbers))
    far = [f"{elements.symbol(z)} {table[z]:+.2f}" for z in shared if abs(table[z]) > _LARGEST_CHANGE]
    if far:
        raise InputError(
            f"finetune.replay mixes energy references: those of the new data differ by {', '.join(far)} eV/atom; "
            "replay data with the same zero of energy, or forces only (finetune.replay_energies=false)"
        )
    return Replay(dataset=replay, share=config.finetune.replay_fraction, references=table)


def freeze(potential: Potential, parts: tuple[str, ...]) -> int:
    """Freeze named modules of the network and return the number of frozen parameters."""
    modules = dict(potential.model.named_modules())
    frozen = 0
    for name in parts:
        if name not in modules or not name:
            known = ", ".join(key for key in modules if key and key.count(".") <= 1)
            raise InputError(f"finetune.freeze names {name!r}, which the network does not have; parts: {known}")
        for parameter in modules[name].parameters():
            frozen += parameter.numel()
            parameter.requires_grad_(False)
    if not any(p.requires_grad for p in potential.model.parameters()):
        raise InputError("finetune.freeze leaves nothing to train")
    return frozen
