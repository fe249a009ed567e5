"""Reading structures: every format of ASE, and pymatgen's JSON.

A path may end in ASE's ``@index`` (``run.traj@-1``, ``set.extxyz@0:100:10``); without it every structure of the file
is read. A file whose name contains ``@`` is read by its full name. Every failure is an InputError that names the file.
"""

import json
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from ase import Atoms
from ase.data import covalent_radii
from ase.io import read
from ase.io.formats import UnknownFileTypeError, filetype, string2index
from ase.symbols import symbols2numbers

from faenet_calc.errors import InputError, counted, message_of
from faenet_calc.files import source_for_ase
from faenet_calc.graphs.convert import validate
from faenet_calc.graphs.neighbors import neighbor_list

_BOHR_DISTANCES = (1.45, 2.3)
"""Nearest distances in sums of covalent radii if Å are taken for Bohr: bonds and metallic contacts have 0.77–1.2."""


@dataclass(frozen=True, kw_only=True, eq=False)
class InputStructure:
    """A structure and where it came from.

    Attributes:
        index: Of the structure in its file.
        alone: Whether the file holds a single structure.
    """

    atoms: Atoms
    path: Path
    index: int
    alone: bool

    @property
    def name(self) -> str:
        """For messages: ``slab.cif``, or ``set.extxyz@3`` if the file has several."""
        return str(self.path) if self.alone else f"{self.path}@{self.index}"

    @property
    def stem(self) -> str:
        """For the names of files made from it: ``slab``, or ``set-3``."""
        return self.path.stem if self.alone else f"{self.path.stem}-{self.index}"


def read_structures(paths: str | Path | Iterable[str | Path], *, check: bool = True) -> list[InputStructure]:
    """Every structure of the files, in order.

    Args:
        paths: A file or several, each with or without ``@index``.
        check: Also refuse structures that cannot be computed (overlapping atoms, non-finite numbers, singular cells).

    Raises:
        InputError: A file is missing or cannot be read, or a structure cannot be used.
    """
    found: list[InputStructure] = []
    for path in [paths] if isinstance(paths, str | Path) else paths:
        found += _read_file(str(path))
    if check:
        for item in found:
            check_structure(item)
    return found


def _read_file(given: str) -> list[InputStructure]:
    path, index = _split_index(given)
    if not path.is_file():
        what = "is a folder" if path.is_dir() else "no such file"
        raise InputError(f"{path}: {what}; expected a structure file")
    if path.stat().st_size == 0:
        raise InputError(f"{path}: the file is empty")
    try:
        structures = _read_pymatgen_json(path)
        if structures is None:
            kind = filetype(str(path))
            structures = read(source_for_ase(path, kind), index=":", format=kind, do_not_split_by_at_sign=True)
        structures = structures if isinstance(structures, list) else [structures]
        if isinstance(index, int) and not -len(structures) <= index < len(structures):
            raise InputError(
                f"{given}: {path} has {counted(len(structures), 'structure')}; indices begin with 0, @-1 is the last"
            )
        chosen = range(len(structures))[slice(None) if index is None else index]
    except InputError:
        raise
    except UnknownFileTypeError as error:
        raise InputError(
            f"{path}: ASE does not know this kind of file; rename it (.extxyz, .cif, POSCAR, …)"
        ) from error
    except Exception as error:
        if (symbol := _unknown_symbol(error)) is not None:
            raise InputError(f"{path}: {symbol!r} is not a chemical element") from error
        # The readers of some hundred formats fail in as many ways.
        raise InputError(f"{path} cannot be read: {message_of(error)}") from error
    indices = [chosen] if isinstance(chosen, int) else list(chosen)
    if not indices:
        raise InputError(f"{given} has no structures")
    alone = len(structures) == 1
    return [InputStructure(atoms=structures[n], path=path, index=n, alone=alone) for n in indices]


def _unknown_symbol(error: Exception) -> str | None:
    """The symbol that ASE could not find among the elements; None for any other error."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    in_lookup = trace is not None and trace.tb_frame.f_globals.get("__name__") == symbols2numbers.__module__
    return str(error.args[0]) if isinstance(error, KeyError) and in_lookup else None


def _split_index(given: str) -> tuple[Path, int | slice | None]:
    """The file and the index behind its last ``@``; a file that exists by its full name is taken as it is."""
    name, separator, text = given.rpartition("@")
    if not separator or Path(given).exists():
        return Path(given), None
    try:
        index = string2index(text)
    except ValueError:
        index = text
    return (Path(given), None) if isinstance(index, str) else (Path(name), index)


def _read_pymatgen_json(path: Path) -> list[Atoms] | None:
    """The structures of a file that pymatgen wrote as JSON; None for any other file."""
    if path.suffix.lower() != ".json":
        return None
    content = json.loads(path.read_text())
    entries = content if isinstance(content, list) else [content]
    if not entries or not all(isinstance(entry, dict) and "@class" in entry for entry in entries):
        return None
    return [_from_pymatgen(entry, path) for entry in entries]


def _from_pymatgen(entry: dict[str, Any], path: Path) -> Atoms:
    """Atoms of a pymatgen structure, molecule, or entry with a structure.

    Such files name the modules that their decoder imports. The names are removed, so that reading a file runs none.
    """
    from pymatgen.core import Molecule, Structure
    from pymatgen.io.ase import AseAtomsAdaptor

    described = entry.get("structure", entry)
    content = _without_modules(described)
    if "sites" not in content:
        raise InputError(f"{path} holds a {entry['@class']}, expected pymatgen structures or molecules")
    structure = Structure.from_dict(content) if "lattice" in content else Molecule.from_dict(content)
    if not structure.is_ordered:
        raise InputError(f"{path}: {structure.formula} has partially occupied sites; order it first")
    return Atoms(AseAtomsAdaptor.get_atoms(structure))


def _without_modules(value: Any) -> Any:
    """Decoded JSON without the keys that make pymatgen's decoder import modules."""
    if isinstance(value, dict):
        return {key: _without_modules(item) for key, item in value.items() if not key.startswith("@")}
    return [_without_modules(item) for item in value] if isinstance(value, list) else value


def check_structure(item: InputStructure) -> None:
    """Raise an InputError, with the name of the file, for a structure that cannot be computed."""
    occupancies = item.atoms.info.get("occupancy", {})
    partial = [site for site, species in occupancies.items() if len(species) > 1 or min(species.values()) < 1 - 1e-6]
    if partial:
        raise InputError(f"{item.name}: partially occupied sites {partial[:5]}; order the structure first")
    if len(unknown := np.flatnonzero(item.atoms.numbers < 1)):
        raise InputError(
            f"{item.name}: no element is given for atom {unknown[0]} (symbol X); expected chemical symbols"
        )
    try:
        validate(item.atoms)
    except InputError as error:
        raise InputError(f"{item.name}: {error}") from error
    if looks_like_bohr(item.atoms):
        warnings.warn(
            f"{item.name}: no two atoms are within bonding distance, as if the coordinates were in Bohr; if they are, "
            "multiply positions and cell by 0.529177",
            stacklevel=3,
        )


def looks_like_bohr(atoms: Atoms) -> bool:
    """Whether every atom is about 1.9 times as far from its nearest neighbor as in a chemical bond."""
    if len(atoms) < 3 and not atoms.pbc.all():
        return False  # two atoms may well be apart on purpose
    radius = covalent_radii[atoms.numbers]
    low, high = _BOHR_DISTANCES
    edges = neighbor_list(atoms.positions, atoms.cell.array, atoms.pbc, 2 * high * float(radius.max()))
    nearest = np.full(len(atoms), np.inf)
    np.minimum.at(nearest, edges.centre, edges.distance / (radius[edges.centre] + radius[edges.neighbor]))
    return bool((nearest > low).all() and (nearest < high).all())
