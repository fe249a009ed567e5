"""Every example runs in its quick mode, prints what it promises and leaves its files."""

import runpy
import sys

import pytest

from faenet_calc import pretrained

# Example → (words in its output, files it leaves).
EXAMPLES = {
    "single_point.py": (["eV/Å", "Cu(111)", "stress"], ["single_point.txt"]),
    "relax_co_cu111.py": (
        ["energy before", "energy after", "adsorption energy", "C-O distance", "C-Cu distance", "anomalies"],
        ["co_cu111.png", "co_cu111.traj"],
    ),
    "adsorption_sites.py": (["ASE", "pymatgen", "ontop", "hollow", "E_ads"], ["adsorption_sites.extxyz"]),
    "neb_diffusion.py": (["barrier", "hcp - fcc"], ["neb_diffusion.png"]),
    "md_rdf.py": (["temperature", "first peak"], ["rdf.png", "rdf.txt", "md.traj"]),
    "vibrations.py": (["cm-1", "free energy of adsorption"], []),
    "equation_of_state.py": (["lattice constant", "bulk modulus"], ["equation_of_state.png"]),
    "uncertainty.py": (["spread over frames", "committee"], ["uncertainty.txt"]),
    "import_upstream.py": (["converted", "as it is", "direct"], ["imported.safetensors"]),
}
NEEDS_NO_MODEL = {"import_upstream.py"}


def test_every_example_is_tested_and_short(repository):
    found = {path.name: path for path in (repository / "examples").glob("*.py")}
    assert set(found) == set(EXAMPLES)
    for name, path in found.items():
        assert len(path.read_text().splitlines()) < 80, name


# pymatgen calls spglib in a way that spglib has deprecated.
@pytest.mark.filterwarnings("ignore:Set OLD_ERROR_HANDLING:DeprecationWarning")
# The imported model deletes sub-surface atoms, and says so.
@pytest.mark.filterwarnings("ignore:this model deletes sub-surface atoms:UserWarning")
@pytest.mark.parametrize("name", EXAMPLES)
def test_example(repository, tmp_path, monkeypatch, capfd, name):
    if name not in NEEDS_NO_MODEL and not pretrained.names():
        pytest.skip("no model is shipped (pretrained/ has none), and the examples use the default one")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(repository))
    monkeypatch.setattr(sys, "argv", [name, "--quick", "--out", str(tmp_path / "out")])
    runpy.run_path(str(repository / "examples" / name), run_name="__main__")
    printed = capfd.readouterr().out
    words, files = EXAMPLES[name]
    for word in words:
        assert word in printed, printed
    assert "nan" not in printed.lower().split(), printed
    for file in files:
        assert (tmp_path / "out" / file).stat().st_size > 0
    assert [path.name for path in tmp_path.iterdir()] == ["out"], "files outside of --out"
