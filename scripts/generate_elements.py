"""Write faenet_calc/elements/elements.csv from mendeleev: one row per element, Z = 1–118, missing values left empty.

Usage: python scripts/generate_elements.py [OUTPUT.csv]

The table is generated once and shipped, because mendeleev takes seconds to import and its values change with versions.
A test regenerates it and compares. Only `fetch_table` is used: `fetch_ionization_energies` of mendeleev 1.3 fails with
SQLAlchemy ≥ 2.1. mendeleev 1.0 dropped the column `atomic_volume` that the original FAENet used, so it is absent here.
"""

import csv
import io
import sys
from pathlib import Path

import mendeleev
from mendeleev.fetch import fetch_table

HEADER = """\
# Written by scripts/generate_elements.py from mendeleev {version}; empty means unknown.
# Radii in pm, density in g/cm3, polarizability in bohr3, electron affinity and ionization energies in eV,
# en_allen in eV, mass in u; group is empty for the f-block.
"""

PROPERTIES = (
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


def element_rows() -> list[dict[str, str]]:
    """One dictionary per element in the order of Z; a missing value is the empty string."""
    ionization: dict[tuple[int, int], float] = {}
    for row in fetch_table("ionizationenergies").to_dict("records"):
        ionization[int(row["atomic_number"]), int(row["ion_charge"])] = row["ionization_energy"]
    rows = []
    for record in sorted(fetch_table("elements").to_dict("records"), key=lambda row: row["atomic_number"]):
        z = int(record["atomic_number"])
        record["ionization_energy_1"] = ionization.get((z, 0))
        record["ionization_energy_2"] = ionization.get((z, 1))
        row = {
            "atomic_number": str(z),
            "symbol": record["symbol"],
            "name": record["name"],
            "mass": repr(float(record["atomic_weight"])),
            "period": str(int(record["period"])),
            "group": _text(record["group_id"]).removesuffix(".0"),
        }
        rows.append(row | {name: _text(record[name]) for name in PROPERTIES})
    return rows


def _text(value: float | None) -> str:
    """The shortest text that reads back as the same number; empty for None and NaN."""
    return "" if value is None or value != value else repr(float(value))


def main() -> None:
    """Write the table."""
    default = Path(__file__).resolve().parent.parent / "faenet_calc" / "elements" / "elements.csv"
    output = Path(sys.argv[1]) if len(sys.argv) > 1 else default
    rows = element_rows()
    buffer = io.StringIO()
    buffer.write(HEADER.format(version=mendeleev.__version__))
    writer = csv.DictWriter(buffer, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    output.write_text(buffer.getvalue())
    n_missing = sum(value == "" for row in rows for value in row.values())
    print(f"{output}: {len(rows)} elements, {n_missing} missing values")


if __name__ == "__main__":
    main()
