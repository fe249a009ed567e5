"""Which structures can a network tell apart, and does it know their orientation?

    python benchmarks/expressivity.py [--seeds 10] [--steps 100] [--quick] [--out rows.jsonl] [--plot expressivity.svg]

The paper's three tables (k-chains, rotationally symmetric structures, k-body counterexamples), whose structures are
those of geometric-gnn-dojo. A network with one scalar output is trained to give the two structures of a pair different
signs. Every seed is an independent training; the accuracy is that of the final weights. A structure whose logit is
within 0.01 of zero counts as half right, so that rounding errors are no classifiers.

Many of the pairs are congruent: a rotation or reflection and a relabelling of equal atoms maps one structure onto the
other (all pairs are tested by brute force). An invariant network must score 50 % on them; a higher score is the proof
that it is not invariant. For these pairs there is a second task, the orientation: vectors on the atoms are learned for
the first structure alone, and predicted for the second one. The accuracy is the share of seeds whose vectors are nearer
to those of the second structure than to those of the first one; the error is relative to the length of the vectors.

Networks have 32 channels, and 1 layer if nothing else is said. FAENet is the paper's (hard cutoff, principal axes,
direct vectors) without frames, with stochastic frame averaging (SFA, random frames in the test, too) and with all
frames; "this package" has the smooth cutoff and the weighted pair frames of its presets, and vectors that are the
gradient of the scalar, as SchNet. An interrupted run continues with the rows that are missing.
"""

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from matplotlib import rc_context
from matplotlib.figure import Figure
from numpy.typing import NDArray
from peers.egnn import EGNN
from peers.schnet import SchNetPotential, SchNetSize
from rows import Row, Rows, progress, rounded, script_parser
from torch import Tensor, nn

from faenet_calc.graphs.graph import AtomGraph
from faenet_calc.potential.config import NormalizationConfig
from faenet_calc.potential.potential import Potential, build_potential
from faenet_calc.reports.plots import STYLE

Floats = NDArray[np.float64]

CHANNELS, GAUSSIANS = 32, 32
CUTOFF = 12.0  # Å; edges are given, the largest distance is 8.7 Å
LR = 3e-3
UNDECIDED = 0.01  # logits nearer to zero are not a classification
CONGRUENT = 1e-6  # Å, root mean square distance
TESTS_OF_RANDOM_FRAMES = 16
ENOUGH_STEPS = 10  # consecutive steps with a small loss that end a training with random frames, whose loss fluctuates


@dataclass(frozen=True, kw_only=True, eq=False)
class Pair:
    """Two structures of equal atoms with the same edges.

    Attributes:
        name: In the tables.
        table: Of the paper.
        first, second: [n_atoms, 3] positions (Å).
        edges: Undirected edges.
        layers: Of the network.
        vectors: [n_atoms, 3] vectors of either structure that turn with it; NaN where there is none. Only for congruent
            pairs.
    """

    name: str
    table: str
    first: Floats
    second: Floats
    edges: tuple[tuple[int, int], ...]
    layers: int = 1
    vectors: tuple[Floats, Floats] | None = None

    def graph(self, positions: Floats) -> AtomGraph:
        """One of the structures."""
        both = sorted([*self.edges, *((b, a) for a, b in self.edges)])
        centre, neighbor = torch.tensor(both).T
        n_atoms = len(positions)
        return AtomGraph(
            positions=torch.tensor(positions - positions.mean(axis=0)),
            atomic_numbers=torch.ones(n_atoms, dtype=torch.long),
            tags=torch.zeros(n_atoms, dtype=torch.long),
            cell=torch.zeros(1, 3, 3, dtype=torch.float64),
            pbc=torch.zeros(1, 3, dtype=torch.bool),
            graph_of_atom=torch.zeros(n_atoms, dtype=torch.long),
            centre=centre,
            neighbor=neighbor,
            shift=torch.zeros(len(both), 3, dtype=torch.long),
        )


def _star(n_atoms: int) -> tuple[tuple[int, int], ...]:
    return tuple((0, n) for n in range(1, n_atoms))


def _about(axis: int, angle: float) -> Floats:
    """Rotation matrix for row vectors about a Cartesian axis."""
    turn = np.eye(3)
    a, b = [n for n in range(3) if n != axis]
    turn[a, a] = turn[b, b] = math.cos(angle)
    turn[a, b], turn[b, a] = math.sin(angle), -math.sin(angle)
    return turn


def k_chain(k: int, layers: int) -> Pair:
    """K atoms in a row with one more at either end; the ends point to the same side or to opposite sides."""
    row = [[0.0, 5.0 * i, 0.0] for i in range(k)]
    last = [4.0, 5.0 * (k - 1) + 3.0, 0.0]
    first, second = (np.array([[x, -3.0, 0.0], *row, last]) for x in (-4.0, 4.0))
    edges = tuple((n, n + 1) for n in range(k + 1))
    words = f"{layers} layer{'s' if layers > 1 else ''}"
    return Pair(name=words, table=f"{k}-chains", first=first, second=second, edges=edges, layers=layers)


def symmetric(fold: int) -> Pair:
    """A star of ``fold`` unit spokes in a plane, and the same star turned by an angle that is no symmetry of it."""
    angles = 2 * np.pi * np.arange(fold) / fold
    star = np.concatenate([np.zeros((1, 3)), np.stack([np.cos(angles), np.sin(angles), 0 * angles], axis=1)])
    turned = star @ _about(2, 2 * np.pi / (fold + fold / 2))
    outward = tuple(np.where(np.arange(fold + 1)[:, None] > 0, positions, 0.0) for positions in (star, turned))
    return Pair(
        name=f"{fold}-fold",
        table="rotationally symmetric structures",
        first=star,
        second=turned,
        edges=_star(fold + 1),
        vectors=(outward[0], outward[1]),
    )


def _counterexample(name: str, shared: list[list[float]], last: list[list[float]], *, vectors: bool = False) -> Pair:
    first, second = (np.array([*shared, atom], dtype=float) for atom in last)
    towards = []
    for positions in (first, second):
        target = np.full_like(positions, np.nan)
        target[0] = positions[-1] / np.linalg.norm(positions[-1])
        towards.append(target)
    return Pair(
        name=name,
        table="counterexamples",
        first=first,
        second=second,
        edges=_star(len(first)),
        vectors=(towards[0], towards[1]) if vectors else None,
    )


def pairs() -> list[Pair]:
    """All pairs of the paper."""
    origin = [0.0, 0.0, 0.0]
    lower = [[3.0, 2.0, -4.0], [0.0, 2.0, 5.0], [-3.0, 2.0, -4.0]]
    upper = (np.array([[3.0, -2.0, -4.0], [0.0, -2.0, 5.0], [-3.0, -2.0, -4.0]]) @ _about(1, 2 * np.pi / 10)).tolist()
    above_and_below = [[0.0, 5.0, 0.0], [0.0, -5.0, 0.0]]
    return [
        *(k_chain(4, layers) for layers in range(1, 6)),
        *(symmetric(fold) for fold in (2, 3, 5, 7)),
        _counterexample("2-body", [origin, [5.0, 0.0, 0.0]], [[3.0, 0.0, 4.0], [-5.0, 0.0, 0.0]]),
        _counterexample(
            "3-body",
            [origin, [5.0, 0.0, 5.0], [5.0, 5.0, 5.0], [-5.0, -5.0, 5.0]],
            [[0.0, 5.0, 5.0], [0.0, -5.0, 5.0]],
        ),
        _counterexample("4-body", [origin, *lower, *upper], above_and_below, vectors=True),
        _counterexample(
            "4-body chiral",
            [origin, [3.0, 0.0, -4.0], [0.0, 0.0, 5.0], [-3.0, 0.0, -4.0]],
            above_and_below,
            vectors=True,
        ),
    ]


def mismatch(first: Floats, second: Floats) -> float:
    """Smallest root mean square distance (Å) over rotations, reflections and all relabellings (Kabsch)."""
    a, b = first - first.mean(axis=0), second - second.mean(axis=0)
    orders = np.array(list(itertools.permutations(range(len(b)))))
    best = math.inf
    for part in np.array_split(orders, -(-len(orders) // 20_000)):
        overlap = np.linalg.svd(np.einsum("ni,pnj->pij", a, b[part]), compute_uv=False).sum(axis=1)
        squared = (np.sum(a**2) + np.sum(b**2) - 2 * overlap.max()) / len(a)
        best = min(best, math.sqrt(max(squared, 0.0)))
    return best


class Network(nn.Module):
    """A network with a scalar per structure and a vector per atom."""

    is_random = False

    def scalars(self, graph: AtomGraph) -> Tensor:
        """[n_graphs]."""
        raise NotImplementedError

    def vectors(self, graph: AtomGraph) -> Tensor:
        """[n_atoms, 3]."""
        raise NotImplementedError


class PotentialNetwork(Network):
    """A potential with one of the frame modes."""

    def __init__(self, potential: Potential, mode: str, seed: int = 0) -> None:
        super().__init__()
        self.potential, self.mode = potential.train().requires_grad_(True), mode
        self.is_random = mode == "stochastic"
        self.generator = torch.Generator().manual_seed(seed)

    def _evaluate(self, graph: AtomGraph, name: str) -> Tensor:
        moving = graph.replace(positions=graph.positions.clone().requires_grad_(name == "forces"))
        found = self.potential.evaluate(
            moving, properties=(name,), frames=self.mode, generator=self.generator, create_graph=True
        )
        return getattr(found, name)

    def scalars(self, graph: AtomGraph) -> Tensor:
        """Energies."""
        return self._evaluate(graph, "energy")

    def vectors(self, graph: AtomGraph) -> Tensor:
        """Forces."""
        return self._evaluate(graph, "forces")


class EGNNNetwork(Network):
    """E(n)-GNN; the vectors are the displacements of the atoms."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.model = EGNN(CHANNELS, layers)

    def _outputs(self, graph: AtomGraph) -> tuple[Tensor, Tensor]:
        return self.model(graph.positions.float(), graph.centre, graph.neighbor)

    def scalars(self, graph: AtomGraph) -> Tensor:
        """Sums over atoms."""
        return graph.sum_over_atoms(self._outputs(graph)[0])

    def vectors(self, graph: AtomGraph) -> Tensor:
        """Displacements."""
        return self._outputs(graph)[1]


def _faenet(kind: str, mode: str) -> Callable[[int, int], Network]:
    def build(layers: int, seed: int) -> Network:
        paper = kind != "lattice"
        potential = build_potential(
            "paper-qm9" if paper else "modern-s",
            seed=seed,
            hidden_channels=CHANNELS,
            filters=CHANNELS,
            gaussians=GAUSSIANS,
            interactions=layers,
            cutoff=CUTOFF,
            graph_norm=False,
            mean_neighbors=1.0,
            atoms={"group_period_channels": 4, "properties": "none"},
            frames={"kind": kind, "free_orientation": 0.0},
            repulsion={"kind": "none"},
            forces="direct" if paper else "gradient",
        )
        return PotentialNetwork(potential, mode, seed)

    return build


def _schnet(layers: int, seed: int) -> Network:
    size = SchNetSize(hidden_channels=CHANNELS, num_filters=CHANNELS, num_interactions=layers, num_gaussians=GAUSSIANS)
    torch.manual_seed(seed)
    return PotentialNetwork(SchNetPotential(size, cutoff=CUTOFF, normalization=NormalizationConfig()), "one")


def _egnn(layers: int, seed: int) -> Network:
    torch.manual_seed(seed)
    return EGNNNetwork(layers)


NETWORKS: dict[str, Callable[[int, int], Network]] = {
    "SchNet": _schnet,
    "E(n)-GNN": _egnn,
    "FAENet, no frames": _faenet("none", "one"),
    "FAENet, SFA": _faenet("pca3d", "stochastic"),
    "FAENet, Full FA": _faenet("pca3d", "all"),
    "this package": _faenet("lattice", "all"),
}


def _train(network: Network, loss: Callable[[], Tensor], steps: int, enough: float) -> None:
    """Adam, until the loss is small enough (with random frames: in ten consecutive steps)."""
    optimizer = torch.optim.Adam(network.parameters(), lr=LR)
    small = 0
    for _ in range(steps):
        optimizer.zero_grad()
        value = loss()
        small = small + 1 if float(value.detach()) < enough else 0
        if small == (ENOUGH_STEPS if network.is_random else 1):
            break
        value.backward()
        optimizer.step()


def tell_apart(pair: Pair, network: Network, steps: int) -> float:
    """Accuracy (0 to 1) after training on the pair."""
    graphs = AtomGraph.batch([pair.graph(pair.first), pair.graph(pair.second)])
    sign = torch.tensor([-1.0, 1.0], dtype=torch.float64)
    _train(network, lambda: nn.functional.softplus(-sign * network.scalars(graphs).double()).mean(), steps, 0.02)
    tests = TESTS_OF_RANDOM_FRAMES if network.is_random else 1
    margins = torch.stack([sign * network.scalars(graphs).detach().double() for _ in range(tests)])
    right = (margins > UNDECIDED).double() + 0.5 * (margins.abs() <= UNDECIDED).double()
    return float(right.mean())


def orient(pair: Pair, network: Network, steps: int) -> tuple[float, float]:
    """Learn the vectors of the first structure; accuracy and relative error for the second one."""
    assert pair.vectors is not None
    given, expected = (torch.tensor(vectors) for vectors in pair.vectors)
    known = ~torch.isnan(given).any(dim=1)
    first, second = pair.graph(pair.first), pair.graph(pair.second)
    _train(network, lambda: (network.vectors(first).double() - given)[known].square().mean(), steps, 1e-5)
    tests = TESTS_OF_RANDOM_FRAMES if network.is_random else 1
    right, error = 0.0, 0.0
    for _ in range(tests):
        found = network.vectors(second).detach().double()
        distance = float((found - expected)[known].norm())
        right += float(distance < float((found - given)[known].norm())) / tests
        error += distance / float(expected[known].norm()) / tests
    return right, error


def measure(chosen: list[Pair], names: list[str], seeds: int, steps: int, rows: Rows) -> None:
    """Append the rows of all pairs, networks and seeds that are not there yet.

    Rows without a seed, with means over all seeds, count as complete.
    """
    done = {(row["table"], row["case"], row["metric"], row.get("seed")) for row in rows.rows if "table" in row}
    for pair in chosen:
        words = {"benchmark": "expressivity", "table": f"{pair.table}: accuracy", "metric": pair.name, "unit": "%"}
        if (words["table"], "pair", pair.name, None) not in done:
            distance = mismatch(pair.first, pair.second)
            answer = "congruent" if distance < CONGRUENT else f"distinct ({distance:.2f} Å)"
            rows.append(words | {"case": "pair", "value": answer})
        for name, seed in itertools.product(names, range(seeds)):
            place = words["table"], name, pair.name
            if (*place, seed) not in done and (*place, None) not in done:
                rows.extend(_seed_rows(pair, name, seed, steps, words | {"case": name, "seed": seed}))
        progress(done=f"{pair.table}, {pair.name}")


def _seed_rows(pair: Pair, name: str, seed: int, steps: int, words: Row) -> list[Row]:
    """Rows of one training each for telling the pair apart and, for a congruent pair, for its orientation."""
    build = NETWORKS[name]
    found = [words | {"value": rounded(100 * tell_apart(pair, build(pair.layers, seed), steps))}]
    if pair.vectors is not None:
        right, error = orient(pair, build(pair.layers, seed), steps)
        table = f"{pair.table}: orientation from vectors"
        for metric, value in {"accuracy": right, "error": error}.items():
            found.append(words | {"table": table, "metric": f"{pair.name}, {metric}", "value": rounded(100 * value)})
    return found


def plot(rows: list[Row], path: Path) -> None:
    """Accuracies as colored tables, means over seeds."""
    shown = [row for row in rows if row["case"] in NETWORKS and "error" not in row["metric"]]
    tables = list(dict.fromkeys(row["table"] for row in shown))
    with rc_context(STYLE):
        figure = Figure(figsize=(7.0, 1.9 * len(tables)), layout="constrained")
        for number, table in enumerate(tables, start=1):
            members = [row for row in shown if row["table"] == table]
            cases = list(dict.fromkeys(row["case"] for row in members))
            columns = list(dict.fromkeys(row["metric"] for row in members))
            values = np.full((len(cases), len(columns)), np.nan)
            for place in np.ndindex(values.shape):
                found = [
                    row["value"]
                    for row in members
                    if (row["case"], row["metric"]) == (cases[place[0]], columns[place[1]])
                ]
                values[place] = np.mean(found) if found else np.nan
            axes = figure.add_subplot(len(tables), 1, number)
            axes.imshow(values, vmin=0, vmax=100, cmap="RdYlGn", aspect="auto")
            axes.set_xticks(range(len(columns)), [column.removesuffix(", accuracy") for column in columns])
            axes.set_yticks(range(len(cases)), cases)
            axes.set_title(f"{table} (%)", fontsize="medium")
            axes.grid(visible=False)
            for (line, column), value in np.ndenumerate(values):
                color = "white" if abs(value - 50) > 40 else "black"  # both ends of the color map are dark
                axes.text(column, line, f"{value:.0f}", ha="center", va="center", color=color)
        figure.savefig(path)


def main(arguments: list[str] | None = None) -> None:
    """Measure, print and store."""
    parser = script_parser(__doc__, quick="One seed, few steps, four of the pairs.", seeds=10)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--pairs", nargs="+", metavar="NAME", help="Only these pairs, e.g. 2-body 3-fold.")
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    chosen = parser.parse_args(arguments)
    torch.set_num_threads(1)
    if chosen.quick:
        chosen.seeds, chosen.steps = 1, 40
        chosen.pairs = chosen.pairs or ["1 layer", "2-fold", "2-body", "4-body chiral"]
    every = [pair for pair in pairs() if chosen.pairs is None or pair.name in chosen.pairs]
    rows = Rows(chosen.out)
    measure(every, chosen.networks, chosen.seeds, chosen.steps, rows)
    if chosen.plot is not None:
        plot(rows.rows, chosen.plot)


if __name__ == "__main__":
    main()
