"""Recipes: which structures to generate, how to explore them and what labels them; read strictly from YAML."""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from ase.data import atomic_numbers

from faenet_calc.errors import InputError
from faenet_calc.labelling.adsorbates import ADSORBATES, GAS, is_known
from faenet_calc.settings import from_mapping, load_yaml, plain, to_mapping

Crystal = Literal["fcc", "hcp", "bcc"]
Facet = Literal["111", "100", "110", "211", "0001", "cluster"]
Cell = Literal["conventional", "primitive", "supercell"]
ADSORBATE_KINDS = ("relax", "relax", "curve", "rattle", "md")
BULK_KINDS = ("bulk-strain", "bulk-strain", "bulk-md")
DISORDER = "bulk-disorder"
FACETS: dict[str, tuple[str, ...]] = {
    "fcc": ("111", "100", "110", "211", "cluster"),
    "hcp": ("0001", "cluster"),
    "bcc": ("110", "100", "cluster"),
}
CLUSTER_SIZES = (13, 19, 38, 44, 55)


@dataclass(frozen=True, kw_only=True)
class CalculatorConfig:
    """An ASE calculator: the one that labels, or the one that explores.

    Attributes:
        factory: Import path of a Calculator class, e.g. ``ase.calculators.emt.EMT``. Packages other than those of
            :mod:`faenet_calc.labelling.calculators`, and functions, need ``--trust-code``.
        kwargs: Its keyword arguments. With several workers, each one uses its own folder inside ``directory``.
        id: Name stored with every label; the factory's path if empty. The digest of the model file that was loaded is
            stored besides.
        sha256: Digest (or its first digits) that the loaded model file must have; empty accepts any.
        threads: Torch threads of one worker process; 0 keeps the library's default.
    """

    factory: str
    kwargs: dict[str, Any] = field(default_factory=dict)
    id: str = ""
    sha256: str = ""
    threads: int = 1

    def __post_init__(self) -> None:
        if "." not in self.factory:
            raise ValueError(f"factory = {self.factory!r}, expected a dotted path such as ase.calculators.emt.EMT")
        if self.sha256 and not re.fullmatch(r"[0-9a-fA-F]{12,64}", self.sha256):
            raise ValueError(f"sha256 = {self.sha256!r}, expected 12 to 64 hexadecimal digits")

    @property
    def name(self) -> str:
        """The name stored with every label."""
        return self.id or self.factory


@dataclass(frozen=True, kw_only=True)
class MetalConfig:
    """A metal and its lattice constants (Å), which should be those of the labelling calculator."""

    symbol: str
    crystal: Crystal
    a: float
    c: float | None = None

    def __post_init__(self) -> None:
        if self.symbol not in atomic_numbers:
            raise ValueError(f"symbol = {self.symbol!r}, expected a chemical element")
        if (self.crystal == "hcp") != (self.c is not None):
            raise ValueError(
                f"{self.symbol}: c = {self.c!r} with crystal {self.crystal!r}; hcp needs c, other crystals have none"
            )

    @property
    def atom_volume(self) -> float:
        """Volume per atom (Å³)."""
        if self.c is not None:
            return self.a**2 * self.c * 3**0.5 / 4
        return self.a**3 / (4 if self.crystal == "fcc" else 2)


@dataclass(frozen=True, kw_only=True)
class AlloyConfig:
    """A binary alloy: atoms of the first metal's crystal replaced at random by the second metal.

    Attributes:
        metals: Two symbols of the recipe's metals. The lattice follows from Vegard's rule for volumes; it is the
            metals' own crystal if they share one, otherwise fcc.
        fractions: Atomic fractions of the second metal.
    """

    metals: tuple[str, ...]
    fractions: tuple[float, ...] = (0.25, 0.5, 0.75)

    def __post_init__(self) -> None:
        if len(self.metals) != 2 or self.metals[0] == self.metals[1]:
            raise ValueError(f"metals = {list(self.metals)}, expected two different symbols")
        if not all(0 < x < 1 for x in self.fractions):
            raise ValueError(f"fractions = {list(self.fractions)}, expected numbers between 0 and 1")


@dataclass(frozen=True, kw_only=True)
class SlabConfig:
    """A facet and its cells ``[n1, n2, layers]`` as ASE's builders count them (fcc 211: n1 a multiple of 3).

    The facet ``cluster`` stands for free particles; its sizes are ``[n_atoms]`` with one of :data:`CLUSTER_SIZES`.
    """

    crystal: Crystal
    facet: Facet
    sizes: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        if self.facet not in FACETS[self.crystal]:
            raise ValueError(f"facet = {self.facet!r}, expected one of {FACETS[self.crystal]} for {self.crystal}")
        if self.facet == "cluster":
            if not self.sizes or not all(len(size) == 1 and size[0] in CLUSTER_SIZES for size in self.sizes):
                raise ValueError(f"sizes = {self.sizes}, expected lists of one number [n_atoms] from {CLUSTER_SIZES}")
        elif not self.sizes or not all(len(size) == 3 and min(size) > 0 for size in self.sizes):
            raise ValueError(f"sizes = {self.sizes}, expected lists of three positive numbers [n1, n2, layers]")


@dataclass(frozen=True, kw_only=True)
class MixConfig:
    """Share of the tasks given to each family; alloys take ``alloy`` of bulk, clean and adsorbate tasks.

    Attributes:
        adsorbate_kinds: Sampling of adsorbates, drawn uniformly from this list (a kind listed twice is drawn twice as
            often): ``relax`` (with rattled copies of the end), ``curve`` (approach), ``rattle`` (copies of the start),
            ``md``.
        bulk_kinds: Sampling of bulk, drawn in the same way: ``bulk-strain`` (scaled, strained and rattled cells),
            ``bulk-md``, ``bulk-disorder`` (atoms in random places of a cell, as in a hot liquid).
    """

    bulk: float = 0.1
    clean: float = 0.12
    adsorbate: float = 0.7
    gas: float = 0.08
    alloy: float = 0.35
    adsorbate_kinds: tuple[str, ...] = ADSORBATE_KINDS
    bulk_kinds: tuple[str, ...] = BULK_KINDS

    def __post_init__(self) -> None:
        for name, known in (("adsorbate_kinds", ADSORBATE_KINDS), ("bulk_kinds", (*BULK_KINDS, DISORDER))):
            kinds = getattr(self, name)
            if not kinds or not set(kinds) <= set(known):
                raise ValueError(f"{name} = {list(kinds)}, expected one or more of {', '.join(sorted(set(known)))}")


@dataclass(frozen=True, kw_only=True)
class SamplingConfig:
    """How one system is explored.

    Attributes:
        relax_steps: Maximum number of steps of a relaxation.
        relax_fmax: Force threshold of a relaxation (eV/Å).
        finish_steps: With an explorer: maximum number of steps in which the labelling calculator continues a relaxation
            from the explorer's minimum to its own. The labels of both ends show where the explorer is wrong.
        md_steps: Steps of a short Langevin run.
        md_timestep_fs: Its time step, with all masses set to 20 u (equilibrium positions do not depend on masses).
        md_stride: Every n-th MD step is kept.
        md_temperatures_K: Temperatures to draw from.
        rattled: Rattled copies per task.
        rattle_A: Range of the standard deviation of rattling (Å).
        strain: Largest strain component.
        scale: Range of the lengths of bulk cells, in units of the lattice constant.
        cells: Descriptions of bulk crystals to draw from: the ``conventional`` cell, a ``primitive`` one, or a larger
            ``supercell`` with skewed vectors.
        defects: Share of the slabs that lack a surface atom or have an adatom.
        tilt_deg: Largest angle from upright of an adsorbate at the start of a relaxation or of MD (degrees).
        both_sides: Put an adsorbate on each side of the slab, each at its own site (except on approach curves): two
            adsorbates for nearly the cost of one label. No atoms are fixed then.
        curve_points: Heights on an approach curve.
        curve_height_A: Range of heights above contact (Å).
        min_change_A: A snapshot is kept if some atom moved this far since the last kept one (Å).
        max_force: Labels with a larger force component are dropped (eV/Å).
    """

    relax_steps: int = 20
    relax_fmax: float = 0.05
    finish_steps: int = 0
    md_steps: int = 24
    md_timestep_fs: float = 5.0
    md_stride: int = 4
    md_temperatures_K: tuple[float, ...] = (300.0, 500.0, 800.0, 1200.0)
    rattled: int = 4
    rattle_A: tuple[float, ...] = (0.02, 0.2)
    strain: float = 0.03
    scale: tuple[float, ...] = (0.95, 1.07)
    cells: tuple[Cell, ...] = ("conventional",)
    defects: float = 0.0
    tilt_deg: float = 30.0
    both_sides: bool = False
    curve_points: int = 8
    curve_height_A: tuple[float, ...] = (-0.35, 5.0)
    min_change_A: float = 0.05
    max_force: float = 25.0

    def __post_init__(self) -> None:
        for name in ("rattle_A", "curve_height_A", "scale"):
            value = getattr(self, name)
            if len(value) != 2 or value[0] > value[1]:
                raise ValueError(f"{name} = {list(value)}, expected [smallest, largest]")
        if self.finish_steps < 0:
            raise ValueError(f"finish_steps = {self.finish_steps}, expected a number of steps, or 0 for none")
        if not 0 <= self.tilt_deg <= 180:
            raise ValueError(f"tilt_deg = {self.tilt_deg:g}, expected 0 (upright) to 180 (upside down)")


@dataclass(frozen=True, kw_only=True)
class SelectionConfig:
    """Which snapshots of a task are labelled: those about which the explorer knows least.

    Attributes:
        share: Part of the snapshots of a task, those with the largest energy uncertainty of the explorer; at least one.
        above: Snapshots with a smaller uncertainty (eV/atom) are not labelled.
    """

    share: float = 1.0
    above: float = 0.0

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise ValueError(f"share = {self.share:g}, expected a part of the snapshots above 0 and up to 1")
        if self.above < 0:
            raise ValueError(f"above = {self.above:g}, expected an uncertainty in eV/atom, or 0 for no limit")


@dataclass(frozen=True, kw_only=True)
class HeldOutRule:
    """Systems that match every given attribute are marked ``split = heldout``.

    Attributes:
        substrate: E.g. ``Pd`` or, for an alloy of any composition, ``CuPd`` (symbols in the recipe's order).
        facet: E.g. ``fcc211``.
        adsorbate: E.g. ``CO``; also matches a cell in which CO is one of several adsorbates.
    """

    substrate: str | None = None
    facet: str | None = None
    adsorbate: str | None = None

    def __post_init__(self) -> None:
        if self.substrate is None and self.facet is None and self.adsorbate is None:
            raise ValueError(
                "a rule needs a substrate, a facet or an adsorbate; without any it would hold out everything"
            )


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """All settings that determine which labels are generated.

    Attributes:
        name: Name of the recipe, stored with every label.
        calculator: Labels the structures.
        tasks: Length of the task list; every prefix of it is a balanced sample.
        explorer: Moves the atoms in relaxations and MD; None for the calculator itself. With a fast potential here and
            DFT as the calculator, DFT is called only for structures that are kept.
        seed: Random seed of the task list.
        metals: Pure metals; a symbol may occur twice with different crystals.
        alloys: Binary alloys of these metals.
        slabs: Facets and cell sizes.
        adsorbates: Names from :mod:`faenet_calc.labelling.adsorbates`; ``2CO+O`` for several in one cell, ``O_sub`` for
            an atom below the surface.
        gas: Gas-phase molecules.
        mix: Shares of the families of tasks.
        sampling: How a system is explored.
        selection: Label only the snapshots with the largest uncertainty of the explorer; None for all.
        heldout: Systems to mark ``split = heldout``.
        with_heldout: Whether these systems are labelled, too.
        vacuum_A: Vacuum above and below a slab (Å).
        gas_box_A: Edge of the periodic box around gas molecules (Å), which plane-wave codes need; 0 for no box.
    """

    name: str
    calculator: CalculatorConfig
    tasks: int
    explorer: CalculatorConfig | None = None
    seed: int = 0
    metals: tuple[MetalConfig, ...] = ()
    alloys: tuple[AlloyConfig, ...] = ()
    slabs: tuple[SlabConfig, ...] = ()
    adsorbates: tuple[str, ...] = ()
    gas: tuple[str, ...] = ()
    mix: MixConfig = field(default_factory=MixConfig)
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    selection: SelectionConfig | None = None
    heldout: tuple[HeldOutRule, ...] = ()
    with_heldout: bool = True
    vacuum_A: float = 8.0
    gas_box_A: float = 0.0

    def __post_init__(self) -> None:
        if unknown := [name for name in self.adsorbates if not is_known(name)]:
            raise ValueError(
                f"adsorbates {unknown} are not known; choose from {', '.join(ADSORBATES)}, join several of them as in "
                "2CO+O, or put single atoms below the surface as in O_sub"
            )
        if unknown := [name for name in self.gas if name not in GAS]:
            raise ValueError(f"gas {unknown} are not known; choose from {', '.join(GAS)}")
        if self.sampling.finish_steps and self.explorer is None:
            raise ValueError(
                f"sampling.finish_steps = {self.sampling.finish_steps} without an explorer whose "
                "relaxations it could finish; set an explorer, or remove finish_steps and set relax_steps"
            )
        if self.selection is not None and (self.explorer is None or self.sampling.finish_steps):
            raise ValueError(
                "selection needs an explorer whose uncertainty it compares, and no sampling.finish_steps, which the "
                "labelling calculator computes anyway"
            )
        several = [name for name in self.adsorbates if name not in ADSORBATES]
        if several and "curve" in self.mix.adsorbate_kinds:
            raise ValueError(
                f"mix.adsorbate_kinds has curve, which takes one adsorbate above the surface, not {several}"
            )
        symbols = {metal.symbol for metal in self.metals}
        for alloy in self.alloys:
            if missing := [symbol for symbol in alloy.metals if symbol not in symbols]:
                raise ValueError(f"alloy {list(alloy.metals)}: {missing} must be listed under metals (for the lattice)")
        if self.gas_box_A < 0:
            raise ValueError(f"gas_box_A = {self.gas_box_A:g}, expected the edge of a box (Å), or 0 for no box")
        if not self.metals and not self.gas:
            raise ValueError("metals and gas are both empty; nothing to generate")

    def digest(self) -> str:
        """Twelve hexadecimal digits of all settings except ``tasks``, so that a run can be extended.

        Settings that were added after the first labels count only where they are used, which keeps the digests of
        stored labels.
        """
        mapping = {key: value for key, value in to_mapping(self).items() if key != "tasks"}
        for part, key in _LATER_SETTINGS:
            settings = getattr(self, part) if part else self
            if settings is not None and getattr(settings, key) == getattr(type(settings), key):
                del (mapping[part] if part else mapping)[key]
        return hashlib.sha256(json.dumps(mapping, sort_keys=True).encode()).hexdigest()[:12]


_LATER_SETTINGS = (
    ("calculator", "sha256"),
    ("explorer", "sha256"),
    ("sampling", "tilt_deg"),
    ("sampling", "finish_steps"),
    ("sampling", "both_sides"),
    ("sampling", "scale"),
    ("sampling", "cells"),
    ("sampling", "defects"),
    ("mix", "adsorbate_kinds"),
    ("mix", "bulk_kinds"),
    ("", "selection"),
    ("", "explorer"),
    ("", "with_heldout"),
    ("", "gas_box_A"),
)


def load_recipe(path: Path, overrides: Mapping[str, Any] | None = None) -> Recipe:
    """Read a recipe (YAML 1.2) strictly.

    Args:
        path: The YAML file.
        overrides: Top-level settings that replace those of the file.

    Raises:
        InputError: The file is not YAML or not a recipe; the message lists every mistake.
    """
    mapping = plain(load_yaml(path.read_text(encoding="utf-8"), source=str(path)))
    if not isinstance(mapping, Mapping):
        raise InputError(f"{path} holds {type(mapping).__name__}, expected a mapping of recipe settings")
    return from_mapping(Recipe, {**mapping, **(overrides or {})}, source=str(path))
