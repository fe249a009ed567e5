"""Errors of models on unseen systems, by reason for being held out.

    python benchmarks/heldout_errors.py metals-s metals-m [--data labels.extxyz] [--train train.extxyz] [--json FILE]
    python benchmarks/heldout_errors.py metals-m --final [--json FILE]
    python benchmarks/heldout_errors.py catalysis-m --dataset catalysis-v1 [--final]

A MODEL is a shipped name, a checkpoint (named after its folder), a checkpoint of a peer (`peer_schnet.py`), or one of
these with a frames setting, as in `metals-s:one`. Without `--data`, the validation set of datasets/metals-v1, or of the
data set given with `--dataset`, is used.
In other files, structures marked `split=heldout` are used where there are any; `--split test` selects another mark.

The test set of datasets/metals-v1 (712 structures of the recipe datasets/metals-v1/recipes/reference-driven.yaml, its
first 882 tasks) is sealed: the manifest holds its sha256, `--data` rejects it, and only `--final` opens it. The same
holds for the test sets of the other data sets. Use it once
for a finished model, not to choose between models or settings. Each opening is appended to
benchmarks/results/openings.jsonl before anything is evaluated: date, model, digests of weights and data, command.

Errors are given in total, inside and outside the domain of the model (as its guard decides), by the rule of the recipe
that held a system out (a structure matched by several rules counts for each), by kind of structure, sampling method,
adsorbate and metal, and for a baseline: element energies fitted to the training set (structures of DATA marked `train`
if no file is given) and zero forces.

Energies are total energies. Columns: structures, systems, energy MAE and RMSE (meV/atom), MAE of the energy of a whole
structure (eV, relevant for adsorption energies), force MAE and RMSE (meV/Å, per component, all atoms), force MAE on
atoms of adsorbates and molecules (tag 2). The table is Markdown. Rows are JSON with the keys benchmark, model, case,
metric, value, unit, n_structures and n_systems.
"""

import argparse
import json
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
from error_groups import GROUP_KINDS, Group, groups_of
from numpy.typing import NDArray
from peers.schnet import open_model
from rows import Rows, model_words

from faenet_calc.data import statistics
from faenet_calc.data.dataset import GraphDataset, open_dataset
from faenet_calc.data.formats import find_files
from faenet_calc.data.manifest import shard_files
from faenet_calc.errors import InputError
from faenet_calc.files import sha256_of
from faenet_calc.graphs.tags import ADSORBATE
from faenet_calc.labelling.recipe import Recipe, load_recipe
from faenet_calc.memory import keep_freed_memory
from faenet_calc.potential.capabilities import FramesChoice
from faenet_calc.potential.potential import Potential
from faenet_calc.training.assessment import assess

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

RECIPE = Path(__file__).parents[1] / "datasets" / "metals-v1" / "recipes" / "reference-driven.yaml"
DATASET = RECIPE.parents[1]
SETS = tuple(sorted(path.parent for path in DATASET.parent.glob("*/manifest.yaml")))
VALIDATION, HELDOUT = DATASET / "validation.extxyz.xz", DATASET / "heldout.extxyz.xz"
OPENINGS = Path(__file__).parent / "results" / "openings.jsonl"
MEAN_PREDICTOR = "mean predictor"
# metric → (unit, heading)
METRICS = {
    "energy_mae": ("meV/atom", "E MAE"),
    "energy_rmse": ("meV/atom", "E RMSE"),
    "structure_energy_mae": ("eV", "E of structure"),
    "forces_mae": ("meV/Å", "F MAE"),
    "forces_rmse": ("meV/Å", "F RMSE"),
    "adsorbate_forces_mae": ("meV/Å", "F on adsorbate"),
}


@dataclass(frozen=True, kw_only=True, eq=False)
class StructureError:
    """Prediction minus label for one structure.

    Attributes:
        index: Index in the data set.
        n_atoms: Number of atoms.
        energy: (eV); NaN without a label.
        forces: [n_labelled, 3] (eV/Å), for atoms that have a label.
        adsorbate: [n_labelled] bool, atoms of adsorbates and molecules.
        domain: "inside" or "outside" the domain of the model; "" if the model has none.
    """

    index: int
    n_atoms: int
    energy: float
    forces: Floats
    adsorbate: NDArray[np.bool_]
    domain: str = ""


@dataclass(frozen=True, kw_only=True)
class GroupErrors:
    """Errors of one model on one group of structures.

    Attributes:
        model: Name of the model.
        group: Kind and name, e.g. ("metal", "Pd").
        n_structures: Number of structures in the group.
        n_systems: Number of different systems in the group.
        values: Metric → value in the unit given in :data:`METRICS`; metrics without labels are missing.
    """

    model: str
    group: Group
    n_structures: int
    n_systems: int
    values: Mapping[str, float]


def choose(dataset: GraphDataset, split: str | None, limit: int | None = None) -> Integers:
    """Structures marked with ``split`` (default: "heldout" if there are any, else all); at most ``limit``, evenly."""
    words = np.array([str(dataset.info(index).get("split", "")) for index in range(len(dataset))])
    if split is None:
        split = "heldout" if (words == "heldout").any() else None
    chosen = np.arange(len(dataset)) if split is None else np.flatnonzero(words == split)
    if not len(chosen):
        raise InputError(f"no structure is marked split={split}; the words are {', '.join(sorted(set(words)))}")
    if limit is not None and limit < len(chosen):
        chosen = chosen[np.linspace(0, len(chosen) - 1, limit).astype(int)]
    return chosen


def known_to(potential: Potential, dataset: GraphDataset, indices: Integers) -> Integers:
    """Structures that contain only elements the model was trained on (all, if it does not list them)."""
    trained = list(potential.config.trained_elements)
    if not trained:
        return indices
    foreign = np.delete(dataset.compositions(indices), trained, axis=1)
    known: Integers = indices[foreign.sum(axis=1) == 0]
    return known


def model_errors(
    potential: Potential, dataset: GraphDataset, indices: Integers, frames: FramesChoice = "auto", seed: int = 0
) -> list[StructureError]:
    """Errors of a model for each structure."""
    found = assess(potential, dataset, indices, frames=frames, records=True, seed=seed)
    return [
        _structure_error(
            dataset,
            record.index,
            record.predicted_energy,
            record.predicted_forces,
            domain="" if potential.config.domain is None else "inside" if record.why is None else "outside",
        )
        for record in found.records
    ]


def mean_errors(
    train: GraphDataset, train_indices: Integers, dataset: GraphDataset, indices: Integers
) -> list[StructureError]:
    """Errors of the baseline: element energies fitted to the training set, and zero forces."""
    references = statistics.fit_references(train, train_indices)
    residual = statistics.residuals(dataset, indices, references) * dataset.n_atoms[indices]
    energies = dataset.energy[indices] - residual
    return [
        _structure_error(dataset, int(index), float(energy), None)
        for index, energy in zip(indices, energies, strict=True)
    ]


def _structure_error(
    dataset: GraphDataset, index: int, energy: float, forces: Floats | None, domain: str = ""
) -> StructureError:
    atoms = dataset.atoms_of(index)
    labels = np.asarray(dataset.arrays["forces"][atoms])
    labelled = np.isfinite(labels).all(axis=1)
    error = (np.zeros_like(labels) if forces is None else forces) - labels
    return StructureError(
        index=index,
        n_atoms=len(labels),
        energy=energy - float(dataset.energy[index]),
        forces=error[labelled],
        adsorbate=np.asarray(dataset.arrays["tags"][atoms] == ADSORBATE)[labelled],
        domain=domain,
    )


def summarize(model: str, errors: Iterable[StructureError], dataset: GraphDataset, recipe: Recipe) -> list[GroupErrors]:
    """Errors by group, ordered by :data:`GROUP_KINDS` and name."""
    members: dict[Group, list[StructureError]] = {}
    systems: dict[Group, set[str]] = {}
    for error in errors:
        info = dataset.info(error.index)
        own: list[Group] = [("domain", error.domain)] if error.domain else []
        for group in [*groups_of(info, recipe), *own]:
            members.setdefault(group, []).append(error)
            systems.setdefault(group, set()).add(str(info.get("system", "")))
    order = sorted(members, key=lambda group: (GROUP_KINDS.index(group[0]), group[1]))
    return [
        GroupErrors(
            model=model,
            group=group,
            n_structures=len(members[group]),
            n_systems=len(systems[group]),
            values=metrics(members[group]),
        )
        for group in order
    ]


def metrics(errors: Sequence[StructureError]) -> dict[str, float]:
    """Metric → value over structures, in the units of :data:`METRICS`."""
    energy = np.array([error.energy for error in errors])
    per_atom = energy / [error.n_atoms for error in errors]
    forces = np.concatenate([error.forces for error in errors])
    adsorbate = forces[np.concatenate([error.adsorbate for error in errors])]
    values = {
        "energy_mae": _mae(per_atom, 1e3),
        "energy_rmse": _rmse(per_atom, 1e3),
        "structure_energy_mae": _mae(energy, 1.0),
        "forces_mae": _mae(forces, 1e3),
        "forces_rmse": _rmse(forces, 1e3),
        "adsorbate_forces_mae": _mae(adsorbate, 1e3),
    }
    return {name: value for name, value in values.items() if value is not None}


def _mae(values: Floats, factor: float) -> float | None:
    values = values[np.isfinite(values)]
    return factor * float(np.abs(values).mean()) if values.size else None


def _rmse(values: Floats, factor: float) -> float | None:
    values = values[np.isfinite(values)]
    return factor * float(np.sqrt(np.square(values).mean())) if values.size else None


def rows(benchmark: str, found: Iterable[GroupErrors]) -> list[dict[str, Any]]:
    """JSON rows, one per number."""
    return [
        {
            "benchmark": benchmark,
            "model": part.model,
            "case": "=".join(part.group).rstrip("="),
            "metric": metric,
            "value": float(f"{value:.6g}"),
            "unit": METRICS[metric][0],
            "n_structures": part.n_structures,
            "n_systems": part.n_systems,
        }
        for part in found
        for metric, value in part.values.items()
    ]


def table(found: Sequence[GroupErrors]) -> str:
    """Markdown table; within a group, one line per model."""
    headings = [f"{heading} ({unit})" for unit, heading in METRICS.values()]
    lines = ["| group | n | systems | model | " + " | ".join(headings) + " |", "|---" * (4 + len(headings)) + "|"]
    order = list(dict.fromkeys(part.group for part in found))
    order.sort(key=lambda group: (GROUP_KINDS.index(group[0]), group[1]))
    for group in order:
        for part in (part for part in found if part.group == group):
            numbers = [f"{part.values[name]:.3g}" if name in part.values else "–" for name in METRICS]
            name = ": ".join(word for word in group if word)
            start = f"| {name} | {part.n_structures} | {part.n_systems} | {part.model} | "
            lines.append(start + " | ".join(numbers) + " |")
    return "\n".join(lines)


def write_rows(path: Path, found: Iterable[Mapping[str, Any]]) -> None:
    """Write one JSON object per line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in found))


@dataclass(frozen=True, kw_only=True, eq=False)
class Candidate:
    """Model given on the command line and its data.

    Attributes:
        name: Name in the table.
        potential: The potential.
        frames: Frames setting.
        dataset: Labelled structures, with edges for the cutoff of the potential.
    """

    name: str
    potential: Potential
    frames: FramesChoice
    dataset: GraphDataset


def candidate(name: str, files: Sequence[Path], device: str | None) -> Candidate:
    """Load a model (``NAME`` or ``NAME:FRAMES``) and open the data for it."""
    source, frames = split_name(name)
    potential = open_model(source, device=device)
    return Candidate(
        name=label(name),
        potential=potential,
        frames=frames,
        dataset=open_dataset(list(files), cutoff=potential.cutoff, max_neighbors=potential.config.graph.max_neighbors),
    )


def split_name(name: str) -> tuple[str, FramesChoice]:
    """``"metals-s:one"`` → ("metals-s", "one")."""
    for frames in ("one", "pair", "all", "exact"):
        if name.endswith(f":{frames}"):
            return name.removesuffix(f":{frames}"), frames
    return name, "auto"


def label(name: str) -> str:
    """Name of a model in a table; a checkpoint of a run is named after its folder."""
    source, frames = split_name(name)
    path = Path(source)
    short = path.resolve().parent.name if path.is_file() and path.suffix == ".safetensors" else source
    return short if frames == "auto" else f"{short}:{frames}"


def common(candidates: Sequence[Candidate], split: str | None, limit: int | None) -> Integers:
    """Structures that all models can evaluate; prints the number of excluded structures to stderr."""
    dataset = candidates[0].dataset
    chosen = known = choose(dataset, split, limit)
    for one in candidates:
        known = known_to(one.potential, dataset, known)
    if len(known) < len(chosen):
        left = f"{len(chosen) - len(known)} of {len(chosen)}"
        print(f"{left} structures are left out: elements not in every training set", file=sys.stderr)
    if not len(known):
        raise InputError("no structure is made of elements that every model was trained on")
    return known


def baseline(dataset: GraphDataset, indices: Integers, train: Sequence[Path]) -> list[StructureError] | None:
    """Errors of the baseline; None without training data."""
    fitted = open_dataset(list(train), cutoff=dataset.cutoff) if train else dataset
    words = [str(fitted.info(index).get("split", "train")) for index in range(len(fitted))]
    allowed = [index for index, word in enumerate(words) if (word != "heldout" if train else word == "train")]
    if not allowed:
        print("no mean predictor: no structure is marked split=train; give --train", file=sys.stderr)
        return None
    return mean_errors(fitted, np.array(allowed), dataset, indices)


def evaluated_files(data: Sequence[Path] | None, final: bool, folder: Path | None = None) -> list[Path]:
    """Files to evaluate: the test set of a data set if ``final``, otherwise ``data`` or its validation set.

    Raises:
        InputError: The test set is among ``data``, was changed, or is requested together with ``data``.
    """
    folder = folder or DATASET
    if final:
        if data is not None:
            raise InputError(f"--final evaluates the test set of {folder.name}; omit --data")
        return shard_files(folder, "test")
    files = find_files(data) if data is not None else shard_files(folder, "val")
    sealed = {sha256_of(file): one.name for one in (*SETS, folder) for file in shard_files(one, "test")}
    for file in files:
        if name := sealed.get(sha256_of(file)):
            raise InputError(f"{file} is the sealed test set of {name}; use --final, which records the opening")
    return files


def record_opening(models: Sequence[str], files: Sequence[Path], command: Sequence[str]) -> None:
    """Append one row per model to :data:`OPENINGS`."""
    openings = Rows(OPENINGS)
    for name in models:
        openings.append(
            {
                "row": "opening",
                "date": datetime.now(UTC).isoformat(timespec="seconds"),
                **model_words(split_name(name)[0]),
                "data": {file.name: sha256_of(file) for file in files},
                "command": shlex.join(command),
            }
        )


def parser() -> argparse.ArgumentParser:
    """Command-line parser."""
    result = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    result.add_argument("models", nargs="+", metavar="MODEL")
    result.add_argument("--data", type=Path, nargs="+", help="labelled structures (default: the validation set)")
    result.add_argument("--dataset", default=DATASET.name, choices=[folder.name for folder in SETS])
    result.add_argument("--final", action="store_true", help="open the sealed test set and record it")
    result.add_argument("--train", type=Path, nargs="*", default=[])
    result.add_argument("--recipe", type=Path, default=RECIPE, help="recipe with the held-out rules")
    result.add_argument("--split", help="split to evaluate (default: heldout, if present)")
    result.add_argument("--limit", type=int, help="maximum number of structures, taken evenly")
    result.add_argument("--json", type=Path, help="file for the rows")
    result.add_argument(
        "--groups", nargs="+", choices=GROUP_KINDS, default=GROUP_KINDS, help="groups in the printed table"
    )
    result.add_argument("--device")
    result.add_argument("--threads", type=int, default=1)
    return result


def main() -> None:
    """Evaluate all models on the same structures."""
    arguments = parser().parse_args()
    torch.set_num_threads(arguments.threads)
    keep_freed_memory()
    recipe = load_recipe(arguments.recipe)
    files = evaluated_files(arguments.data, arguments.final, DATASET.parent / arguments.dataset)
    if arguments.final:
        record_opening(arguments.models, files, [Path(sys.argv[0]).name, *sys.argv[1:]])
    candidates = [candidate(name, files, arguments.device) for name in arguments.models]
    dataset = candidates[0].dataset
    indices = common(candidates, arguments.split, arguments.limit)
    found: list[GroupErrors] = []
    for one in candidates:
        errors = model_errors(one.potential, one.dataset, indices, one.frames)
        found += summarize(one.name, errors, one.dataset, recipe)
    mean = baseline(dataset, indices, arguments.train)
    if mean is not None:
        found += summarize(MEAN_PREDICTOR, mean, dataset, recipe)
    print(table([part for part in found if part.group[0] in arguments.groups]))
    if arguments.json is not None:
        write_rows(arguments.json, rows("heldout_errors", found))


if __name__ == "__main__":
    main()
