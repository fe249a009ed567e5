"""Relaxations of held-out systems: agreement with the reference, and speed.

    python benchmarks/heldout_relaxations.py compare MODEL [--one-frame-first]
    PYTHONPATH=scripts python benchmarks/heldout_relaxations.py compare MODEL --judged --set in_parts=true
    PYTHONPATH=scripts python benchmarks/heldout_relaxations.py speed MODEL
    PYTHONPATH=scripts python benchmarks/heldout_relaxations.py race MODEL [--one-frame-first] [--count 10] [-o FILE]
    PYTHONPATH=scripts python benchmarks/heldout_relaxations.py repeat
    PYTHONPATH=scripts python benchmarks/heldout_relaxations.py reference -o minima.jsonl

compare     Relaxes with the model and compares with the stored minima of the reference,
            benchmarks/data/metals-minima.jsonl (`--minima` selects another file). --judged needs the reference.
reference   Computes such a file with the labelling calculator of the recipe
            (datasets/metals-v1/recipes/reference-driven.yaml: nequix and chgnet): starts, minima, energies and CPU
            times, one line per system. An interrupted run is resumed. `--set in_parts=true` passes a keyword to the
            calculator; the stored files were made with it. It is about three times faster than the plain package
            (scripts/fast_nequix.py).
speed       Times force calls of model and reference in turns in one process, so that other load affects both.
race        Times whole relaxations in the same way, for systems taken evenly from the list, with the calculator as its
            package computes it. With an output file, an interrupted race is resumed.
repeat      Compares the reference with itself from starts whose free atoms are displaced at random: the best agreement
            that can be expected.

Systems are those held out by the recipe: unseen metal-adsorbate pairs (half of them), an unseen facet and an unseen
alloy (a quarter each), with adsorbates at each kind of site in turn. Slabs are the two smallest of the recipe with the
lower half fixed; the lattice constant is that of the recipe. Model and reference start from the same structure: the
adsorbate in contact with the surface at its site, displaced by about 0.05 Å and tilted by at most 10°. Both use the
same optimizer (with the safeguards of `relax`) and force limit, given by the file of minima:

    metals-minima.jsonl              FIRE, 0.02 eV/Å, at most 1000 steps: short steps that follow the descent closely
    metals-minima-lbfgs.jsonl        LBFGS, 0.02 eV/Å, at most 500 steps: fewer and longer steps
    metals-minima-lbfgs-0.05.jsonl   LBFGS, 0.05 eV/Å, at most 500 steps: the defaults of `relax`; some relaxations of
                                     either calculator stop early where the energy surface is flat

With --one-frame-first the model relaxes with a single frame and then with all; `calls` counts those with all frames,
`cpu_s` is the total. Systems for which the reference does not converge, or desorbs, dissociates, intercalates or
reconstructs, are counted separately and replaced.

With --judged, the reference continues from the final structure of the model if the site differs: `end_above_eV` is the
reference energy of that structure above its own minimum, `stays` whether the reference keeps that site, which is then
one of its minima too. `error_at_minimum_eV` is the error of the model's adsorption energy at the reference's minimum.

Adsorption energy: E(relaxed) − E(relaxed clean slab) − E(relaxed gas-phase fragment), each with the same calculator;
H, N and O are relative to H2/2, N2/2 and O2/2, C to CH4 − 2 H2. For the definition of the same site see same_site.py.
A model is compared on systems that contain only elements it was trained on. CPU times are for one thread, without
start-up (after an untimed call).
"""

import argparse
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from ase import Atoms
from ase.calculators.calculator import Calculator
from heldout_systems import from_json, heldout_systems, rng_of, to_json
from rows import Row, Rows, model_words, rounded, show
from same_site import match_sites

from faenet_calc import FAENetCalculator, relax
from faenet_calc.labelling import Recipe, load_recipe
from faenet_calc.labelling.adsorbates import gas_molecule
from faenet_calc.labelling.calculators import build_calculator
from faenet_calc.simulate import RelaxResult

RECIPE = Path(__file__).parents[1] / "datasets" / "metals-v1" / "recipes" / "reference-driven.yaml"
MINIMA = Path(__file__).parent / "data" / "metals-minima.jsonl"
LIMITS: Row = {"optimizer": "FIRE", "fmax": 0.02, "steps": 1000}
FRAGMENTS = {"H": {"H2": 0.5}, "N": {"N2": 0.5}, "O": {"O2": 0.5}, "C": {"CH4": 1.0, "H2": -2.0}}


def limits_of(rows: Rows) -> Row:
    """Optimizer settings of a file of minima, also used for relaxations compared with it."""
    headers = rows.of("header")
    if not headers:
        raise SystemExit(f"{rows.path} holds no minima; make it with `heldout_relaxations.py reference -o {rows.path}`")
    return {key: headers[0][key] for key in LIMITS}


def relaxed(atoms: Atoms, calc: Calculator, limits: Row, fast: Calculator | None = None) -> tuple[RelaxResult, Row]:
    """Final structure of a relaxation and its results, including CPU time (s)."""
    began = time.process_time()
    result = relax(atoms, calc, prerelax=fast, **limits)
    cpu_s = time.process_time() - began
    flags = [*result.anomalies] if result.error is None else [*result.anomalies, "failed"]
    row = {"energy": result.energy, "calls": result.n_steps + 1, "cpu_s": round(cpu_s, 3), "flags": flags}
    return result, row | {"converged": result.converged}


class Levels:
    """Reference energies for adsorption energies, each relaxed once.

    Args:
        calc: The calculator.
        rows: Earlier results, and where new ones are stored.
        limits: Optimizer settings.
    """

    def __init__(self, calc: Calculator, rows: Rows, limits: Row) -> None:
        self.calc, self.rows, self.limits = calc, rows, limits
        self.known = {(row["row"], row["name"]): row["energy"] for kind in ("gas", "slab") for row in rows.of(kind)}

    def zero(self, start: Atoms, slab_name: str, adsorbate: str) -> float:
        """Energy (eV) of the clean slab and the gas-phase fragments."""
        parts = FRAGMENTS.get(adsorbate, {adsorbate: 1.0})
        gas = sum(count * self._energy("gas", name, gas_molecule(name)) for name, count in parts.items())
        return gas + self._energy("slab", slab_name, start[start.get_tags() < 2])

    def _energy(self, kind: str, name: str, atoms: Atoms) -> float:
        if (kind, name) not in self.known:
            _, numbers = relaxed(atoms, self.calc, self.limits)
            self.rows.append({"row": kind, "name": name, **numbers})
            self.known[kind, name] = numbers["energy"]
        return float(self.known[kind, name])


def is_sane(row: Row) -> bool:
    """Whether a minimum is suitable for comparison."""
    return bool(row["converged"] and not row["flags"])


def run_reference(
    recipe: Recipe, calc: Calculator, path: Path | None, count: int, words: Row | None = None, limits: Row = LIMITS
) -> Rows:
    """Relax held-out systems until ``count`` suitable minima are found, trying at most twice as many.

    Args:
        recipe: Recipe that defines the held-out systems.
        calc: The reference.
        path: File of rows.
        count: Number of minima.
        words: Differences of the calculator from that of the recipe, for the first row.
        limits: Optimizer settings.
    """
    header = {"row": "header", "recipe": f"{recipe.name}:{recipe.digest()}", **limits, **(words or {})}
    rows = Rows(path, {**header, "calculator": recipe.calculator.name})
    levels = Levels(calc, rows, limits)
    done = len(rows.of("system"))
    for number, system in enumerate(heldout_systems(recipe)):
        if sum(map(is_sane, rows.of("system"))) >= count or number >= 2 * count:
            return rows
        if number < done:
            continue
        start, site = system.start(recipe.vacuum_A)
        if number == done:
            calc.get_property("forces", start)  # start-up
        zero = levels.zero(start, system.slab_name, system.adsorbate)
        result, numbers = relaxed(start, calc, limits)
        name = f"{system.slab_name}_{system.adsorbate}"
        row = {"row": "system", "number": number, "name": name, "group": system.group, "site": site}
        row |= {"slab": system.slab_name, "adsorbate": system.adsorbate, **numbers}
        row["adsorption_eV"] = round(numbers["energy"] - zero, 5)
        show(rounded(row))
        minimum = rounded(result.atoms.positions.tolist(), 6)
        rows.append(row | {"start": to_json(start), "minimum": minimum})
    raise AssertionError("the list of systems has no end")


def compare(
    calc: Any,
    rows: Rows,
    *,
    fast: Any = None,
    judge: Calculator | None = None,
    levels: Levels | None = None,
    moved_A: float = 0.0,
) -> Row:
    """Relax the systems with a calculator, print a row for each, and summarize.

    Args:
        calc: A model, or the reference again.
        rows: Rows of the reference.
        fast: Calculator for a preliminary relaxation, or None.
        judge: The reference, to evaluate final structures at other sites; None to omit this.
        levels: Reference energies of the calculator; None to compute them.
        moved_A: Standard deviation (Å) of random displacements of the free atoms of each start.
    """
    everything = rows.of("system")
    sane = [row for row in everything if is_sane(row)]
    trained = set(getattr(calc, "trained_elements", ()))
    inside = [row for row in sane if not trained or set(from_json(row["start"]).symbols) <= trained]
    limits = limits_of(rows)
    levels, found = levels or Levels(calc, Rows(None), limits), list[Row]()
    for row in inside:
        start = from_json(row["start"])
        for calculator in (calc, fast) if not found else ():
            if calculator is not None:
                calculator.get_property("forces", start)  # start-up
        zero = levels.zero(start, row["slab"], row["adsorbate"])
        moved = start.copy()
        moves = rng_of(row["name"]).normal(scale=moved_A, size=start.positions.shape) if moved_A else 0.0
        moved.set_positions(start.positions + moves)  # not of fixed atoms
        result, numbers = relaxed(moved, calc, limits, fast)
        match = match_sites(start, from_json(row["start"], row["minimum"]), result.atoms)
        energies = {"model_eV": numbers["energy"] - zero, "reference_eV": row["adsorption_eV"]}
        case = {key: row[key] for key in ("name", "group", "site")}
        case |= {**energies, "error_eV": energies["model_eV"] - energies["reference_eV"]}
        case |= {"same_site": match.same and not numbers["flags"], "lateral_A": match.lateral_A}
        case |= {"same_bonds": match.same_bonds, "flags": numbers["flags"], "converged": numbers["converged"]}
        there = calc.get_property("energy", from_json(row["start"], row["minimum"])) - zero
        case["error_at_minimum_eV"] = there - energies["reference_eV"]
        for key in ("calls", "cpu_s"):
            case[key] = [numbers[key], row[key]]
        if judge is not None and not match.same:
            case |= _judged(judge, start, result.atoms, row["energy"], limits)
        found.append(case)
        show({"benchmark": "heldout_relaxations", **rounded(case)})
    flags = [flag for row in everything for flag in row["flags"] or ([] if row["converged"] else ["not converged"])]
    counts: Row = {"systems": len(found), "outside_trained_elements": len(sane) - len(inside)}
    counts |= {"reference_not_sane": {flag: flags.count(flag) for flag in sorted(set(flags))}}
    summary = {"all": _summary(found)}
    for group in sorted({case["group"] for case in found}):
        summary[group] = _summary([case for case in found if case["group"] == group])
    return {"benchmark": "heldout_relaxations", "summary": True, **limits, **counts, **rounded(summary)}


def _judged(judge: Calculator, start: Atoms, end: Atoms, minimum: float, limits: Row) -> Row:
    """Reference energy of another final structure above its own minimum (eV), and whether the site is kept."""
    further, _ = relaxed(end, judge, limits)
    above = float(judge.get_property("energy", end)) - minimum
    return {"end_above_eV": above, "stays": match_sites(start, end, further.atoms).same}


def _summary(cases: list[Row]) -> Row:
    """Summary of at least one case; pairs are [model, reference]."""
    if not cases:
        return {}
    errors = np.abs([case["error_eV"] for case in cases])
    same = np.array([case["same_site"] for case in cases])
    cpu, calls = (np.array([case[key] for case in cases]).mean(axis=0) for key in ("cpu_s", "calls"))
    judged = [case for case in cases if "stays" in case]
    words: Row = {}
    if judged:
        words["other_sites"] = len(judged)
        words["other_sites_minima_of_reference"] = sum(case["stays"] for case in judged)
        words["other_sites_below_reference"] = sum(case["end_above_eV"] < 0 for case in judged)
    return {
        "same_site": f"{same.sum()} of {len(same)}",
        "adsorption_mae_eV": float(errors.mean()),
        "adsorption_median_error_eV": float(np.median(errors)),
        "adsorption_largest_error_eV": float(errors.max()),
        "adsorption_mae_eV_where_same_site": float(errors[same].mean()) if same.any() else None,
        "adsorption_mean_error_eV_at_minima": float(np.mean([case["error_at_minimum_eV"] for case in cases])),
        "converged": sum(case["converged"] for case in cases),
        "calls_per_relaxation": calls.tolist(),
        "cpu_s_per_relaxation": cpu.tolist(),
        "cpu_s_per_call": (cpu / calls).tolist(),
        "times_faster": float(cpu[1] / cpu[0]),
        **words,
    }


def speed(calc: Any, reference: Calculator, rows: Rows, count: int = 6, repeats: int = 4) -> Row:
    """Median CPU time (s) of a force call of [model, reference], in turns, on systems that move slightly each time."""
    rng, times = np.random.default_rng(0), []
    for row in rows.of("system")[:count]:
        start = from_json(row["start"])
        for number in range(repeats):
            atoms = start.copy()
            atoms.positions += rng.normal(scale=0.01, size=atoms.positions.shape)
            spent = []
            for calculator in (calc, reference):
                began = time.process_time()
                calculator.get_property("forces", atoms)
                spent.append(time.process_time() - began)
            if number:  # the first builds neighbour lists and, in the first system, starts up
                times.append(spent)
    model, other = np.median(times, axis=0)
    row = {"cpu_s_per_call": [float(model), float(other)], "times_faster": float(other / model)}
    return {"benchmark": "heldout_relaxations", "case": "force calls in turn", **rounded(row)}


def race(calc: Any, fast: Any, reference: Calculator, rows: Rows, out: Rows, count: int, words: Row) -> Row:
    """CPU time (s) of whole relaxations of [model, reference], in turns.

    Args:
        calc: The model.
        fast: Calculator for a preliminary relaxation, or None.
        reference: The reference calculator.
        rows: Rows of the reference, with the starts.
        out: Where rows are stored; systems already present, from a race with the same settings, are not repeated.
        count: Number of systems, taken evenly from the list.
        words: Other settings that distinguish races: the model and how it relaxes.
    """
    sane, limits = [row for row in rows.of("system") if is_sane(row)], limits_of(rows)
    if not 0 < count <= len(sane):
        raise SystemExit(f"--count {count}: {rows.path} has {len(sane)} systems to relax, expected 1 to {len(sane)}")
    same = {"benchmark": "heldout_relaxations", "case": "relaxations in turn", **words}
    same |= limits
    done = {(row["name"], row["site"]): row for row in out.rows if "name" in row and same.items() <= row.items()}
    chosen = [sane[int(place)] for place in np.linspace(0, len(sane) - 1, count).round()]
    left = [row for row in chosen if (row["name"], row["site"]) not in done]
    for calculator in (calc, fast, reference) if left else ():
        if calculator is not None:
            calculator.get_property("forces", from_json(left[0]["start"]))  # start-up
    for row in left:
        start = from_json(row["start"])
        pair = [relaxed(start, calc, limits, fast)[1], relaxed(start, reference, limits)[1]]
        case = {key: [numbers[key] for numbers in pair] for key in ("cpu_s", "calls", "converged")}
        case = {**same, "name": row["name"], "site": row["site"], **case}
        done[row["name"], row["site"]] = case
        out.append(case)
        show(case)
    runs = [done[row["name"], row["site"]]["cpu_s"] for row in chosen]
    model, other = np.mean(runs, axis=0)
    row = {"relaxations": len(runs), "cpu_s_per_relaxation": [model, other], "times_faster": other / model}
    row["times_faster_median"] = float(np.median([slow / quick for quick, slow in runs]))
    return {**same, "summary": True, **rounded(row)}


def _switches(words: list[str]) -> dict[str, bool]:
    """Boolean keywords from ``name=true``."""
    parts = [word.partition("=") for word in words]
    if wrong := [word for word, (_, _, value) in zip(words, parts, strict=True) if value not in ("true", "false")]:
        raise SystemExit(f"--set {' '.join(wrong)}: expected KEYWORD=true or KEYWORD=false")
    return {name: value == "true" for name, _, value in parts}


def main() -> None:
    """Run one command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    phases = parser.add_subparsers(dest="phase", required=True)
    first = phases.add_parser("reference")
    first.add_argument("-o", "--out", type=Path, required=True)
    first.add_argument("--count", type=int, default=50)
    first.add_argument("--optimizer", default=LIMITS["optimizer"], help="ASE optimizer (default FIRE)")
    first.add_argument("--fmax", type=float, default=LIMITS["fmax"], help="force limit in eV/Å (default 0.02)")
    first.add_argument("--steps", type=int, default=LIMITS["steps"], help="maximum number of steps (default 1000)")
    for name in ("compare", "speed", "race"):
        phases.add_parser(name).add_argument("model")
    for name in ("compare", "race"):
        phases.choices[name].add_argument("--one-frame-first", action="store_true")
    phases.choices["race"].add_argument("--count", type=int, default=10)
    phases.choices["race"].add_argument(
        "-o", "--out", type=Path, help="file for the rows; an interrupted race is resumed"
    )
    again = phases.add_parser("repeat")
    for phase in (again, *(phases.choices[name] for name in ("compare", "speed", "race"))):
        phase.add_argument("--minima", type=Path, default=MINIMA)
    judged = phases.choices["compare"]
    judged.add_argument("--judged", action="store_true")
    for phase in (first, again, judged):
        phase.add_argument(
            "--set", action="append", default=[], metavar="KEYWORD=true|false", help="keyword of the calculator"
        )
    again.add_argument("--moved", type=float, default=0.03, help="standard deviation in Å (default 0.03)")
    for phase in phases.choices.values():
        phase.add_argument("--recipe", type=Path, default=RECIPE)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    recipe = load_recipe(arguments.recipe)

    def labelling(words: dict[str, bool]) -> Calculator:
        config = replace(recipe.calculator, kwargs={**recipe.calculator.kwargs, **words})
        return build_calculator(config, trust_code=True)

    if arguments.phase in ("reference", "repeat"):
        words = _switches(arguments.set)
        calc = labelling(words)
        if arguments.phase == "reference":
            limits = {key: getattr(arguments, key) for key in LIMITS}
            run_reference(recipe, calc, arguments.out, arguments.count, words, limits)
        else:
            rows, moved = Rows(arguments.minima), {"moved_A": arguments.moved}
            show({**compare(calc, rows, levels=Levels(calc, rows, limits_of(rows)), **moved), **moved})
        return
    model, rows = FAENetCalculator(arguments.model, device="cpu"), Rows(arguments.minima)
    words = model_words(arguments.model)
    if arguments.phase == "speed":
        show({**speed(model, build_calculator(recipe.calculator, trust_code=True), rows), **words})
        return
    words["one_frame_first"] = arguments.one_frame_first
    fast = FAENetCalculator(arguments.model, device="cpu", frames="one") if arguments.one_frame_first else None
    if arguments.phase == "compare":
        judge = labelling(_switches(arguments.set)) if arguments.judged else None
        show({**compare(model, rows, fast=fast, judge=judge), **words})
    else:
        out = Rows(arguments.out)
        summary = race(
            model, fast, build_calculator(recipe.calculator, trust_code=True), rows, out, arguments.count, words
        )
        if summary not in out.rows:
            out.append(summary)
        show(summary)


if __name__ == "__main__":
    main()
