"""Convergence of ASE optimizers alone and with the safeguards of `relax`.

    python benchmarks/optimizers.py MODEL [--one-frame] [--fmax 0.02] [--steps 500] [--lifted 1.0]

Starts are those of heldout_relaxations.py, and the same with the adsorbate lifted by some Å: between there and contact
the energy surface often has negative curvature. `same_site` counts relaxations that end at the site where the
reference ends with FIRE (starts in contact only); `odd_ends` counts desorbed, dissociated, intercalated and
reconstructed structures.
"""

import argparse

import ase.optimize
import numpy as np
import torch
from ase import Atoms
from ase.calculators.calculator import Calculator
from heldout_relaxations import MINIMA, is_sane
from heldout_systems import from_json
from rows import Row, Rows, model_words, rounded, show
from same_site import match_sites

from faenet_calc import FAENetCalculator, relax
from faenet_calc.simulate.anomalies import find_anomalies

OPTIMIZERS = ("BFGS", "LBFGS", "FIRE")


def end_of(start: Atoms, calc: Calculator, optimizer: str, *, watched: bool, fmax: float, steps: int) -> Row:
    """Final structure of a relaxation, whether it converged, and its number of steps."""
    if watched:
        result = relax(start, calc, optimizer=optimizer, fmax=fmax, steps=steps)
        return {"atoms": result.atoms, "converged": result.converged, "steps": result.n_steps}
    atoms = start.copy()
    atoms.calc = calc
    plain = getattr(ase.optimize, optimizer)(atoms, logfile=None)
    return {"converged": bool(plain.run(fmax=fmax, steps=steps)), "atoms": atoms, "steps": plain.nsteps}


def compare(
    calc: Calculator, systems: list[Row], optimizer: str, limits: Row, *, watched: bool, lifted_A: float
) -> Row:
    """Row for one optimizer."""
    ends, same, odd = list[Row](), 0, 0
    for system in systems:
        start = from_json(system["start"])
        lift = np.zeros_like(start.positions)
        lift[start.get_tags() == 2, 2] = lifted_A
        start.set_positions(start.positions + lift)
        end = end_of(start, calc, optimizer, watched=watched, **limits)
        ends.append(end)
        is_odd = bool(find_anomalies(start, end["atoms"], unwrap=False))
        match = match_sites(start, from_json(system["start"], system["minimum"]), end["atoms"])
        odd, same = odd + is_odd, same + (match.same and not is_odd)
    row: Row = {"optimizer": optimizer, "watched": watched, "lifted_A": lifted_A, **limits, "systems": len(systems)}
    row |= {"converged": sum(end["converged"] for end in ends), "odd_ends": odd}
    if not lifted_A:
        row["same_site"] = same
    return row | {"mean_steps": float(np.mean([end["steps"] for end in ends]))}


def main() -> None:
    """Run all optimizers, with and without safeguards, from both kinds of starts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--one-frame", action="store_true")
    parser.add_argument("--fmax", type=float, default=0.02, help="force limit in eV/Å (default 0.02)")
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--lifted", type=float, default=1.0, help="lift of the adsorbate in Å (default 1)")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    frames = {"frames": "one"} if arguments.one_frame else {}
    calc = FAENetCalculator(arguments.model, device="cpu", **frames)
    words = {"benchmark": "optimizers", **model_words(arguments.model), "one_frame": arguments.one_frame}
    trained = set(calc.trained_elements)
    sane = [row for row in Rows(MINIMA).of("system") if is_sane(row)]
    systems = [row for row in sane if set(from_json(row["start"]).symbols) <= trained]
    for lifted in (0.0, arguments.lifted):
        for optimizer in OPTIMIZERS:
            for watched in (False, True):
                limits = {"fmax": arguments.fmax, "steps": arguments.steps}
                row = compare(calc, systems, optimizer, limits, watched=watched, lifted_A=lifted)
                show({**words, **rounded(row)})


if __name__ == "__main__":
    main()
