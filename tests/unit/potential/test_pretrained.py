"""Shipped models: found by name, compared with their digest."""

import hashlib
import subprocess
import sys

import pytest

from faenet_calc.errors import InputError
from faenet_calc.potential import shipped
from faenet_calc.potential.checkpoint import load_potential, save_potential
from faenet_calc.potential.potential import build_potential


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Two models in a folder of their own."""
    for seed, name in enumerate(("metals-s", "oxides-s")):
        folder = tmp_path / name
        folder.mkdir()
        file = save_potential(build_potential("modern-s", seed=seed), folder / "model.safetensors")
        (folder / "sha256").write_text(f"{hashlib.sha256(file.read_bytes()).hexdigest()}  model.safetensors\n")
    (tmp_path / "metals-s" / "card.md").write_text("# metals-s\n\nCu, Pd and Pt with H and O, EMT labels.\nMore.\n")
    (tmp_path / "default").write_text("metals-s\n")
    (tmp_path / "README.md").write_text("# Shipped models\n")
    monkeypatch.setattr(shipped, "_root", lambda: tmp_path)
    return tmp_path


def test_names_and_paths(folder):
    assert shipped.names() == ("metals-s", "oxides-s")
    assert shipped.path("oxides-s") == folder / "oxides-s" / "model.safetensors"
    assert shipped.default_name() == "metals-s"
    assert shipped.card("metals-s") == folder / "metals-s" / "card.md"


def test_loading_by_name(folder):
    potential = load_potential("oxides-s", device="cpu")
    assert potential.metadata["name"] == "oxides-s"
    assert potential.metadata["path"] == str(folder / "oxides-s" / "model.safetensors")


def test_a_damaged_model_is_refused(folder):
    shipped.path("metals-s")
    file = folder / "metals-s" / "model.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(bytes(data))
    with pytest.raises(InputError, match=r"damaged.*reinstall"):
        shipped.path("metals-s")
    with pytest.raises(InputError, match="damaged"):
        load_potential("metals-s", device="cpu")


def test_a_model_without_digest_is_refused(folder):
    (folder / "metals-s" / "sha256").unlink()
    with pytest.raises(InputError, match=r"sha256sum model\.safetensors > sha256"):
        shipped.path("metals-s")


def test_unknown_names(folder):
    with pytest.raises(InputError, match="did you mean 'metals-s'"):
        shipped.path("metal-s")
    (folder / "default").write_text("gone")
    with pytest.raises(InputError, match="names 'gone'"):
        shipped.default_name()


def test_nothing_shipped(tmp_path, monkeypatch):
    monkeypatch.setattr(shipped, "_root", lambda: tmp_path)
    assert shipped.names() == ()
    with pytest.raises(InputError, match="faenet-calc train"):
        shipped.default_name()


def test_models_of_the_repository_are_whole():
    for name in shipped.names():
        assert shipped.path(name).is_file()
    if shipped.names():
        assert shipped.default_name() in shipped.names()


def test_import_does_not_import_torch():
    script = "import faenet_calc.potential.shipped, sys; print('torch' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "False"
