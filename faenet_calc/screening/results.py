"""From relaxed structures to rows: adsorption energies, final sites, anomalies, duplicates and the ranking."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
from ase import Atoms
from numpy.typing import NDArray

from faenet_calc.graphs.neighbors import neighbor_list
from faenet_calc.screening.gas import GasReference
from faenet_calc.screening.geometry import lateral_distances
from faenet_calc.screening.placement import Configuration
from faenet_calc.screening.sites import all_sites as sites_of
from faenet_calc.screening.sites import nearest_site
from faenet_calc.screening.surfaces import Slab
from faenet_calc.screening.uncertainty import Uncertainty
from faenet_calc.simulate.relax import RelaxResult

LEFT_SITE = "left-site"
SITE_ERROR_EV = 0.09
"""(eV) standard deviation of the errors among the sites of one slab against DFT (RPBE): catalysis-m has 0.087 on 55
alloy slabs (benchmarks/dft_adsorption.py). The uncertainty of a distilled model is relative to its teacher, without
this."""
RESOLVED_EV = 0.1
"""(eV) sites whose energies differ by less are not distinguished."""
_REPEATS = 64  # independent errors per sample of the correlated ones
_LEFT_A = 0.8  # Å, lateral displacement of the binding atom beyond which it has left its initial site
_SAME_ENERGY_EV = 0.01  # eV, relaxed configurations with energies this close may be duplicates
_SAME_DISTANCE_A = 0.1  # Å, largest difference of the adsorbate's distances in duplicates
_ENVIRONMENT_A = 4.0  # Å, distances up to this length describe where an adsorbate is


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of the table of results.

    Attributes:
        key: Of the configuration.
        slab, adsorbate, site, orientation, coverage: As placed.
        final_site: Kind of the site nearest to the binding atom after relaxation.
        adsorption_energy: (eV) per adsorbate, relative to the clean slab and the gas references.
        uncertainty: (eV) estimated standard deviation of the adsorption energy; None if the model has none.
        most_stable_probability: Probability that this is the most stable of the ranked configurations of its slab,
            adsorbate and coverage, given the uncertainties, their correlation, and independent errors of
            :data:`SITE_ERROR_EV`; None without uncertainty or rank.
        energy: (eV) total energy of the relaxed structure.
        converged, n_steps, fmax, wall_s: Of the relaxation; steps with one frame and with all frames are counted.
        anomalies: Flags of the relaxation, and ``left-site``.
        duplicate_of: Key of the configuration of lowest energy with the same relaxed structure.
        rank: 1 for the most stable configuration of a slab, adsorbate and coverage; None for failed, anomalous and
            duplicate ones.
        environment: Sorted distances (Å) from the adsorbate to the slab, which identify duplicates.
        error_samples: Possible errors (eV) of the adsorption energy, see ``uncertainty``.
        error: Why the configuration could not be computed.
    """

    key: str
    slab: str
    adsorbate: str
    site: str
    orientation: str
    coverage: int
    final_site: str | None = None
    adsorption_energy: float | None = None
    uncertainty: float | None = None
    most_stable_probability: float | None = None
    energy: float | None = None
    converged: bool = False
    n_steps: int = 0
    fmax: float | None = None
    wall_s: float = 0.0
    anomalies: tuple[str, ...] = ()
    duplicate_of: str | None = None
    rank: int | None = None
    environment: tuple[float, ...] = field(default=(), repr=False)
    error_samples: tuple[float, ...] = field(default=(), repr=False)
    error: str | None = None

    def to_json(self) -> dict[str, Any]:
        """The row as JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "Row":
        """The inverse of :meth:`to_json`."""
        listed = {name: tuple(values.get(name, ())) for name in ("anomalies", "environment", "error_samples")}
        return cls(**{**values, **listed})


def row_of(
    configuration: Configuration,
    slab: Slab,
    binding: int,
    result: RelaxResult,
    slab_energy: float,
    gas: GasReference,
    uncertainty: Uncertainty | None = None,
) -> Row:
    """The row of a finished relaxation.

    Args:
        configuration: Initial structure.
        slab: Its clean slab.
        binding: Index of the binding atom within the adsorbate.
        result: Of the relaxation.
        slab_energy: Energy of the relaxed clean slab (eV).
        gas: Gas references.
        uncertainty: Of the adsorption energy.
    """
    n_steps = result.n_prerelax_steps + result.n_steps
    row = replace(
        _bare(configuration), n_steps=n_steps, wall_s=result.wall_s, converged=result.converged, error=result.error
    )
    if not math.isfinite(result.energy):
        return replace(row, converged=False, error=result.error or "the relaxation has no energy")
    n_slab = len(slab.atoms)
    symbols = configuration.atoms.get_chemical_symbols()[n_slab:]
    start, end = (atoms.positions[n_slab + binding] for atoms in (configuration.atoms, result.atoms))
    moved = float(lateral_distances(end[None], start, slab.atoms.cell.array)[0])
    left = (LEFT_SITE,) if moved > _LEFT_A else ()
    return replace(
        row,
        energy=result.energy,
        adsorption_energy=(result.energy - slab_energy - gas.of(symbols)) / configuration.coverage,
        uncertainty=None if uncertainty is None else uncertainty.deviation,
        error_samples=() if uncertainty is None else tuple(np.round(uncertainty.samples, 5).tolist()),
        fmax=result.fmax,
        final_site=nearest_site(slab.atoms, end, sites_of(slab.atoms)).kind,
        anomalies=(*result.anomalies, *left),
        environment=environment(result.atoms, n_slab),
    )


def failed_row(configuration: Configuration, error: str) -> Row:
    """The row of a configuration that could not be computed."""
    return replace(_bare(configuration), error=error)


def _bare(one: Configuration) -> Row:
    return Row(
        key=one.key,
        slab=one.slab,
        adsorbate=one.adsorbate,
        site=one.site,
        orientation=one.orientation,
        coverage=one.coverage,
    )


def environment(atoms: Atoms, n_slab: int) -> tuple[float, ...]:
    """Sorted distances (Å) of adsorbate atoms to slab atoms, separate by elements: equal for equivalent structures."""
    edges = neighbor_list(atoms.positions, atoms.cell.array, atoms.pbc, _ENVIRONMENT_A)
    between = (edges.centre >= n_slab) & (edges.neighbor < n_slab)
    centre, neighbor, distance = edges.centre[between], edges.neighbor[between], edges.distance[between]
    # Pairs of other elements are shifted apart by more than any distance, so that sorting keeps them separate.
    kind = 10.0 * (128 * atoms.numbers[centre] + atoms.numbers[neighbor])
    values: NDArray[np.float64] = np.sort(kind + distance)
    return tuple(np.round(values, 3).tolist())


def finished_table(rows: Iterable[Row]) -> list[Row]:
    """Mark duplicates and rank: sorted by slab, adsorbate, coverage and adsorption energy, failures last."""
    table: list[Row] = []
    systems: dict[tuple[str, str, int], list[Row]] = {}
    for row in rows:
        systems.setdefault((row.slab, row.adsorbate, row.coverage), []).append(row)
    for name in sorted(systems):
        members = sorted(systems[name], key=lambda row: (_order(row), row.key))
        table += _with_probabilities(_ranked(members))
    return table


def _order(row: Row) -> float:
    return math.inf if row.adsorption_energy is None else row.adsorption_energy


def _ranked(members: Sequence[Row]) -> list[Row]:
    distinct: list[Row] = []
    ranked: list[Row] = []
    rank = 0
    for row in members:
        if row.adsorption_energy is None:
            ranked.append(row)
            continue
        twin = next((other for other in distinct if _same(row, other)), None)
        if twin is not None:
            ranked.append(replace(row, duplicate_of=twin.key))
            continue
        distinct.append(row)
        sound = row.converged and row.error is None and not set(row.anomalies) - {LEFT_SITE}
        rank += sound
        ranked.append(replace(row, rank=rank if sound else None))
    return ranked


def _with_probabilities(members: Sequence[Row]) -> list[Row]:
    """Fill in how often each ranked configuration has the lowest energy when all energies vary by their errors.

    Each sample of the correlated errors is combined with ``_REPEATS`` samples of independent ones.
    """
    ranked = [index for index, row in enumerate(members) if row.rank is not None]
    samples = [members[index].error_samples for index in ranked]
    if not ranked or not all(samples):
        return list(members)
    energies = np.array([members[index].adsorption_energy for index in ranked])
    errors = np.repeat(np.array(samples), _REPEATS, axis=1)
    errors += np.random.default_rng(0).normal(0.0, SITE_ERROR_EV, errors.shape)
    winners = np.argmin(energies[:, None] + errors, axis=0)
    shares = np.bincount(winners, minlength=len(ranked)) / len(winners)
    filled = dict(zip(ranked, shares.tolist(), strict=True))
    return [replace(row, most_stable_probability=filled.get(index)) for index, row in enumerate(members)]


def not_distinguished(rows: Sequence[Row], best: Row) -> list[str]:
    """Other sites whose lowest ranked energy is within ``RESOLVED_EV`` of the most stable one, nearest first."""
    assert best.adsorption_energy is not None
    found = [
        row.final_site or row.site
        for row in rows
        if (row.slab, row.adsorbate, row.coverage) == (best.slab, best.adsorbate, best.coverage)
        and row.rank is not None
        and row.adsorption_energy is not None
        and row.adsorption_energy < best.adsorption_energy + RESOLVED_EV
    ]
    return [site for site in dict.fromkeys(found) if site != (best.final_site or best.site)]


def _same(one: Row, other: Row) -> bool:
    """Whether two relaxed configurations are the same structure."""
    assert one.energy is not None and other.energy is not None
    flags = [set(row.anomalies) - {LEFT_SITE} for row in (one, other)]
    if flags[0] != flags[1] or abs(one.energy - other.energy) > _SAME_ENERGY_EV:
        return False
    # A distance near the end of the range may be present in only one of the two: compare the inner part.
    inner = [np.array([v for v in row.environment if v % 10.0 < _ENVIRONMENT_A - 0.2]) for row in (one, other)]
    return len(inner[0]) == len(inner[1]) and bool((np.abs(inner[0] - inner[1]) < _SAME_DISTANCE_A).all())
