"""Runs one task: builds its system and yields snapshots of relaxations, MD, rattled copies, strain and approach curves.

Snapshots of a trajectory are yielded right after their energy and forces were computed, so that no further call is
needed where the labelling calculator moves the atoms. Constraints only apply to relaxations; stored forces are raw.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from ase import Atoms, units
from ase.calculators.calculator import Calculator
from ase.constraints import FixAtoms
from ase.md.langevin import Langevin
from ase.optimize import BFGS

from faenet_calc.graphs.tags import ADSORBATE
from faenet_calc.labelling.adsorbates import SUBSURFACE, gas_molecule, random_rotation, species
from faenet_calc.labelling.recipe import DISORDER, Recipe, SamplingConfig
from faenet_calc.labelling.structures import (
    Site,
    Substrate,
    bulk_cell,
    cluster,
    disordered,
    place,
    place_below,
    place_further,
    sites,
    slab,
    turned_over,
    with_both_sides,
    with_defect,
)
from faenet_calc.labelling.tasks import Task

_EQUAL_MASS_U = 20.0
_BROKEN_FORCE = 100.0  # eV/Å; a trajectory with larger forces is abandoned


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """A structure and the calculator that moves it, which has just computed it if it is on a trajectory.

    Attributes:
        atoms: The structure.
        how: ``start``, ``relax``, ``finish``, ``md``, ``rattle``, ``strain``, ``disorder`` or ``curve``.
        site: Kind of the initial adsorption site; ``none`` without an adsorbate.
        height: Height above contact on an approach curve (Å).
    """

    atoms: Atoms
    how: str
    site: str = "none"
    height: float | None = None


def snapshots(
    task: Task, recipe: Recipe, calculator: Calculator, labeller: Calculator | None = None
) -> Iterator[Snapshot]:
    """Run one task; the result is determined by the seed of the task.

    Args:
        task: The task.
        recipe: Its recipe.
        calculator: Moves the atoms.
        labeller: Finishes relaxations if the recipe has ``finish_steps``; None for no such steps.
    """
    rng = np.random.default_rng(task.seed)
    explorer = _Explorer(settings=recipe.sampling, calculator=calculator, labeller=labeller, rng=rng)
    if task.substrate is None:
        return explorer.molecule(gas_molecule(task.molecule, recipe.gas_box_A), task.kind)
    if not task.facet:
        return explorer.bulk(explorer.crystal(task.substrate, task.kind), task.substrate, task.kind)
    if task.facet == "cluster":
        surface = cluster(task.substrate, task.size[0], rng)
    else:
        surface = slab(task.substrate, task.facet, task.size, recipe.vacuum_A, rng)
        if recipe.sampling.defects and rng.random() < recipe.sampling.defects:
            surface = with_defect(surface, rng)
    if task.molecule:
        return explorer.adsorbate(surface, task.substrate, task.molecule, task.kind)
    return explorer.clean(surface, task.kind)


@dataclass(frozen=True, kw_only=True)
class _Explorer:
    settings: SamplingConfig
    calculator: Calculator
    labeller: Calculator | None
    rng: np.random.Generator

    def molecule(self, atoms: Atoms, kind: str) -> Iterator[Snapshot]:
        """Sample a gas molecule."""
        if kind == "gas-rattle":
            for _ in range(2 * self.settings.rattled):
                stretched = atoms.copy()
                stretched.positions *= self.rng.uniform(0.88, 1.25)
                yield self._single(self._rattled(stretched), "rattle")
            return
        start = self._rattled(atoms)
        start.positions[:] = start.positions @ random_rotation(self.rng).T
        yield from self._relax(start)
        if kind == "gas-md":
            yield from self._dynamics(start)

    def crystal(self, substrate: Substrate, kind: str) -> Atoms:
        """A bulk cell in one of the descriptions of the settings; disorder needs a larger cell."""
        cells = self.settings.cells
        description = cells[self.rng.integers(len(cells))] if len(cells) > 1 else cells[0]
        return bulk_cell(substrate, self.rng, "supercell" if kind == DISORDER else description)

    def bulk(self, atoms: Atoms, substrate: Substrate, kind: str) -> Iterator[Snapshot]:
        """Sample a crystal: equation of state, strained and rattled cells, MD in a strained cell, or disorder."""
        low, high = self.settings.scale
        if kind == DISORDER:
            for _ in range(self.settings.rattled):
                scaled = atoms.copy()
                scaled.set_cell(atoms.cell * self.rng.uniform(max(low, 0.96), high), scale_atoms=True)
                closest = self.rng.uniform(0.78, 0.94) * substrate.nearest
                yield self._single(disordered(scaled, closest, self.rng), "disorder")
            return
        if kind == "bulk-md":
            big = atoms.repeat((2, 1, 1)) if len(atoms) < 8 else atoms
            yield from self._dynamics(self._strained(big, self.settings.strain))
            return
        for scale in self.rng.uniform(low, high, size=self.settings.rattled):
            scaled = atoms.copy()
            scaled.set_cell(atoms.cell * scale, scale_atoms=True)
            yield self._single(scaled, "strain")
        for _ in range(self.settings.rattled):
            yield self._single(self._rattled(self._strained(atoms, 2 * self.settings.strain)), "strain")

    def clean(self, surface: Atoms, kind: str) -> Iterator[Snapshot]:
        """Sample a clean slab."""
        if kind == "slab-rattle":
            yield self._single(surface, "start")
            for _ in range(self.settings.rattled):
                yield self._single(self._rattled(self._strained(surface, self.settings.strain)), "rattle")
            return
        start = self._rattled(self._maybe_strained(surface))
        if kind == "slab-md":
            yield from self._dynamics(start)
        else:
            yield from self._relax(start)

    def adsorbate(self, surface: Atoms, substrate: Substrate, name: str, kind: str) -> Iterator[Snapshot]:
        """Sample an adsorbate at a site whose kind is drawn uniformly from those of the slab."""
        surface = self._maybe_strained(surface)
        site = self._site(surface)
        if kind == "curve":
            explored = self._curve(surface, name, site)
        else:
            start = self._in_contact(surface, name, site)
            if self.settings.both_sides and surface.pbc.any():
                below = turned_over(surface, substrate)
                start = with_both_sides(start, self._in_contact(below, name, self._site(below)))
            explored = self._adsorbed(start, kind)
        for found in explored:
            yield Snapshot(atoms=found.atoms, how=found.how, site=site.kind, height=found.height)

    def _in_contact(self, surface: Atoms, name: str, site: Site) -> Atoms:
        """The slab with the adsorbates of one cell: the first one at the site, others where there is room."""
        tilt, rng = self.settings.tilt_deg, self.rng
        first, *others = sorted(species(name), key=lambda one: one.endswith(SUBSURFACE))
        if first.endswith(SUBSURFACE):
            atoms = place_below(surface, first.removesuffix(SUBSURFACE), rng)
        else:
            atoms = place(surface, first, site, rng.uniform(-0.1, 0.4), tilt, rng)
        for other in others:
            if other.endswith(SUBSURFACE):
                atoms = place_below(atoms, other.removesuffix(SUBSURFACE), rng)
            else:
                atoms = place_further(atoms, other, rng.uniform(-0.1, 0.4), tilt, rng)
        return atoms

    def _adsorbed(self, start: Atoms, kind: str) -> Iterator[Snapshot]:
        if kind == "rattle":
            yield self._single(start, "start")
            for _ in range(self.settings.rattled + 1):
                yield self._single(self._rattled(start), "rattle")
            return
        start.rattle(0.02, rng=self.rng)
        if kind == "md":
            yield from self._relax(start, at_most=6)
            yield from self._dynamics(start)
            return
        yield from self._relax(start)
        for _ in range(self.settings.rattled):
            yield self._single(self._rattled(start), "rattle")

    def _curve(self, surface: Atoms, name: str, site: Site) -> Iterator[Snapshot]:
        """An approach curve from inside contact to far above a slightly rattled slab, at fixed orientation."""
        surface = surface.copy()
        surface.rattle(self.rng.uniform(0, 0.05), rng=self.rng)
        tilt = 30.0 if self.rng.random() < 0.6 else None
        contact = place(surface, name, site, 0.0, tilt, self.rng)
        low, high = self.settings.curve_height_A
        # Squared uniform steps: denser near the surface, where the energy varies.
        fractions = (np.arange(self.settings.curve_points) + self.rng.random()) / self.settings.curve_points
        for fraction in fractions:
            height = low + (high - low) * fraction**2
            atoms = contact.copy()
            atoms.positions[atoms.get_tags() == ADSORBATE, 2] += height
            found = self._single(atoms, "curve")
            yield Snapshot(atoms=found.atoms, how="curve", height=float(height))

    def _site(self, surface: Atoms) -> Site:
        found = sites(surface)
        kinds = sorted({site.kind for site in found})
        kind = kinds[self.rng.integers(len(kinds))]
        same = [site for site in found if site.kind == kind]
        return same[self.rng.integers(len(same))]

    def _single(self, atoms: Atoms, how: str) -> Snapshot:
        atoms.calc = self.calculator
        return Snapshot(atoms=atoms, how=how)

    def _relax(self, atoms: Atoms, at_most: int | None = None) -> Iterator[Snapshot]:
        """Relax with BFGS. Half of the slabs have their lower half fixed, as is common, if no adsorbate is there.

        The labeller continues from the end of the explorer's relaxation unless ``at_most`` limits the steps.
        """
        settings = self.settings
        if not atoms.pbc.all() and atoms.pbc.any() and self.rng.random() < 0.5:
            slab = atoms.get_tags() < ADSORBATE
            z = atoms.positions[slab, 2]
            lower = atoms.positions[:, 2] < (z.min() + z.max()) / 2 - 0.1
            if not lower[~slab].any():
                atoms.set_constraint(FixAtoms(mask=lower))
        runs = [("relax", self.calculator, settings.relax_steps if at_most is None else at_most)]
        if self.labeller is not None and self.labeller is not self.calculator and at_most is None:
            runs.append(("finish", self.labeller, settings.finish_steps))
        for how, calculator, steps in runs:
            if not steps:
                continue
            atoms.calc = calculator
            yield from self._kept(atoms, BFGS(atoms, logfile=None).irun(settings.relax_fmax, steps), how)
        atoms.set_constraint()

    def _dynamics(self, atoms: Atoms) -> Iterator[Snapshot]:
        """A short, hot Langevin run with equal masses, which allows a long time step and saves calls."""
        settings = self.settings
        atoms = Atoms(atoms.numbers, positions=atoms.positions, cell=atoms.cell, pbc=atoms.pbc, tags=atoms.get_tags())
        atoms.set_masses(np.full(len(atoms), _EQUAL_MASS_U))
        atoms.calc = self.calculator
        temperature = settings.md_temperatures_K[self.rng.integers(len(settings.md_temperatures_K))]
        # Half of the kinetic energy becomes potential energy: start at twice the temperature.
        spread = np.sqrt(_EQUAL_MASS_U * 2 * temperature * units.kB)
        atoms.set_momenta(self.rng.normal(0, spread, size=(len(atoms), 3)))
        run = Langevin(
            atoms,
            settings.md_timestep_fs * units.fs,
            temperature_K=temperature,
            friction=0.02 / units.fs,
            fixcm=False,
            rng=self.rng,
            logfile=None,
        )
        yield from self._kept(atoms, run.irun(settings.md_steps), "md", stride=settings.md_stride)

    def _kept(self, atoms: Atoms, steps: Iterator[object], how: str, stride: int = 1) -> Iterator[Snapshot]:
        """Snapshots of a trajectory that differ enough from the last kept one, and its end."""
        last = None
        for number, _ in enumerate(steps):
            forces = atoms.get_forces(apply_constraint=False)
            if not np.isfinite(forces).all() or np.abs(forces).max() > _BROKEN_FORCE:
                return
            moved = np.inf if last is None else np.abs(atoms.positions - last).max()
            if number % stride == 0 and moved > self.settings.min_change_A:
                last = atoms.positions.copy()
                yield Snapshot(atoms=atoms, how=how)
        if last is not None and not np.array_equal(last, atoms.positions):
            yield Snapshot(atoms=atoms, how=how)

    def _rattled(self, atoms: Atoms) -> Atoms:
        """A copy with Gaussian displacements; in stiff molecules half of them, plus a common shift."""
        copy = atoms.copy()
        copy.set_constraint()
        low, high = self.settings.rattle_A
        deviation = self.rng.uniform(low, high)
        stiff = copy.get_tags() == ADSORBATE
        noise = self.rng.normal(0, deviation, size=(len(copy), 3))
        noise[stiff] = 0.5 * noise[stiff] + self.rng.normal(0, deviation, size=3)
        copy.positions += noise
        return copy

    def _strained(self, atoms: Atoms, size: float) -> Atoms:
        """A copy with a random symmetric strain along the periodic directions."""
        strain = self.rng.uniform(-size, size, size=(3, 3))
        strain = (strain + strain.T) / 2
        strain[~atoms.pbc] = 0.0
        strain[:, ~atoms.pbc] = 0.0
        copy = atoms.copy()
        copy.set_cell(np.asarray(atoms.cell) @ (np.eye(3) + strain), scale_atoms=True)
        return copy

    def _maybe_strained(self, atoms: Atoms) -> Atoms:
        return self._strained(atoms, self.settings.strain) if self.rng.random() < 0.5 else atoms.copy()
