"""Checks of labelled data before training. Each finding has a severity and advice.

error    training on the data as they are would be wrong
warning  probably a mistake, or a limit on the accuracy
note     information
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from faenet_calc.data.energy_checks import energy_outliers, force_outliers, mixed_energies, mixed_units, references
from faenet_calc.data.findings import SEVERITIES, DataReport, Finding, Severity, about
from faenet_calc.data.formats import Record, read_records
from faenet_calc.data.inspection import Facts, inspect, system_key, work_and_rise
from faenet_calc.data.manifest import expected_counts, is_manifest, split_of
from faenet_calc.elements import symbol

Floats = NDArray[np.float64]

_OVERLAP, _TIGHT = 0.4, 0.6  # distances over sums of covalent radii
_OVERLAP_DISTANCE = 0.3  # Å, below this no graph is made at prediction time either
_NET_FORCE, _NET_SHARE = 0.02, 0.05  # eV/Å per atom; share of the largest force
_NET_TORQUE = 0.05  # relative to the sum of |r| |F|
_FEWEST_STEPS = 10  # between structures, to compare forces with energies
_SHORT_STEP = 0.3  # Å; longer steps are used only where there are too few short ones
_ASYMMETRIC = 1e-3  # sum of weighted directions beyond which symmetry does not forbid a force
_CONSTANT_ENERGY = 1e-9  # eV
_BOHR_LIKE = (1.5, 2.6)  # nearest distance over the sum of covalent radii; about 1 in Å and 1.9 in Bohr
_SAME_ENERGY = 3e-3  # eV per atom, geometries equal to 1 mÅ: cells under 40 GPa differ by 2e-3
_FREE_ENERGY = 1e-3  # eV per atom


def check_files(
    files: str | Path | Iterable[str | Path],
    *,
    cutoff: float = 5.0,
    energy_key: str | None = None,
    forces_key: str | None = None,
    trust_pickle: bool = False,
    progress: bool = False,
) -> DataReport:
    """Read files once and report problems with them as training data; arguments as for ``open_dataset``."""
    facts: list[Facts] = []
    pairs: list[Floats] = []
    latest: dict[object, Record] = {}
    for record in read_records(files, trust_pickle=trust_pickle, progress=progress):
        facts.append(inspect(record, cutoff=cutoff, energy_key=energy_key, forces_key=forces_key))
        key = system_key(record)
        if key in latest:
            pair = work_and_rise(latest[key], record, energy_key=energy_key, forces_key=forces_key)
            pairs += [] if pair is None else [pair]
        latest[key] = record
    findings = [finding for check in CHECKS for finding in check(facts)] if facts else [_no_structures()]
    findings += _forces_and_energies(pairs, n_forces=sum(fact.has_forces for fact in facts))
    findings += _manifest_counts(files, Counter(Path(fact.source) for fact in facts))
    findings.sort(key=lambda finding: SEVERITIES.index(finding.severity))
    total = sum((fact.composition for fact in facts), np.zeros(119, dtype=np.int64))
    return DataReport(
        n_structures=len(facts),
        n_atoms=int(total.sum()),
        n_energies=sum(bool(np.isfinite(fact.energy)) for fact in facts),
        n_forces=sum(fact.has_forces for fact in facts),
        n_stresses=sum(fact.has_stress for fact in facts),
        elements=tuple(symbol(int(z)) for z in np.flatnonzero(total) if z),
        findings=tuple(findings),
    )


def _manifest_counts(files: str | Path | Iterable[str | Path], read: Counter[Path]) -> Iterator[Finding]:
    """Shards of manifests that hold another number of structures than the manifest states."""
    names = [files] if isinstance(files, str | Path) else files
    for path in (split_of(str(name))[0] for name in names):
        stated = expected_counts(path) if is_manifest(path) else {}
        wrong = {file: count for file, count in stated.items() if file in read and read[file] != count}
        if wrong:
            yield Finding(
                code="wrong-count",
                severity="error",
                count=len(wrong),
                message=f"shards with another number of structures than the manifest of {path} states",
                advice="correct the counts in the manifest, or restore the shards",
                examples=tuple(f"{file}: {read[file]} structures, stated {count}" for file, count in wrong.items()),
            )


def _no_structures() -> Finding:
    return Finding(
        code="empty", severity="error", count=0, message="the files hold no structures", advice="give other files"
    )


def _broken(facts: Sequence[Facts]) -> Iterator[Finding]:
    bad = [fact for fact in facts if fact.unusable]
    reasons = ", ".join(sorted({fact.unusable.split("[")[0].strip() for fact in bad}))
    yield from about("unusable", "error", bad, f"no graph can be made: {reasons}", "remove or repair these structures")
    bad = [fact for fact in facts if fact.bad_label]
    yield from about("bad-label", "error", bad, bad[0].bad_label if bad else "", "repair the labels")
    bad = [fact for fact in facts if fact.not_finite]
    which = ", ".join(sorted({name for fact in bad for name in fact.not_finite}))
    yield from about(
        "nan-labels",
        "error",
        bad,
        f"NaN or infinite {which}",
        "remove these structures: the calculation did not finish",
    )


def _geometry(facts: Sequence[Facts]) -> Iterator[Finding]:
    overlap = [f for f in facts if f.closest < _OVERLAP or f.closest_distance < _OVERLAP_DISTANCE]
    closest = min((fact.closest_distance for fact in overlap), default=np.inf)
    yield from about(
        "overlapping-atoms",
        "error",
        overlap,
        f"atoms as close as {closest:.2f} Å",
        "remove them, or check the cell, the periodicity and the unit of lengths (Å)",
    )
    tight = [f for f in facts if _OVERLAP <= f.closest < _TIGHT and f.closest_distance >= _OVERLAP_DISTANCE]
    yield from about(
        "close-atoms",
        "warning",
        tight,
        f"atoms closer than {_TIGHT} of the sum of their covalent radii",
        "keep them only to train on short-range repulsion",
    )
    isolated = [fact for fact in facts if fact.n_isolated and fact.n_atoms > 1]
    yield from about(
        "isolated-atoms",
        "warning",
        isolated,
        "atoms without a neighbor within the cutoff get no force from the model",
        "use a larger cutoff, or remove these structures if the cell or the unit of lengths is wrong",
    )
    single = [fact for fact in facts if fact.n_isolated and fact.n_atoms == 1]
    yield from about(
        "single-atoms",
        "note",
        single,
        "single atoms without neighbors determine the element references",
        "keep them if their energies come from the same settings as the rest",
    )


def _periodicity(facts: Sequence[Facts]) -> Iterator[Finding]:
    unused = [fact for fact in facts if fact.has_cell and not fact.periodic]
    yield from about(
        "cell-without-pbc",
        "warning",
        unused,
        "a cell is given but no direction is periodic, so images are ignored",
        'write pbc="T T T" (or the periodic directions) if this is a crystal or slab',
    )
    kinds: dict[bytes, set[bool]] = defaultdict(set)
    usable = [fact for fact in facts if not fact.unusable and not fact.bad_label]
    for fact in usable:
        kinds[fact.composition.tobytes()].add(fact.periodic > 0)
    mixed = [f for f in usable if not f.periodic and not f.has_cell and len(kinds[f.composition.tobytes()]) > 1]
    yield from about(
        "missing-cell",
        "warning",
        mixed,
        "no cell, while other structures of the same composition are periodic",
        "restore the cell and pbc; without them the atoms are taken as a cluster in vacuum",
    )


def _unread(facts: Sequence[Facts]) -> Iterator[Finding]:
    readers: dict[str, Callable[[Facts], bool]] = {
        "energy": lambda fact: bool(np.isfinite(fact.energy)),
        "forces": lambda fact: fact.has_forces,
        "stress": lambda fact: fact.has_stress,
    }
    for label, has in readers.items():
        names = Counter(name for f in facts for name, kind in f.unread.items() if kind == label and not has(f))
        concerned = [f for f in facts if not has(f) and label in f.unread.values()]
        listed = ", ".join(name for name, _ in names.most_common())
        option = f"--{label}-key {next(iter(names), '')}"
        advice = (
            f"read it with {option}"
            if label != "stress"
            else "write it as stress (eV/Å³, ASE's sign: −virial / volume)"
        )
        severity: Severity = "warning" if label == "stress" else "error"
        yield from about(
            "unread-labels", severity, concerned, f"no {label} is read, but there are numbers named {listed}", advice
        )
    both = [fact for fact in facts if np.isfinite(fact.energy) and "energy" in fact.unread.values()]
    names = Counter(name for fact in both for name, kind in fact.unread.items() if kind == "energy")
    yield from about(
        "other-energies",
        "note",
        both,
        f"besides the energy there are {', '.join(name for name, _ in names.most_common())}",
        "make sure the right one is used; --energy-key NAME takes another",
    )
    free = [f for f in facts if abs(f.free_energy - f.energy) > _FREE_ENERGY * f.n_atoms]
    yield from about(
        "free-energy",
        "note",
        free,
        "energy and free_energy differ by more than 1 meV/atom; forces are derivatives of the free energy",
        "consider --energy-key free_energy",
    )


def _missing(facts: Sequence[Facts]) -> Iterator[Finding]:
    usable = [fact for fact in facts if not fact.unusable and not fact.bad_label]
    no_energy = [fact for fact in usable if np.isnan(fact.energy) and "energy" not in fact.not_finite]
    no_forces = [fact for fact in usable if not fact.has_forces]
    nothing = len(no_energy) == len(usable) and len(no_forces) == len(usable)
    for label, missing in (("energy", no_energy), ("forces", no_forces)):
        partly = len(missing) < len(usable)
        severity: Severity = "error" if nothing else "warning" if partly or label == "energy" else "note"
        yield from about(
            f"missing-{label}",
            severity,
            missing,
            f"{len(missing)} of {len(usable)} structures have no {label}",
            "label them with DFT, or say under which names the files have the labels (--energy-key, --forces-key)"
            if nothing
            else "such structures contribute to the other terms of the loss only; remove them if that is not intended",
        )


def _forces(facts: Sequence[Facts]) -> Iterator[Finding]:
    unmarked = [fact for fact in facts if fact.n_zeroed_unmarked]
    n_atoms = sum(fact.n_zeroed_unmarked for fact in unmarked)
    yield from about(
        "zeroed-forces",
        "error",
        unmarked,
        f"{n_atoms} atoms have forces of exactly zero although forces do not add up to zero: constraints removed them",
        "write raw forces (atoms.get_forces(apply_constraint=False)), or mark the atoms with FixAtoms or an array "
        "fixed = 1, so that they are left out",
    )
    marked = [fact for fact in facts if fact.n_zeroed]
    n_atoms = sum(fact.n_zeroed for fact in marked)
    yield from about(
        "zeroed-forces-fixed",
        "warning",
        marked,
        f"the forces of {n_atoms} fixed atoms are exactly zero: constraints removed them",
        "they are left out of training; write raw forces to use them (get_forces(apply_constraint=False))",
    )
    net = [
        f
        for f in facts
        if not f.n_zeroed_unmarked and f.net_force > max(_NET_FORCE * f.n_atoms, _NET_SHARE * f.max_force)
    ]
    worst = max((fact.net_force / fact.n_atoms for fact in net), default=0.0)
    yield from about(
        "net-force",
        "warning",
        net,
        f"forces do not add up to zero (up to {worst:.3f} eV/Å per atom), which no potential can reproduce",
        "look for removed or changed forces, external fields, or unconverged calculations",
    )


def _torques(facts: Sequence[Facts]) -> Iterator[Finding]:
    turning = [fact for fact in facts if fact.n_atoms > 2 and fact.net_torque > _NET_TORQUE]
    yield from about(
        "net-torque",
        "error" if 2 * len(turning) > sum(np.isfinite(fact.net_torque) for fact in facts) else "warning",
        turning,
        "the forces of a molecule exert a net torque, which no potential can reproduce",
        "check that forces and atoms are in the same order and orientation",
    )


def _constant(facts: Sequence[Facts]) -> Iterator[Finding]:
    """Labels that do not depend on the geometry."""
    labelled = [fact for fact in facts if fact.has_forces]
    zero = [fact for fact in labelled if fact.max_force == 0 and fact.asymmetry > _ASYMMETRIC]
    yield from about(
        "zero-forces",
        "error" if 2 * len(zero) > len(labelled) else "warning",
        zero,
        "all forces are exactly zero although symmetry does not require it",
        "leave the forces out of the file if they were not calculated; otherwise write the calculated ones",
    )
    groups: dict[bytes, dict[str, Facts]] = defaultdict(dict)
    for fact in facts:
        if fact.fingerprint and np.isfinite(fact.energy):
            groups[fact.composition.tobytes()][fact.fingerprint] = fact
    constant = [
        list(group.values())
        for group in groups.values()
        if len(group) > 2 and np.ptp([fact.energy for fact in group.values()]) < _CONSTANT_ENERGY
    ]
    found = [fact for group in constant for fact in group]
    yield from about(
        "constant-energies",
        "error" if any(fact.max_force > 0 for fact in found) else "warning",
        found,
        "different geometries of one composition have exactly the same energy",
        "write the energy of each geometry; the energy of a relaxed structure belongs to that structure only",
    )


def _length_unit(facts: Sequence[Facts]) -> Iterator[Finding]:
    noble = [2, 10, 18, 36, 54, 86]
    bonded = [f for f in facts if f.n_atoms > 1 and np.isfinite(f.closest) and not f.composition[noble].any()]
    low, high = _BOHR_LIKE
    if bonded and low < float(np.median([fact.closest for fact in bonded])) < high:
        yield from about(
            "long-bonds",
            "warning",
            [fact for fact in bonded if fact.closest > low],
            f"the nearest atoms are typically {np.median([f.closest for f in bonded]):.1f} times the sum of their "
            "covalent radii apart: coordinates may be in Bohr",
            "write positions and cell in Å (1 Bohr = 0.529177 Å)",
        )


def _duplicates(facts: Sequence[Facts]) -> Iterator[Finding]:
    same: dict[str, list[Facts]] = defaultdict(list)
    for fact in facts:
        if fact.fingerprint:
            same[fact.fingerprint].append(fact)
    repeated = [group for group in same.values() if len(group) > 1]
    against = [g for g in repeated if np.ptp([f.energy for f in g]) > _SAME_ENERGY * g[0].n_atoms]
    yield from about(
        "contradictions",
        "error",
        [fact for group in against for fact in group],
        "equal geometries have energies that differ by more than 3 meV/atom",
        "keep one level of theory; remove unconverged calculations",
    )
    yield from about(
        "duplicates",
        "warning",
        [fact for group in repeated for fact in group[1:]],
        "geometries occur more than once",
        "remove the copies, or at least keep them in one set (split by trajectory)",
    )


def _forces_and_energies(pairs: Sequence[Floats], n_forces: int) -> Iterator[Finding]:
    """Forces must be minus the slope of the energy between neighboring geometries; wrong units, signs or order show."""
    steps = np.array([pair for pair in pairs if np.abs(pair[:2]).max() > 1e-3]).reshape(-1, 3)
    short = steps[steps[:, 2] <= _SHORT_STEP]
    steps = short if len(short) >= _FEWEST_STEPS else steps
    if len(steps) < _FEWEST_STEPS:
        if n_forces:
            yield Finding(
                code="forces-unchecked",
                severity="note",
                count=n_forces,
                message="too few structures are close to each other to compare forces with energies",
                advice="check units, sign and order of the forces yourself",
            )
        return
    work, rise, _ = steps.T
    # Weighted median, which a few large errors do not change.
    weight = np.abs(work)
    ratio = np.divide(rise, work, out=np.zeros_like(rise), where=work != 0)
    order = np.argsort(ratio)
    middle = int(np.searchsorted(np.cumsum(weight[order]), 0.5 * weight.sum()))
    slope = float(ratio[order][min(middle, len(order) - 1)])
    if 0.5 < slope < 2:
        return
    yield Finding(
        code="forces-not-slope",
        severity="error",
        count=len(steps),
        message=f"between neighboring geometries the energy changes by {slope:.3g} times −ΣF·dx, expected 1",
        advice="check the units (eV, eV/Å) and the sign of the forces, the order of the atoms, and that energy and "
        "forces belong to the same structure",
    )


CHECKS: tuple[Callable[[Sequence[Facts]], Iterator[Finding]], ...] = (
    _broken,
    _unread,
    _missing,
    _geometry,
    _length_unit,
    _periodicity,
    _forces,
    _torques,
    _constant,
    _duplicates,
    energy_outliers,
    force_outliers,
    mixed_energies,
    mixed_units,
    references,
)
