"""How the compiled library is found, and that a missing, damaged or outdated one is replaced by PyTorch."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from faenet_calc.network import native
from faenet_calc.network.native import INSTRUCTION_SETS, library

BUILT = Path(native.__file__).with_name("_library.abi3.so")
needs_library = pytest.mark.skipif(library() is None, reason=f"no compiled library: {native.unavailable()}")

_ENERGY = """
from ase.build import molecule
from faenet_calc import build_potential
from faenet_calc.network.native import library
import logging
logging.basicConfig(level="INFO")
potential = build_potential("modern-s")
found = potential.predict(molecule("CH3OH"))
print(library() is not None, float(found.energy), float(found.forces.square().sum()))
"""


def _run(**environment: str) -> tuple[str, list[float], str]:
    """Whether compiled code was used, energy and squared forces of a molecule, and the log, from a new process."""
    done = subprocess.run(
        [sys.executable, "-c", _ENERGY], env=os.environ | environment, capture_output=True, text=True, check=True
    )
    used, *numbers = done.stdout.split()
    return used, [float(number) for number in numbers], done.stderr


@needs_library
def test_without_compiled_code_the_energy_is_the_same():
    used, expected, _ = _run()
    assert used == "True"
    used, found, log = _run(FAENET_CALC_NATIVE="0")
    assert used == "False" and found == pytest.approx(expected, rel=1e-5)
    assert "slower than compiled code: FAENET_CALC_NATIVE=0 is set" in log


@needs_library
def test_a_missing_damaged_or_outdated_library_is_not_used(tmp_path):
    path = tmp_path / BUILT.name
    assert "was not built" in native._open(path)
    path.write_bytes(b"not a library")
    assert "cannot be loaded" in native._open(path)
    shutil.copy(BUILT, path)
    for source in BUILT.parent.glob("*.[ch]"):
        shutil.copy(source, tmp_path)
    assert not isinstance(native._open(path), str)
    with open(tmp_path / "fused.c", "a") as file:
        file.write("/* changed */")
    assert "built from other sources" in native._open(path)


@needs_library
def test_an_instruction_set_that_the_processor_lacks_is_not_offered(monkeypatch):
    assert library("portable") is not None
    monkeypatch.setattr(native, "_load", lambda: _Portable())
    assert [library.__wrapped__(name) is None for name in INSTRUCTION_SETS] == [True, True, False]


class _Portable:
    """A library on a processor without vector instructions."""

    def faenet_instruction_set(self) -> int:
        return INSTRUCTION_SETS.index("portable")

    def faenet_has_threads(self) -> int:
        return 0
