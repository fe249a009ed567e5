"""Continuing from a trained potential: its network, new element references, frozen parts, replay of old data."""

import dataclasses

import numpy as np
import torch

from faenet_calc import elements
from faenet_calc.data.dataset import GraphDataset, open_dataset
from faenet_calc.errors import InputError
from faenet_calc.potential.checkpoint import load_potential
from faenet_calc.potential.config import PotentialConfig
from faenet_calc.potential.potential import Potential
from faenet_calc.training.alignment import aligned
from faenet_calc.training.batches import Indices, Replay
from faenet_calc.training.config import FinetuneConfig, FramesSection, ModelSection, TrainConfig


def adopt_potential(config: TrainConfig) -> tuple[TrainConfig, Potential]:
    """The settings with the network, frames, graph and energy of the model to continue from, and that model."""
    assert config.finetune.checkpoint is not None
    potential = load_potential(config.finetune.checkpoint, device="cpu", dtype=config.run.dtype)
    if config.finetune.feed_forward is not None:
        potential = with_feed_forward(potential, config.finetune.feed_forward, seed=config.run.seed)
    own: PotentialConfig = potential.config
    model = ModelSection(
        **{f.name: getattr(own.model, f.name) for f in dataclasses.fields(own.model)},
        preset=config.model.preset,
        forces=own.forces,
        name=config.model.name or own.name,
    )
    frames = FramesSection(
        **{f.name: getattr(own.frames, f.name) for f in dataclasses.fields(own.frames)}, training=config.frames.training
    )
    adopted = dataclasses.replace(config, model=model, frames=frames, graph=own.graph, energy=own.energy)
    return adopted, potential


def with_feed_forward(potential: Potential, width: int, *, seed: int) -> Potential:
    """The same energy surface with (wider) networks of single atoms after the interactions, ready to be trained.

    New neurons start with random weights in and zero weights out.
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
    potential: Potential, dataset: GraphDataset, indices: Indices, config: FinetuneConfig
) -> tuple[Potential, list[str]]:
    """The potential with references that fit the new data and the elements of both, ready to train, and notes."""
    notes = []
    known = potential.config.trained_elements
    if known:
        twins = start_as_twins(potential, sorted(set(dataset.numbers) - set(known)))
        notes += [f"{elements.symbol(new)} starts as a copy of {elements.symbol(old)}" for new, old in twins.items()]
    if config.refit_references:
        potential, change = aligned(potential, dataset, indices)
        words = ", ".join(f"{symbol} {value:+.3f}" for symbol, value in change.items())
        notes.append(f"references refitted to the new data (eV): {words}")
    union = tuple(sorted({*known, *dataset.numbers})) if known else ()
    settings = dataclasses.replace(potential.config, trained_elements=union)
    fresh = Potential(settings)
    fresh.model = potential.model
    return fresh.train().requires_grad_(True), notes


def start_as_twins(potential: Potential, new: list[int]) -> dict[int, int]:
    """Embed elements that were never trained on as the trained ones with the nearest properties; new → trained.

    Messages are products of embeddings, block after block: an embedding far from all trained ones, random as it is,
    can give energies of 1e15 eV, which no training repairs. The copy is told apart by training.
    """
    embedding = potential.model.atom_embedding
    tables = [embedding.emb.weight, embedding.phys_emb.period, embedding.phys_emb.group]
    tables += [embedding.phys_emb.properties] if embedding.uses_properties else []
    properties = elements.properties()
    known = np.array(potential.config.trained_elements)
    twins = {}
    with torch.no_grad():
        for number in new:
            distance = np.linalg.norm(properties[known] - properties[number], axis=1)
            twins[number] = int(known[distance.argmin()])
            for table in tables:
                table[number] = table[twins[number]]
    return twins


def open_replay(config: TrainConfig, before: Potential, after: Potential, *, progress: bool) -> Replay | None:
    """The old data that is to be mixed in, or None."""
    section = config.finetune
    if not section.replay:
        return None
    if not 0 < section.replay_fraction < 1:
        raise InputError(f"finetune.replay_fraction = {section.replay_fraction}, expected a share between 0 and 1")
    dataset = open_dataset(
        list(section.replay),
        cutoff=before.cutoff,
        max_neighbors=before.config.graph.max_neighbors,
        cache_dir=config.data.cache_dir,
        trust_pickle=config.data.trust_pickle,
        progress=progress,
    )
    old, new = before.config.normalization.references, after.config.normalization.references
    table = np.zeros(elements.MAX_Z + 1)
    for symbol, value in new.items():
        table[elements.atomic_number(symbol)] = value - old.get(symbol, 0.0)
    return Replay(dataset=dataset, share=section.replay_fraction, references=table)


def freeze(potential: Potential, parts: tuple[str, ...]) -> int:
    """Stop the training of named parts of the network; the number of frozen parameters."""
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
