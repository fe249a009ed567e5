"""The report of a screening: one HTML file with tables, plots and a 3D viewer, readable offline."""

import io
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from ase import Atoms
from ase.formula import Formula
from ase.io import read, write
from markupsafe import Markup
from matplotlib.figure import Figure

from faenet_calc.errors import counted
from faenet_calc.reports.pages import write_page
from faenet_calc.reports.plots import heat_map, interval_plot, stacked_histogram
from faenet_calc.screening.gas import GasReference
from faenet_calc.screening.results import RESOLVED_EV, SITE_ERROR_EV, Row, finished_table, not_distinguished
from faenet_calc.screening.store import COLUMNS, ScreenStore

_SHOWN_IN_3D = 2  # configurations of every system in the viewer
_MOST_IN_3D = 120
_MOST_SITES = 12  # in the plot of a single system
_MOST_SYSTEMS = 8  # in the plot of one adsorbate on several slabs, or of several on one
_NUMBERS = ("coverage", "adsorption_energy", "uncertainty", "most_stable_probability", "rank", "n_steps", "fmax")
_NOT_SHOWN = ("key", "energy", "wall_s", "error")
# Column that is left out where it is the same for all rows → its sentence above the table
_STATED_ONCE = {
    "slab": "slab {}",
    "adsorbate": "adsorbate {}",
    "coverage": "coverage {}",
    "orientation": "orientation {}",
    "converged": "converged: {}",
    "anomalies": "anomalies: {}",
    "duplicate_of": "duplicate of: {}",
}


def write_screening_report(folder: str | Path) -> Path:
    """Build ``report.html`` from the files of a screening, finished or not."""
    store = ScreenStore(folder)
    inputs = store.inputs()
    table = finished_table(store.rows().values())
    names = {row.key: f"{row.site} {row.orientation}" for row in table}
    rows = [_cells(row) | {"duplicate_of": names.get(row.duplicate_of or "")} for row in table]
    constant = _constant(rows)
    best = [row for row in table if row.rank == 1]
    path = store.folder / "report.html"
    write_page(
        path,
        "screening.html",
        title="Adsorption screening",
        summary=_summary(table, len(inputs["adsorbates"]), len(inputs["slabs"])),
        inputs=inputs,
        references=store.references() or {"slabs": {}, "gas": {}},
        gas=gas_in_words(inputs["gas"], _symbols(inputs["adsorbates"])),
        rows=rows,
        columns=[name for name in COLUMNS if name not in _NOT_SHOWN and name not in constant],
        numbers=_NUMBERS,
        constant=[_STATED_ONCE[name].format(text) for name, text in constant.items()],
        best=[_cells(row) | {"close": not_distinguished(table, row)} for row in best],
        resolved=RESOLVED_EV,
        site_error=SITE_ERROR_EV,
        unranked=sorted({_title(row) for row in table} - {_title(row) for row in best}),
        failures=[row for row in table if row.error is not None],
        figures=_figures(table, best),
        structures=_json(_structures(store, table)),
        viewer=_viewer_script(),
    )
    return path


def _summary(table: Sequence[Row], n_adsorbates: int, n_slabs: int) -> str:
    """Numbers of configurations: all, failed, flagged by kind of flag, duplicates."""
    flags = Counter(flag for row in table if row.error is None for flag in _flags(row))
    flagged = sum(row.error is None and bool(_flags(row)) for row in table)
    kinds = ", ".join(f"{number} {flag}" for flag, number in sorted(flags.items()))
    return (
        f"{counted(len(table), 'configuration')} of {counted(n_adsorbates, 'adsorbate')} on "
        f"{counted(n_slabs, 'slab')}: {sum(row.error is not None for row in table)} failed, "
        f"{flagged} flagged{f' ({kinds})' if kinds else ''}, "
        f"{counted(sum(row.duplicate_of is not None for row in table), 'duplicate')}."
    )


def _flags(row: Row) -> tuple[str, ...]:
    return (*row.anomalies, *(() if row.converged else ("not converged",)))


def gas_in_words(references: Mapping[str, str], adsorbates: Mapping[str, list[str]]) -> dict[str, str]:
    """The gas molecules that each adsorbate is compared with, e.g. ``{"CO": "gas CO", "OH": "H2O − ½ H2"}``.

    Args:
        references: Element → gas molecule.
        adsorbates: Name → symbols of the atoms.
    """
    gas = GasReference(molecules=dict(references), energies={}, potentials={})
    return {name: _molecules_in_words(gas.molecules_of(symbols)) for name, symbols in adsorbates.items()}


def _molecules_in_words(numbers: Mapping[str, float]) -> str:
    if list(numbers.values()) == [1.0]:
        return f"gas {next(iter(numbers))}"
    text = ""
    for name, number in sorted(numbers.items(), key=lambda item: (item[1] < 0, item[0])):
        sign = "\N{MINUS SIGN}" if number < 0 else "+"
        amount = {0.5: "½ ", 1.0: "", 1.5: "1½ "}.get(abs(number), f"{abs(number):g} ")
        text += f" {sign} {amount}{name}" if text or number < 0 else f"{amount}{name}"
    return text.strip()


def _symbols(adsorbates: Mapping[str, Any]) -> dict[str, list[str]]:
    return {name: list(Formula(one["structure"]["symbols"])) for name, one in adsorbates.items()}


def _constant(rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Columns of `_STATED_ONCE` that are the same for all rows, and their values as text."""
    found = {}
    for name in _STATED_ONCE:
        values = {row[name] for row in rows}
        if len(values) == 1:
            (value,) = values
            found[name] = {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value or "none")
    return found


def _cells(row: Row) -> dict[str, Any]:
    cells = {name: row.to_json()[name] for name in COLUMNS}
    cells["anomalies"] = ", ".join(row.anomalies)
    return cells


def _figures(table: list[Row], best: list[Row]) -> list[Figure]:
    """Sites of a single system with their uncertainties; otherwise lowest energies by system, and all energies."""
    if len(best) <= 1:
        ranked = sorted((row for row in table if row.rank is not None), key=lambda row: row.rank or 0)[:_MOST_SITES]
        return [_sites(ranked)] if ranked else []
    figures = [_histogram(table)]
    if len({row.slab for row in best}) > 1 and len({_system(row) for row in best}) > 1:
        figures.insert(0, _heat_map(best))
    elif len(best) <= _MOST_SYSTEMS:
        figures.insert(0, _lowest(best))
    return figures


def _lowest(best: list[Row]) -> Figure:
    """Lowest adsorption energies of one adsorbate on several slabs, or of several adsorbates on one slab."""
    one_slab = len({row.slab for row in best}) == 1
    common = f"on {best[0].slab}" if one_slab else f"of {_system(best[0])}"
    return _intervals(
        f"Lowest adsorption energy {common}", [_system(row) if one_slab else row.slab for row in best], best
    )


def _sites(ranked: list[Row]) -> Figure:
    """Adsorption energies of the distinct configurations of one system, the most stable first."""
    return _intervals(_title(ranked[0]), [row.final_site or row.site for row in ranked], ranked)


def _intervals(title: str, names: list[str], rows: list[Row]) -> Figure:
    return interval_plot(
        title,
        names,
        [np.nan if row.adsorption_energy is None else row.adsorption_energy for row in rows],
        [row.uncertainty or 0.0 for row in rows],
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


def _title(row: Row) -> str:
    return f"{_system(row)} on {row.slab}"


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
                "title": f"{_title(row)}: {row.final_site}, {row.adsorption_energy:.3f} eV",
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
