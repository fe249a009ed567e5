"""SchNet of PyG on the same data with the same budget.

    python benchmarks/peer_schnet.py TRAIN VAL TEST --time-limit 1800 --threads 1 --out runs/schnet
    python benchmarks/peer_schnet.py --config pretrained/co2-ni100/train.yaml --time-limit 466 --out runs/schnet

The second form takes all settings from a faenet-calc run: data and split, loss, batch size, schedule, averaging of
weights, validation, threads and time limit (paths are relative to the current folder; `--set data.train=[...]` selects
other files). Both train `torch_geometric.nn.models.SchNet` on energies, forces and, if the run does, stress.

Identical: training, validation and test sets, element references and energy scale, forces = -dE/dx, loss and its
weights, about 120 atoms per step, optimizer, warm-up and cosine schedule, averaged weights, selection of the best
weights by validation. Specific to SchNet: network (`--interactions`, `--hidden`, `--filters`, `--gaussians`), cutoff
and maximum learning rate; the defaults were the best in short runs. Edges come from the periodic neighbor list of
faenet-calc, without a limit on their number: PyG's `radius_graph` ignores the cell and returns at most 32 neighbors.

The budget is `--time-limit` × `--threads` seconds of CPU time (wall time on a GPU). OUT receives schnet.safetensors
(usable as MODEL in heldout_errors.py and pareto.py), errors.jsonl (rows as in heldout_errors.py, test set) and
training.json. The table shows the test errors next to the baseline and, with `--beside MODEL`, those of faenet-calc
models.
"""

import argparse
import dataclasses
import json
import tempfile
from functools import partial
from pathlib import Path

import torch
from experiment import NetworkRun, schnet_like
from heldout_errors import (
    MEAN_PREDICTOR,
    RECIPE,
    GroupErrors,
    label,
    mean_errors,
    model_errors,
    rows,
    split_name,
    summarize,
    table,
    write_rows,
)
from peers.schnet import SchNetPotential, SchNetSize, open_model, save

from faenet_calc.errors import InputError
from faenet_calc.labelling.recipe import load_recipe
from faenet_calc.memory import keep_freed_memory
from faenet_calc.potential.device import pick_device
from faenet_calc.training.config import TrainConfig
from faenet_calc.training.config_file import config_to_mapping, load_config, read_config
from faenet_calc.training.preparation import Prepared, open_parts

# Validation loss of CO2/Ni(100) after 60 s of CPU time, one seed each: Muon with 3 interactions 0.109 (lr 1.2e-2) and
# 0.120 (5e-3), with PyG's default of 6 interactions 0.134 (5e-3); AdamW with 3 interactions 0.151 (3e-3) and 0.182
# (1e-3). Other cutoffs and widths were not tried.
LR = 1.2e-2
CUTOFF = 5.0  # Å
SIZE = SchNetSize(num_interactions=3)
NAME = "PyG SchNet"


def settings(arguments: argparse.Namespace) -> TrainConfig:
    """Settings of a faenet-calc run with the data, cutoff and learning rate of the peer."""
    changes = [*arguments.set, f"model.cutoff={arguments.cutoff}", f"optim.lr={arguments.lr}"]
    if arguments.sets:
        if len(arguments.sets) != 3:
            raise InputError(f"{len(arguments.sets)} files were given, expected TRAIN VAL TEST or --config alone")
        names = zip(("train", "val", "test"), arguments.sets, strict=True)
        changes += [f"data.{name}={json.dumps([str(path)])}" for name, path in names]
    config = read_config("", changes) if arguments.config is None else load_config(arguments.config, changes)
    if not config.data.train:
        raise InputError("no data: give TRAIN VAL TEST, or --config with a run of ours")
    if config.finetune.checkpoint is not None:
        raise InputError("this run starts from another model; a peer has none to start from")
    return config


def compare(potential: SchNetPotential, prepared: Prepared, recipe: Path, beside: list[str]) -> list[GroupErrors]:
    """Errors of SchNet, other models and the baseline on the test set (validation set if there is none)."""
    made_by, train = load_recipe(recipe), prepared.train
    name = "val" if prepared.test is None else "test"
    part = prepared.test or prepared.val
    found = summarize(NAME, model_errors(potential, part.dataset, part.indices), part.dataset, made_by)
    for word in beside:
        source, frames = split_name(word)
        model = open_model(source, device=str(potential.device))
        same, _ = open_parts(
            prepared.config.data,
            cutoff=model.cutoff,
            max_neighbors=model.config.graph.max_neighbors,
            progress=False,
        )
        dataset, indices = same[name].dataset, same[name].indices
        found += summarize(label(word), model_errors(model, dataset, indices, frames), dataset, made_by)
    mean = mean_errors(train.dataset, train.indices, part.dataset, part.indices)
    return found + summarize(MEAN_PREDICTOR, mean, part.dataset, made_by)


def report(out: Path, run: NetworkRun, size: SchNetSize) -> None:
    """Write a summary of the training with all settings."""
    prepared, state = run.prepared, run.state
    sets = {"train": prepared.train, "val": prepared.val, "test": prepared.test}
    described = {
        "network": NAME,
        "size": dataclasses.asdict(size),
        "budget_s": run.config.run.time_limit_s,
        "threads": torch.get_num_threads(),
        "structures": {name: len(part) for name, part in sets.items() if part is not None},
        "steps": state.step,
        "epochs": round(state.step / run.per_epoch, 2),
        "spent_s": round(state.elapsed_s, 1),
        "best_step": state.best_step,
        "history": state.history,
        "config": config_to_mapping(run.config),
    }
    (out / "training.json").write_text(json.dumps(described, indent=1, ensure_ascii=False) + "\n")


def parser() -> argparse.ArgumentParser:
    """Command-line parser."""
    result = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    result.add_argument("sets", nargs="*", metavar="FILE", help="TRAIN VAL TEST")
    result.add_argument("--config", type=Path, help="configuration of a faenet-calc run")
    result.add_argument("--set", action="append", default=[], metavar="SECTION.KEY=VALUE")
    result.add_argument("--time-limit", type=float, metavar="SECONDS", help="default: from the configuration")
    result.add_argument("--threads", type=int, help="default: from the configuration, or 1")
    result.add_argument("--out", type=Path, required=True)
    result.add_argument("--lr", type=float, default=LR)
    result.add_argument("--cutoff", type=float, default=CUTOFF, help="cutoff in Å")
    result.add_argument("--hidden", type=int, default=SIZE.hidden_channels)
    result.add_argument("--filters", type=int, default=SIZE.num_filters)
    result.add_argument("--interactions", type=int, default=SIZE.num_interactions)
    result.add_argument("--gaussians", type=int, default=SIZE.num_gaussians)
    result.add_argument(
        "--beside", nargs="*", default=[], metavar="MODEL", help="faenet-calc models to add to the table"
    )
    result.add_argument("--recipe", type=Path, default=RECIPE, help="recipe with the held-out rules")
    result.add_argument("--device")
    return result


def main() -> None:
    """Train, evaluate and write the results."""
    arguments = parser().parse_args()
    config = settings(arguments)
    limit = arguments.time_limit or config.run.time_limit_s
    if limit is None:
        raise InputError("the settings have no run.time_limit_s; give --time-limit")
    threads = arguments.threads or config.run.threads or 1
    torch.set_num_threads(threads)
    keep_freed_memory()
    size = SchNetSize(
        hidden_channels=arguments.hidden,
        num_filters=arguments.filters,
        num_interactions=arguments.interactions,
        num_gaussians=arguments.gaussians,
    )
    arguments.out.mkdir(parents=True, exist_ok=True)
    device = pick_device(arguments.device)
    budget_s = limit * threads if device.type == "cpu" else limit
    with tempfile.TemporaryDirectory() as scratch:
        limited = dataclasses.replace(
            config.run, out_dir=scratch, device=str(device), time_limit_s=budget_s, max_epochs=None, tensorboard=False
        )
        run = NetworkRun(dataclasses.replace(config, run=limited), peer=partial(schnet_like, size=size), progress=True)
        n_weights = sum(p.numel() for p in run.potential.parameters())
        print(f"{NAME}: {n_weights:,} parameters, {budget_s:.0f} s of CPU time on {threads} threads", flush=True)
        run.loop(run.clock(), None)
    potential = run.best()
    assert isinstance(potential, SchNetPotential)
    save(potential, arguments.out / "schnet.safetensors")
    report(arguments.out, run, size)
    found = compare(potential, run.prepared, arguments.recipe, arguments.beside)
    write_rows(arguments.out / "errors.jsonl", rows("peer_schnet", found))
    print(table(found))


if __name__ == "__main__":
    main()
