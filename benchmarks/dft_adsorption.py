"""Adsorption energies and site preferences against DFT (RPBE).

    python benchmarks/dft_adsorption.py metals-m metals-s --data DIR [--relax] [-o DIR] [--plot parity.svg]
    python benchmarks/dft_adsorption.py metals-m --data DIR --references nequix-oam-1 CHGNet-0.3.0 --weights DIR

DIR holds two sets of relaxed (111) slabs of 45 atoms, computed with GPAW (plane waves, RPBE) and published without a
licence: use them to evaluate, do not redistribute them and do not train shipped models on them.

    alloys-o-oh/visible.extxyz.xz      O (fcc) and OH (on top) on Ag-Ir-Pd-Pt-Ru alloys
                                       (GitHub catalyticmaterials/AgPdPtRu_ORR, doi 10.1002/anie.202307187)
    alloys-co-h-no/visible.extxyz.xz   CO (on top), H and NO (fcc) on Ag-Au-Cu-Pd-Pt and on the pure metals
                                       (GitHub catalyticmaterials/CN_coupling_on_HEA, doi 10.1016/j.jcat.2024.115322)

The adsorption energy is E(slab with adsorbate) − E(clean slab), both at the DFT geometry or, with --relax, both relaxed
from there by the model (lower layers fixed as in the DFT calculation). The gas-phase energy is not included, so one
constant per adsorbate is removed: the mean of prediction − DFT over the pairs compared. Errors therefore measure
differences between surfaces and sites, not the absolute strength of adsorption. For each surface and adsorbate,
--slabs slabs per element of the alloy are taken evenly from the list, with --sites sites of each; pure metals are all
taken.

Columns: pairs; MAE, RMSE and largest error (eV); Spearman rank correlation; standard deviation of the DFT energies
(eV); `same_site`: slabs for which the model picks DFT's most stable site, of the slabs with several sites of an
adsorbate, the mean DFT energy of the picked site above the most stable one (eV), and `site_error_eV`: standard
deviation of the errors among the sites of one slab. `moved` counts adsorbates that a
relaxation displaces by more than 0.5 Å, usually to another site; the row "not moved" is without them. `failed` counts
relaxations that did not converge; these are left out. If a model has a domain guard, `outside` counts the structures
with adsorbate that it marks as outside its domain.

A model is compared on the pairs whose elements it was trained on. References (nequix, CHGNet, SevenNet, MatterSim)
need their packages and are evaluated at the DFT geometries, with the vacuum direction made periodic (nequix ignores the
cell otherwise). `A+B` is the mean of two references. --weights is the folder with nequix-oam-1.nqx and
mattersim-v1.0.0-5M.pth.

With -o, the rows of each model are written to DIR/MODEL-dft_adsorption.jsonl.
"""

import argparse
import shutil
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TypeVar

import ase.io
import numpy as np
import torch
from ase import Atoms
from ase.calculators.calculator import Calculator
from ase.calculators.mixing import AverageCalculator
from ase.constraints import FixAtoms
from ase.geometry import find_mic
from matplotlib import rc_context
from matplotlib.figure import Figure
from numpy.typing import NDArray
from rows import Row, Rows, model_words, rounded
from scipy.stats import spearmanr

from faenet_calc import FAENetCalculator, relax_batch
from faenet_calc.errors import InputError
from faenet_calc.files import source_for_ase
from faenet_calc.memory import keep_freed_memory
from faenet_calc.reports.plots import COLORS, STYLE

Floats = NDArray[np.float64]
Item = TypeVar("Item")

ADSORBATES = ("O", "OH", "CO", "H", "NO")
NONMETALS = (1, 6, 7, 8)
ALLOYS, PURE = "Ag-Au-Cu-Pd-Pt", "pure metals"
FMAX, STEPS = 0.03, 300
MOVED_A = 0.5
SETTINGS: Row = {"functional": "RPBE", "aligned": "one constant per adsorbate"}


@dataclass(frozen=True, kw_only=True, eq=False)
class Pair:
    """Slab with an adsorbate and the same slab without it.

    Attributes:
        adsorbate: One of :data:`ADSORBATES`.
        surface: Elements of the alloy, or "pure metals".
        slab: Identifier of the clean slab.
        atoms: With adsorbate, at the DFT minimum, with the fixed atoms as a constraint.
        clean: Without adsorbate, likewise.
        energy: E(atoms) − E(clean) of DFT (eV).
    """

    adsorbate: str
    surface: str
    slab: str
    atoms: Atoms
    clean: Atoms
    energy: float


def read_pairs(folder: Path) -> list[Pair]:
    """All pairs of both sets.

    Raises:
        InputError: A file is missing.
    """
    pairs = []
    for name, key_of in (("alloys-o-oh", _o_oh_key), ("alloys-co-h-no", _co_h_no_key)):
        file = folder / name / "visible.extxyz.xz"
        if not file.is_file():
            raise InputError(f"{file} is missing; --data expects the folder that holds {name} (see --help)")
        pairs += join(ase.io.read(source_for_ase(file, "extxyz"), ":", format="extxyz"), key_of)
    return pairs


def join(structures: Iterable[Atoms], key_of: Callable[[Atoms], tuple[str, str, str] | None]) -> list[Pair]:
    """Pair structures with their clean slabs; those without one are left out.

    Args:
        structures: With energies.
        key_of: Adsorbate ("" if clean), surface and slab of a structure; None for other structures.
    """
    keys = [(key_of(atoms), atoms) for atoms in structures]
    clean = {(surface, slab): atoms for (adsorbate, surface, slab), atoms in _known(keys) if not adsorbate}
    return [
        Pair(
            adsorbate=adsorbate,
            surface=surface,
            slab=slab,
            atoms=_bare(atoms),
            clean=_bare(clean[surface, slab]),
            energy=atoms.get_potential_energy() - clean[surface, slab].get_potential_energy(),
        )
        for (adsorbate, surface, slab), atoms in _known(keys)
        if adsorbate and (surface, slab) in clean
    ]


def _known(
    keys: Sequence[tuple[tuple[str, str, str] | None, Atoms]],
) -> Iterable[tuple[tuple[str, str, str], Atoms]]:
    return ((key, atoms) for key, atoms in keys if key is not None)


def _o_oh_key(atoms: Atoms) -> tuple[str, str, str] | None:
    info = atoms.info
    if "ads" not in info:
        return None
    names = [info["db"][start : start + 2].capitalize() for start in range(0, len(info["db"]), 2)]
    return "" if info["ads"] == "N/A" else str(info["ads"]), "-".join(names), str(info["slabId"])


def _co_h_no_key(atoms: Atoms) -> tuple[str, str, str] | None:
    info = atoms.info
    adsorbates = {"slabs": "", "CO": "CO", "H": "H", "NO_fcc": "NO"}
    kind = str(info["db"]).removeprefix("single_element_")
    if kind not in adsorbates:
        return None
    surface, slab = (PURE, info["metal"]) if "metal" in info else (ALLOYS, info["slab_idx"])
    return adsorbates[kind], surface, str(slab)


def _bare(atoms: Atoms) -> Atoms:
    """The structure with its fixed atoms as a constraint, without labels and tags."""
    bare = Atoms(atoms.numbers, positions=atoms.positions, cell=atoms.cell, pbc=atoms.pbc)
    bare.set_constraint(FixAtoms(mask=atoms.arrays["fixed"].astype(bool)))
    return bare


def choose(pairs: Sequence[Pair], slabs: int, sites: int) -> list[Pair]:
    """``slabs`` slabs per element of each surface, for each adsorbate and taken evenly, with ``sites`` sites of each.

    Slabs with fewer sites are taken only if no slab of the surface has as many. Of pure metals, all are taken.
    """
    groups: dict[tuple[str, str], dict[str, list[Pair]]] = {}
    for pair in pairs:
        groups.setdefault((pair.surface, pair.adsorbate), {}).setdefault(pair.slab, []).append(pair)
    chosen = []
    for (surface, _), members in groups.items():
        enough = min(sites, max(len(found) for found in members.values()))
        names = sorted(name for name, found in members.items() if len(found) >= enough)
        for name in names if surface == PURE else _evenly(names, slabs * len(surface.split("-"))):
            chosen += _evenly(members[name], sites)
    return chosen


def _evenly(items: Sequence[Item], count: int) -> list[Item]:
    if count >= len(items):
        return list(items)
    return [items[index] for index in np.linspace(0, len(items) - 1, count).astype(int)]


@dataclass(frozen=True, kw_only=True, eq=False)
class Outcome:
    """Adsorption energies of one model for pairs, before alignment.

    Attributes:
        model: Name.
        geometry: "DFT" or "relaxed".
        pairs: The pairs that were computed.
        energies: [n_pairs] E(atoms) − E(clean) (eV).
        counts: Further counts, e.g. ``outside``, ``moved``, ``failed``.
        moved: [n_pairs] Whether the adsorbate left its site; None at the DFT geometry.
    """

    model: str
    geometry: str
    pairs: Sequence[Pair]
    energies: Floats
    counts: Mapping[str, int]
    moved: NDArray[np.bool_] | None = None


def at_dft_geometry(model: str, calculator: Calculator, pairs: Sequence[Pair]) -> Outcome:
    """Energies at the DFT geometries."""
    structures, index_of = _structures(pairs)
    if isinstance(calculator, FAENetCalculator):
        results = calculator.predict(structures, ("energy",))
    else:
        results = [{"energy": _closed_energy(calculator, atoms)} for atoms in structures]
    energies = np.array([result["energy"] for result in results], dtype=float)
    counts = {}
    if all("domain" in result for result in results):
        counts["outside"] = sum(results[index_of[id(pair.atoms)]]["domain"] == "outside" for pair in pairs)
    return Outcome(
        model=model, geometry="DFT", pairs=pairs, energies=_differences(energies, pairs, index_of), counts=counts
    )


def relaxed(model: str, calculator: FAENetCalculator, pairs: Sequence[Pair]) -> Outcome:
    """Energies of slabs with and without adsorbate, both relaxed by the model from the DFT geometry."""
    structures, index_of = _structures(pairs)
    results = relax_batch(structures, calculator, fmax=FMAX, steps=STEPS, one_frame_first=True)
    energies = np.array([result.energy if result.converged else np.nan for result in results])
    found = _differences(energies, pairs, index_of)
    done = np.isfinite(found)
    finished = [pair for pair, good in zip(pairs, done, strict=True) if good]
    moved = [_displacement(pair.atoms, results[index_of[id(pair.atoms)]].atoms) > MOVED_A for pair in finished]
    return Outcome(
        model=model,
        geometry="relaxed",
        pairs=finished,
        energies=found[done],
        counts={"moved": sum(moved), "failed": int((~done).sum())},
        moved=np.array(moved, dtype=bool),
    )


def _structures(pairs: Sequence[Pair]) -> tuple[list[Atoms], dict[int, int]]:
    """Different structures of all pairs (a clean slab is shared by its sites), and where each object is in the list."""
    clean = {(pair.surface, pair.slab): pair.clean for pair in pairs}
    structures = [*(pair.atoms for pair in pairs), *clean.values()]
    place = {id(atoms): index for index, atoms in enumerate(structures)}
    for pair in pairs:
        place[id(pair.clean)] = place[id(clean[pair.surface, pair.slab])]
    return structures, place


def _differences(energies: Floats, pairs: Sequence[Pair], index_of: Mapping[int, int]) -> Floats:
    return np.array([energies[index_of[id(pair.atoms)]] - energies[index_of[id(pair.clean)]] for pair in pairs])


def _displacement(before: Atoms, after: Atoms) -> float:
    """Largest displacement of an adsorbate atom (Å)."""
    adsorbate = np.isin(before.numbers, NONMETALS)
    return float(find_mic((after.positions - before.positions)[adsorbate], before.cell, before.pbc)[1].max())


def _closed_energy(calculator: Calculator, atoms: Atoms) -> float:
    """Energy (eV) of the structure with its vacuum made periodic."""
    closed = Atoms(atoms.numbers, positions=atoms.positions, cell=atoms.cell, pbc=True)
    closed.calc = calculator
    return float(closed.get_potential_energy())


def aligned(pairs: Sequence[Pair], energies: Floats) -> tuple[Floats, Floats]:
    """DFT and predicted adsorption energies (eV), each minus its mean over the pairs of the same adsorbate."""
    names = np.array([pair.adsorbate for pair in pairs])
    dft, model = np.array([pair.energy for pair in pairs]), np.array(energies, dtype=float)
    for name in set(names):
        dft[names == name] -= dft[names == name].mean()
        model[names == name] -= model[names == name].mean()
    return dft, model


@dataclass(frozen=True)
class SitePreference:
    """How a model orders the sites of one slab.

    Attributes:
        same: Slabs with the same most stable site as in DFT.
        slabs: Slabs with several sites.
        loss: (eV) mean DFT energy lost by the pick.
        error: (eV) standard deviation of the errors among the sites of one slab.
    """

    same: int
    slabs: int
    loss: float
    error: float


def site_preference(pairs: Sequence[Pair], energies: Floats) -> SitePreference:
    """Compare the sites of every slab and adsorbate that has several."""
    sites: dict[tuple[str, str, str], list[int]] = {}
    for index, pair in enumerate(pairs):
        sites.setdefault((pair.surface, pair.slab, pair.adsorbate), []).append(index)
    losses, variances = [], []
    for members in (members for members in sites.values() if len(members) > 1):
        dft = np.array([pairs[index].energy for index in members])
        losses.append(float(dft[np.argmin(energies[members])] - dft.min()))
        variances.append(float(np.var(energies[members] - dft, ddof=1)))
    loss, variance = (float(np.mean(values)) if values else 0.0 for values in (losses, variances))
    return SitePreference(same=sum(lost == 0.0 for lost in losses), slabs=len(losses), loss=loss, error=variance**0.5)


def summarize(outcome: Outcome) -> list[Row]:
    """Rows of all pairs, of each adsorbate and of each surface; the alignment is that of all pairs."""
    dft, model = aligned(outcome.pairs, outcome.energies)
    groups = {"all": np.arange(len(dft))}
    if outcome.moved is not None and outcome.moved.any():
        groups["not moved"] = np.flatnonzero(~outcome.moved)
    for kind in ("adsorbate", "surface"):
        names = np.array([getattr(pair, kind) for pair in outcome.pairs])
        order = [name for name in ADSORBATES if name in names] if kind == "adsorbate" else sorted(set(names))
        groups |= {f"{kind}={name}": np.flatnonzero(names == name) for name in order}
    return [
        {
            "row": "group",
            "model": outcome.model,
            "geometry": outcome.geometry,
            "case": case,
            **rounded(_errors(dft[members], model[members])),
            **_preference_row([outcome.pairs[index] for index in members], outcome.energies[members]),
            **(outcome.counts if case == "all" else {}),
        }
        for case, members in groups.items()
    ]


def _errors(dft: Floats, model: Floats) -> Row:
    error = model - dft
    return {
        "pairs": len(error),
        "mae_eV": float(np.abs(error).mean()),
        "rmse_eV": float(np.sqrt(np.square(error).mean())),
        "max_eV": float(np.abs(error).max()),
        "rank_correlation": float(spearmanr(dft, model).statistic) if len(error) > 2 else None,
        "dft_std_eV": float(dft.std()),
    }


def _preference_row(pairs: Sequence[Pair], energies: Floats) -> Row:
    found = site_preference(pairs, energies)
    if not found.slabs:
        return {}
    return {
        "same_site": found.same,
        "slabs_with_sites": found.slabs,
        "site_loss_eV": round(found.loss, 4),
        "site_error_eV": round(found.error, 4),
    }


def _nequix(weights: Path) -> Calculator:
    # nequix converts the weights and saves the result beside them: work on a copy.
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(shutil.copy(weights / "nequix-oam-1.nqx", folder))
        module = import_module("nequix.calculator")
        return module.NequixCalculator("nequix-oam-1", copy, backend="torch", use_kernel=False)


REFERENCES: dict[str, Callable[[Path], Calculator]] = {
    "nequix-oam-1": _nequix,
    "CHGNet-0.3.0": lambda _: import_module("chgnet.model.dynamics").CHGNetCalculator(use_device="cpu"),
    "SevenNet-0": lambda _: import_module("sevenn.calculator").SevenNetCalculator("7net-0", device="cpu"),
    "MatterSim-v1-5M": lambda weights: import_module("mattersim.forcefield").MatterSimCalculator(
        load_path=str(weights / "mattersim-v1.0.0-5M.pth"), device="cpu"
    ),
}


def reference(name: str, weights: Path) -> Calculator:
    """A reference, or the mean of several whose names are joined by ``+``."""
    members = [REFERENCES[member](weights) for member in name.split("+")]
    return members[0] if len(members) == 1 else AverageCalculator(members)


def _reference_name(text: str) -> str:
    unknown = [member for member in text.split("+") if member not in REFERENCES]
    if unknown:
        raise argparse.ArgumentTypeError(f"{', '.join(unknown)} is none of {', '.join(REFERENCES)}")
    return text


def trained_pairs(calculator: FAENetCalculator, pairs: Sequence[Pair]) -> list[Pair]:
    """Pairs made only of elements that the model was trained on, of adsorbates with at least two such pairs."""
    trained = set(calculator.trained_elements)
    known = [pair for pair in pairs if trained.issuperset(pair.atoms.get_chemical_symbols())]
    names = [pair.adsorbate for pair in known]
    return [pair for pair in known if names.count(pair.adsorbate) > 1]


def table(rows: Iterable[Row]) -> str:
    """Markdown table of the rows of groups."""
    columns = (
        "case", "model", "geometry", "pairs", "mae_eV", "rmse_eV", "max_eV", "rank_correlation", "dft_std_eV",
        "same_site", "slabs_with_sites", "site_loss_eV", "site_error_eV", "moved", "failed", "outside",
    )  # fmt: skip
    lines = ["| " + " | ".join(columns) + " |", "|---" * len(columns) + "|"]
    lines += ["| " + " | ".join(_cell(row.get(column)) for column in columns) + " |" for row in rows]
    return "\n".join(lines)


def _cell(value: float | str | None) -> str:
    return "–" if value is None else f"{value:.3f}" if isinstance(value, float) else str(value)


def parity_plot(outcomes: Sequence[Outcome]) -> Figure:
    """Predicted against DFT adsorption energies after alignment, one panel per model and geometry."""
    columns = min(4, len(outcomes))
    lines = -(-len(outcomes) // columns)
    with rc_context(STYLE):
        figure = Figure(figsize=(2.5 * columns, 2.6 * lines + 0.4), layout="constrained")
        panels = figure.subplots(lines, columns, squeeze=False, sharex=True, sharey=True).ravel()
        for panel, outcome in zip(panels, outcomes, strict=False):
            dft, model = aligned(outcome.pairs, outcome.energies)
            names = np.array([pair.adsorbate for pair in outcome.pairs])
            for name, color in zip(ADSORBATES, COLORS, strict=False):
                mine = names == name
                panel.scatter(dft[mine], model[mine], s=9, color=color, label=name, linewidths=0)
            panel.axline((0, 0), slope=1, color="#888888", linewidth=0.8, zorder=0)
            title = outcome.model + (", relaxed" if outcome.geometry == "relaxed" else "")
            panel.set_title(f"{title}\nMAE {np.abs(model - dft).mean():.3f} eV")
            panel.set_aspect("equal")
        for panel in panels[len(outcomes) :]:
            panel.set_visible(False)
        panels[0].legend(loc="upper left", handletextpad=0.1, borderpad=0.1, labelspacing=0.2)
        figure.supxlabel("DFT adsorption energy − mean of the adsorbate (eV)", fontsize=9)
        figure.supylabel("predicted (eV)", fontsize=9)
    return figure


def write(folder: Path, outcome_rows: Sequence[Row], header: Row) -> None:
    """Write the rows of one model to a new file."""
    path = folder / f"{header['model']}-dft_adsorption.jsonl"
    path.unlink(missing_ok=True)
    rows = Rows(path, header)
    for row in outcome_rows:
        rows.append(row)


def parser() -> argparse.ArgumentParser:
    """Command-line parser."""
    result = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    result.add_argument("models", nargs="*", metavar="MODEL", help="shipped name or checkpoint")
    result.add_argument("--data", type=Path, required=True, help="folder with alloys-o-oh and alloys-co-h-no")
    result.add_argument("--references", nargs="*", type=_reference_name, default=[], help="other potentials")
    result.add_argument("--weights", type=Path, default=Path(), help="folder with the weights of references")
    result.add_argument("--relax", action="store_true", help="relax with each model as well")
    result.add_argument("--slabs", type=int, default=1, help="slabs per element of a surface, for each adsorbate")
    result.add_argument("--sites", type=int, default=3, help="sites of each slab")
    result.add_argument("-o", "--out", type=Path, help="folder for the rows")
    result.add_argument("--plot", type=Path, help="file for the parity plots")
    result.add_argument("--threads", type=int, default=1)
    return result


def main() -> None:
    """Compare all models and references on the same pairs."""
    arguments = parser().parse_args()
    torch.set_num_threads(arguments.threads)
    keep_freed_memory()
    warnings.filterwarnings("ignore", category=UserWarning)
    pairs = choose(read_pairs(arguments.data), arguments.slabs, arguments.sites)
    outcomes: list[Outcome] = []
    rows: list[Row] = []
    for name in [*arguments.models, *arguments.references]:
        found: list[Outcome] = []
        if name in arguments.references:
            words: Row = {"model": name}
            found.append(at_dft_geometry(name, reference(name, arguments.weights), pairs))
        else:
            calculator, words = FAENetCalculator(name, device="cpu"), model_words(name)
            words["model"] = Path(name).resolve().parent.name if Path(name).is_file() else name
            known = trained_pairs(calculator, pairs)
            if not known:
                print(f"{name} is left out: no pairs of its elements {calculator.trained_elements}", file=sys.stderr)
                continue
            found.append(at_dft_geometry(words["model"], calculator, known))
            if arguments.relax:
                found.append(relaxed(words["model"], calculator, known))
        mine = [row for outcome in found for row in summarize(outcome)]
        if arguments.out is not None:
            sampling = {"slabs": arguments.slabs, "sites": arguments.sites}
            write(arguments.out, mine, {"row": "header", **words, **SETTINGS, **sampling})
        print(table(row for row in mine if not row["case"].startswith("surface=")), flush=True)
        outcomes += found
        rows += mine
    print(table(sorted(rows, key=lambda row: row["case"])))
    if arguments.plot is not None and outcomes:
        parity_plot(outcomes).savefig(arguments.plot, bbox_inches="tight", dpi=150)


if __name__ == "__main__":
    main()
