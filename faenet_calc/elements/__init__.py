"""The element table: symbols, masses, periods, groups and physical properties, shipped as data files.

In: an atomic number or a symbol. Out: read-only arrays. May import the modules at the package root only.

There are two tables. `elements.csv` covers Z = 1–118 and is used by new models; it was generated from mendeleev by
`scripts/generate_elements.py`. `upstream_elements.csv` is the table of the original FAENet code and is needed to run
its weights. No database is opened at run time; arrays are read-only and cached.

Arrays are indexed by atomic number; index 0 is not an element.
"""

import csv
from functools import cache
from importlib import resources
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from faenet_calc.errors import InputError

_Scalar = TypeVar("_Scalar", bound=np.generic)

MAX_Z = 118
F_BLOCK_GROUP = 19
"""Group index of elements without a group number (Z = 58–71 and 90–103)."""

PROPERTY_NAMES = (
    "atomic_radius",
    "density",
    "dipole_polarizability",
    "electron_affinity",
    "en_allen",
    "vdw_radius",
    "metallic_radius",
    "metallic_radius_c12",
    "covalent_radius_pyykko_double",
    "covalent_radius_pyykko_triple",
    "covalent_radius_pyykko",
    "ionization_energy_1",
    "ionization_energy_2",
)
"""Columns of `properties`: those of upstream except atomic_volume, which mendeleev no longer provides."""

UPSTREAM_PROPERTY_NAMES = (
    "atomic_radius",
    "atomic_volume",
    "density",
    "dipole_polarizability",
    "electron_affinity",
    "en_allen",
    "vdw_radius",
    "metallic_radius",
    "metallic_radius_c12",
    "covalent_radius_pyykko_double",
    "covalent_radius_pyykko_triple",
    "covalent_radius_pyykko",
    "IE1",
    "IE2",
)
"""Columns of `upstream_properties`."""

UPSTREAM_MAX_Z_PROPERTIES = 85
UPSTREAM_MAX_Z = 100


@cache
def symbols() -> tuple[str, ...]:
    """Chemical symbols by atomic number; "X" at 0, as in ASE. Length 119."""
    return ("X", *(row["symbol"] for row in _read("elements.csv")))


@cache
def names() -> tuple[str, ...]:
    """English names by atomic number; "" at 0. Length 119."""
    return ("", *(row["name"] for row in _read("elements.csv")))


@cache
def masses() -> NDArray[np.float64]:
    """Standard atomic weights [119] (u); 0 at 0."""
    return _frozen(np.array([0.0, *(float(row["mass"]) for row in _read("elements.csv"))]))


@cache
def period() -> NDArray[np.int64]:
    """Periods [119]: 1–7, and 0 at 0."""
    return _frozen(np.array([0, *(int(row["period"]) for row in _read("elements.csv"))]))


@cache
def group() -> NDArray[np.int64]:
    """Groups [119]: 1–18, `F_BLOCK_GROUP` (19) for the f-block, and 0 at 0."""
    return _frozen(np.array([0, *(int(row["group"] or F_BLOCK_GROUP) for row in _read("elements.csv"))]))


@cache
def raw_properties() -> NDArray[np.float64]:
    """Physical properties [119, n_properties] in the units of `elements.csv`; NaN where unknown and at 0."""
    return _frozen(_columns(_read("elements.csv"), PROPERTY_NAMES, n_leading_nan=1))


@cache
def properties() -> NDArray[np.float64]:
    """Physical properties [119, n_properties], scaled to mean 0 and standard deviation 1.

    The statistics (ddof = 1) are over the known values of each column. Unknown values, and the row of Z = 0, are 0 (the
    mean); `properties_missing` tells them apart.
    """
    raw = raw_properties()
    scaled = (raw - np.nanmean(raw, axis=0)) / np.nanstd(raw, axis=0, ddof=1)
    return _frozen(np.where(np.isnan(raw), 0.0, scaled))


@cache
def properties_missing() -> NDArray[np.bool_]:
    """True where `properties` holds no measured value [119, n_properties]."""
    return _frozen(np.isnan(raw_properties()))


@cache
def upstream_properties() -> NDArray[np.float32]:
    """Standardized properties of the original FAENet [86, 14], Z = 0–85, equal to its buffer `phys_emb.properties`."""
    rows = _read("upstream_elements.csv")[: UPSTREAM_MAX_Z_PROPERTIES + 1]
    return _frozen(_columns(rows, UPSTREAM_PROPERTY_NAMES).astype(np.float32))


@cache
def upstream_period() -> NDArray[np.int64]:
    """Period indices of the original FAENet [101], Z = 0–100; 1 at 0."""
    return _frozen(np.array([int(row["period"]) for row in _read("upstream_elements.csv")]))


@cache
def upstream_group() -> NDArray[np.int64]:
    """Group indices of the original FAENet [101], Z = 0–100; 1 at 0 and 19 for the f-block."""
    return _frozen(np.array([int(row["group"]) for row in _read("upstream_elements.csv")]))


def symbol(z: int) -> str:
    """Chemical symbol of an atomic number."""
    if not 0 <= z <= MAX_Z:
        raise InputError(f"atomic number {z}, expected 1 to {MAX_Z}")
    return symbols()[z]


def atomic_number(symbol: str) -> int:
    """Atomic number of a chemical symbol with standard capitalization ("Cu")."""
    z = _number_of().get(symbol)
    if z is None:
        raise InputError(f"{symbol!r} is not an element{_similar(symbol)}")
    return z


def _similar(symbol: str) -> str:
    """``; did you mean Cu?`` for cu, CU and Cuu; nothing if no symbol is similar."""
    shorter = symbol[:-1] if len(symbol) == 3 else ""
    close = [word for word in (symbol.capitalize(), shorter.capitalize()) if word in _number_of()]
    return f"; did you mean {close[0]}?" if close else ""


@cache
def _number_of() -> dict[str, int]:
    return {name: z for z, name in enumerate(symbols()) if z > 0}


@cache
def _read(filename: str) -> list[dict[str, str]]:
    """Rows of a shipped table, without its comment lines."""
    lines = resources.files(__name__).joinpath(filename).read_text(encoding="utf-8").splitlines()
    return list(csv.DictReader(line for line in lines if not line.startswith("#")))


def _columns(rows: list[dict[str, str]], columns: tuple[str, ...], *, n_leading_nan: int = 0) -> NDArray[np.float64]:
    values = np.array([[float(row[name] or "nan") for name in columns] for row in rows])
    return np.concatenate([np.full((n_leading_nan, len(columns)), np.nan), values])


def _frozen(array: NDArray[_Scalar]) -> NDArray[_Scalar]:
    array.flags.writeable = False
    return array
