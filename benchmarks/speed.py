"""How fast are energy and forces through ASE, beside other potentials and another version of this package?

    python benchmarks/speed.py [--sizes 12 40 200 500 2000] [--models catalysis-m catalysis-s …]
                               [--frames one pair all] [--peers] [--other PATH] [--repeats 7] [--out rows.jsonl]
                               [--plot speed.svg]

Cu(111) slabs with CO, whose atoms move a little before every call; one thread; CPU time of ``atoms.get_forces()``,
graph included. Calls of all potentials alternate, so that a busy machine slows all of them down, and medians are
compared. ``--other`` is the folder of another checkout, e.g. of an earlier commit, measured in the same run.
``--peers`` adds the potentials of the extra ``[peers]``; those that are not installed or cannot load their weights are
skipped with a message.

Rows are JSON: benchmark, case, atoms, metric, value, unit. Besides times there are ratios to the other checkout, the
exponent of the cost between 200 and the largest number of atoms, steps of molecular dynamics per second and ns/day,
memory per atom, the fraction of the processor's matrix-multiplication rate (roofline), batches, and start-up times.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from ase import Atoms
from ase.build import add_adsorbate, fcc111, molecule
from ase.calculators.calculator import Calculator
from rows import Row, Rows, progress, show

LAYERS = {12: (1, 2, 5), 40: (2, 5, 4), 200: (5, 10, 4), 500: (10, 10, 5), 2000: (20, 20, 5), 20000: (50, 80, 5)}
TIMESTEP_FS = 1.0
MODELS = ["catalysis-m", "catalysis-s", "metals-m", "metals-s"]


def slab(n_atoms: int) -> Atoms:
    """Cu(111) with about this many atoms and CO on top."""
    atoms = fcc111("Cu", LAYERS[n_atoms], a=3.61, vacuum=8.0)
    adsorbate = molecule("CO")
    adsorbate.rotate(180, "x")
    add_adsorbate(atoms, adsorbate, 1.9, "ontop")
    atoms.pbc = (True, True, False)
    return atoms


# ---- the measured side: a process that times calls, here or in another checkout ----


def _ours(model: str, frames: str) -> Calculator:
    from faenet_calc import FAENetCalculator

    return FAENetCalculator(model, frames=frames, device="cpu")


def _chgnet() -> Calculator:
    from chgnet.model.dynamics import CHGNetCalculator

    return CHGNetCalculator(use_device="cpu")


def _mace() -> Calculator:
    from mace.calculators import mace_mp

    return mace_mp(model="small", device="cpu", default_dtype="float32")


def _nequix() -> Calculator:
    from nequix.calculator import NequixCalculator

    return NequixCalculator("nequix-mp-1")


def _sevennet() -> Calculator:
    from sevenn.calculator import SevenNetCalculator

    return SevenNetCalculator("7net-0", device="cpu")


def _schnet() -> Calculator:
    from peers.schnet import SchNetPotential, SchNetSize

    from faenet_calc import FAENetCalculator
    from faenet_calc.potential.config import NormalizationConfig

    potential = SchNetPotential(SchNetSize(), cutoff=5.0, normalization=NormalizationConfig())
    return FAENetCalculator(potential.eval().requires_grad_(False), device="cpu")


def _nep() -> Calculator:
    from peers.nep import untrained_nep

    return untrained_nep()


PEERS: dict[str, Callable[[], Calculator]] = {
    "NEP (untrained)": _nep,
    "SchNet (untrained)": _schnet,
    "CHGNet": _chgnet,
    "MACE small": _mace,
    "Nequix": _nequix,
    "SevenNet-0": _sevennet,
}


class _Timer:
    """Calculators of one process, each with its own structures."""

    def __init__(self) -> None:
        self.random = np.random.default_rng(0)
        self.calculators: dict[str, Calculator] = {}
        self.structures: dict[tuple[str, int], tuple[Atoms, np.ndarray]] = {}

    def prepare(self, case: str) -> None:
        model, _, frames = case.partition(", ")
        self.calculators[case] = PEERS[case]() if case in PEERS else _ours(model, frames.removeprefix("frames="))

    def call(self, case: str, n_atoms: int) -> float:
        """CPU time (ms) of the forces of a structure that has just moved."""
        if (case, n_atoms) not in self.structures:
            atoms = slab(n_atoms)
            atoms.calc = self.calculators[case]
            self.structures[case, n_atoms] = atoms, atoms.positions.copy()
        atoms, start = self.structures[case, n_atoms]
        atoms.positions = start + self.random.normal(scale=0.01, size=start.shape)
        begin = time.process_time()
        atoms.get_forces()
        return 1e3 * (time.process_time() - begin)

    def batch(self, case: str, n_atoms: int, n_structures: int) -> float:
        """CPU time (ms) per structure of a batched prediction."""
        structures = [slab(n_atoms) for _ in range(n_structures)]
        for atoms in structures:
            atoms.positions += self.random.normal(scale=0.01, size=atoms.positions.shape)
        begin = time.process_time()
        self.calculators[case].predict(structures)  # type: ignore[attr-defined]
        return 1e3 * (time.process_time() - begin) / n_structures

    def memory(self) -> float:
        """Peak resident memory so far (MB)."""
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

    def sgemm(self) -> float:
        """Rate (GFLOP/s) of torch's single-precision matrix product."""
        import torch

        a, b = torch.randn(2048, 512), torch.randn(512, 512)
        begin = time.process_time()
        for _ in range(10):
            a @ b
        return 10 * 2 * 2048 * 512 * 512 / (time.process_time() - begin) / 1e9

    def flops(self, case: str, n_atoms: int) -> float:
        """Multiplications and additions of the matrix products behind energy and forces.

        Frames U and -U, of which ``pair`` has one pair and ``all`` four, share the products of their edges.
        Directional features of edges that the engine leaves out are not counted.
        """
        import torch

        from faenet_calc.network.layers import edge_width
        from faenet_calc.network.packing import DirectionalBasis

        calculator = self.calculators[case]
        (potential,) = calculator.predictor.committee.members  # type: ignore[attr-defined]
        network, graph = potential.config.model, potential.graph(slab(n_atoms))
        h, f, n, e = network.hidden_channels, network.filters, network.interactions, edge_width(network)
        with torch.no_grad():
            directional = len(DirectionalBasis.of(potential.model).features)
        per_edge = n * f * e + e * directional
        per_atom = n * (4 * h * f + 2 * h * network.feed_forward) + (n + 1) * h * h // 2
        edge_frames, atom_frames = {"one": (1, 1), "pair": (1, 2), "all": (4, 8)}[case.rpartition("=")[2]]
        return 2 * 2 * (edge_frames * graph.n_edges * per_edge + atom_frames * graph.n_atoms * per_atom)


def _serve() -> None:
    """Answer requests [method, arguments] on stdin, one JSON line each."""
    import torch

    torch.set_num_threads(1)
    timer = _Timer()
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        try:
            answer = {"value": getattr(timer, name)(*arguments)}
        except Exception as error:  # whatever another package raises: its potential is skipped
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=sys.__stdout__, flush=True)


class Worker:
    """A process that measures a checkout of this package.

    Args:
        checkout: Its folder.
    """

    def __init__(self, checkout: Path) -> None:
        folders = f"{checkout}{os.pathsep}{Path(__file__).parent}"
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--serve"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": folders, "OMP_NUM_THREADS": "1"},
        )

    def ask(self, name: str, *arguments: Any) -> Any:
        """The result of a method of :class:`_Timer`; RuntimeError with its message if it failed."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps([name, *arguments]) + "\n")
        self.process.stdin.flush()
        while not (line := self.process.stdout.readline()).startswith("{"):  # packages may print when they load
            if not line:
                raise RuntimeError("the measuring process ended")
        answer = json.loads(line)
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer["value"]

    def close(self) -> None:
        """End the process."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait(timeout=60)
        self.process.stdout.close()


# ---- the measuring side ----


def measure(
    workers: dict[str, tuple[Worker, str]],
    sizes: list[int],
    repeats: int,
    store: Callable[[Row], None],
    *,
    longest_call_s: float,
) -> dict[str, dict[int, float]]:
    """Median times (ms) by label and size; calls of all labels alternate.

    Args:
        workers: By label, the process and its case.
        sizes: Numbers of atoms.
        repeats: Timed calls of each.
        store: Called with the row of every median.
        longest_call_s: A label whose calls take longer is left out from then on.
    """
    medians: dict[str, dict[int, float]] = defaultdict(dict)
    active = list(workers)
    for n_atoms in sizes:
        times: dict[str, list[float]] = defaultdict(list)
        for repeat in range(-2, repeats):
            for label in list(active):
                worker, case = workers[label]
                try:
                    spent = worker.ask("call", case, n_atoms)
                except RuntimeError as error:
                    progress(skipped=label, atoms=n_atoms, reason=str(error))
                    active.remove(label)
                    continue
                if repeat >= 0:  # the first calls warm up
                    times[label].append(spent)
                if spent > 1e3 * longest_call_s:
                    progress(skipped=label, atoms=f"more than {n_atoms}", reason=f"a call takes {spent / 1e3:.0f} s")
                    active.remove(label)
        for label, values in times.items():
            medians[label][n_atoms] = float(np.median(values))
            store(_row(label, n_atoms, "energy and forces", medians[label][n_atoms], "ms"))
    return dict(medians)


def exponent(times: dict[int, float]) -> float | None:
    """Slope of log time over log atoms from 200 atoms on."""
    large = {n: t for n, t in times.items() if n >= 200}
    if len(large) < 2:
        return None
    return float(np.polyfit(np.log(list(large)), np.log(list(large.values())), 1)[0])


def start_up(checkout: Path) -> dict[str, float]:
    """CPU time (s) of importing the calculator and of the first forces, in a new process."""
    code = (
        "import time; start = time.process_time(); from faenet_calc import FAENetCalculator; "
        "imported = time.process_time(); from speed import slab; atoms = slab(12); began = time.process_time(); "
        "atoms.calc = FAENetCalculator(device='cpu'); atoms.get_forces(); "
        "print(imported - start, time.process_time() - began)"
    )
    environment = os.environ | {"PYTHONPATH": f"{checkout}{os.pathsep}{Path(__file__).parent}", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    return dict(zip(("import", "load and first forces"), map(float, done.stdout.split()), strict=True))


def memory_per_atom(checkout: Path, case: str, n_atoms: int) -> float:
    """Growth of the peak memory (kB per atom) by the forces of a large slab, in a new process."""
    worker = Worker(checkout)
    try:
        worker.ask("prepare", case)
        worker.ask("call", case, min(LAYERS))
        before = worker.ask("memory")
        worker.ask("call", case, n_atoms)
        return 1024 * float(worker.ask("memory") - before) / n_atoms
    finally:
        worker.close()


def plot(times: dict[str, dict[int, float]], path: Path) -> None:
    """Time over the number of atoms, doubly logarithmic.

    A color for each model, a line style for its frames; peers have squares, the other checkout open circles.
    """
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 5))
    colors: dict[str, str] = {}
    styles = {"one": ":", "pair": "-", "all": "--"}
    for label, values in times.items():
        name, _, frames = label.removesuffix(" (other)").partition(", frames=")
        axes.loglog(
            list(values), list(values.values()), styles.get(frames, "-."), label=label, markersize=4,
            color=colors.setdefault(name, f"C{len(colors)}"), marker="o" if frames else "s",
            fillstyle="none" if label.endswith(" (other)") else "full",
        )  # fmt: skip
    axes.set(xlabel="atoms", ylabel="CPU time of energy and forces (ms)")
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small", loc="upper left", bbox_to_anchor=(1.01, 1.0))
    figure.savefig(path, bbox_inches="tight")
    plt.close(figure)


def _row(case: str, atoms: int | None, metric: str, value: float, unit: str) -> Row:
    return {"benchmark": "speed", "case": case, "atoms": atoms, "metric": metric, "value": value, "unit": unit}


def further_rows(
    times: dict[str, dict[int, float]], here: Worker, cases: list[str], checkout: Path, batched: int
) -> Iterator[Row]:
    """What follows from the times, and what is measured besides them."""
    for label, by_n in times.items():
        slope = exponent(by_n)
        if slope is not None:
            yield _row(label, None, "exponent from 200 atoms", slope, "")
        earlier = times.get(f"{label} (other)", {})
        yield from (_row(label, n, "other / this", earlier[n] / t, "x") for n, t in by_n.items() if n in earlier)
    rate = max(here.ask("sgemm") for _ in range(5))
    yield _row("torch", None, "sgemm", rate, "GFLOP/s")
    for case in cases:
        for n, milliseconds in times.get(case, {}).items():
            achieved = here.ask("flops", case, n) / milliseconds / 1e6
            yield _row(case, n, "matrix products / sgemm", achieved / rate, "x")
            yield _row(case, n, "MD steps", 1e3 / milliseconds, "1/s")
            yield _row(case, n, "MD", 86.4 * TIMESTEP_FS / milliseconds, "ns/day")
        largest = max(times[case])
        yield _row(case, largest, "memory per atom", memory_per_atom(checkout, case, largest), "kB")
        for n in (12, 40) if batched else ():
            together = float(np.median([here.ask("batch", case, n, batched) for _ in range(3)]))
            yield _row(case, n, f"{batched} structures in one call, each", together, "ms")
    yield from (_row("start-up", None, name, value, "s") for name, value in start_up(checkout).items())


def main(arguments: list[str] | None = None) -> None:
    """Measure, print and store."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[12, 40, 200, 500, 2000], choices=LAYERS)
    parser.add_argument(
        "--models",
        nargs="+",
        default=["catalysis-m", "catalysis-s", "metals-m", "metals-s"],
        help="Shipped names or paths.",
    )
    parser.add_argument("--frames", nargs="+", default=["one", "pair", "all"], choices=["one", "pair", "all"])
    parser.add_argument("--peers", action="store_true", help="Also measure the potentials of the extra [peers].")
    parser.add_argument("--other", type=Path, help="Folder of another checkout to compare with.")
    parser.add_argument("--repeats", type=int, default=7, help="Timed calls of each potential and size.")
    parser.add_argument(
        "--longest-call", type=float, default=30.0, help="Leave out potentials whose calls take longer (s)."
    )
    parser.add_argument("--batch", type=int, default=64, help="Structures in a batched call; 0 leaves it out.")
    parser.add_argument("--out", type=Path, help="File for the rows (JSON lines).")
    parser.add_argument("--plot", type=Path, help="File for the plot.")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args(arguments)
    if chosen.serve:
        _serve()
        return
    checkout = Path(__file__).resolve().parent.parent
    here = Worker(checkout)
    workers = {"": here} | ({" (other)": Worker(chosen.other.resolve())} if chosen.other else {})
    cases = [f"{model}, frames={frames}" for model in chosen.models for frames in chosen.frames]
    measured: dict[str, tuple[Worker, str]] = {}
    for suffix, worker in workers.items():
        for case in [*cases, *(PEERS if chosen.peers and not suffix else ())]:
            try:
                worker.ask("prepare", case)
                measured[f"{case}{suffix}"] = worker, case
            except RuntimeError as error:
                progress(skipped=f"{case}{suffix}", reason=str(error))
    rows = Rows(chosen.out)

    def store(row: Row) -> None:
        rows.append(row)
        show(row)

    try:
        times = measure(measured, chosen.sizes, chosen.repeats, store, longest_call_s=chosen.longest_call)
        if chosen.plot is not None:
            plot(times, chosen.plot)
        for row in further_rows(times, here, [case for case in cases if case in times], checkout, chosen.batch):
            store(row)
    finally:
        for worker in workers.values():
            worker.close()


if __name__ == "__main__":
    main()
