"""From slabs and adsorbates to a table of relaxed, flagged adsorption energies."""

import itertools
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from ase import Atoms
from ase.io import write

from faenet_calc.calculator import FAENetCalculator
from faenet_calc.errors import InputError, counted
from faenet_calc.files import write_atomically
from faenet_calc.graphs.reading import read_structures
from faenet_calc.screening.adsorbates import Adsorbate, adsorbate
from faenet_calc.screening.dask_runner import dask_client, run_on_dask, warm_up
from faenet_calc.screening.export import check_export, export_best
from faenet_calc.screening.gas import GasReference, gas_molecules, gas_reference, reference_molecules
from faenet_calc.screening.placement import Configuration, configurations
from faenet_calc.screening.results import Row
from faenet_calc.screening.sites import distinct_sites
from faenet_calc.screening.store import ScreenStore
from faenet_calc.screening.surfaces import Slab, standard_slab
from faenet_calc.screening.uncertainty import reference_vectors
from faenet_calc.screening.watching import watched
from faenet_calc.screening.worker import Context, RelaxSettings, calculator_of, relax_chunk
from faenet_calc.simulate.batch import relax_batch

log = logging.getLogger(__name__)

CHUNK = 16
"""Configurations per chunk: enough to fill a batch, few enough that a lost worker loses little."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ScreenResult:
    """What a screening found.

    Attributes:
        folder: Where its files are.
        rows: The table, sorted by slab, adsorbate, coverage and adsorption energy.
        gas: Gas references of the adsorption energies.
    """

    folder: Path
    rows: list[Row]
    gas: GasReference

    def best(self, count: int = 1) -> list[Row]:
        """The most stable sound configurations of every slab, adsorbate and coverage."""
        return [row for row in self.rows if row.rank is not None and row.rank <= count]


def screen(
    slabs: Iterable[Slab | Atoms | str | Path],
    adsorbates: Iterable[Adsorbate | str],
    out_dir: str | Path,
    *,
    calculator: Any = None,
    device: str | None = None,
    settings: RelaxSettings | None = None,
    rotations: int = 2,
    coverages: Sequence[int] = (1,),
    min_width_A: float = 0.0,
    gas: Mapping[str, str] | None = None,
    workers: int = 1,
    scheduler: str | None = None,
    slurm: dict[str, str] | None = None,
    threads: int | None = None,
    shard: tuple[int, int] | None = None,
    resume: bool = False,
    top: int | None = None,
    export: str | None = None,
    progress: bool = False,
) -> ScreenResult:
    """Relax every adsorbate on every site of every slab and tabulate adsorption energies.

    Args:
        slabs: Clean slabs: structures, files, or slabs from ``surfaces.cut_slab``.
        adsorbates: Names, files (``FILE:0,1`` names the binding atoms) or adsorbates.
        out_dir: Folder of the results, see ``store``.
        calculator: FAENetCalculator, checkpoint or shipped name; None for the default model.
        device: Torch device; None for the best available.
        settings: Of the relaxations.
        rotations: Orientations about the surface normal of adsorbates that are not axial.
        coverages: Numbers of adsorbates per cell.
        min_width_A: Repeat given slabs in the plane until both heights of the cell reach this length (Å).
        gas: Element -> gas molecule, in place of the defaults of ``gas``.
        workers: Worker processes; 1 without ``scheduler`` and ``slurm`` computes in this process.
        scheduler: Address of a running Dask scheduler.
        slurm: Options of SLURM jobs, see ``dask_runner.slurm_cluster``.
        threads: Torch threads per worker; None for 1 with several workers.
        shard: (i, n): compute the i-th of n parts only, counted from 0; all parts share ``out_dir``.
        resume: Continue the screening in ``out_dir``; finished configurations are not computed again.
        top: Export this many of the most stable configurations of every slab, adsorbate and coverage.
        export: Format of the export: ``vasp`` or ``espresso``.
        progress: Show progress bars of the references and of the configurations on stderr.

    Raises:
        InputError: For inputs that cannot be read, or a folder that holds another screening.
    """
    settings = settings or RelaxSettings()
    check_export(export, top)
    for name, given in {"slabs": slabs, "adsorbates": adsorbates}.items():
        if isinstance(given, str | Path | Atoms | Slab | Adsorbate):
            what = repr(given) if isinstance(given, str) else f"one {type(given).__name__}"
            raise InputError(f"{name} is {what}, expected a list: put it in brackets")
    chosen_slabs = _named([_as_slab(one, min_width_A) for one in slabs])
    chosen_adsorbates = {one.name: one for one in map(_as_adsorbate, adsorbates)}
    if not chosen_slabs or not chosen_adsorbates:
        raise InputError("a screening needs at least one slab and one adsorbate")
    elements = {symbol for one in chosen_adsorbates.values() for symbol in one.atoms.get_chemical_symbols()}
    molecules = reference_molecules(elements, gas)
    calc = calculator_of(calculator, device)
    store = ScreenStore(out_dir)
    inputs = _inputs(chosen_slabs, chosen_adsorbates, molecules, settings, calc, rotations, coverages)
    store.begin(inputs, resume=resume or shard is not None)
    distributed = workers > 1 or scheduler is not None or slurm is not None
    with ExitStack() as stack:
        client = None
        if distributed:
            client = stack.enter_context(dask_client(workers=workers, scheduler=scheduler, slurm=slurm))
            warm_up(client, calculator, device)  # while this process computes the references
        context = _context(
            store,
            model=calculator,
            device=device,
            threads=1 if distributed and threads is None else threads,
            calc=calc,
            settings=settings,
            slabs=chosen_slabs,
            adsorbates=chosen_adsorbates,
            molecules=molecules,
            progress=progress,
        )
        own = partial(_configurations, context, chosen_adsorbates, rotations, coverages, shard)
        if progress or log.isEnabledFor(logging.INFO):
            stack.enter_context(watched(store.folder, {one.key for one in own()}, shown=progress))
        todo = _pending(context, own(), store.finished())
        if client is not None:
            run_on_dask(client, context, _chunks(todo, CHUNK))
        else:
            for chunk in _chunks(todo, CHUNK):
                relax_chunk(context, chunk)
    result = ScreenResult(folder=store.folder, rows=store.write_tables(), gas=context.gas)
    if export is not None:
        export_best(store, result.best(top or 1), export)
    return result


def merge_screen(folder: str | Path) -> ScreenResult:
    """Rebuild the tables of a screening from its journals, e.g. after all shards are finished."""
    store = ScreenStore(folder)
    inputs, references = store.inputs(), store.references()
    if references is None:
        raise InputError(f"{folder}: nothing is finished yet; references.json is missing")
    return ScreenResult(
        folder=store.folder, rows=store.write_tables(), gas=gas_reference(inputs["gas"], references["gas"])
    )


def _context(
    store: ScreenStore,
    *,
    model: Any,
    device: str | None,
    threads: int | None,
    calc: FAENetCalculator,
    settings: RelaxSettings,
    slabs: Mapping[str, Slab],
    adsorbates: Mapping[str, Adsorbate],
    molecules: Mapping[str, str],
    progress: bool,
) -> Context:
    """Relax the clean slabs and the gas molecules, unless the store has their energies."""
    known = store.references()
    if known is None:
        names = list(slabs)
        relaxed = relax_batch(
            [slabs[name].atoms for name in names],
            calc,
            optimizer=settings.optimizer,
            fmax=min(settings.fmax, 0.02),
            steps=settings.steps,
            tags="atoms",
            progress="clean slabs" if progress else False,
        )
        energies = {name: _energy_or_reason(one) for name, one in zip(names, relaxed, strict=True)}
        gases = gas_molecules(molecules)
        title = "gas references" if progress else False
        results = relax_batch(gases.values(), calc, optimizer="BFGS", fmax=0.01, steps=settings.steps, progress=title)
        gas_energies = {name: _energy_or_reason(one) for name, one in zip(gases, results, strict=True)}
        failed = {name: value for name, value in gas_energies.items() if isinstance(value, str)}
        if failed:
            reasons = "; ".join(f"gas reference {name}: {reason}" for name, reason in failed.items())
            raise InputError(
                f"{reasons}. Allow more steps (--steps), or choose other molecules with --gas ELEMENT=MOLECULE "
                "(gas= in Python)."
            )
        for name, energy in {**energies, **gas_energies}.items():
            log.info("reference %s: %s", name, energy if isinstance(energy, str) else f"{energy:.4f} eV")
        known = {"slabs": energies, "gas": gas_energies}
        structures = {
            "slabs": {name: one.atoms for name, one in zip(names, relaxed, strict=True)},
            "gas": {name: one.atoms for name, one in zip(gases, results, strict=True)},
        }
        store.save_references(known, structures)
    sound = {
        name: atoms
        for name, atoms in store.reference_structures("slabs").items()
        if not isinstance(known["slabs"][name], str)
    }
    return Context(
        folder=store.folder,
        model=model,
        device=device,
        threads=threads,
        settings=settings,
        slabs=dict(slabs),
        slab_energies=known["slabs"],
        gas=gas_reference(molecules, known["gas"]),
        vectors=reference_vectors(calc, sound, store.reference_structures("gas")),
        binding={name: one.binding[0] for name, one in adsorbates.items()},
    )


def _energy_or_reason(result: Any) -> float | str:
    if result.error is not None:
        return str(result.error)
    if not result.converged:
        return f"not converged after {counted(result.n_steps, 'step')} (largest force {result.fmax:.3f} eV/Å)"
    return float(result.energy)


def _configurations(
    context: Context,
    adsorbates: Mapping[str, Adsorbate],
    rotations: int,
    coverages: Sequence[int],
    shard: tuple[int, int] | None,
) -> Iterator[Configuration]:
    """The configurations of a shard, or all of them, built as they are needed."""
    number = 0
    for slab in context.slabs.values():
        sites = distinct_sites(slab.atoms)
        for one, coverage in itertools.product(adsorbates.values(), coverages):
            for configuration in configurations(slab, one, rotations=rotations, coverage=coverage, sites=sites):
                number += 1
                if shard is None or number % shard[1] == shard[0]:
                    yield configuration


def _pending(context: Context, configurations: Iterable[Configuration], finished: set[str]) -> Iterator[Configuration]:
    """Configurations that are not finished; their initial structures are written."""
    for configuration in configurations:
        if configuration.key not in finished:
            path = context.folder / "initial" / f"{configuration.key}.extxyz"
            write_atomically(path, partial(_write_extxyz, configuration.atoms))
            yield configuration


def _write_extxyz(atoms: Atoms, path: Path) -> None:
    write(path, atoms, format="extxyz")


def _chunks(items: Iterable[Configuration], size: int) -> Iterator[list[Configuration]]:
    iterator = iter(items)
    while chunk := list(itertools.islice(iterator, size)):
        yield chunk


def _as_slab(one: Slab | Atoms | str | Path, min_width_A: float) -> Slab:
    if isinstance(one, Slab):
        return one
    if isinstance(one, Atoms):
        return Slab(name=str(one.symbols), atoms=standard_slab(one, min_width_A=min_width_A), source="structure")
    (item,) = read_structures([str(one)])
    return Slab(name=Path(one).stem, atoms=standard_slab(item.atoms, min_width_A=min_width_A), source=str(one))


def _named(slabs: Sequence[Slab]) -> dict[str, Slab]:
    """Slabs by name; equal names are numbered."""
    named: dict[str, Slab] = {}
    for slab in slabs:
        name, number = slab.name, 2
        while name in named:
            name, number = f"{slab.name}-{number}", number + 1
        named[name] = Slab(name=name, atoms=slab.atoms, source=slab.source)
    return named


def _as_adsorbate(one: Adsorbate | str) -> Adsorbate:
    if isinstance(one, Adsorbate):
        return one
    name, colon, indices = one.rpartition(":")
    if colon and indices.replace(",", "").isdigit():
        return adsorbate(name, tuple(int(index) for index in indices.split(",")))
    return adsorbate(one)


def _inputs(
    slabs: Mapping[str, Slab],
    adsorbates: Mapping[str, Adsorbate],
    molecules: Mapping[str, str],
    settings: RelaxSettings,
    calc: FAENetCalculator,
    rotations: int,
    coverages: Sequence[int],
) -> dict[str, Any]:
    """Everything that defines the results, as JSON values."""
    return {
        "slabs": {name: {"source": one.source, "structure": _structure(one.atoms)} for name, one in slabs.items()},
        "adsorbates": {
            name: {"binding": list(one.binding), "structure": _structure(one.atoms)} for name, one in adsorbates.items()
        },
        "gas": dict(molecules),
        "relax": asdict(settings),
        "rotations": rotations,
        "coverages": list(coverages),
        "model": {key: calc.info[key] for key in ("names", "dtype", "frames", "level_of_theory", "energy_reference")}
        | {"sha256": [member.metadata.get("sha256") for member in calc.predictor.committee.members]},
    }


def _structure(atoms: Atoms) -> dict[str, Any]:
    return {
        "symbols": str(atoms.symbols),
        "positions": np.round(atoms.positions, 6).tolist(),
        "cell": np.round(atoms.cell.array, 6).tolist(),
    }
