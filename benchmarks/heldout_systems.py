"""Held-out systems of a recipe (unseen pairs, facets, alloys) and the initial structures of their relaxations."""

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import cycle
from typing import Any

import numpy as np
from ase import Atoms
from ase.constraints import FixAtoms
from rows import Row, rounded

from faenet_calc.labelling import Recipe
from faenet_calc.labelling.recipe import HeldOutRule
from faenet_calc.labelling.structures import Substrate, place, sites, slab
from faenet_calc.labelling.tasks import substrates

HEIGHT_A, TILT_DEGREES = 0.2, 10.0
TURNS = ("pair", "facet", "pair", "alloy")


@dataclass(frozen=True, kw_only=True)
class System:
    """Held-out system at one kind of site; ``visit`` counts earlier uses of its combination."""

    group: str
    substrate: Substrate
    facet: str
    size: tuple[int, ...]
    adsorbate: str
    visit: int

    @property
    def slab_name(self) -> str:
        """Name of the clean slab, including the arrangement of alloys."""
        return f"{self.substrate.label}_{self.facet}_{'x'.join(map(str, self.size))}"

    def start(self, vacuum: float) -> tuple[Atoms, str]:
        """Initial structure of a relaxation and the kind of its site."""
        surface = slab(self.substrate, self.facet, self.size, vacuum, rng_of(self.slab_name))
        z = surface.positions[:, 2]
        surface.set_constraint(FixAtoms(mask=z < (z.min() + z.max()) / 2 - 0.1))
        found = sites(surface)
        kinds = sorted({site.kind for site in found})
        rng = rng_of(f"{self.slab_name}_{self.adsorbate}")
        kind = kinds[(int(rng.integers(len(kinds))) + self.visit) % len(kinds)]
        chosen = next(site for site in found if site.kind == kind)
        return place(surface, self.adsorbate, chosen, HEIGHT_A, TILT_DEGREES, rng), kind


def rng_of(name: str) -> np.random.Generator:
    """Random generator seeded by a name."""
    return np.random.default_rng(zlib.crc32(name.encode()))


def heldout_systems(recipe: Recipe) -> Iterator[System]:
    """Endless sequence, balanced between groups and, within a group, between the rules of the recipe."""
    rules: dict[str, list[Iterator[System]]] = {}
    for rule in recipe.heldout:
        group = "pair" if rule.adsorbate is not None else "facet" if rule.facet is not None else "alloy"
        rules.setdefault(group, []).append(_matching(recipe, rule, group))
    walks = {group: cycle(walk) for group, walk in rules.items()}
    for group in cycle([group for group in TURNS if group in walks]):
        yield next(next(walks[group]))


def _matching(recipe: Recipe, rule: HeldOutRule, group: str) -> Iterator[System]:
    """All combinations that a rule holds out, shuffled, repeated with the next size and site."""
    pure, mixed = substrates(recipe)
    found = [
        (metal, config, name)
        for metal in (*pure, *mixed)
        for config in recipe.slabs
        for name in recipe.adsorbates
        if metal.crystal == config.crystal
        and rule.substrate in (None, metal.name)
        and rule.facet in (None, config.crystal + config.facet)
        and rule.adsorbate in (None, name)
    ]
    order = rng_of(f"{rule.substrate} {rule.facet} {rule.adsorbate}").permutation(len(found))
    for visit in range(2**31):
        for rank, number in enumerate(order):
            metal, config, name = found[number]
            size = config.sizes[:2][(visit + rank) % len(config.sizes[:2])]
            yield System(
                group=group,
                substrate=metal,
                facet=config.crystal + config.facet,
                size=size,
                adsorbate=name,
                visit=visit,
            )


def to_json(atoms: Atoms) -> Row:
    """Structure with tags and fixed atoms as plain values."""
    fixed = [int(i) for constraint in atoms.constraints for i in constraint.get_indices()]
    return {
        "numbers": atoms.numbers.tolist(),
        "positions": rounded(atoms.positions.tolist(), 6),
        "cell": atoms.cell.array.tolist(),
        "pbc": atoms.pbc.tolist(),
        "tags": atoms.get_tags().tolist(),
        "fixed": fixed,
    }


def from_json(row: Row, positions: Any = None) -> Atoms:
    """Structure from plain values, optionally at other positions."""
    values = {key: row[key] for key in ("numbers", "cell", "pbc", "tags")}
    atoms = Atoms(**values, positions=row["positions"] if positions is None else positions)
    atoms.set_constraint(FixAtoms(indices=row["fixed"]))
    return atoms
