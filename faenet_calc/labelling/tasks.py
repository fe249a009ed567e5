"""Expands a recipe into a fixed list of small tasks, shuffled so that every prefix is a balanced sample.

Each family (bulk, clean slab, adsorbate, gas; pure or alloy) goes through all its combinations in random order before
it repeats one. A task depends only on its own seed, so tasks can run anywhere and in any order.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

import numpy as np

from faenet_calc.labelling.adsorbates import species
from faenet_calc.labelling.recipe import MetalConfig, Recipe, SlabConfig
from faenet_calc.labelling.structures import Substrate

CLEAN_KINDS = ("slab-rattle", "slab-relax", "slab-md")
GAS_KINDS = ("gas-relax", "gas-rattle", "gas-md")


@dataclass(frozen=True, kw_only=True)
class Task:
    """One system explored in one way.

    Attributes:
        index: Position in the list.
        seed: Random seed of the task.
        kind: Kind of sampling, see :mod:`faenet_calc.labelling.sampling`.
        substrate: The metal or alloy; None in the gas phase.
        facet: For example ``fcc111``, or ``cluster``; empty for bulk and gas.
        size: ``(n1, n2, layers)`` of a slab, ``(n_atoms,)`` of a cluster.
        molecule: Adsorbate, several adsorbates (``2CO+O``) or gas molecule; empty for bulk and clean slabs.
        split: ``heldout`` or ``train``.
    """

    index: int
    seed: int
    kind: str
    substrate: Substrate | None = None
    facet: str = ""
    size: tuple[int, ...] = ()
    molecule: str = ""
    split: str = "train"

    @property
    def system(self) -> str:
        """Name of the chemical system: ``Pt_fcc111_CO``, ``Cu75Pd25_fcc100_clean``, ``Ru_hcp_bulk``, ``gas_CO``."""
        if self.substrate is None:
            return f"gas_{self.molecule}"
        if not self.facet:
            return f"{self.substrate.label}_{self.substrate.crystal}_bulk"
        return f"{self.substrate.label}_{self.facet}_{self.molecule or 'clean'}"


@dataclass(frozen=True, kw_only=True)
class _Family:
    """The combinations of one family of tasks and its share of the list."""

    share: float
    kinds: tuple[str, ...]
    combinations: tuple[tuple[Substrate | None, SlabConfig | None, str], ...]


def plan(recipe: Recipe) -> tuple[Task, ...]:
    """The first ``recipe.tasks`` tasks. A longer list starts with the shorter one."""
    families = [family for family in _families(recipe) if family.share > 0 and family.combinations]
    shares = np.array([family.share for family in families])
    walks = [_walk(family, np.random.default_rng([recipe.seed, number])) for number, family in enumerate(families)]
    rng = np.random.default_rng([recipe.seed, len(families)])
    tasks = []
    for index in range(recipe.tasks):
        kind, (substrate, facet, molecule) = next(walks[rng.choice(len(families), p=shares / shares.sum())])
        size = () if facet is None else facet.sizes[rng.integers(len(facet.sizes))]
        task = Task(
            index=index,
            seed=int(rng.integers(2**31)),
            kind=kind,
            substrate=substrate,
            facet=_facet_name(facet),
            size=size,
            molecule=molecule,
        )
        tasks.append(Task(**{**vars(task), "split": _split(task, recipe)}))
    return tuple(tasks)


def _facet_name(facet: SlabConfig | None) -> str:
    if facet is None:
        return ""
    return facet.facet if facet.facet == "cluster" else f"{facet.crystal}{facet.facet}"


def substrates(recipe: Recipe) -> tuple[tuple[Substrate, ...], tuple[Substrate, ...]]:
    """Pure metals, and alloys with lattice constants from Vegard's rule for atomic volumes."""
    pure = tuple(
        Substrate(name=metal.symbol, symbols=(metal.symbol,), crystal=metal.crystal, a=metal.a, c=metal.c)
        for metal in recipe.metals
    )
    metal_of: dict[str, MetalConfig] = {}
    for metal in recipe.metals:
        metal_of.setdefault(metal.symbol, metal)
    mixed = []
    for alloy in recipe.alloys:
        first, second = (metal_of[symbol] for symbol in alloy.metals)
        crystal = first.crystal if first.crystal == second.crystal else "fcc"
        for fraction in alloy.fractions:
            volume = (1 - fraction) * first.atom_volume + fraction * second.atom_volume
            c = None
            if first.c is not None and second.c is not None:
                ratio = (1 - fraction) * first.c / first.a + fraction * second.c / second.a
                a = (4 * volume / (np.sqrt(3) * ratio)) ** (1 / 3)
                c = ratio * a
            else:
                a = (volume * (2 if crystal == "bcc" else 4)) ** (1 / 3)
            mixed.append(
                Substrate(
                    name="".join(alloy.metals),
                    symbols=alloy.metals,
                    crystal=crystal,
                    a=float(a),
                    c=None if c is None else float(c),
                    fraction=fraction,
                )
            )
    return pure, tuple(mixed)


def _families(recipe: Recipe) -> list[_Family]:
    mix = recipe.mix
    families = [_Family(share=mix.gas, kinds=GAS_KINDS, combinations=tuple((None, None, name) for name in recipe.gas))]
    pure, mixed = substrates(recipe)
    alloy = mix.alloy if mixed else 0.0
    for metals, share in ((pure, 1 - alloy), (mixed, alloy)):
        surfaces = [(metal, facet) for metal, facet in product(metals, recipe.slabs) if metal.crystal == facet.crystal]
        families += [
            _Family(
                share=mix.bulk * share, kinds=mix.bulk_kinds, combinations=tuple((metal, None, "") for metal in metals)
            ),
            _Family(
                share=mix.clean * share,
                kinds=CLEAN_KINDS,
                combinations=tuple((metal, facet, "") for metal, facet in surfaces),
            ),
            _Family(
                share=mix.adsorbate * share,
                kinds=mix.adsorbate_kinds,
                combinations=tuple(
                    (metal, facet, name) for (metal, facet), name in product(surfaces, recipe.adsorbates)
                ),
            ),
        ]
    return families


def _walk(
    family: _Family, rng: np.random.Generator
) -> Iterator[tuple[str, tuple[Substrate | None, SlabConfig | None, str]]]:
    """All combinations in random order, repeatedly, each with a uniformly drawn kind."""
    while True:
        for number in rng.permutation(len(family.combinations)):
            yield family.kinds[rng.integers(len(family.kinds))], family.combinations[number]


def _split(task: Task, recipe: Recipe) -> str:
    """``heldout`` if every attribute of some rule matches."""
    if task.substrate is None:
        return "train"
    words = {
        "substrate": (None, task.substrate.name),
        "facet": (None, task.facet),
        "adsorbate": (None, task.molecule, *species(task.molecule)),
    }
    for rule in recipe.heldout:
        if all(getattr(rule, word) in values for word, values in words.items()):
            return "heldout"
    return "train"
