"""`faenet-calc train`: train a potential from a config or from data files."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from faenet_calc.cli.numbers import NOT_NEGATIVE
from faenet_calc.cli.options import explained_interrupt, verbosity, verbosity_options
from faenet_calc.errors import InputError, counted

MAX_REPORTED = 2000  # structures of a set in the report
EXIT_INCOMPLETE = 3

if TYPE_CHECKING:
    from faenet_calc.training.config import TrainConfig
    from faenet_calc.training.loop import TrainResult


@click.command()
@click.argument("inputs", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="SECTION.KEY=VALUE",
    help="Override a setting of the config (repeatable).",
)
@click.option("-o", "--out", type=click.Path(path_type=Path), help="Output folder (run.out_dir).")
@click.option("--device", help="Device to train on: auto, cpu, cuda or cuda:N (run.device).")
@click.option("--seed", type=int, help="Random seed of weights, order and frames (run.seed).")
@click.option(
    "--resume",
    type=click.Choice(["auto", "never"]),
    default="never",
    help="Continue the run in the output folder, if there is one (auto).  [default: never]",
)
@click.option("--overwrite", is_flag=True, help="Replace an existing run in the output folder.")
@click.option(
    "--time-limit",
    type=NOT_NEGATIVE,
    metavar="S",
    help="Interrupt the training after S seconds; --resume auto continues it.",
)
@click.option(
    "--finetune-from", metavar="MODEL", help="Fine-tune a model: shipped name or checkpoint (finetune.checkpoint)."
)
@click.option("--trust-pickle", is_flag=True, help="Read LMDB files of pickled objects; this runs code in the files.")
@click.option("--find-lr", is_flag=True, help="Run a learning-rate sweep of 100 steps and suggest a rate.")
@click.option("--dry-run", is_flag=True, help="Print the complete config as YAML and exit.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object.")
@verbosity_options
@click.pass_context
def command(
    ctx: click.Context,
    inputs: tuple[Path, ...],
    settings: tuple[str, ...],
    out: Path | None,
    device: str | None,
    seed: int | None,
    resume: str,
    overwrite: bool,
    time_limit: float | None,
    finetune_from: str | None,
    trust_pickle: bool,
    find_lr: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Train a potential from INPUTS: one CONFIG.yaml, or data files (extxyz, traj, db, …) with default settings.

    The weights with the best validation metric are written to best.safetensors in the output folder. A training takes
    one hour, or --set run.time_limit_s=SECONDS or --set run.max_epochs=N; the learning rate decays over this duration.
    """
    from faenet_calc.training.config_file import dump_config

    given = {"run.out_dir": out, "run.device": device, "run.seed": seed, "finetune.checkpoint": finetune_from}
    named = [f"{name}={json.dumps(str(v) if isinstance(v, Path) else v)}" for name, v in given.items() if v is not None]
    config = _config(inputs, [*settings, *named])
    if dry_run:
        click.echo(dump_config(config), nl=False)
        return
    if find_lr:
        _find_lr(config, as_json)
        return
    from faenet_calc.training.loop import train

    talks = verbosity(ctx) >= 0 and not as_json
    folder = Path(config.run.out_dir)
    before = _saved_at(folder) if resume == "never" else None
    with explained_interrupt(ctx, lambda: _interrupted(folder, before)):
        result = train(
            config,
            resume=resume == "auto",
            overwrite=overwrite,
            job_limit_s=time_limit,
            trust_pickle=trust_pickle,
            progress=talks,
        )
    if not result.writes:
        return
    summary = _summary(result)
    if result.checkpoint is not None and result.finished != "interrupted" and result.config.run.report:
        summary["errors"] = _report(result, result.checkpoint, talks)
    if as_json:
        click.echo(json.dumps(summary))
    elif result.checkpoint is not None:
        click.echo(f"{result.checkpoint} ({result.finished})")
    if result.checkpoint is None:
        click.echo(
            f"{result.folder}: stopped before the first validation, so there are no weights yet; continue with "
            "--resume auto",
            err=True,
        )
        ctx.exit(EXIT_INCOMPLETE)


def _config(inputs: tuple[Path, ...], settings: list[str]) -> "TrainConfig":
    from faenet_calc.data.manifest import is_manifest
    from faenet_calc.training.config_file import load_config, read_config

    if inputs[0].suffix in (".yaml", ".yml") and not is_manifest(inputs[0]):
        if len(inputs) > 1:
            raise InputError(f"{len(inputs)} inputs with {inputs[0]}; give one config, or data files only")
        return load_config(inputs[0], settings)
    files = json.dumps([str(path) for path in inputs])
    return read_config("", [f"data.train={files}", *settings], source="the command line")


def _saved_at(folder: Path) -> int | None:
    """When the state of the run in a folder was written (ns); None if there is none."""
    from faenet_calc.training.state import FILE

    return (folder / FILE).stat().st_mtime_ns if (folder / FILE).exists() else None


def _interrupted(folder: Path, before: int | None) -> str:
    """What an interrupted run saved; ``before`` is the time of the state that the run was to replace (ns)."""
    import torch

    from faenet_calc.training.state import FILE, load_state

    if _saved_at(folder) in (None, before):
        return "Interrupted before the first step; nothing was saved."
    state, _, _ = load_state(folder, torch.device("cpu"))
    weights = "" if state.best is None else f", the best weights so far are in {folder / 'best.safetensors'}"
    return (
        f"Interrupted: {folder / FILE} holds the run up to step {state.step}{weights}. Repeat the command with "
        "--resume auto to continue."
    )


def _summary(result: "TrainResult") -> dict[str, Any]:
    last = next((row for row in reversed(result.state.history) if row["is_best"]), {})
    return {
        "checkpoint": None if result.checkpoint is None else str(result.checkpoint),
        "finished": result.finished,
        "steps": result.state.step,
        "epochs": result.state.epoch,
        "elapsed_s": result.state.elapsed_s,
        "best": {name: value for name, value in last.items() if name != "is_best"},
    }


def _report(result: "TrainResult", checkpoint: Path, talks: bool) -> dict[str, dict[str, float]]:
    """Errors of the best weights with the potential's own frames, by set; also report.html and errors.json."""
    from faenet_calc.potential.checkpoint import load_potential
    from faenet_calc.reports.learning import evaluation_section, training_report
    from faenet_calc.training.assessment import assess
    from faenet_calc.training.config_file import dump_config

    potential = load_potential(checkpoint, device=None if result.config.run.device == "auto" else "cpu")
    errors, sections = {}, []
    for name in ("test", "val"):
        part = result.parts.get(name)
        if part is None:
            continue
        chosen = part.indices[:: max(1, len(part) // MAX_REPORTED)]
        found = assess(
            potential, part.dataset, chosen, free_atoms_only=result.config.loss.free_atoms_only, records=True
        )
        errors[name] = {"n_structures": found.n_structures, **found.metrics}
        sections.append(evaluation_section(name, found))
        if talks:
            shown = (("energy_mae_per_atom", "meV/atom"), ("forces_mae", "meV/Å"))
            words = [f"{1e3 * found.metrics[key]:.2f} {unit}" for key, unit in shown if key in found.metrics]
            size = counted(found.n_structures, "structure")
            click.echo(f"{name}: {', '.join(words)} ({size}, frames: {potential.config.frame_mode})", err=True)
    (result.folder / "errors.json").write_text(json.dumps(errors, indent=1) + "\n")
    notes = (
        f"{result.state.step} steps, {result.state.epoch} epochs, {result.state.elapsed_s:.0f} s; ended by "
        f"{result.finished}; best weights from step {result.state.best_step}"
    )
    training_report(
        result.folder / "report.html",
        title=f"Training of {result.config.model.name or result.folder.name}",
        history=result.state.history,
        sections=sections,
        config=dump_config(result.config),
        notes=notes,
    )
    return errors


def _find_lr(config: "TrainConfig", as_json: bool) -> None:
    from faenet_calc.training.lr_finder import find_rate

    found = find_rate(config)
    if as_json:
        click.echo(json.dumps({"suggested": found.suggested, "rates": found.rates, "losses": found.losses}))
    else:
        click.echo(f"suggested: --set optim.lr={found.suggested:.1e}")
