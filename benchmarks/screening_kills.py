"""A screening that loses a worker, then every process, and is resumed, compared with an uninterrupted one.

    python benchmarks/screening_kills.py [--model metals-s] [-o FILE] [--work DIR]

    python benchmarks/screening_kills.py --only memory | poison | scaling | kills

1. Memory of the driver (MB) with up to 20,000 queued configurations, which its workers record without relaxing them.
2. Poison: 50 configurations, five of them with NaN coordinates, an unknown element, overlapping atoms, an exploding
   relaxation and a structure that ends its process with SIGSEGV; every other one must finish as without them.
3. Scaling: the same configurations in turns on a cluster of one worker and on one of two; wall time with and without
   the start of the clusters, CPU time of the workers, and the load of the machine.
4. Kills: four surfaces × four adsorbates (more than 300 configurations) with two workers, and the same again: one
   worker gets SIGKILL, later every process of the run; resumed to the end. The table must be the same, and no key may
   be recorded twice.

Rows are JSON.
"""

import argparse
import ctypes
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from ase.build import bulk, fcc111
from rows import Rows, model_words, rounded, show

from faenet_calc import FAENetCalculator, screen
from faenet_calc.screening.adsorbates import adsorbate
from faenet_calc.screening.placement import Configuration, configurations, enumerate_all
from faenet_calc.screening.screen import ScreenResult, merge_screen
from faenet_calc.screening.store import ScreenStore
from faenet_calc.screening.surfaces import Slab, cut_slab, standard_slab
from faenet_calc.screening.worker import Context, RelaxSettings, calculator_of

METALS, ADSORBATES = ("Cu", "Pd", "Pt", "Ni"), ("CO", "O", "OH", "COOH")
SETTINGS = RelaxSettings(fmax=0.1, steps=100)


def slabs() -> list[Slab]:
    """(211) surfaces of four metals."""
    return [slab for symbol in METALS for slab in cut_slab(bulk(symbol), (2, 1, 1))]


def run(model: str, folder: Path, *, workers: int, resume: bool = False) -> ScreenResult:
    """The screening of this benchmark."""
    calc = FAENetCalculator(model, device="cpu", frames="one")
    options = {"settings": SETTINGS, "rotations": 3, "workers": workers, "resume": resume}
    return screen(slabs(), ADSORBATES, folder, calculator=calc, **options)


def table(result: ScreenResult) -> dict[str, tuple[float, bool]]:
    """Key -> adsorption energy (eV; NaN after an error) and convergence."""
    return {
        row.key: (np.nan if row.adsorption_energy is None else row.adsorption_energy, row.converged)
        for row in result.rows
    }


def differences(
    found: dict[str, tuple[float, bool]], expected: dict[str, tuple[float, bool]]
) -> tuple[list[str], float]:
    """Keys with another energy (by more than 1e-3 eV) or convergence, and the largest difference of energies (eV)."""
    shared = found.keys() & expected.keys()
    largest = {key: abs(found[key][0] - expected[key][0]) for key in shared}
    both_failed = {key for key in shared if np.isnan(found[key][0]) and np.isnan(expected[key][0])}
    differing = [key for key in shared - both_failed if not largest[key] <= 1e-3 or found[key][1] != expected[key][1]]
    return differing, max((largest[key] for key in shared - both_failed), default=0.0)


def recorded(folder: Path) -> list[str]:
    """Every key in the journals, whole lines only."""
    lines = [line for path in (folder / "journals").glob("*.jsonl") for line in path.read_text().splitlines(True)]
    return [json.loads(line)["key"] for line in lines if line.endswith("\n")]


def killed(model: str, folder: Path, total: int) -> None:
    """Kill a worker at a quarter, everything at a half, then resume."""
    command = [sys.executable, __file__, "--model", model, "--only-run", str(folder)]
    process = subprocess.Popen(command, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    parent, lost_worker = psutil.Process(process.pid), False
    while process.poll() is None:
        done = len(recorded(folder)) if (folder / "journals").is_dir() else 0
        if done >= total // 4 and not lost_worker:
            journals = max((folder / "journals").glob("*.jsonl"), key=lambda path: path.stat().st_mtime)
            os.kill(int(journals.name.split("-")[0]), signal.SIGKILL)
            lost_worker = True
        if done >= total // 2:
            for child in [*parent.children(recursive=True), parent]:
                child.kill()
            break
        time.sleep(0.2)
    process.wait()
    run(model, folder, workers=2, resume=True)


class Poisoned(FAENetCalculator):
    """Ends the process with SIGSEGV for structures with exactly one nitrogen atom."""

    def sharing(self, predictor: Any) -> "Poisoned":
        """See FAENetCalculator."""
        twin = super().sharing(predictor)
        assert isinstance(twin, Poisoned)
        return twin

    def calculate(self, atoms: Any = None, *arguments: Any, **options: Any) -> None:
        """See FAENetCalculator."""
        if atoms is not None and (atoms.numbers == 7).sum() == 1:
            ctypes.string_at(0)
        super().calculate(atoms, *arguments, **options)


def poison(model: str, folder: Path) -> dict[str, Any]:
    """Fifty configurations, five of them poisonous."""
    from faenet_calc.screening.dask_runner import dask_client, run_on_dask
    from faenet_calc.screening.gas import gas_molecules, gas_reference, reference_molecules
    from faenet_calc.screening.uncertainty import reference_vectors

    slab = Slab(name="Cu(111)", atoms=standard_slab(fcc111("Cu", (2, 2, 3), vacuum=8.0)), source="benchmark")
    good: list[Configuration] = []
    for height in np.linspace(0.0, 0.5, 12):
        good += configurations(slab, adsorbate("O"), height_A=float(height))
    good = good[:45]
    bad = []
    for name in ("nan", "unknown", "overlap", "explode", "segfault"):
        atoms = good[0].atoms.copy()
        if name == "nan":
            atoms.positions[-1, 2] = np.nan
        elif name == "unknown":
            atoms.numbers[-1] = 30
        elif name == "overlap":
            atoms.positions[-1] = atoms.positions[-2]
        elif name == "explode":
            atoms.positions[-1] = atoms.positions[-2] + [0.0, 0.0, 0.4]
        else:
            atoms.numbers[-1] = 7
        one = good[0]
        bad.append(
            Configuration(
                key=name, slab=one.slab, adsorbate="O", site="top-0", orientation=name, coverage=1, atoms=atoms
            )
        )
    molecules = reference_molecules({"O", "N", "H"})
    gas = gas_reference(molecules, {name: -10.0 for name in set(molecules.values())})
    calc = Poisoned(model, device="cpu", frames="one")
    found = {}
    for case, members in (("clean", good), ("poisoned", [*good[:10], *bad, *good[10:]])):
        store = ScreenStore(folder / case)
        store.begin({"case": case}, resume=False)
        context = Context(
            folder=store.folder,
            model=calc,
            device=None,
            threads=1,
            settings=SETTINGS,
            slabs={slab.name: slab},
            slab_energies={slab.name: -40.0},
            gas=gas,
            vectors=reference_vectors(calc, {slab.name: slab.atoms}, gas_molecules(molecules)),
            binding={"O": 0},
        )

        def chunks(all_members: list[Configuration] = members) -> Iterator[list[Configuration]]:
            for start in range(0, len(all_members), 10):
                yield all_members[start : start + 10]

        with dask_client(workers=2) as client:
            run_on_dask(client, context, chunks(), lambda count: None)
        found[case] = store.rows()
    harmed = [
        key
        for key, row in found["clean"].items()
        if key not in found["poisoned"]
        or found["poisoned"][key].error is not None
        or abs((found["poisoned"][key].energy or 0.0) - (row.energy or 0.0)) > 1e-3
    ]
    errors = {one.key: found["poisoned"][one.key].error or found["poisoned"][one.key].anomalies for one in bad}
    return {"row": "poison", "configurations": 50, "harmed": len(harmed), "poison": errors}


def driver_MB() -> float:
    """Memory of this process now (MB)."""
    return float(psutil.Process().memory_info().rss) / 2**20


def queue_memory(folder: Path, counts: Sequence[int] = (1_000, 5_000, 10_000, 20_000)) -> dict[str, Any]:
    """Memory of a driver with many configurations of a slab without energy, which are recorded immediately."""
    from faenet_calc.screening.dask_runner import dask_client, run_on_dask
    from faenet_calc.screening.gas import gas_reference
    from faenet_calc.screening.screen import CHUNK, _chunks
    from faenet_calc.screening.uncertainty import ReferenceVectors

    slab = Slab(name="Cu(111)", atoms=standard_slab(fcc111("Cu", (3, 3, 4), vacuum=8.0)), source="benchmark")
    templates = configurations(slab, adsorbate("CO"))
    store = ScreenStore(folder)
    store.begin({"case": "memory"}, resume=False)
    context = Context(
        folder=folder,
        model="metals-s",
        device="cpu",
        threads=1,
        settings=SETTINGS,
        slabs={slab.name: slab},
        slab_energies={slab.name: "not computed in this benchmark"},
        gas=gas_reference({"H": "H2"}, {"H2": 0.0}),
        vectors=ReferenceVectors(slabs={}, gas={}),
        binding={"CO": 0},
    )

    def many() -> Iterator[Configuration]:
        for index in range(max(counts)):
            one = templates[index % len(templates)]
            values = {**vars(one), "key": f"{one.key}-{index}", "atoms": one.atoms.copy()}
            yield Configuration(**values)

    finished, memory = 0, dict[str, float]()

    def done(count: int) -> None:
        nonlocal finished
        finished += count
        for number in counts:
            if finished - count < number <= finished:
                memory[str(number)] = driver_MB()

    with dask_client(workers=2) as client:
        client.submit(sum, [1]).result()
        memory["0"] = driver_MB()
        run_on_dask(client, context, _chunks(many(), CHUNK), done)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"row": "queue_memory", "configurations": finished, "driver_MB": memory, "driver_peak_MB": peak}


def scaling(model: str, folder: Path, *, turns: int = 2, size: int = 96) -> dict[str, Any]:
    """Relax the same configurations in turns on one worker and on two, after both have started and loaded the model."""
    from faenet_calc.screening.dask_runner import dask_client, run_on_dask, warm_up
    from faenet_calc.screening.gas import gas_molecules, gas_reference, reference_molecules
    from faenet_calc.screening.screen import CHUNK, _chunks
    from faenet_calc.screening.uncertainty import reference_vectors

    members = enumerate_all(slabs(), [adsorbate(name) for name in ADSORBATES], rotations=3)
    order = np.random.default_rng(0).permutation(len(members))[: turns * size]
    molecules = reference_molecules({"C", "O", "H"})
    by_name = {slab.name: slab for slab in slabs()}
    calc = FAENetCalculator(model, device="cpu", frames="one")
    wall, cpu, started, loads = {1: 0.0, 2: 0.0}, {1: 0.0, 2: 0.0}, {1: 0.0, 2: 0.0}, []
    with ExitStack() as stack:
        clients = {}
        for workers in (1, 2):
            begin = time.perf_counter()
            clients[workers] = stack.enter_context(dask_client(workers=workers))
            warm_up(clients[workers], calc, None)
            clients[workers].run(calculator_of, calc)
            started[workers] = time.perf_counter() - begin
        for turn in range(turns):
            chosen = [members[index] for index in order[turn * size : (turn + 1) * size]]
            for workers, client in clients.items():
                store = ScreenStore(folder / f"{workers}-{turn}")
                store.begin({"case": "scaling"}, resume=False)
                context = Context(
                    folder=store.folder,
                    model=calc,
                    device=None,
                    threads=1,
                    settings=SETTINGS,
                    slabs=by_name,
                    slab_energies=dict.fromkeys(by_name, 0.0),
                    gas=gas_reference(molecules, dict.fromkeys(molecules.values(), 0.0)),
                    vectors=reference_vectors(
                        calc, {name: slab.atoms for name, slab in by_name.items()}, gas_molecules(molecules)
                    ),
                    binding={name: adsorbate(name).binding[0] for name in ADSORBATES},
                )
                before, start = sum(client.run(time.process_time).values()), time.perf_counter()
                run_on_dask(client, context, _chunks(iter(chosen), CHUNK), lambda count: None)
                wall[workers] += time.perf_counter() - start
                cpu[workers] += sum(client.run(time.process_time).values()) - before
                loads.append(os.getloadavg()[0])
    return {
        "row": "scaling",
        **model_words(model),
        "configurations": turns * size,
        "wall_s": {str(workers): seconds for workers, seconds in wall.items()},
        "start_s": {str(workers): seconds for workers, seconds in started.items()},
        "workers_cpu_s": {str(workers): seconds for workers, seconds in cpu.items()},
        "scaling_without_start": wall[1] / wall[2],
        "scaling_with_start": (wall[1] + started[1]) / (wall[2] + started[2]),
        "load": [min(loads), max(loads)],
    }


def kills(model: str, work: Path) -> dict[str, Any]:
    """The screening with two workers, uninterrupted and killed."""
    start = time.perf_counter()
    reference = run(model, work / "reference", workers=2)
    wall_s = time.perf_counter() - start
    killed(model, work / "killed", len(reference.rows))
    return {"row": "kills", **model_words(model), "wall_s": wall_s, **compared(work / "reference", work / "killed")}


def compared(reference: Path, other: Path) -> dict[str, Any]:
    """The table and the journals of a killed and resumed screening against the table of an uninterrupted one."""
    keys, found, expected = recorded(other), table(merge_screen(other)), table(merge_screen(reference))
    differing, largest = differences(found, expected)
    return {
        "configurations": len(expected),
        "keys_recorded": len(keys),
        "keys_recorded_twice": len(keys) - len(set(keys)),
        "missing": len(set(expected) - set(found)),
        "differing": len(differing),
        "largest_difference_eV": largest,
    }


def main() -> None:
    """Run all four parts, or one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="metals-s")
    parser.add_argument("--work", type=Path, default=Path("screening-kills"), help="Folder for the screenings.")
    parser.add_argument("--only", choices=["memory", "poison", "scaling", "kills"])
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--only-run", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    model, work = arguments.model, arguments.work
    if arguments.only_run is not None:
        run(model, arguments.only_run, workers=2)
        return
    parts: dict[str, Callable[[], dict[str, Any]]] = {
        "memory": lambda: queue_memory(work / "memory"),
        "poison": lambda: poison(model, work / "poison"),
        "scaling": lambda: scaling(model, work / "scaling"),
        "kills": lambda: kills(model, work / "kills"),
    }
    rows = Rows(arguments.output)
    shutil.rmtree(work, ignore_errors=True)
    for name in [arguments.only] if arguments.only else parts:
        row = rounded(parts[name]())
        rows.append(row)
        show(row)


if __name__ == "__main__":
    main()
