"""CO, O, OH and H on Cu, Pt, Pd and Ni (111) and (211) by one command: wall time and preferred sites.

    python benchmarks/screening_metals.py run DIR [-o FILE]
    PYTHONPATH=scripts python benchmarks/screening_metals.py reference DIR [-o FILE]
    python benchmarks/screening_metals.py sites DIR --known FILE [-o FILE]

run         Runs ``faenet-calc screen`` (DIR holds its results) and prints its wall and CPU time.
reference   Prints the preferred site of every slab and adsorbate beside that of the reference potential of the
            ``metals-*`` models (scripts/metals_reference.py, which needs nequix and chgnet): it is evaluated at every
            distinct relaxed configuration and relaxes the CANDIDATES lowest of them further. ``gap_eV`` is the
            reference energy of the model's preferred configuration above its own lowest one.
sites       Prints the preferred sites beside those that the reference preferred in an earlier comparison (rows of
            ``reference`` in FILE, with the configurations of other weights); needs no reference potential.

Rows are JSON.
"""

import argparse
import csv
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

from rows import Rows, model_words, rounded, show

from faenet_calc.potential import shipped
from faenet_calc.screening.sites import all_sites, nearest_site
from faenet_calc.screening.store import ScreenStore
from faenet_calc.simulate import relax

METALS, MILLERS, ADSORBATES = ("Cu", "Pt", "Pd", "Ni"), ("1 1 1", "2 1 1"), ("CO", "O", "OH", "H")
CANDIDATES = 2
STEPS = 30


def command(folder: Path) -> list[str]:
    """The arguments of faenet-calc."""
    words = ["screen", "-o", str(folder)]
    words += [word for metal in METALS for word in ("--bulk", metal)]
    words += [word for miller in MILLERS for word in ("--miller", *miller.split())]
    return words + [word for name in ADSORBATES for word in ("--adsorbate", name)]


def run(folder: Path) -> dict[str, Any]:
    """Run the command."""
    start = time.perf_counter()
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-m", "faenet_calc", *command(folder)], check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    rows = table(folder)
    return {
        "row": "screening_metals",
        **model_words(shipped.default_name()),
        "command": " ".join(["faenet-calc", *command(Path("DIR"))]),
        "configurations": len(rows),
        "not_converged": sum(row["converged"] != "True" for row in rows),
        "failed": sum(bool(row["error"]) for row in rows),
        "steps": sum(int(row["n_steps"]) for row in rows),
        "wall_s": time.perf_counter() - start,
        "cpu_s": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
    }


def table(folder: Path) -> list[dict[str, str]]:
    """The rows of results.csv."""
    with (folder / "results.csv").open() as stream:
        return list(csv.DictReader(stream))


def compare(folder: Path) -> Iterator[dict[str, Any]]:
    """The preferred sites of model and reference, system by system."""
    from metals_reference import MetalsReference

    calc, store = MetalsReference(in_parts=True), ScreenStore(folder)
    slabs = store.reference_structures("slabs")
    ranked = [row for row in table(folder) if row["rank"]]
    for (slab, adsorbate), members in groupby(ranked, key=lambda row: (row["slab"], row["adsorbate"])):
        rows = list(members)
        structures = {row["key"]: store.relaxed(row["key"]) for row in rows}
        energies = {}
        for key, atoms in structures.items():
            assert atoms is not None
            atoms.calc = calc
            energies[key] = atoms.get_potential_energy()
        first, lowest = rows[0]["key"], sorted(energies, key=lambda key: energies[key])
        relaxed = {
            key: relax(structures[key], calc, steps=STEPS, tags="atoms") for key in {first, *lowest[:CANDIDATES]}
        }
        best = min(relaxed, key=lambda key: relaxed[key].energy)
        binding = len(slabs[slab]) + store.inputs()["adsorbates"][adsorbate]["binding"][0]
        site = nearest_site(slabs[slab], relaxed[best].atoms.positions[binding], all_sites(slabs[slab])).kind
        yield {
            "row": "preferred_site",
            "slab": slab,
            "adsorbate": adsorbate,
            "configurations": len(rows),
            "site": rows[0]["final_site"],
            "adsorption_energy": float(rows[0]["adsorption_energy"]),
            "uncertainty": float(rows[0]["uncertainty"]),
            "probability": float(rows[0]["most_stable_probability"]),
            "reference_site": site,
            "same_configuration": best == first,
            "gap_eV": relaxed[first].energy - relaxed[best].energy,
        }


def beside_known(folder: Path, known: Path) -> Iterator[dict[str, Any]]:
    """The preferred sites of the model, and those of the reference from rows of an earlier comparison."""
    earlier = Rows(known)
    sites = {(row["slab"], row["adsorbate"]): row["reference_site"] for row in earlier.of("preferred_site")}
    for row in table(folder):
        if row["rank"] == "1":
            site = sites[row["slab"], row["adsorbate"]]
            yield {
                "row": "preferred_site_beside_earlier_reference",
                "slab": row["slab"],
                "adsorbate": row["adsorbate"],
                "site": row["final_site"],
                "adsorption_energy": float(row["adsorption_energy"]),
                "uncertainty": float(row["uncertainty"]),
                "probability": float(row["most_stable_probability"]),
                "reference_site": site,
                "reference_compared_with_weights": earlier.of("screening_metals")[0]["weights"],
                "same_kind_of_site": row["final_site"] == site,
            }


def main() -> None:
    """Run the screening, or compare it with the reference."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["run", "reference", "sites"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--known", type=Path, help="Rows of an earlier comparison.")
    parser.add_argument("-o", "--output", type=Path)
    arguments = parser.parse_args()
    rows = Rows(arguments.output)
    parts: dict[str, Callable[[], Iterable[dict[str, Any]]]] = {
        "run": lambda: [run(arguments.folder)],
        "reference": lambda: compare(arguments.folder),
        "sites": lambda: list(beside_known(arguments.folder, arguments.known)),
    }
    for row in parts[arguments.part]():
        rows.append(rounded(row))
        show(rounded(row))


if __name__ == "__main__":
    main()
