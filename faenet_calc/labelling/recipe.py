"""What to generate: the frozen recipe and its strict reading from YAML."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from ase.data import atomic_numbers
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from faenet_calc.errors import InputError
from faenet_calc.labelling.adsorbates import ADSORBATES, GAS
from faenet_calc.settings import from_mapping, to_mapping

Crystal = Literal["fcc", "hcp", "bcc"]
Facet = Literal["111", "100", "110", "211", "0001"]
ADSORBATE_KINDS = ("relax", "relax", "curve", "rattle", "md")
FACETS: dict[str, tuple[str, ...]] = {"fcc": ("111", "100", "110", "211"), "hcp": ("0001",), "bcc": ("110",)}


@dataclass(frozen=True, kw_only=True)
class CalculatorConfig:
    """Who labels, or who explores.

    Attributes:
        factory: Import path of a class or function that returns an ASE calculator, e.g. ``ase.calculators.emt.EMT``.
        kwargs: Its keyword arguments.
        id: Name stored with every label; the factory's path if empty.
        threads: Torch threads of one worker process; 0 leaves the library's choice.
    """

    factory: str
    kwargs: dict[str, Any] = field(default_factory=dict)
    id: str = ""
    threads: int = 1

    def __post_init__(self) -> None:
        if "." not in self.factory:
            raise ValueError(f"factory = {self.factory!r}, expected a dotted path such as ase.calculators.emt.EMT")

    @property
    def name(self) -> str:
        """The name stored with every label."""
        return self.id or self.factory


@dataclass(frozen=True, kw_only=True)
class MetalConfig:
    """A metal and its lattice (Å); use the labelling calculator's own equilibrium."""

    symbol: str
    crystal: Crystal
    a: float
    c: float | None = None

    def __post_init__(self) -> None:
        if self.symbol not in atomic_numbers:
            raise ValueError(f"symbol = {self.symbol!r}, expected a chemical element")
        if (self.crystal == "hcp") != (self.c is not None):
            raise ValueError(f"{self.symbol}: c = {self.c!r} with crystal {self.crystal!r}; c belongs to hcp, only")

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
        metals: Two symbols of the recipe's metals; the lattice is fcc by Vegard's rule for volumes unless both are hcp.
        fractions: Of the second metal.
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
    """A facet and its cells ``[n1, n2, layers]`` as ASE's builders count them (fcc 211: n1 a multiple of 3)."""

    crystal: Crystal
    facet: Facet
    sizes: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        if self.facet not in FACETS[self.crystal]:
            raise ValueError(f"facet = {self.facet!r}, expected one of {FACETS[self.crystal]} for {self.crystal}")
        if not self.sizes or not all(len(size) == 3 and min(size) > 0 for size in self.sizes):
            raise ValueError(f"sizes = {self.sizes}, expected lists of three positive numbers [n1, n2, layers]")


@dataclass(frozen=True, kw_only=True)
class MixConfig:
    """Share of the tasks given to each family; alloys take ``alloy`` of bulk, clean and adsorbate tasks.

    Attributes:
        adsorbate_kinds: What is done with an adsorbate, drawn evenly, so that a kind named twice comes twice as often:
            ``relax`` (and rattled copies of the end), ``curve`` (approach), ``rattle`` (copies of the start), ``md``.
    """

    bulk: float = 0.1
    clean: float = 0.12
    adsorbate: float = 0.7
    gas: float = 0.08
    alloy: float = 0.35
    adsorbate_kinds: tuple[str, ...] = ADSORBATE_KINDS

    def __post_init__(self) -> None:
        if not self.adsorbate_kinds or not set(self.adsorbate_kinds) <= set(ADSORBATE_KINDS):
            known = ", ".join(sorted(set(ADSORBATE_KINDS)))
            raise ValueError(f"adsorbate_kinds = {list(self.adsorbate_kinds)}, expected one or more of {known}")


@dataclass(frozen=True, kw_only=True)
class SamplingConfig:
    """How one system is explored.

    Attributes:
        relax_steps: Calculator calls of a relaxation.
        relax_fmax: A relaxation ends below this force (eV/Å).
        finish_steps: With an explorer: calls of the labelling calculator that go on from where the explorer's
            relaxation ends, to a minimum of its own; labels of both ends tell the explorer what it is wrong about.
        md_steps: Calculator calls of a short Langevin run.
        md_timestep_fs: With all masses set to 20 u: positions in equilibrium do not depend on masses.
        md_stride: Every n-th MD step is kept.
        md_temperatures_K: Drawn from these.
        rattled: Rattled copies per task.
        rattle_A: Range of the standard deviation of rattling (Å).
        strain: Largest strain component.
        tilt_deg: Largest angle from upright of an adsorbate at the start of a relaxation or of MD (degrees).
        both_sides: Adsorbates but those of approach curves come in twos, one on each side of the slab and each at a
            site of its own: two for nearly the price of one label. No atoms are fixed then.
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
    tilt_deg: float = 30.0
    both_sides: bool = False
    curve_points: int = 8
    curve_height_A: tuple[float, ...] = (-0.35, 5.0)
    min_change_A: float = 0.05
    max_force: float = 25.0

    def __post_init__(self) -> None:
        for name in ("rattle_A", "curve_height_A"):
            value = getattr(self, name)
            if len(value) != 2 or value[0] > value[1]:
                raise ValueError(f"{name} = {list(value)}, expected [smallest, largest]")
        if self.finish_steps < 0:
            raise ValueError(f"finish_steps = {self.finish_steps}, expected a number of calls, or 0 to leave it out")
        if not 0 <= self.tilt_deg <= 180:
            raise ValueError(f"tilt_deg = {self.tilt_deg:g}, expected 0 (upright) to 180 (upside down)")


@dataclass(frozen=True, kw_only=True)
class HeldOutRule:
    """Systems matching every word given are marked ``split = heldout``.

    Attributes:
        substrate: E.g. ``Pd`` or, for an alloy of any composition, ``CuPd`` (symbols in the recipe's order).
        facet: E.g. ``fcc211``.
        adsorbate: E.g. ``CO``.
    """

    substrate: str | None = None
    facet: str | None = None
    adsorbate: str | None = None

    def __post_init__(self) -> None:
        if self.substrate is None and self.facet is None and self.adsorbate is None:
            raise ValueError("a rule without substrate, facet and adsorbate would hold out everything")


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Everything that decides which labels are made.

    Attributes:
        calculator: Labels the structures.
        explorer: Moves the atoms in relaxations and MD; None for the calculator itself. With a fast potential here and
            DFT as the calculator, DFT is called for the structures that are kept and for no others.
        tasks: Length of the task list; every prefix of it is a balanced sample.
        metals: Pure metals; a symbol may come twice with different crystals.
        gas: Gas-phase molecules.
        heldout: Systems to mark ``split = heldout``.
        with_heldout: Label these systems, too; False leaves them out.
        vacuum_A: Above and below a slab (Å).
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
    heldout: tuple[HeldOutRule, ...] = ()
    with_heldout: bool = True
    vacuum_A: float = 8.0

    def __post_init__(self) -> None:
        if unknown := [name for name in self.adsorbates if name not in ADSORBATES]:
            raise ValueError(f"adsorbates {unknown} are not known; choose from {', '.join(ADSORBATES)}")
        if unknown := [name for name in self.gas if name not in GAS]:
            raise ValueError(f"gas {unknown} are not known; choose from {', '.join(GAS)}")
        if self.sampling.finish_steps and self.explorer is None:
            raise ValueError(
                f"sampling.finish_steps = {self.sampling.finish_steps} without an explorer whose relaxations it "
                "could finish; name one, or leave it out and set relax_steps: the calculator then relaxes by itself"
            )
        symbols = {metal.symbol for metal in self.metals}
        for alloy in self.alloys:
            if missing := [symbol for symbol in alloy.metals if symbol not in symbols]:
                raise ValueError(f"alloy {list(alloy.metals)}: {missing} must be listed under metals (for the lattice)")
        if not self.metals and not self.gas:
            raise ValueError("metals and gas are both empty; nothing to generate")

    def digest(self) -> str:
        """Twelve hexadecimal digits that change with everything but ``tasks``, so that a run can be lengthened."""
        mapping = {key: value for key, value in to_mapping(self).items() if key != "tasks"}
        for key, default in (("explorer", None), ("with_heldout", True)):
            if mapping[key] == default:
                del mapping[key]  # as in folders written before there was such a setting
        for part, key in (
            ("sampling", "tilt_deg"),
            ("sampling", "finish_steps"),
            ("sampling", "both_sides"),
            ("mix", "adsorbate_kinds"),
        ):
            settings = getattr(self, part)
            if getattr(settings, key) == getattr(type(settings), key):
                del mapping[part][key]
        return hashlib.sha256(json.dumps(mapping, sort_keys=True).encode()).hexdigest()[:12]


def load_recipe(path: Path, overrides: Mapping[str, Any] | None = None) -> Recipe:
    """Read a recipe (YAML 1.2) strictly.

    Args:
        path: The YAML file; with ``based_on: OTHER.yaml`` (beside it) it holds only the settings that differ.
        overrides: Top-level settings that replace those of the file.

    Raises:
        InputError: The file is not YAML or not a recipe; every mistake is named.
    """
    return from_mapping(Recipe, {**_settings(path), **(overrides or {})}, source=str(path))


def _settings(path: Path, readers: tuple[Path, ...] = ()) -> dict[str, Any]:
    """Top-level settings of a file and of those it is based on."""
    if path.resolve() in readers:
        raise InputError(f"{path} is based on itself; remove one based_on of {', '.join(map(str, readers))}")
    try:
        mapping = YAML(typ="safe", pure=True).load(path.read_text())
    except YAMLError as error:
        raise InputError(f"{path} is not YAML: {error}") from error
    if not isinstance(mapping, Mapping):
        raise InputError(f"{path} holds {type(mapping).__name__}, expected a mapping of recipe settings")
    own = dict(mapping)
    base = own.pop("based_on", None)
    if base is None:
        return own
    other = path.parent / str(base)
    if not other.is_file():
        raise InputError(f"{path} is based on {base}, but there is no file {other}")
    return {**_settings(other, (*readers, path.resolve())), **own}
