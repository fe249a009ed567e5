"""Relaxed energies from initial structures (IS2RE), and the symmetries that the methods keep.

    python benchmarks/is2re.py [--train 1000] [--epochs 3] [--seeds 3] [--quick] [--out rows.jsonl] [--plot is2re.svg]
    python benchmarks/is2re.py --from-relaxed slabs.extxyz.xz          # writes the data file anew

The paper's IS2RE tables at reduced scale. OC20 has 460,000 relaxations, of which 37 are at hand; the data are 1,950
slabs of Ir-Pd-Pt-Rh-Ru with terraces, edges and kinks, with an adatom, a vacancy or an exchanged atom, relaxed with DFT
(CC BY 4.0; benchmarks/data/README.md). Their publication has the relaxed structures only. The initial ones are
reconstructed: the fixed bottom layers define a face-centered cubic lattice, and every atom is put on its nearest site.
The eleven slabs of one random alloy surface are either all held out (a quarter of the surfaces, the same for all seeds)
or all for training.

The methods are those of symmetry.py, with the energy alone; networks have 64 channels, 3 interactions and a cutoff of
4.5 Å and take the same steps with the same optimizer. References of the elements are fitted, so that the composition
alone predicts what the first row of the table says; "by kind of surface" adds a constant for each of them. EwT is the
share of errors below 20 meV. The relative improvement is the paper's R = (MAE of SchNet - MAE) / MAE of SchNet.
"""

import io
import itertools
import lzma
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import ase.io
import numpy as np
import torch
from ase import Atoms
from ase.calculators.singlepoint import SinglePointCalculator
from ase.neighborlist import neighbor_list
from experiment import Measured, mean_of, measure, throughput
from numpy.typing import NDArray
from rows import Row, Rows, progress, rounded, run_script, script_parser
from symmetry import Method, kept_symmetries, methods, plot, train

from faenet_calc.errors import InputError
from faenet_calc.training.assessment import assess

Floats = NDArray[np.float64]
SLABS = Path(__file__).parent / "data" / "is2re-slabs.extxyz.xz"
HELD_OUT = 0.25  # fraction of the alloy surfaces
SPLIT_SEED = 0
LARGEST_BOND = 3.5  # Å
LARGEST_DISPLACEMENT = 1.0  # Å, of an atom from its lattice site; hcp sites are 1.6 Å away
TABLE, GAINS = "relaxed energies of held-out surfaces", "relative improvement over SchNet (%)"
SHOWN = {"Rot-I": "meV", "Refl-I": "meV", "energy MAE": "meV"}

COMMON = (
    "model.hidden_channels=64", "model.filters=64", "model.interactions=3", "model.gaussians=32", "model.cutoff=4.5",
    "model.atoms.group_period_channels=8", "model.atoms.tag_channels=0", "model.atoms.properties=none",
    "graph.max_neighbors=30", "graph.rewiring=none", "energy.kind=other",
    "normalization.references=fit", "normalization.shift=0.0", "normalization.scale=fit",
    "normalization.mean_neighbors=fit",
    "loss.energy=1.0", "loss.forces=0.0", "loss.per_atom=false", "loss.energy_kind=mae",
    "optim.kind=muon", "optim.lr=5e-3", "optim.weight_decay=1e-4", "optim.beta2=0.99", "optim.schedule=cosine",
    "optim.warmup_steps=20", "optim.batch_size=8", "optim.ema_decay=0.99", "optim.grad_clip=10.0",
    "stop.metric=energy_mae", "stop.patience=null",
)  # fmt: skip
METHODS = methods(
    paper=("model.preset=paper-is2re", *COMMON, "frames.kind=pca2d", "frames.proper=false"),
    ours=("model.preset=modern-s", *COMMON, "frames.kind=lattice"),
)
# IS2RE "All", mean of the four validation sets: energy MAE (meV) of the paper's tables.
PUBLISHED = {
    "Full FA": 578, "SFA": 569, "SE(3)-SFA": 567, "DA": 582, "No FA": 595, "SchNet": 684,
}  # fmt: skip


def initial_structure(relaxed: Atoms) -> Atoms | None:
    """Put the atoms of a relaxed slab on the sites of the fcc lattice that its fixed atoms define.

    Returns:
        None for an atom that is far from every site, such as an adatom on an hcp site.

    Raises:
        InputError: The fixed atoms are no fcc lattice.
    """
    fixed = relaxed[relaxed.arrays["fixed"] == 1]
    distance = neighbor_list("d", fixed, LARGEST_BOND).min()
    vectors = neighbor_list("D", fixed, 1.01 * distance)
    vectors = vectors[np.unique(vectors.round(2), axis=0, return_index=True)[1]]
    basis = next(filter(partial(_is_primitive, distance), itertools.combinations(vectors, 3)), None)
    if basis is None:
        raise InputError("the fixed atoms of a slab are no face-centered cubic lattice; expected three fixed layers")
    origin, lattice = fixed.positions[0], np.array(basis)
    sites = origin + np.round((relaxed.positions - origin) @ np.linalg.inv(lattice)) @ lattice
    if np.linalg.norm(sites - relaxed.positions, axis=1).max() > LARGEST_DISPLACEMENT:
        return None
    return Atoms(relaxed.numbers, sites, cell=relaxed.cell, pbc=relaxed.pbc)


def _is_primitive(distance: float, vectors: tuple[Floats, ...]) -> bool:
    """Whether three bonds of this length span a primitive cell of the fcc lattice."""
    return abs(np.linalg.det(np.array(vectors)) * np.sqrt(2) / distance**3 - 1) < 0.02


def write_slabs(source: Path, path: Path) -> int:
    """Write initial structures with relaxed energies; returns the number of slabs that were left out.

    Args:
        source: Relaxed slabs (extxyz.xz) with ``fixed``, and ``db`` and ``slab_idx`` in their metadata.
        path: File to write.
    """
    relaxed = [atoms for atoms in read_slabs(source) if "slab_idx" in atoms.info]
    found = []
    for atoms in relaxed:
        start = initial_structure(atoms)
        if start is not None:
            start.positions, start.cell = start.positions.round(4), start.cell.array.round(4)
            surface = atoms.info["db"].removesuffix("_HEA_out")
            start.info = {"surface": surface, "slab": f"{surface}-{atoms.info['slab_idx']}"}
            start.calc = SinglePointCalculator(start, energy=round(atoms.get_potential_energy(), 5))
            found.append(start)
    text = io.StringIO()
    ase.io.write(text, found, format="extxyz")
    path.write_bytes(lzma.compress(text.getvalue().encode(), preset=9))
    return len(relaxed) - len(found)


def read_slabs(path: Path) -> list[Atoms]:
    """All slabs of an extxyz.xz file."""
    if not path.is_file():
        raise InputError(f"{path} does not exist, expected an extxyz.xz file of slabs")
    # The text is read first, since seeking in compressed files is slow.
    found = ase.io.read(io.StringIO(lzma.decompress(path.read_bytes()).decode()), ":", format="extxyz")
    assert isinstance(found, list)
    return found


def split_surfaces(slabs: Sequence[Atoms]) -> tuple[list[Atoms], list[Atoms]]:
    """Slabs for training, in random order, and those of the held-out surfaces."""
    generator = np.random.default_rng(SPLIT_SEED)
    names = generator.permutation(sorted({atoms.info["slab"] for atoms in slabs}))
    held_out = set(names[: round(HELD_OUT * len(names))])
    training = [atoms for atoms in slabs if atoms.info["slab"] not in held_out]
    return (
        [training[index] for index in generator.permutation(len(training))],
        [atoms for atoms in slabs if atoms.info["slab"] in held_out],
    )


def baselines(training: Sequence[Atoms], held_out: Sequence[Atoms]) -> dict[str, float]:
    """MAE (meV) of linear fits to the numbers of atoms, and to the kind of surface as well."""
    elements = sorted({number for atoms in training for number in atoms.numbers})
    surfaces = sorted({atoms.info["surface"] for atoms in training})

    def features(slabs: Sequence[Atoms], *, kinds: bool) -> Floats:
        counts = [[float(np.sum(atoms.numbers == element)) for element in elements] for atoms in slabs]
        kind = [[float(atoms.info["surface"] == surface) for surface in surfaces] for atoms in slabs]
        return np.hstack([counts, kind]) if kinds else np.array(counts)

    known, wanted = (np.array([a.get_potential_energy() for a in slabs]) for slabs in (training, held_out))
    found = {}
    for name, kinds in {"composition": False, "composition, by kind of surface": True}.items():
        weights = np.linalg.lstsq(features(training, kinds=kinds), known, rcond=None)[0]
        found[name] = 1e3 * float(np.abs(features(held_out, kinds=kinds) @ weights - wanted).mean())
    return found


def data_settings(training: Sequence[Atoms], held_out: Sequence[Atoms], folder: Path) -> list[str]:
    """Write the sets; settings that name them."""
    files = {"train": training, "val": held_out}
    for name, members in files.items():
        ase.io.write(folder / f"{name}.extxyz", members)
    return [
        *(f"data.{name}=[{folder / f'{name}.extxyz'}]" for name in files),
        f"data.cache_dir={folder / 'cache'}",
    ]


def once(method: Method, settings: Sequence[str], limit: int) -> Measured:
    """Train and test a method; ``limit`` is the number of structures for the symmetry metrics."""
    trained = train(method, settings)
    val = trained.prepared.val
    found = assess(trained.potential, val.dataset, val.indices, frames=method.test).metrics
    kept = kept_symmetries(trained, method, limit)
    return {
        "energy MAE": (1e3 * found["energy_mae"], "meV"),
        "EwT": (100 * found["energy_within"], "%"),
        **{name: kept[name] for name in ("Rot-I", "Refl-I")},
        "throughput": (throughput(trained.potential, val.dataset, val.indices[:64], method.test), "slabs/s"),
        "training": (trained.cpu_s, "s"),
    }


def improvements(rows: Sequence[Row]) -> list[Row]:
    """Relative improvements over SchNet next to those of the paper."""
    found: list[Row] = []
    words = {"benchmark": "is2re", "table": GAINS, "unit": ""}
    schnet = mean_of(rows, case="SchNet", metric="energy MAE")
    for name in METHODS:
        if name not in ("SchNet", "Untrained"):
            gain = 100 * (1 - mean_of(rows, case=name, metric="energy MAE") / schnet)
            found.append(words | {"case": name, "metric": "energy MAE", "value": rounded(gain, 1)})
            if name in PUBLISHED:
                gain = 100 * (1 - PUBLISHED[name] / PUBLISHED["SchNet"])
                found.append(words | {"case": name, "metric": "paper, 460000 systems", "value": rounded(gain, 1)})
    return found


def run(slabs: Sequence[Atoms], rows: Rows, *, seeds: int, epochs: int, n_train: int, limit: int) -> None:
    """Train and test all methods and seeds that are missing."""
    training, held_out = split_surfaces(slabs)
    training = training[:n_train]
    words = {"benchmark": "is2re", "table": TABLE}
    if not any(row["case"] == "composition" for row in rows.rows):
        measured = {"metric": "energy MAE", "unit": "meV"}
        simple = baselines(training, held_out)
        rows.extend(words | measured | {"case": name, "value": rounded(value)} for name, value in simple.items())
    with tempfile.TemporaryDirectory() as scratch:
        data = data_settings(training, held_out, Path(scratch))
        for seed in range(seeds):
            settings = [
                *data, f"run.seed={seed}", f"run.max_epochs={epochs}", f"run.validate_every={epochs}",
                "run.validation_frames=one",
            ]  # fmt: skip
            for name, method in METHODS.items():
                measure(rows, words | {"case": name}, [seed], lambda _, m=method, s=settings: once(m, s, limit))
                progress(done=name, seed=seed)


def main(arguments: list[str] | None = None) -> None:
    """Measure and store."""
    parser = script_parser(__doc__, quick="A few slabs, one epoch.")
    parser.add_argument("--train", type=int, default=1000, metavar="N", help="number of training slabs")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--test", type=int, default=40, help="structures for the symmetry metrics")
    parser.add_argument("--from-relaxed", type=Path, metavar="FILE", help=f"Write {SLABS.name} from relaxed slabs.")
    chosen = parser.parse_args(arguments)
    torch.set_num_threads(1)
    if chosen.from_relaxed is not None:
        progress(left_out=write_slabs(chosen.from_relaxed, SLABS))
        return
    slabs = read_slabs(SLABS)
    if chosen.quick:
        slabs, chosen.train, chosen.epochs, chosen.seeds, chosen.test = slabs[::40], 24, 1, 1, 3
    rows = Rows(chosen.out)
    run(slabs, rows, seeds=chosen.seeds, epochs=chosen.epochs, n_train=chosen.train, limit=chosen.test)
    rows.derive(improvements)
    if chosen.plot is not None:
        plot(rows.rows, SHOWN, chosen.plot)


if __name__ == "__main__":
    run_script(main)
