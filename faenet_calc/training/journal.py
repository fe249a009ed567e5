"""Logs of a run: CSV tables, TensorBoard events, messages and a progress bar."""

import csv
import math
from pathlib import Path
from typing import Any

from faenet_calc.files import write_atomically
from faenet_calc.progress import print_above_bars, progress_bar

STEPS, VALIDATIONS = "steps.csv", "validation.csv"


class Table:
    """A CSV file to which rows are appended.

    Args:
        path: The file.
        columns: Column names.
        until_step: Step from which the run is resumed; later rows of an existing file are dropped.
    """

    def __init__(self, path: Path, columns: list[str], until_step: int) -> None:
        self.path, self.columns = path, columns
        kept = [",".join(columns)]
        if until_step and path.exists():
            with path.open(newline="") as stream:
                for row in csv.DictReader(stream):
                    if float(row["step"]) <= until_step:
                        kept.append(",".join(row.get(name) or "" for name in columns))
        write_atomically(path, ("\n".join(kept) + "\n").encode())

    def add(self, row: dict[str, float]) -> None:
        """Append a row; missing values are left empty."""
        with self.path.open("a") as stream:
            stream.write(",".join(_text(row.get(name)) for name in self.columns) + "\n")


class Journal:
    """Logs of a run, written by process 0.

    Args:
        folder: Output folder.
        terms: Names of loss terms.
        metrics: Names of validation metrics in the table.
        until_step: Step from which the run is resumed, or 0.
        progress: Print messages and a progress bar.
        tensorboard: Write events if tensorboard is installed.
        total_steps: Length of the progress bar; None if the run ends by time only.
    """

    def __init__(
        self,
        folder: Path,
        *,
        terms: list[str],
        metrics: list[str],
        until_step: int,
        progress: bool,
        tensorboard: bool,
        total_steps: int | None,
    ) -> None:
        self.steps = Table(
            folder / STEPS, ["step", "epoch", "elapsed_s", "lr", "grad_norm", "loss", *terms], until_step
        )
        self.validations = Table(folder / VALIDATIONS, ["step", "epoch", "elapsed_s", "lr", *metrics], until_step)
        self.progress = progress
        self.events = _summary_writer(folder, until_step) if tensorboard else None
        self.bar = progress_bar(shown=progress, total=total_steps, initial=until_step, unit="steps", dynamic_ncols=True)

    def step(self, row: dict[str, float]) -> None:
        """Record a training step."""
        self.steps.add(row)
        self._event("train", row)

    def advance(self, text: str) -> None:
        """Advance the progress bar by one step."""
        self.bar.set_postfix_str(text, refresh=False)
        self.bar.update()

    def validation(self, row: dict[str, float]) -> None:
        """Record and print a validation."""
        self.validations.add(row)
        self._event("validation", row)
        shown = {
            "E": ("energy_mae_per_atom", 1e3, "meV/atom"),
            "F": ("forces_mae", 1e3, "meV/Å"),
            "S": ("stress_mae", 1e3, "meV/Å³"),
        }
        parts = [f"{name} {row[key] * factor:.2f} {unit}" for name, (key, factor, unit) in shown.items() if key in row]
        self.say(
            f"epoch {int(row['epoch'])}  step {int(row['step'])}  {row['elapsed_s']:.0f} s  lr {row['lr']:.1e}  "
            f"train {row['train_loss']:.4f}  val {row['loss']:.4f}  {'  '.join(parts)}{'  *' if row['is_best'] else ''}"
        )

    def say(self, text: str) -> None:
        """Print a message on stderr."""
        if self.progress:
            print_above_bars(text)

    def close(self) -> None:
        """Close the progress bar and the event file."""
        self.bar.close()
        if self.events is not None:
            self.events.close()

    def _event(self, group: str, row: dict[str, float]) -> None:
        if self.events is not None:
            for name, value in row.items():
                if name not in ("step", "is_best") and not math.isnan(value):
                    self.events.add_scalar(f"{group}/{name}", value, int(row["step"]))


def _text(value: float | None) -> str:
    if value is None:
        return ""
    return repr(int(value)) if float(value).is_integer() else repr(float(value))


def _summary_writer(folder: Path, until_step: int) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return None
    return SummaryWriter(str(folder / "tensorboard"), purge_step=until_step + 1 if until_step else None)
