"""Input folders of DFT codes for the best configurations of a screening."""

from pathlib import Path
from typing import Any

from ase import Atoms
from ase.io.espresso import write_espresso_in
from ase.io.vasp import write_vasp

from faenet_calc.errors import InputError
from faenet_calc.files import write_atomically
from faenet_calc.screening.results import Row
from faenet_calc.screening.store import ScreenStore

FORMATS = ("vasp", "espresso")

_INCAR = """SYSTEM = {title}
GGA = RP
ENCUT = 450
EDIFF = 1E-5
ISMEAR = 1
SIGMA = 0.1
IBRION = 2
NSW = 200
EDIFFG = -0.03
LDIPOL = .TRUE.
IDIPOL = 3
LREAL = Auto
LWAVE = .FALSE.
"""


def check_export(export: str | None, top: int | None) -> None:
    """Raise an InputError unless format and number of an export make sense."""
    if export is not None and export not in FORMATS:
        raise InputError(f"export={export!r}, expected one of {', '.join(FORMATS)}")
    if top is not None and (export is None or top < 1):
        raise InputError(f"top={top} needs export={' or '.join(FORMATS)} and a number of at least 1")


def export_best(store: ScreenStore, rows: list[Row], kind: str) -> list[Path]:
    """Write one input folder per configuration below ``export/`` and return the folders.

    Cells are periodic in all directions, as plane-wave codes need. Settings are common defaults for metal surfaces
    (RPBE); potentials (POTCAR, UPF files) are not included.
    """
    folders = []
    for row in rows:
        atoms = store.relaxed(row.key)
        if atoms is None:
            continue
        folder = store.folder / "export" / kind / row.key
        folder.mkdir(parents=True, exist_ok=True)
        periodic = atoms.copy()
        periodic.pbc = True
        {"vasp": _write_vasp, "espresso": _write_espresso}[kind](folder, periodic, row)
        folders.append(folder)
    return folders


def _write_vasp(folder: Path, atoms: Atoms, row: Row) -> None:
    order = sorted(range(len(atoms)), key=lambda index: (atoms.numbers[index], index))
    write_atomically(folder / "POSCAR", lambda path: write_vasp(str(path), atoms[order], direct=True, vasp5=True))
    write_atomically(folder / "INCAR", _INCAR.format(title=row.key).encode())
    mesh = " ".join(str(number) for number in _mesh(atoms))
    write_atomically(folder / "KPOINTS", f"Gamma-centred mesh\n0\nGamma\n{mesh}\n0 0 0\n".encode())
    note = f"POTCAR in this order: {' '.join(dict.fromkeys(atoms[order].get_chemical_symbols()))}\n"
    write_atomically(folder / "README", note.encode())


def _write_espresso(folder: Path, atoms: Atoms, row: Row) -> None:
    data: dict[str, Any] = {
        "control": {"calculation": "relax", "prefix": row.key[:60], "forc_conv_thr": 1e-3, "pseudo_dir": "./pseudo"},
        "system": {
            "ecutwfc": 45.0,
            "ecutrho": 360.0,
            "input_dft": "RPBE",
            "occupations": "smearing",
            "smearing": "mv",
            "degauss": 0.01,
        },
        "electrons": {"conv_thr": 1e-7},
    }
    pseudopotentials = {symbol: f"{symbol}.UPF" for symbol in sorted(set(atoms.get_chemical_symbols()))}

    def write(path: Path) -> None:
        with path.open("w") as stream:
            write_espresso_in(
                stream,
                atoms,
                input_data=data,
                pseudopotentials=pseudopotentials,
                kpts=_mesh(atoms),
                format="espresso-in",
            )

    write_atomically(folder / "pw.in", write)


def _mesh(atoms: Atoms, density_A: float = 25.0) -> tuple[int, int, int]:
    """k-points along the in-plane vectors such that number × length reaches ``density_A`` (Å); one along the normal."""
    a, b, _ = atoms.cell.lengths()
    return max(1, round(density_A / a)), max(1, round(density_A / b)), 1
