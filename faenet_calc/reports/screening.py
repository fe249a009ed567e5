"""The report of a screening: one HTML file with tables, plots and a 3D viewer, readable offline."""

import io
import json
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from ase import Atoms
from ase.io import read, write
from markupsafe import Markup
from matplotlib.figure import Figure

from faenet_calc.reports.pages import write_page
from faenet_calc.reports.plots import heat_map, interval_plot, stacked_histogram
from faenet_calc.screening.results import Row, finished_table
from faenet_calc.screening.store import COLUMNS, ScreenStore

_SHOWN_IN_3D = 2  # configurations of every system in the viewer
_MOST_IN_3D = 120
_MOST_SITES = 12  # in the plot of a single system


def write_screening_report(folder: str | Path) -> Path:
    """Build ``report.html`` from the files of a screening, finished or not."""
    store = ScreenStore(folder)
    inputs = store.inputs()
    table = finished_table(store.rows().values())
    names = {row.key: f"{row.site} {row.orientation}" for row in table}
    best = [row for row in table if row.rank == 1]
    path = store.folder / "report.html"
    write_page(
        path,
        "screening.html",
        title="Adsorption screening",
        inputs=inputs,
        references=store.references() or {"slabs": {}, "gas": {}},
        rows=[_cells(row) | {"duplicate_of": names.get(row.duplicate_of or "")} for row in table],
        columns=[name for name in COLUMNS if name not in ("energy", "wall_s", "key", "error")],
        best=[_cells(row) for row in best],
        failures=[row for row in table if row.error is not None],
        flagged=[row for row in table if row.error is None and (row.anomalies or not row.converged)],
        n_duplicates=sum(row.duplicate_of is not None for row in table),
        figures=_figures(table, best),
        structures=_json(_structures(store, table)),
        viewer=_viewer_script(),
    )
    return path


def _cells(row: Row) -> dict[str, Any]:
    cells = {name: row.to_json()[name] for name in COLUMNS}
    cells["anomalies"] = ", ".join(row.anomalies)
    return cells


def _figures(table: list[Row], best: list[Row]) -> list[Figure]:
    """Sites of a single system with their uncertainties; otherwise lowest energies by system, and all energies."""
    if len(best) > 1:
        return [_heat_map(best), _histogram(table)]
    ranked = sorted((row for row in table if row.rank is not None), key=lambda row: row.rank or 0)[:_MOST_SITES]
    return [_sites(ranked)] if ranked else []


def _sites(ranked: list[Row]) -> Figure:
    """Adsorption energies of the distinct configurations of one system, the most stable first."""
    return interval_plot(
        f"{_system(ranked[0])} on {ranked[0].slab}",
        [row.final_site or row.site for row in ranked],
        [np.nan if row.adsorption_energy is None else row.adsorption_energy for row in ranked],
        [row.uncertainty or 0.0 for row in ranked],
        y_label="adsorption energy (eV)",
    )


def _heat_map(best: list[Row]) -> Figure:
    """Lowest adsorption energy of every adsorbate on every slab."""
    slabs = sorted({row.slab for row in best})
    adsorbates = sorted({_system(row) for row in best})
    values = np.full((len(adsorbates), len(slabs)), np.nan)
    for row in best:
        values[adsorbates.index(_system(row)), slabs.index(row.slab)] = row.adsorption_energy
    return heat_map("Lowest adsorption energy (eV)", values, rows=adsorbates, columns=slabs)


def _histogram(table: list[Row]) -> Figure:
    """Adsorption energies of all sound configurations, by adsorbate."""
    groups: dict[str, list[float]] = {}
    for row in table:
        if row.rank is not None and row.adsorption_energy is not None:
            groups.setdefault(row.adsorbate, []).append(row.adsorption_energy)
    return stacked_histogram(
        "Distinct relaxed configurations", groups, x_label="adsorption energy (eV)", y_label="configurations"
    )


def _system(row: Row) -> str:
    return row.adsorbate if row.coverage == 1 else f"{row.coverage} {row.adsorbate}"


def _structures(store: ScreenStore, table: list[Row]) -> list[dict[str, Any]]:
    """Initial and relaxed structures of the best configurations, as XYZ text."""
    shown: list[dict[str, Any]] = []
    for row in table:
        if row.rank is None or row.rank > _SHOWN_IN_3D or len(shown) >= _MOST_IN_3D:
            continue
        relaxed, initial = store.relaxed(row.key), store.folder / "initial" / f"{row.key}.extxyz"
        if relaxed is None or not initial.is_file():
            continue
        shown.append(
            {
                "key": row.key,
                "title": f"{_system(row)} on {row.slab}: {row.final_site}, {row.adsorption_energy:.3f} eV",
                "start": _xyz(read(initial)),
                "end": _xyz(relaxed),
            }
        )
    return shown


def _xyz(atoms: Atoms) -> str:
    """XYZ text of the structure repeated in the plane to at least 9 Å, so that sites can be recognized."""
    lengths = atoms.cell.lengths()[:2]
    drawn = Atoms(atoms.numbers, positions=atoms.positions, cell=atoms.cell, pbc=atoms.pbc)
    drawn = drawn.repeat((*(1 if length >= 9.0 else 2 for length in lengths), 1))
    text = io.StringIO()
    write(text, drawn, format="xyz", fmt="%10.4f")
    return text.getvalue()


def _json(value: Any) -> Markup:
    """JSON that is safe inside a script element."""
    return Markup(json.dumps(value).replace("<", "\\u003c"))


@cache
def _viewer_script() -> Markup:
    text = files("faenet_calc.reports").joinpath("static", "3Dmol-min.js").read_text(encoding="utf-8")
    return Markup(text.replace("</script", "<\\/script"))
