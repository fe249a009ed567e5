"""Splits into training, validation and test sets.

Snapshots of one trajectory are nearly identical: with some of them in the training set, the error on the others is
too optimistic. Structures are therefore grouped, and a group is never divided, except by ``kind="random"``.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from ase.formula import Formula
from numpy.typing import NDArray

from faenet_calc.elements import symbol
from faenet_calc.errors import InputError, counted
from faenet_calc.graphs.neighbors import axis_heights
from faenet_calc.graphs.tags import ADSORBATE, SURFACE

if TYPE_CHECKING:
    from faenet_calc.data.dataset import GraphDataset

Integers = NDArray[np.int64]

KINDS = ("auto", "random", "trajectory", "composition", "adsorbate", "slab", "file", "info")
NAMES = ("train", "val", "test")
_ALIASES = {
    "training": "train",
    "valid": "val",
    "validation": "val",
    "dev": "val",
    "testing": "test",
    "heldout": "test",
}
TRAJECTORY_KEYS = ("trajectory_id", "traj_id", "trajectory", "sid", "system_id", "system", "run_id")
"""Metadata keys that identify a trajectory or system, most specific first; the first one present is used."""
_SLAB_KEYS, _ADSORBATE_KEYS = ("slab", "slab_id", "bulk_id", "bulk_mpid"), ("adsorbate", "ads_symbols", "ads_id")
_STEP = 0.5  # Å, largest displacement of an atom between consecutive snapshots
_STRAIN = 0.05  # largest relative change of the cell between them
FEWEST_GROUPS = 10  # with fewer trajectories, structures are split at random


@dataclass(frozen=True, kw_only=True, eq=False)
class Split(Mapping[str, Integers]):
    """Name of a set → positions in the data set, ascending.

    Attributes:
        indices: The sets.
        kind: How it was split.
        n_groups: Number of groups of structures that were kept together.
        note: Message to the user.
    """

    indices: dict[str, Integers]
    kind: str
    n_groups: int
    note: str = field(default="")

    def __getitem__(self, name: str) -> Integers:
        return self.indices[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.indices)

    def __len__(self) -> int:
        return len(self.indices)


def split_dataset(
    dataset: "GraphDataset",
    *,
    kind: str = "auto",
    fractions: Mapping[str, float] | Sequence[float] = (0.8, 0.1, 0.1),
    seed: int = 0,
    apart: Integers | None = None,
) -> Split:
    """Split a data set.

    Args:
        kind: "auto": by the metadata key ``split`` if every structure has it (a validation set that is missing is split
            off the training set), otherwise by trajectory if there are at least 10 trajectories, otherwise at random;
            "trajectory"; "composition" (ratio of elements); "adsorbate"; "slab"; "file"; "info" (the key ``split``);
            "key:NAME" (any metadata key); "random", which alone may divide a trajectory.
        fractions: Fractions of train, val and test, or name → fraction; they are scaled to a sum of 1.
        seed: Random seed.
        apart: Positions of structures whose groups are left out of every set, e.g. an earlier validation set.

    Raises:
        InputError: An unknown kind, bad fractions, or fewer groups than sets.
    """
    if kind not in KINDS and not kind.startswith("key:"):
        raise InputError(f"split {kind!r}, expected one of {', '.join(KINDS)} or key:NAME")
    if apart is not None and kind in ("auto", "info", "random"):
        raise InputError(f"split {kind!r} does not define groups; choose e.g. trajectory, slab or key:NAME")
    shares = _shares(fractions)
    own = _own_split(dataset) if kind in ("auto", "info") else None
    if own is not None:
        note = "the split given in the files is used"
        if "val" in shares and "val" not in own and len(own.get("train", ())) > 1:
            own = _with_validation(dataset, own, shares["val"], seed)
            note += "; the files have no validation set, so one is split off their training set"
        return Split(indices=own, kind="info", n_groups=len(own), note=note)
    if kind == "info":
        raise InputError('split "info" needs split=train|val|test in the metadata of every structure; some have none')
    together = trajectories(dataset)
    n_trajectories = int(together.max()) + 1
    note = ""
    if kind == "auto":
        kind = "trajectory" if n_trajectories >= FEWEST_GROUPS else "random"
        if kind == "random":
            note = (
                "split at random, because only "
                f"{counted(n_trajectories, 'trajectory or system was', 'trajectories or systems were')} found; "
                "neighboring snapshots may be in different sets, so errors will be lower than on new systems"
            )
    elif kind == "random" and n_trajectories < len(dataset):
        note = (
            f"split at random: snapshots of {n_trajectories} trajectories or systems are spread over the sets, so "
            "errors will be lower than on new systems"
        )
    if kind == "random":
        groups = np.arange(len(dataset))
    elif kind == "trajectory":
        groups = together
    else:
        groups = _joined(together, _group_keys(dataset, kind))
    if apart is not None:
        return _divide_the_rest(groups, apart, shares, seed, kind)
    indices = _divide(groups, shares, seed, kind)
    return Split(indices=indices, kind=kind, n_groups=int(groups.max()) + 1, note=note)


def uncovered(parts: Mapping[str, tuple["GraphDataset", Integers]]) -> list[str]:
    """Notes on elements and kinds of structures that occur in some sets but not in others.

    Args:
        parts: Name of a set → data set and positions of its structures.
    """
    contents = {name: _contents(dataset, indices) for name, (dataset, indices) in parts.items()}
    notes = []
    for what in ("elements", "kinds"):
        everything = {item for found in contents.values() for item in found[what]}
        for name, found in contents.items():
            missing = sorted(everything - found[what])
            if missing:
                word = "element" if what == "elements" else "structure of kind"
                notes.append(f"the {name} set has no {word} {', '.join(missing)}, which other sets have")
    return notes


def _contents(dataset: "GraphDataset", indices: Integers) -> dict[str, set[str]]:
    present = dataset.compositions(indices).sum(axis=0)
    return {
        "elements": {symbol(int(number)) for number in np.flatnonzero(present)},
        "kinds": {_kind_of_structure(dataset, int(index)) for index in indices},
    }


def _kind_of_structure(dataset: "GraphDataset", index: int) -> str:
    """The metadata key ``kind``, or molecule or cluster, bulk, slab, slab with adsorbate by geometry."""
    word = dataset.info(index).get("kind")
    if word is not None:
        return str(word)
    tags = dataset.arrays["tags"][dataset.atoms_of(index)]
    if not dataset.arrays["pbc"][index].any() or (tags == ADSORBATE).all():
        return "molecule or cluster"
    if not (tags == SURFACE).any():
        return "bulk"
    return "slab with adsorbate" if (tags == ADSORBATE).any() else "slab"


def trajectories(dataset: "GraphDataset") -> Integers:
    """[n_structures] index of the trajectory or system of each structure, by its metadata or by continuity.

    Without a name, consecutive structures of one file belong together if they have the same atoms in the same order,
    nearly the same cell, and no atom moved by more than 0.5 Å.
    """
    names: list[Any] = []
    run = 0
    before: dict[str, Any] = {}
    for index in range(len(dataset)):
        info = dataset.info(index)
        key = next((key for key in TRAJECTORY_KEYS if key in info), None)
        if key is None and not (before.get("source") == info["source"] and _continues(dataset, index)):
            run += 1
        names.append((key, str(info[key])) if key is not None else run)
        before = info
    return _numbered(names)


def _continues(dataset: "GraphDataset", index: int) -> bool:
    """Whether a structure continues the trajectory of the preceding one."""
    data, now, last = dataset.arrays, dataset.atoms_of(index), dataset.atoms_of(index - 1)
    if now.stop - now.start != last.stop - last.start or not np.array_equal(data["pbc"][index], data["pbc"][index - 1]):
        return False
    if not np.array_equal(data["numbers"][now], data["numbers"][last]):
        return False
    cell, other = data["cell"][index].reshape(3, 3), data["cell"][index - 1].reshape(3, 3)
    if float(np.linalg.norm(cell - other)) > _STRAIN * float(np.linalg.norm(cell)):
        return False
    moved = data["positions"][now] - data["positions"][last]
    periodic = data["pbc"][index] & (axis_heights(cell, data["pbc"][index]) < np.inf)
    if periodic.any():
        # Displacements by lattice vectors are removed: an atom may have been wrapped into the cell.
        vectors = cell[periodic]
        moved = moved - np.rint(moved @ np.linalg.pinv(vectors)) @ vectors
    return bool(np.linalg.norm(moved, axis=1).max() <= _STEP)


def _group_keys(dataset: "GraphDataset", kind: str) -> list[Any]:
    """The key by which each structure is grouped."""
    keys: list[Any] = []
    for index in range(len(dataset)):
        info = dataset.info(index)
        if kind == "file":
            keys.append(info["source"])
        elif kind.startswith("key:"):
            key = kind.removeprefix("key:")
            if key not in info:
                words = ", ".join(sorted(info))
                raise InputError(f"split {kind!r}: {info['source']} #{info['index']} has no {key!r}; it has {words}")
            keys.append(str(info[key]))
        else:
            keys.append(_chemistry(dataset, index, kind, info))
    return keys


def _chemistry(dataset: "GraphDataset", index: int, kind: str, info: Mapping[str, Any]) -> str:
    """The composition, adsorbate or slab of a structure, from its metadata or by tags."""
    keys = {"adsorbate": _ADSORBATE_KEYS, "slab": _SLAB_KEYS}.get(kind, ())
    word = next((str(info[key]) for key in keys if key in info), None)
    if word is not None:
        return word
    atoms = dataset.atoms_of(index)
    numbers, adsorbed = dataset.arrays["numbers"][atoms], dataset.arrays["tags"][atoms] == ADSORBATE
    if kind == "adsorbate":
        return _formula(numbers[adsorbed])
    part = numbers[~adsorbed] if kind == "slab" and not adsorbed.all() else numbers
    return str(Formula(_formula(part)).reduce()[0])


def _formula(numbers: NDArray[np.integer[Any]]) -> str:
    kinds, counts = np.unique(numbers, return_counts=True)
    return "".join(f"{symbol(int(z))}{n}" for z, n in zip(kinds, counts, strict=True))


def _own_split(dataset: "GraphDataset") -> dict[str, Integers] | None:
    """The sets given by the metadata key ``split``; None unless every structure names a known set."""
    words = [str(dataset.info(index).get("split", "")).lower() for index in range(len(dataset))]
    words = [_ALIASES.get(word, word) for word in words]
    if not set(words) <= set(NAMES) or len(set(words)) < 2:
        return None
    return {name: np.flatnonzero(np.array(words) == name) for name in NAMES if name in words}


def _with_validation(
    dataset: "GraphDataset", own: Mapping[str, Integers], share: float, seed: int
) -> dict[str, Integers]:
    """The split of the files with a validation set, which consists of whole trajectories if there are enough."""
    train = own["train"]
    groups = _numbered(trajectories(dataset)[train].tolist())
    if int(groups.max()) + 1 < FEWEST_GROUPS:
        groups = np.arange(len(train))
    found = _divide(groups, {"train": 1 - share, "val": share}, seed, "trajectory")
    return {**own, **{name: train[positions] for name, positions in found.items()}}


def _shares(fractions: Mapping[str, float] | Sequence[float]) -> dict[str, float]:
    named = dict(fractions) if isinstance(fractions, Mapping) else dict(zip(NAMES, fractions, strict=False))
    if not isinstance(fractions, Mapping) and len(fractions) > len(NAMES):
        raise InputError(f"{len(fractions)} fractions, expected at most 3: train, val, test")
    named = {name: float(share) for name, share in named.items() if share != 0}
    total = sum(named.values())
    if not named or min(named.values()) < 0 or not np.isfinite(total):
        raise InputError(f"{fractions=}, expected fractions above 0 such as 0.8, 0.1, 0.1")
    return {name: share / total for name, share in named.items()}


def _numbered(names: Sequence[Any]) -> Integers:
    numbers: dict[Any, int] = {}
    return np.array([numbers.setdefault(name, len(numbers)) for name in names], dtype=np.int64)


def _joined(first: Integers, keys: Sequence[Any]) -> Integers:
    """Merge groups: structures that share either a group or a key are in one group."""
    second = _numbered(keys)
    parent = list(range(int(first.max()) + 1 + int(second.max()) + 1))

    def root(node: int) -> int:
        while parent[node] != node:
            parent[node] = parent[parent[node]]
            node = parent[node]
        return node

    offset = int(first.max()) + 1
    for one, other in {(int(a), int(b) + offset) for a, b in zip(first, second, strict=True)}:
        parent[root(one)] = root(other)
    return _numbered([root(int(one)) for one in first])


def _divide_the_rest(groups: Integers, apart: Integers, shares: Mapping[str, float], seed: int, kind: str) -> Split:
    """Split the structures that share no group with those at ``apart``."""
    rest = np.flatnonzero(~np.isin(groups, groups[apart]))
    note = f"{len(groups) - len(apart) - len(rest)} structures share a group with excluded structures and are left out"
    if not len(rest):
        raise InputError(f"split by {kind}: {note}; nothing is left")
    left = _numbered(groups[rest].tolist())
    indices = {name: rest[chosen] for name, chosen in _divide(left, shares, seed, kind).items()}
    return Split(indices=indices, kind=kind, n_groups=int(left.max()) + 1, note=note)


def _divide(groups: Integers, shares: Mapping[str, float], seed: int, kind: str) -> dict[str, Integers]:
    """Assign groups in random order to the set that is furthest from its size; every set gets at least one group."""
    n_groups = int(groups.max()) + 1
    if n_groups < len(shares):
        raise InputError(
            f"split by {kind} finds {counted(n_groups, 'group')}, too few for {len(shares)} sets "
            f"({', '.join(shares)}); use another kind, fewer sets or more data"
        )
    sizes, names = np.bincount(groups), list(shares)
    order = np.random.default_rng(seed).permutation(n_groups)
    lack = np.array([shares[name] for name in names]) * len(groups)
    owner = np.full(n_groups, -1)
    empty = set(range(len(names)))
    for position, group in enumerate(order):
        # The last groups go to sets that are still empty.
        choice = range(len(names)) if n_groups - position > len(empty) else sorted(empty)
        chosen = max(choice, key=lambda s: lack[s])
        owner[group] = chosen
        lack[chosen] -= sizes[group]
        empty.discard(chosen)
    return {name: np.flatnonzero(owner[groups] == position) for position, name in enumerate(names)}
