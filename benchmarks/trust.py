"""Can a prediction be trusted? One structure should have one energy, atoms should repel, nonsense should be refused.

    python benchmarks/trust.py [MODEL] [--rattled 20] [--no-tests] [--json FILE] [--before ROWS.jsonl]

A row per question: the value at commit 6737bb6 (stored in benchmarks/results/trust-before.jsonl), the value now, the
target and whether it is met. What the script computes itself uses nothing but FAENetCalculator and relax, so that these
rows can be measured again with the code of that commit:

    git worktree add ../before 6737bb6
    PYTHONPATH=../before python benchmarks/trust.py metals-m --no-tests --json before.jsonl

one structure       differences between descriptions of the same structure; cubic crystals that become tetragonal;
                    molecules in a box, above a slab or beside other molecules against free ones; split of degenerate
                    phonons of Cu at X.
repulsion           final height of atoms that start 1.0 Å above Cu; fused atoms after relaxing slabs rattled by 0.5 Å;
                    dimers whose lowest energy is at an impossible distance; a copper atom in a cell of 1 Å.
refusal             what happens to a metal that the model was not trained on (Zn, or Mg) and to structures far from
                    the training data of most models: "refused" with an error, "marked" as outside the domain, or
                    "silent" with the energy that was returned. A model that knows crowded surfaces may be silent about
                    them if its energy per molecule is that of the reference.
speed               time of a force call of free clusters.
provenance, defects, security    one regression test, or a few, per promise; "before" is what was observed.

Further rows have commands of their own: calibration.py (coverage, rank correlation, AUROC, false alarms), guard_cost.py
(cost of uncertainty and guard per call) and kill_matrix.py (killed and resumed commands).
"""

import argparse
import functools
import itertools
import json
import re
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from ase import Atoms
from ase.build import add_adsorbate, bulk, fcc111, graphene, molecule
from ase.cluster import Icosahedron
from ase.data import atomic_numbers, covalent_radii
from ase.phonons import Phonons
from ase.spacegroup import crystal
from ase.units import _e, _hplanck

from faenet_calc import FAENetCalculator, relax

BEFORE = Path(__file__).parent / "results" / "trust-before.jsonl"
FUSED = 0.6  # of the sum of covalent radii: closer than any chemical bond
UP = np.array([0.0, 0.0, 1.0])
CROWDED = {"nine H2O on Pt(111)": ("H2O", 9, 0.47), "four CO on 2×2 Pt(111)": ("CO", 4, -1.22)}
"""Molecules on a surface, their number, and the energy (eV) that each of them brings (nequix-oam-1)."""
TOLERANCE = 0.3  # (eV) per molecule, of a model that is silent about them
DIMERS = ("H", "C", "N", "O", "Cu", "Pd", "Pt", "Au")


@dataclass(frozen=True)
class Question:
    """One row of the table.

    Attributes:
        topic: Heading of a group of rows.
        name: What is measured.
        unit: Unit of a number; empty for text.
        measure: The number or text.
        target: What the value should be, for people.
        met: Whether a value is as it should be.
    """

    topic: str
    name: str
    unit: str
    measure: Callable[[], float | str]
    target: str
    met: Callable[[Any], bool]


def energy(calc: FAENetCalculator, atoms: Atoms) -> float:
    """(eV)."""
    return float(calc.get_property("energy", atoms))


def turned(atoms: Atoms, matrix: Any) -> Atoms:
    """The same structure with the lattice vectors ``matrix @ cell``."""
    changed = atoms.copy()
    changed.set_cell(np.asarray(matrix, dtype=float) @ atoms.cell.array, scale_atoms=False)
    return changed


def oxygen_on_copper() -> Atoms:
    """O on Cu(111), periodic in three directions."""
    slab = fcc111("Cu", (2, 2, 3), vacuum=8.0)
    add_adsorbate(slab, "O", 1.2, "fcc")
    slab.rattle(0.05, seed=0)
    slab.pbc = True
    return slab


def largest_change(calc: FAENetCalculator, atoms: Atoms, matrices: list[Any]) -> float:
    """(meV/atom) largest change of the energy over descriptions of the cell."""
    first = energy(calc, atoms)
    return 1e3 * max(abs(energy(calc, turned(atoms, matrix)) - first) for matrix in matrices) / len(atoms)


def primitive_change(calc: FAENetCalculator, metal: str) -> float:
    """(meV/atom) energy of the primitive cell minus that of the cubic cell."""
    return 1e3 * (energy(calc, bulk(metal)) - energy(calc, bulk(metal, cubic=True)) / 4)


def seconds_of_cluster(calc: FAENetCalculator, shells: int) -> float:
    """(s) CPU time of energy and forces of a free icosahedron of gold with so many shells."""
    cluster = Icosahedron("Au", shells)
    cluster.pbc = False
    calc.calculate(cluster, ["energy", "forces"])
    cluster.rattle(0.01, seed=0)
    start = time.process_time()
    calc.calculate(cluster, ["energy", "forces"])
    return time.process_time() - start


def tetragonality(calc: FAENetCalculator, metal: str) -> float:
    """Longest over shortest edge of the relaxed cubic cell."""
    lengths = relax(bulk(metal, cubic=True), calc, fmax=0.005, relax_cell=True).atoms.cell.lengths()
    return float(lengths.max() / lengths.min())


def in_a_box(calc: FAENetCalculator, name: str) -> float:
    """(meV) energy of a molecule in a periodic box minus that of the free one."""
    return 1e3 * (energy(calc, molecule(name, cell=[14.0] * 3, pbc=True)) - energy(calc, molecule(name)))


def above_a_slab(calc: FAENetCalculator, name: str) -> float:
    """(meV) energy of a molecule out of reach above Cu(111) minus those of molecule and slab, lying or upright."""
    slab, free = fcc111("Cu", (4, 4, 3), vacuum=8.0), molecule(name)
    alone, differences = energy(calc, free) + energy(calc, slab), []
    for angle in (0, 90):
        placed = free.copy()
        placed.rotate(angle, "x")
        placed.positions += slab.cell.array[:2].sum(axis=0) / 2 - placed.positions.mean(axis=0)
        placed.positions[:, 2] += slab.positions[:, 2].max() + 6.0 - placed.positions[:, 2].min()
        both = slab + placed
        both.cell[2, 2] = np.ptp(both.positions[:, 2]) + 16.0
        differences.append(1e3 * (energy(calc, both) - alone))
    return max(differences, key=abs)


def side_by_side(calc: FAENetCalculator) -> float:
    """(meV) energy of three molecules out of reach of each other in one box minus those of the free ones."""
    together, alone = Atoms(cell=[16.0, 18.0, 20.0], pbc=True), 0.0
    for name, place in (("C6H6", (0, 0, 0)), ("CO2", (8, 2, 9)), ("C2H4", (3, 10, 8))):
        free = molecule(name)
        alone += energy(calc, free)
        free.rotate(30, (1, 2, 3))
        free.positions += np.array(place)
        together += free
    return 1e3 * (energy(calc, together) - alone)


def split_at_x(calc: FAENetCalculator) -> float:
    """(THz) difference of the two transverse phonon frequencies of fcc Cu at X."""
    with tempfile.TemporaryDirectory() as folder:
        phonons = Phonons(bulk("Cu", a=3.63), calc, supercell=(4, 4, 4), delta=0.02, name=f"{folder}/phonons")
        phonons.run()
        phonons.read(acoustic=True)
        frequencies = np.sort(phonons.band_structure([[0.5, 0.0, 0.5]])[0])
    return float(frequencies[1] - frequencies[0]) * _e / _hplanck / 1e12


def nearest(atoms: Atoms) -> float:
    """Shortest distance in units of the sum of covalent radii."""
    periodic = atoms.repeat([2 if flag else 1 for flag in atoms.pbc])
    distances = periodic.get_all_distances(mic=bool(periodic.pbc.any()))
    radii = covalent_radii[periodic.numbers]
    ratio = distances / (radii[:, None] + radii)
    return float(ratio[~np.eye(len(ratio), dtype=bool)].min())


def sunk(calc: FAENetCalculator, adsorbate: str) -> str:
    """Where an adsorbate ends that starts 1.0 Å above a copper atom."""
    slab = fcc111("Cu", (2, 2, 3), vacuum=8.0)
    if adsorbate == "CO":
        add_adsorbate(slab, molecule("CO"), 1.0, "ontop", mol_index=1)
    else:
        add_adsorbate(slab, adsorbate, 1.0, "ontop")
    result = relax(slab, calc, steps=200)
    state = "converged" if result.converged else "not converged"
    marks = ", ".join(flag for flag in result.anomalies if flag in ("overlap", "outside-domain"))
    return f"nearest {nearest(result.atoms):.2f} covalent, {state}{', ' + marks if marks else ''}"


def is_sound(text: str) -> bool:
    """Whether a relaxed structure has no fused atoms, or says that it has."""
    return float(text.split()[1]) >= FUSED or "overlap" in text or "outside-domain" in text


def rattled(calc: FAENetCalculator, n: int) -> str:
    """Fused slabs, and those without a flag, after relaxing slabs of eight metals that were rattled by 0.5 Å."""
    fused = silent = 0
    for number, metal in zip(range(n), itertools.cycle(("Cu", "Ag", "Au", "Ni", "Pd", "Pt", "Rh", "Ir")), strict=False):
        slab = fcc111(metal, (2, 2, 3), vacuum=8.0)
        slab.rattle(0.5, seed=number)
        try:
            result = relax(slab, calc, steps=200)
        except Exception:  # refused before the first step
            continue
        if nearest(result.atoms) < FUSED:
            fused += 1
            silent += not {"overlap", "outside-domain"} & set(result.anomalies)
    return f"{fused} of {n} fused, {silent} of them without a flag"


def fused_dimers(calc: FAENetCalculator) -> float:
    """Number of dimers whose lowest energy is at a distance below that of any bond."""
    count = 0
    for one, other in itertools.combinations_with_replacement(DIMERS, 2):
        bond = covalent_radii[atomic_numbers[one]] + covalent_radii[atomic_numbers[other]]
        distances = np.linspace(0.31, 2.0 * bond, 60)
        pairs = [Atoms([one, other], positions=[(0, 0, 0), (0, 0, d)]) for d in distances]
        energies = [result["energy"] for result in calc.predict(pairs, properties=("energy",))]
        count += int(distances[int(np.argmin(energies))] < FUSED * bond)
    return count


def fate(calc: FAENetCalculator, atoms: Atoms, name: str = "") -> str:
    """What happens to a structure that the model may not know; of those in ``CROWDED`` with the energy per molecule."""
    try:
        (result,) = calc.predict([atoms], properties=("energy", "forces"))
    except Exception as error:
        return f"refused: {type(error).__name__}"
    value = f"{result['energy'] / len(atoms):.4g} eV/atom"
    if name in CROWDED:
        adsorbate, count, _ = CROWDED[name]
        gained = (
            result["energy"] - energy(calc, atoms[atoms.symbols == "Pt"]) - count * energy(calc, molecule(adsorbate))
        )
        value = f"{gained / count:.4g} eV per molecule"
    return f"marked outside, {value}" if result.get("domain") == "outside" else f"silent, {value}"


def foreign_structures(unknown: str = "Zn") -> dict[str, Atoms]:
    """Structures far from the training data of most models, one of them of an unknown metal."""
    four = fcc111("Pt", (2, 2, 3), vacuum=8.0)
    top = four.positions[four.positions[:, 2] > four.positions[:, 2].max() - 0.1]
    for site in top:
        four += Atoms("CO", positions=[site + UP * 1.85, site + UP * 3.0])
    water = fcc111("Pt", (3, 3, 3), vacuum=10.0)
    top = water.positions[water.positions[:, 2] > water.positions[:, 2].max() - 0.1]
    for number, site in enumerate(top):
        one = molecule("H2O")
        one.rotate(40 * number, "z")
        one.translate(site + UP * (2.4 + 0.7 * (number % 2)) - one.positions[0])
        water += one
    sheet = graphene(size=(2, 2, 1), vacuum=8.0)
    sheet.pbc = [True, True, False]
    rutile = {"spacegroup": 136, "cellpar": [4.49, 4.49, 3.11, 90, 90, 90]}
    cuprite = {"spacegroup": 224, "cellpar": [4.27, 4.27, 4.27, 90, 90, 90]}
    return {
        f"{unknown}12": bulk(unknown).repeat((2, 3, 1)),
        "NiO": bulk("NiO", "rocksalt", a=4.18, cubic=True),
        "RuO2": crystal(["Ru", "O"], [(0, 0, 0), (0.3056, 0.3056, 0)], **rutile),
        "graphene": sheet,
        "nine H2O on Pt(111)": water,
        "four CO on 2×2 Pt(111)": four,
        "Cu2O": crystal(["Cu", "O"], [(0.25, 0.25, 0.25), (0, 0, 0)], **cuprite),
    }


def not_silent(text: str) -> bool:
    """Whether a structure was refused or marked."""
    return not text.startswith("silent")


def not_silent_or_right(text: str, reference: float) -> bool:
    """Whether a structure was refused or marked, or has the energy per molecule of the reference (eV)."""
    return not_silent(text) or abs(float(text.split()[1]) - reference) <= TOLERANCE


def questions(calc: FAENetCalculator, n_rattled: int) -> Iterator[Question]:
    """All rows."""
    slab = oxygen_on_copper()
    cyclic = [[[0, 0, 1], [1, 0, 0], [0, 1, 0]], [[0, 1, 0], [0, 0, 1], [1, 0, 0]]]
    in_plane = [[[0, 1, 0], [1, 0, 0], [0, 0, 1]], [[1, 0, 0], [1, 1, 0], [0, 0, 1]], [[1, 1, 0], [0, 1, 0], [0, 0, 1]]]
    one = "one structure, one energy"

    def below(limit: float) -> Callable[[Any], bool]:
        return lambda value: abs(value) <= limit

    yield Question(
        one, "slab, vacuum along a or b", "meV/atom", lambda: largest_change(calc, slab, cyclic), "≤ 0.001", below(1e-3)
    )
    yield Question(
        one,
        "slab, other in-plane vectors",
        "meV/atom",
        lambda: largest_change(calc, slab, in_plane),
        "≤ 0.1",
        below(0.1),
    )
    rough = bulk("Cu") * (2, 2, 2)
    rough.rattle(0.05, seed=0)
    yield Question(
        one,
        "bulk, other vectors",
        "meV/atom",
        lambda: largest_change(calc, rough, in_plane + cyclic),
        "≤ 0.2",
        below(0.2),
    )
    yield Question(
        one, "Au, primitive against cubic cell", "meV/atom", lambda: primitive_change(calc, "Au"), "≤ 0.2", below(0.2)
    )
    for metal in ("Au", "Pt"):
        yield Question(
            one,
            f"c/a of {metal} after relax_cell",
            "",
            lambda metal=metal: tetragonality(calc, metal),
            "1 ± 0.001",
            lambda value: abs(value - 1) <= 1e-3,
        )
    for name in ("C6H6", "CO2", "C2H4"):
        yield Question(
            one, f"{name} above a slab", "meV", lambda name=name: above_a_slab(calc, name), "≤ 2", below(2.0)
        )
    for name in ("CO2", "O2"):
        yield Question(one, f"{name} in a box", "meV", lambda name=name: in_a_box(calc, name), "≤ 2", below(2.0))
    yield Question(one, "three molecules in one box", "meV", lambda: side_by_side(calc), "≤ 0.1", below(0.1))
    yield Question(one, "Cu phonons, split at X", "THz", lambda: split_at_x(calc), "≤ 0.01", below(0.01))
    repulsion = "repulsion"
    for adsorbate in ("O", "N", "C", "CO"):
        yield Question(
            repulsion,
            f"{adsorbate} from 1.0 Å above Cu",
            "",
            lambda adsorbate=adsorbate: sunk(calc, adsorbate),
            f"≥ {FUSED} covalent, or a flag",
            is_sound,
        )
    yield Question(
        repulsion,
        "slabs rattled by 0.5 Å",
        "",
        lambda: rattled(calc, n_rattled),
        "none fused without a flag",
        lambda text: ", 0 of them" in text,
    )
    yield Question(
        repulsion, "dimers with a fused minimum (of 36)", "", lambda: fused_dimers(calc), "0", lambda value: value == 0
    )
    cell = Atoms("Cu", cell=[1.0] * 3, pbc=True)
    yield Question(repulsion, "Cu in a cell of 1 Å", "", lambda: fate(calc, cell), "refused or marked", not_silent)
    for shells, n, limit in ((3, 55, 1.0), (4, 147, 2.0)):
        yield Question(
            "speed",
            f"free Au{n}, energy and forces",
            "s",
            lambda shells=shells: seconds_of_cluster(calc, shells),
            f"≤ {limit:g}",
            below(limit),
        )
    unknown = next(metal for metal in ("Zn", "Mg", "Zr") if metal not in calc.trained_elements)
    for name, atoms in foreign_structures(unknown).items():
        target, met = "refused or marked", not_silent
        if name in CROWDED:
            reference = CROWDED[name][2]
            target = f"{target}, or {reference} ± {TOLERANCE} eV per molecule"
            met = functools.partial(not_silent_or_right, reference=reference)
        yield Question("refusal", name, "", lambda atoms=atoms, name=name: fate(calc, atoms, name), target, met)


# Promises that tests show: topic, promise, what was observed before, and the tests.
TESTED = (
    ("provenance", "fine-tuned models describe their own data", "EMT-tuned model says nequix PBE",
     "training/test_provenance.py -k described_by_its_own_data"),
    ("provenance", "replay of other energies", "accepted", "training/test_provenance.py -k replay"),
    ("provenance", "committee of different energies", "accepted",
     "interface/test_calculator_committee.py -k mean_the_same_energy"),
    ("provenance", "elements and kinds missing in a split", "not said", "training/test_provenance.py -k lacks"),
    ("provenance", "--frames of predict, md and relax", "no option",
     "interface/test_cli_predict_relax_md.py -k frames"),
    ("defects", "atom 1e6 Å away, non-periodic", "SIGFPE", "unit/graphs/test_neighbors.py -k far_away"),
    ("defects", "truncated compiled library, missing symbols", "SIGBUS", "unit/network/test_native.py -k damaged"),
    ("defects", "damaged cache", "SIGSEGV", "unit/data/test_cache.py -k damaged"),
    ("defects", "train --overwrite stopped early", "old weights, exit 0",
     "training/test_run_folder.py -k stopped_early"),
    ("defects", "resume after the data changed", "accepted", "training/test_run_folder.py -k changed_data"),
    ("defects", "graph cache keyed by content", "size only", "unit/data/test_cache.py -k contents"),
    ("defects", "relax on many files, interrupted", "all results lost",
     "interface/test_cli_interrupted.py -k ctrl_c_in_relax_saves"),
    ("defects", "two trainings into one folder", "both succeed", "training/test_run_folder.py -k one_run_at_a_time"),
    ("defects", "best.safetensors without state.pt", "replaced", "training/test_run_folder.py -k without_a_state"),
    ("defects", "md --overwrite that cannot start", "old trajectory deleted", "drivers/test_md.py -k old_trajectory"),
    ("defects", "-o x.cif or .vasp", "energies dropped silently",
     "interface/test_cli_predict_relax_md.py -k formats_that_lose"),
    ("defects", "settings out of range", "accepted", "training/test_run_folder.py -k out_of_range"),
    ("defects", "time limit nan", "accepted", "unit/labelling/test_generate.py -k time_limit"),
    ("defects", "data check: zero, flipped, permuted forces; units", "blind",
     "unit/data/test_data_check.py -k planted_fault"),
    ("defects", "data convert --energy-key nosuch", "exit 0 without energies",
     "unit/data/test_cache.py -k named_energy"),
    ("defects", "data generate with a deleted journal", "labels appended twice",
     "unit/labelling/test_generate.py -k without_their_journal"),
    ("defects", "tag models along a run", "energy depends on the history",
     "interface/test_calculator.py -k tags_do_not_change"),
    ("defects", "inference_mode, autocast", "torch error", "unit/potential/test_modes.py"),
    ("defects", "damaged state.pt", "exception name", "training/test_run_folder.py -k damaged_state"),
    ("defects", "folders that cannot be written", "exception name", "unit/data/test_cache.py -k cannot_be_written"),
    ("defects", "@ in file names", "exception name", "interface/test_cli_predict_relax_md.py -k at_sign"),
    ("defects", "batch size 0", "exception name", "interface/test_calculator_errors.py -k batch_size"),
    ("defects", "--device meta", "exception name", "interface/test_cli_predict_relax_md.py -k cannot_compute"),
    ("defects", "broken pipe", "exception name", "interface/test_cli_predict_relax_md.py -k leaves_early"),
    ("defects", "exit code 3 outside the domain", "0", "interface/test_domain_guard.py -k exits_with_3"),
    ("defects", "evaluate outside the domain", "exit 0", "interface/test_domain_guard.py -k evaluate"),
    ("security", "compiled code", "library in a world-writable cache runs", "unit/network/test_native.py -k damaged"),
    ("security", "factory of a recipe", "any function is called",
     "unit/labelling/test_calculators.py -k trusted_packages or os_system"),
    ("security", "trust_pickle in YAML", "counts", "training/test_provenance.py -k pickles"),
    ("security", "pymatgen JSON", "imports named modules", "unit/data/test_cache.py -k pymatgen_json"),
    ("security", "YAML aliases", "unbounded", "training/test_provenance.py -k aliases"),
    ("security", "metadata covered by the sha256", "edits accepted",
     "unit/potential/test_checkpoint.py -k edited_metadata"),
    ("security", "control characters in metadata", "printed",
     "unit/potential/test_checkpoint.py -k control_characters"),
)  # fmt: skip


def tested() -> Iterator[Question]:
    """Rows whose value is the result of regression tests."""
    for topic, name, _, words in TESTED:
        file, _, keyword = words.partition(" -k ")
        yield Question(
            topic, name, "", lambda file=file, keyword=keyword: outcome(file, keyword), "passed", _all_passed
        )


def _all_passed(value: Any) -> bool:
    return "passed" in value and "failed" not in value and "error" not in value


def outcome(file: str, keyword: str) -> str:
    """The last line of pytest."""
    tests = Path(__file__).parents[1] / "tests"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tests / file), "-m", "not slow"]
    found = subprocess.run(
        [*command, *(["-k", keyword] if keyword else [])], capture_output=True, text=True, check=False, cwd=tests.parent
    )
    return re.sub(r" in .*| *\d+ deselected,?|, *$", "", found.stdout.strip().splitlines()[-1]).strip(" ,=")


def text(value: float | str | None, unit: str = "") -> str:
    """A value for the table."""
    if value is None:
        return "not measured"
    return value if isinstance(value, str) else f"{value:.4g} {unit}".strip()


def main() -> None:
    """Measure all rows and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="catalysis-m")
    parser.add_argument("--rattled", type=int, default=20, help="number of rattled slabs")
    parser.add_argument("--no-tests", action="store_true", help="leave out the rows that run regression tests")
    parser.add_argument("--json", type=Path, help="write the rows to this file")
    parser.add_argument("--before", type=Path, default=BEFORE, help="rows to compare with")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    before: dict[str, Any] = {name: observed for _, name, observed, _ in TESTED}
    if arguments.before.exists():
        before |= {row["name"]: row["value"] for row in map(json.loads, arguments.before.read_text().splitlines())}
    lines, rows = ["| | before | now | target | met |", "|---|---|---|---|---|"], []
    warnings.simplefilter("ignore")
    measured = questions(FAENetCalculator(arguments.model, device="cpu"), arguments.rattled)
    for question in itertools.chain(measured, () if arguments.no_tests else tested()):
        try:
            value = question.measure()
        except Exception as error:
            value = f"failed: {type(error).__name__}: {str(error)[:60]}"
        met = not (isinstance(value, str) and value.startswith("failed")) and bool(question.met(value))
        rows.append({"benchmark": "trust", "topic": question.topic, "name": question.name, "unit": question.unit,
                     "value": value, "met": met})  # fmt: skip
        cells = (text(before.get(question.name), question.unit), text(value, question.unit), question.target)
        lines.append(f"| {question.name} | {' | '.join(cells)} | {'yes' if met else 'no'} |")
        print(lines[-1] if len(lines) > 3 else "\n".join(lines), flush=True)
    print(f"{sum(row['met'] for row in rows)} of {len(rows)} targets met")
    if arguments.json is not None:
        arguments.json.write_text("".join(json.dumps(row) + "\n" for row in rows))


if __name__ == "__main__":
    main()
