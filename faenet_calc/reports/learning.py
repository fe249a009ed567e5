"""Reports of training and evaluation: curves, parity, errors by element, worst structures; one HTML file."""

import html
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from faenet_calc import elements
from faenet_calc.reports.svg import bar_chart, line_chart, parity_chart
from faenet_calc.training.assessment import Assessment, StructureRecord

N_WORST = 15
# metric → (title, factor, unit)
SHOWN = {
    "energy_mae_per_atom": ("energy MAE per atom", 1e3, "meV"),
    "energy_rmse_per_atom": ("energy RMSE per atom", 1e3, "meV"),
    "energy_mae": ("energy MAE per structure", 1e3, "meV"),
    "energy_within": ("energies within 20 meV (EwT)", 100.0, "%"),
    "forces_mae": ("force MAE", 1e3, "meV/Å"),
    "forces_rmse": ("force RMSE", 1e3, "meV/Å"),
    "forces_cosine": ("force cosine", 1.0, ""),
    "energy_forces_within": ("energies and forces within thresholds (EFwT)", 100.0, "%"),
    "stress_mae": ("stress MAE", 1e3, "meV/Å³"),
}
STYLE = (
    "body{font:14px/1.45 sans-serif;margin:24px auto;max-width:960px;color:#222}h1{font-size:22px}h2{font-size:17px;"
    "margin-top:28px}table{border-collapse:collapse}td,th{padding:3px 12px 3px 0;text-align:left;border-bottom:"
    "1px solid #ddd}td.n{text-align:right}.t{font-weight:bold}pre{background:#f5f5f5;padding:8px;overflow:auto;"
    "font-size:12px}"
)


def evaluation_sections(name: str, found: Assessment, sources: Sequence[str] | None = None) -> str:
    """HTML of one data set: metrics, parity plots, errors by element, worst structures.

    Args:
        name: Of the set, e.g. "test".
        found: With records.
        sources: Where each structure of the data set comes from, by index.
    """
    energies = [r for r in found.records if np.isfinite(r.energy)]
    n_atoms = np.array([len(r.numbers) for r in energies], dtype=float)
    true = np.array([r.energy for r in energies]) / n_atoms if energies else []
    predicted = np.array([r.predicted_energy for r in energies]) / n_atoms if energies else []
    charts = [parity_chart("energy per atom", true, predicted, unit="eV")]
    forced = [r for r in found.records if r.forces is not None and r.predicted_forces is not None]
    if forced:
        labels = np.concatenate([np.asarray(r.forces).ravel() for r in forced])
        guesses = np.concatenate([np.asarray(r.predicted_forces).ravel() for r in forced])
        charts.append(parity_chart("force components", labels, guesses, unit="eV/Å"))
    groups = {key[11:-1]: 1e3 * value for key, value in found.metrics.items() if key.startswith("forces_mae[")}
    charts.append(bar_chart("force MAE by element and kind of atom", groups, unit="meV/Å"))
    return (
        f"<h2>{html.escape(name)}: {found.n_structures} structures</h2>{metrics_table(found.metrics)}"
        f"<p>{''.join(charts)}</p><h2>worst structures ({html.escape(name)})</h2>{_worst(found.records, sources)}"
    )


def training_report(
    path: Path, *, title: str, history: Sequence[Mapping[str, float]], sections: Sequence[str], config: str, notes: str
) -> None:
    """Write the page of a training run.

    Args:
        path: Of the page.
        title: Of the page.
        history: One row per validation.
        sections: From :func:`evaluation_sections`.
        config: The settings as YAML.
        notes: A sentence on how the run went.
    """
    steps = [row["step"] for row in history]

    def column(name: str, factor: float = 1.0) -> tuple[list[float], list[float]]:
        return steps, [factor * row.get(name, float("nan")) for row in history]

    losses = {"training": column("train_loss"), "validation": column("loss")}
    curves = [
        line_chart("loss", losses, x_label="step", y_label="loss", log_y=True),
        line_chart("learning rate", {"lr": column("lr")}, x_label="step", y_label="learning rate", log_y=True),
    ]
    for name in ("energy_mae_per_atom", "forces_mae"):
        label, factor, unit = SHOWN[name]
        curve = {"validation": column(name, factor)}
        curves.append(line_chart(f"validation {label}", curve, x_label="step", y_label=unit, log_y=True))
    body = f"<p>{html.escape(notes)}</p><h2>course</h2><p>{''.join(curves)}</p>{''.join(sections)}"
    write_page(path, title, body + f"<h2>settings</h2><pre>{html.escape(config)}</pre>")


def write_page(path: Path, title: str, body: str) -> None:
    """Write an HTML page that needs no other file."""
    head = f'<meta charset="utf-8"><title>{html.escape(title)}</title><style>{STYLE}</style>'
    path.write_text(
        f"<!doctype html><html><head>{head}</head><body><h1>{html.escape(title)}</h1>{body}</body></html>\n"
    )


def metrics_table(metrics: Mapping[str, float]) -> str:
    """The shown metrics as an HTML table."""
    rows = [
        f'<tr><td>{html.escape(title)}</td><td class="n">{metrics[name] * factor:.4g}</td><td>{unit}</td></tr>'
        for name, (title, factor, unit) in SHOWN.items()
        if name in metrics
    ]
    return f"<table>{''.join(rows)}</table>"


def _worst(records: Sequence[StructureRecord], sources: Sequence[str] | None) -> str:
    def row(record: StructureRecord) -> dict[str, Any]:
        symbols, counts = np.unique(record.numbers, return_counts=True)
        formula = "".join(
            f"{elements.symbol(int(z))}{n if n > 1 else ''}" for z, n in zip(symbols, counts, strict=True)
        )
        force = np.nan
        if record.forces is not None and record.predicted_forces is not None:
            force = float(np.nanmax(np.linalg.norm(record.predicted_forces - record.forces, axis=1)))
        error = (record.predicted_energy - record.energy) / len(record.numbers)
        source = sources[record.index] if sources is not None else ""
        return {"index": record.index, "formula": formula, "energy": error, "force": force, "source": source}

    rows = [row(record) for record in records]
    rows.sort(key=lambda r: -(r["force"] if np.isfinite(r["force"]) else abs(r["energy"])))
    cells = [
        f"<tr><td>{r['index']}</td><td>{r['formula']}</td><td class='n'>{1e3 * r['energy']:.2f}</td>"
        f"<td class='n'>{1e3 * r['force']:.1f}</td><td>{html.escape(str(r['source']))}</td></tr>"
        for r in rows[:N_WORST]
    ]
    head = "<tr><th>index</th><th>formula</th><th>ΔE (meV/atom)</th><th>largest |ΔF| (meV/Å)</th><th>source</th></tr>"
    return f"<table>{head}{''.join(cells)}</table>"
