"""Calculators of a recipe: which code may be imported, and which model files were loaded.

A recipe is data from somebody else until it is trusted. Its ``factory`` is therefore resolved only inside packages that
are known to contain ASE calculators, must be a Calculator class, and may not be given a shell command; anything else
needs ``trust_code``. The package is checked before anything is imported.
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

from ase.calculators.calculator import BaseCalculator, Calculator

from faenet_calc.errors import InputError
from faenet_calc.files import sha256_of
from faenet_calc.labelling.recipe import CalculatorConfig, Recipe

TRUSTED_PACKAGES = (
    "ase", "asap3", "chgnet", "deepmd", "dftd3", "dftd4", "faenet_calc", "fairchem", "gpaw", "mace", "matgl",
    "mattersim", "nequip", "nequix", "orb_models", "sevenn", "tblite", "torchani", "xtb",
)  # fmt: skip
_DIGITS = 12  # of the digests in labels


@dataclass(frozen=True, kw_only=True)
class LoadedCalculator:
    """A calculator and the model files that it was built from.

    Attributes:
        calculator: The ASE calculator.
        name: Name stored with every label.
        sha256: Digests of its model files, joined with ``+``; empty if it has none.
    """

    calculator: Calculator
    name: str
    sha256: str

    @property
    def short_sha256(self) -> str:
        """The digests as labels store them: 12 hexadecimal digits each."""
        return "+".join(digest[:_DIGITS] for digest in self.sha256.split("+"))


@dataclass(frozen=True, kw_only=True)
class Calculators:
    """The calculators of a recipe.

    Attributes:
        labels: Computes the labels.
        explores: Moves the atoms; the same object as ``labels`` if the recipe has no explorer.
    """

    labels: LoadedCalculator
    explores: LoadedCalculator

    @property
    def models(self) -> dict[str, str]:
        """Digests of the loaded model files by role, as the journal stores them."""
        return {"calculator": self.labels.sha256, "explorer": self.explores.sha256}


def load_calculators(recipe: Recipe, *, trust_code: bool = False) -> Calculators:
    """Build the calculator and the explorer of a recipe."""
    labels = load_calculator(recipe.calculator, trust_code=trust_code)
    explorer = recipe.explorer
    return Calculators(
        labels=labels, explores=labels if explorer is None else load_calculator(explorer, trust_code=trust_code)
    )


def in_own_folders(recipe: Recipe, name: str) -> Recipe:
    """The recipe with calculators that write to folders of their own, ``directory/name`` instead of ``directory``.

    Codes that exchange files with their calculator overwrite each other's files in a common folder.
    """

    def own(config: CalculatorConfig) -> CalculatorConfig:
        if "directory" not in config.kwargs:
            return config
        return replace(config, kwargs={**config.kwargs, "directory": str(Path(config.kwargs["directory"]) / name)})

    explorer = None if recipe.explorer is None else own(recipe.explorer)
    return replace(recipe, calculator=own(recipe.calculator), explorer=explorer)


def load_calculator(config: CalculatorConfig, *, trust_code: bool = False) -> LoadedCalculator:
    """Build a calculator and compute the digests of the model files that it loaded.

    Raises:
        InputError: As in `build_calculator`, or a loaded file is not the one that ``config.sha256`` pins.
    """
    calculator = build_calculator(config, trust_code=trust_code)
    sha256 = "+".join(sha256_of(file) for file in _model_files(config, calculator))
    if config.sha256 and not sha256.startswith(config.sha256.lower()):
        raise InputError(
            f"{config.name} loaded a model with sha256 {sha256[:_DIGITS] or '(no model file)'}…, the recipe pins "
            f"{config.sha256[:_DIGITS]}…; set kwargs to the pinned file, or remove sha256 from the recipe"
        )
    return LoadedCalculator(calculator=calculator, name=config.name, sha256=sha256)


def build_calculator(config: CalculatorConfig, *, trust_code: bool = False) -> Calculator:
    """Import the factory of a recipe and call it.

    Args:
        trust_code: Import any module and call any function that the recipe names.

    Raises:
        InputError: The factory is not trusted or cannot be imported, its kwargs do not fit, or the call does not return
            an ASE calculator.
    """
    if not trust_code:
        _check_names(config)
    module, _, name = config.factory.rpartition(".")
    try:
        factory = getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise InputError(
            f"factory = {config.factory!r} cannot be imported ({error}); install its package or correct the path"
        ) from error
    if not trust_code and not (isinstance(factory, type) and issubclass(factory, BaseCalculator)):
        raise InputError(
            f"factory = {config.factory!r} is not an ASE Calculator class; name such a class, or allow the call with "
            "trust_code=True (--trust-code) if you trust the recipe"
        )
    try:
        calculator = factory(**config.kwargs)
    except TypeError as error:
        raise InputError(
            f"{config.factory} does not accept kwargs = {config.kwargs} ({error}); correct kwargs in the recipe"
        ) from error
    if not hasattr(calculator, "get_property"):
        raise InputError(
            f"factory = {config.factory!r} returned {type(calculator).__name__}, expected an ASE calculator"
        )
    torch = sys.modules.get("torch")
    if torch is not None and config.threads > 0:
        torch.set_num_threads(config.threads)
    return calculator


def _check_names(config: CalculatorConfig) -> None:
    """Refuse a factory outside the trusted packages, and shell commands, before anything is imported."""
    package = config.factory.partition(".")[0]
    if package not in TRUSTED_PACKAGES:
        raise InputError(
            f"factory = {config.factory!r} is in the package {package!r}, which is not one of "
            f"{', '.join(TRUSTED_PACKAGES)}; importing it runs its code. If you trust the recipe, allow it with "
            "trust_code=True (--trust-code)."
        )
    if commands := sorted(key for key in config.kwargs if "command" in key.lower()):
        raise InputError(
            f"kwargs of {config.factory} contain {', '.join(commands)}, which may run any program; set the command in "
            "the environment or in ASE's configuration, or allow it with trust_code=True (--trust-code)"
        )


def _model_files(config: CalculatorConfig, calculator: Calculator) -> Iterator[Path]:
    """The files that a calculator was loaded from: those of a FAENetCalculator, otherwise files named in kwargs."""
    info = getattr(calculator, "info", None)
    if isinstance(info, dict) and "paths" in info:
        yield from (Path(path) for path in info["paths"] if path is not None)
        return
    for value in config.kwargs.values():
        for item in value if isinstance(value, list) else [value]:
            if _is_file(item):
                yield Path(item)


def _is_file(value: Any) -> bool:
    return isinstance(value, str) and Path(value).is_file()
