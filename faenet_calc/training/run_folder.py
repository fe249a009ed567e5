"""The folder of a run: names of its files, and what protects the results of an earlier run.

The training loop asks before it starts or resumes; :mod:`~faenet_calc.training.state` writes the file to resume from.
"""

import shutil
from collections.abc import Mapping
from pathlib import Path

from faenet_calc.errors import InputError
from faenet_calc.training.state import FILE

BEST, CONFIG, LOCK = "best.safetensors", "config.yaml", ".lock"
RESULTS = (BEST, "errors.json", "report.html", "tensorboard")  # removed when a new run replaces an old one


def stored_run(folder: Path, *, resume: bool, overwrite: bool) -> bool:
    """Whether a folder has a run to resume; an InputError if a run there would be lost."""
    resumable, has_weights = (folder / FILE).exists(), (folder / BEST).exists()
    if resumable and not resume and not overwrite:
        raise InputError(f"{folder} holds a run; continue it with --resume auto, or replace it with --overwrite")
    if has_weights and not resumable and not overwrite:
        raise InputError(
            f"{folder} holds {BEST} but no {FILE} to resume from; choose another folder, or replace the weights with "
            "--overwrite"
        )
    return resumable


def need_same_data(before: Mapping[str, str], now: Mapping[str, str], source: Path) -> None:
    """Refuse to resume a run whose data files have changed."""
    changed = sorted(name for name in {*before, *now} if before.get(name) != now.get(name))
    if changed:
        raise InputError(
            f"{source} belongs to a run with other contents of {', '.join(changed)}; restore the files, or start the "
            "run again in another run.out_dir or with --overwrite"
        )


def remove_results(folder: Path) -> None:
    """Remove the results of a run that this one replaces."""
    for name in RESULTS:
        path = folder / name
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
