"""Shipped models: found by name, compared with their digest."""

import hashlib
import subprocess
import sys

import pytest

from faenet_calc import pretrained
from faenet_calc.checkpoint import load_potential, save_potential
from faenet_calc.errors import InputError
from faenet_calc.potential import build_potential


@pytest.fixture
def shipped(tmp_path, monkeypatch):
    """Two models in a folder of their own."""
    for seed, name in enumerate(("metals-s", "oxides-s")):
        folder = tmp_path / name
        folder.mkdir()
        file = save_potential(build_potential("modern-s", seed=seed), folder / "model.safetensors")
        (folder / "sha256").write_text(f"{hashlib.sha256(file.read_bytes()).hexdigest()}  model.safetensors\n")
    (tmp_path / "metals-s" / "card.md").write_text("# metals-s\n\nCu, Pd and Pt with H and O, EMT labels.\nMore.\n")
    (tmp_path / "default").write_text("metals-s\n")
    (tmp_path / "README.md").write_text("# Shipped models\n")
    monkeypatch.setattr(pretrained, "_root", lambda: tmp_path)
    return tmp_path


def test_names_paths_and_descriptions(shipped):
    assert pretrained.names() == ("metals-s", "oxides-s")
    assert pretrained.path("oxides-s") == shipped / "oxides-s" / "model.safetensors"
    assert pretrained.default_name() == "metals-s"
    assert pretrained.description("metals-s") == "Cu, Pd and Pt with H and O, EMT labels."
    assert pretrained.description("oxides-s") == ""


def test_loading_by_name(shipped):
    potential = load_potential("oxides-s", device="cpu")
    assert potential.metadata["name"] == "oxides-s"
    assert potential.metadata["path"] == str(shipped / "oxides-s" / "model.safetensors")


def test_a_damaged_model_is_refused(shipped):
    pretrained.path("metals-s")
    file = shipped / "metals-s" / "model.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(bytes(data))
    with pytest.raises(InputError, match=r"damaged.*reinstall"):
        pretrained.path("metals-s")
    with pytest.raises(InputError, match="damaged"):
        load_potential("metals-s", device="cpu")


def test_a_model_without_digest_is_refused(shipped):
    (shipped / "metals-s" / "sha256").unlink()
    with pytest.raises(InputError, match=r"sha256sum model\.safetensors > sha256"):
        pretrained.path("metals-s")


def test_unknown_names(shipped):
    with pytest.raises(InputError, match="did you mean 'metals-s'"):
        pretrained.path("metal-s")
    (shipped / "default").write_text("gone")
    with pytest.raises(InputError, match="names 'gone'"):
        pretrained.default_name()


def test_nothing_shipped(tmp_path, monkeypatch):
    monkeypatch.setattr(pretrained, "_root", lambda: tmp_path)
    assert pretrained.names() == ()
    with pytest.raises(InputError, match="faenet-calc train"):
        pretrained.default_name()


def test_models_of_the_repository_are_whole():
    for name in pretrained.names():
        assert pretrained.path(name).is_file()
    if pretrained.names():
        assert pretrained.default_name() in pretrained.names()


def test_import_does_not_import_torch():
    script = "import faenet_calc.pretrained, sys; print('torch' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "False"
