"""Checks that compare labels with each other: outliers, mixed kinds of energy, mixed units, element references.

Energies are compared per atom after subtraction of fitted element references, which removes the dependence on size and
composition. Centers and widths are quantiles, which are robust against outliers.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from faenet_calc.data.energy_meaning import find_break
from faenet_calc.data.findings import Finding, about
from faenet_calc.data.inspection import Facts
from faenet_calc.data.statistics import fit
from faenet_calc.elements import symbol

Floats = NDArray[np.float64]

_OUTLIER = 12.0  # robust standard deviations
_OUTLIER_ENERGY = 0.1  # eV per atom, what an outlier differs by at least
_OUTLIER_FORCE, _HUGE_FORCE = 10.0, 100.0  # eV/Å
_GAP_ENERGY = 0.2  # eV per atom, between two meanings of energy
_SURE_ENERGY = 1.0  # eV per atom, more than melting or a surface costs
_HOTTER = 1.5  # times the forces: the group above is not of another meaning but of hotter or strained structures
_GAP_SPREADS = 4.0  # and this many times the widths of both sides together
_GAP_SHARE, _GAP_COUNT = 0.05, 3  # of the structures on either side, otherwise they are outliers
_TRIMMED = 0.1  # share of structures that the references need not fit
_FEW = 10  # structures with an element
_ALIKE = "at equal composition"
_UNITS = {"Hartree": 27.2114, "Rydberg": 13.6057, "kcal/mol": 1 / 23.0605, "kJ/mol": 1 / 96.4853}  # eV
_SAME_SIZE = 2.0  # factor between energies per atom of the same unit
_EXPLAINED = 0.95  # share of the structures that two units must account for


def _labelled(facts: Sequence[Facts]) -> list[Facts]:
    return [fact for fact in facts if np.isfinite(fact.energy) and fact.n_atoms]


def _residuals(facts: Sequence[Facts]) -> Floats:
    """[n] (eV per atom) energies minus references that are fitted without the worst tenth of the structures."""
    compositions = np.array([fact.composition for fact in facts])
    energies = np.array([fact.energy for fact in facts])
    kept = np.ones(len(facts), dtype=bool)
    table = np.zeros(119)
    for _ in range(3):
        fitted = fit(compositions[kept], energies[kept])
        table[fitted.numbers] = fitted.energies
        rest: Floats = (energies - compositions @ table) / compositions.sum(axis=1)
        distance = np.abs(rest - np.median(rest))
        # Elements that only left-out structures have keep their reference from the fit to all.
        kept = distance <= np.quantile(distance, 1 - _TRIMMED)
    return rest


def _robust_z(values: Floats) -> Floats:
    """[n] distance from the median in units of the interquartile range / 1.349 (σ of a normal distribution)."""
    low, middle, high = np.quantile(values, [0.25, 0.5, 0.75])
    z: Floats = np.abs(values - middle) / max((high - low) / 1.349, 1e-12)
    return z


def energy_outliers(facts: Sequence[Facts]) -> Iterator[Finding]:
    """Energies far from all others of the data set."""
    known = _labelled(facts)
    if len(known) < 2 * _FEW or mixture(known):
        return
    rest = _residuals(known)
    distance = np.abs(rest - np.median(rest))
    far = np.flatnonzero((_robust_z(rest) > _OUTLIER) & (distance > _OUTLIER_ENERGY))
    far = far[np.argsort(-distance[far])]
    yield from about(
        "energy-outliers",
        "warning",
        [known[position] for position in far],
        f"energies up to {distance.max():.2f} eV/atom from the rest after element references",
        "look at these structures: unconverged, exploded, or calculated with other settings",
    )


def force_outliers(facts: Sequence[Facts]) -> Iterator[Finding]:
    """Forces far larger than all others."""
    known = [fact for fact in facts if np.isfinite(fact.max_force)]
    if not known:
        return
    largest = np.array([fact.max_force for fact in known])
    z = _robust_z(np.log(np.maximum(largest, 1e-3)))
    far = np.flatnonzero((largest > _HUGE_FORCE) | ((largest > _OUTLIER_FORCE) & (z > 0.5 * _OUTLIER)))
    far = far[np.argsort(-largest[far])]
    yield from about(
        "force-outliers",
        "warning",
        [known[position] for position in far],
        f"forces up to {largest.max():.1f} eV/Å, while half of the structures stay below {np.median(largest):.2f}",
        "a few such forces dominate the loss; remove them unless the model shall learn strong repulsion",
    )


def mixed_energies(facts: Sequence[Facts]) -> Iterator[Finding]:
    """Energies that fall into two groups, e.g. total and adsorption energies, two codes, or two units."""
    known = _labelled(facts)
    mixed = mixture(known)
    changed = list(_changed_meaning(known)) if mixed is None or mixed[2] != _ALIKE else []
    if changed or mixed is None:
        yield from changed
        return
    fewer, gap, where = mixed
    yield from about(
        "mixed-energies",
        "error" if gap >= _SURE_ENERGY else "warning",
        fewer,
        f"energies fall into two groups {gap:.2f} eV/atom apart {where}: two meanings (total, adsorption, formation), "
        "levels of theory, or units",
        "keep one kind of energy in a data set, or name the right one with --energy-key",
    )


def mixed_units(facts: Sequence[Facts]) -> Iterator[Finding]:
    """Energies of which some are in another unit: their ratio to the others is a conversion factor."""
    groups: dict[bytes, list[Facts]] = defaultdict(list)
    for fact in _labelled(facts):
        groups[fact.composition.tobytes()].append(fact)
    if max((len(group) for group in groups.values()), default=0) < 2 * _GAP_COUNT:
        alike: dict[bytes, list[Facts]] = defaultdict(list)
        for fact in _labelled(facts):
            alike[(fact.composition > 0).tobytes()].append(fact)
        groups = alike
    for unit, factor in _UNITS.items():
        fewer = [fact for group in groups.values() for fact in _in_other_unit(group, factor)]
        if len(fewer) >= _GAP_COUNT:
            yield from about(
                "mixed-units",
                "error",
                fewer,
                f"some energies are {max(factor, 1 / factor):.1f} times smaller or larger than those of similar "
                f"structures, the factor between eV and {unit}",
                "convert all energies to eV",
            )
            return


def _in_other_unit(group: Sequence[Facts], factor: float) -> list[Facts]:
    """The smaller part of a group, if the energies per atom of its two parts differ by a factor; otherwise empty."""
    energies = np.array([fact.energy / fact.n_atoms for fact in group])
    if len(group) < 2 * _GAP_COUNT or not energies.all():
        return []
    size = np.sort(np.abs(energies))
    largest, ratio = float(size[-max(1, len(size) // 10)]), max(factor, 1 / factor)
    width = np.log(_SAME_SIZE)
    large = np.abs(np.log(np.abs(energies) / largest)) < width
    small = np.abs(np.log(np.abs(energies) * ratio / largest)) < width
    share = min(large.sum(), small.sum()) / len(group)
    if share < _GAP_SHARE or (large | small).mean() < _EXPLAINED:
        return []
    fewer = small if small.sum() <= large.sum() else large
    return [fact for fact, mine in zip(group, fewer, strict=True) if mine]


def _changed_meaning(known: Sequence[Facts]) -> Iterator[Finding]:
    """Energies whose meaning depends on the presence of an element or on the file."""
    found = find_break(known)
    if found is not None:
        yield from about(
            "mixed-energies",
            "error",
            found.facts,
            f"energies of the structures {found.where} mean something else: {found.words}. Total beside adsorption or "
            "formation energies, two codes, or two sets of pseudopotentials",
            "keep one kind of energy in a data set, or name the right one with --energy-key",
        )


def mixture(known: Sequence[Facts]) -> tuple[list[Facts], float, str] | None:
    """The smaller of two groups of energies, their distance (eV per atom) and where it shows; None for one group.

    Structures of one composition are compared first: there, nothing but the meaning can shift energies so far. Across
    compositions, only one shift that all have in common counts.
    """
    alike: dict[bytes, list[Facts]] = defaultdict(list)
    for fact in known:
        alike[fact.composition.tobytes()].append(fact)
    found = [_minority(group, np.array([fact.energy / fact.n_atoms for fact in group])) for group in alike.values()]
    parts = [part for part in found if part is not None]
    if parts:
        fewer = [fact for group, _ in parts for fact in group]
        return fewer, float(np.median([gap for _, gap in parts])), _ALIKE
    if len(known) < 2 * _FEW or len(alike) < 2:
        return None
    overall = _minority(known, _plain_residuals(known))
    return None if overall is None else (*overall, "after element references")


def _minority(facts: Sequence[Facts], energies: Floats) -> tuple[list[Facts], float] | None:
    """The smaller of two groups of energies (eV per atom) and their distance; None for one, or if forces explain it."""
    parts = _two_groups(energies)
    if parts is None:
        return None
    upper, gap = parts
    forces = np.array([fact.max_force for fact in facts])
    if (
        gap < _SURE_ENERGY
        and np.isfinite(forces).all()
        and np.median(forces[upper]) > _HOTTER * np.median(forces[~upper])
    ):
        return None
    chosen = upper if upper.sum() * 2 <= len(upper) else ~upper
    return [fact for fact, mine in zip(facts, chosen, strict=True) if mine], gap


def _plain_residuals(known: Sequence[Facts]) -> Floats:
    return fit(np.array([fact.composition for fact in known]), np.array([fact.energy for fact in known])).residual


def _two_groups(values: Floats) -> tuple[NDArray[np.bool_], float] | None:
    """Mask of the values above a wide gap and the distance of the medians of both sides; None without such a gap."""
    if len(values) < 2 * _GAP_COUNT:
        return None
    ordered = np.sort(values)
    at = int(np.argmax(np.diff(ordered)))
    lower, upper = ordered[: at + 1], ordered[at + 1 :]
    if min(len(lower), len(upper)) < max(_GAP_COUNT, _GAP_SHARE * len(values)):
        return None
    gap = float(upper[0] - lower[-1])
    width = float(lower.std() + upper.std())
    if gap < max(_GAP_ENERGY, _GAP_SPREADS * width):
        return None
    return values >= upper[0], float(np.median(upper) - np.median(lower))


def references(facts: Sequence[Facts]) -> Iterator[Finding]:
    """Elements whose references the compositions do not determine, and elements in few structures."""
    usable = [fact for fact in facts if not fact.unusable]
    counts = sum(((fact.composition > 0).astype(int) for fact in usable), np.zeros(119, dtype=int))
    few = {symbol(int(z)): int(counts[z]) for z in np.flatnonzero(counts) if z and counts[z] < _FEW}
    if few:
        yield Finding(
            code="few-samples",
            severity="warning",
            count=len(few),
            message=f"elements in fewer than {_FEW} structures: {', '.join(f'{s} {n}' for s, n in few.items())}",
            advice="add data or remove these structures; a model cannot learn such elements",
        )
    known = _labelled(facts)
    if not known:
        return
    compositions = np.array([fact.composition for fact in known])
    fitted = fit(compositions, np.array([fact.energy for fact in known]))
    if fitted.deficient:
        names = ", ".join(_confounded(compositions))
        yield Finding(
            code="rank-deficient",
            severity="warning",
            count=len(fitted.numbers) - fitted.rank,
            message=f"{fitted.rank} independent compositions for {len(fitted.numbers)} elements: the references "
            f"of {names} are not determined",
            advice="a ridge chooses some; energies at other compositions will be off unless you add structures (bulk "
            "elements, molecules, single atoms) that tell these elements apart",
        )


def _confounded(compositions: NDArray[np.int64]) -> list[str]:
    """Symbols of the elements whose reference energies can be changed without changing any energy."""
    numbers = np.flatnonzero(compositions.sum(axis=0))
    fractions = compositions[:, numbers] / compositions.sum(axis=1, keepdims=True)
    _, singular, directions = np.linalg.svd(fractions, full_matrices=True)
    rank = int((singular > 1e-6 * singular[0]).sum())
    free = np.linalg.norm(directions[rank:], axis=0)
    return [symbol(int(z)) for z, share in zip(numbers, free, strict=True) if share > 1e-6]
