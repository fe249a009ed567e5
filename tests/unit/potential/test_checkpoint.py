"""Checkpoints: what is written is what is read, and nothing else is accepted."""

import json
import struct

import pytest
import torch
from safetensors.torch import save_file

import faenet_calc
from faenet_calc.errors import InputError
from faenet_calc.potential import checkpoint
from faenet_calc.potential.checkpoint import load_potential, read_metadata, save_potential
from faenet_calc.potential.device import pick_device
from faenet_calc.potential.potential import build_potential
from faenet_calc.settings import to_mapping

EXTRA = {"data": "emt", "metrics": {"forces_mae": 0.02}, "command": ["faenet-calc", "train"], "unit": "Å"}


def _small(dtype="float32", **overrides):
    return build_potential(
        "modern-s", dtype=dtype, hidden_channels=64, filters=16, interactions=1, gaussians=8,
        normalization={"scale": 2.5, "references": {"Cu": -3.7}}, trained_elements=[8, 29], name="small",
        energy={"level_of_theory": "EMT"}, **overrides,
    )  # fmt: skip


@pytest.fixture
def saved(tmp_path):
    return save_potential(_small(), tmp_path / "model.safetensors", extra=EXTRA)


def _parts(path):
    """Header and data of a safetensors file."""
    raw = path.read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    return json.loads(raw[8 : 8 + length]), raw[8 + length :]


def _rewrite(path, header, data):
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("forces", ["gradient", "direct"])
def test_round_trip(tmp_path, dtype, forces):
    original = _small(dtype, forces=forces)
    path = save_potential(original, tmp_path / "model.safetensors", extra=EXTRA)
    loaded = load_potential(path, device="cpu")
    assert loaded.config == original.config
    assert str(loaded.dtype) == f"torch.{dtype}"
    assert not loaded.training and not any(p.requires_grad for p in loaded.parameters())
    for name, value in original.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], value), name
    metadata = loaded.metadata
    assert metadata["path"] == str(path) and metadata["extra"] == EXTRA and metadata["format_version"] == 3
    assert metadata["package_version"] == faenet_calc.__version__ and len(metadata["sha256"]) == 64


def test_same_content_has_the_same_hash(saved, tmp_path):
    again = save_potential(load_potential(saved, device="cpu"), tmp_path / "again.safetensors")
    assert read_metadata(again)["sha256"] == read_metadata(saved)["sha256"]
    noted = save_potential(load_potential(saved, device="cpu"), tmp_path / "noted.safetensors", extra={"note": "x"})
    assert read_metadata(noted)["sha256"] != read_metadata(saved)["sha256"]
    other = save_potential(build_potential("modern-s", seed=1), tmp_path / "other.safetensors")
    assert read_metadata(other)["sha256"] != read_metadata(saved)["sha256"]


def test_saving_again_keeps_the_extra(saved, tmp_path):
    again = save_potential(load_potential(saved, device="cpu"), tmp_path / "again.safetensors")
    assert read_metadata(again)["extra"] == EXTRA


def test_dtype_is_changed_on_request(saved):
    wide = load_potential(str(saved), device="cpu", dtype="float64")
    assert wide.dtype == torch.float64
    with pytest.raises(InputError, match="float16"):
        load_potential(saved, device="cpu", dtype="float16")


def test_metadata_is_read_without_the_tensors(saved):
    header, data = _parts(saved)
    _rewrite(saved, header, bytes(len(data)))
    metadata = read_metadata(saved)
    assert metadata["config"] == to_mapping(_small().config) and metadata["extra"] == EXTRA


def test_loading_leaves_the_global_generator_alone(saved):
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    load_potential(saved, device="cpu")
    assert torch.equal(torch.rand(1), expected)


@pytest.mark.parametrize("where", [0.0, 0.25, 0.5, 0.75, 1.0])
@pytest.mark.parametrize("bit", [0, 7])
def test_a_flipped_bit_in_a_tensor_is_found(saved, where, bit):
    header, data = _parts(saved)
    damaged = bytearray(data)
    damaged[round(where * (len(data) - 1))] ^= 1 << bit
    _rewrite(saved, header, bytes(damaged))
    with pytest.raises(InputError, match=r"is damaged: its content has sha256"):
        load_potential(saved, device="cpu")


def test_a_changed_config_is_found(saved):
    header, data = _parts(saved)
    header["__metadata__"]["config"] = header["__metadata__"]["config"].replace('"scale": 2.5', '"scale": 3.5')
    _rewrite(saved, header, data)
    with pytest.raises(InputError, match="is damaged"):
        load_potential(saved, device="cpu")


@pytest.mark.parametrize("key", ["extra", "package_version", "note"])
def test_edited_metadata_is_found(saved, key):
    header, data = _parts(saved)
    header["__metadata__"][key] = header["__metadata__"].get(key, "") + " "
    _rewrite(saved, header, data)
    with pytest.raises(InputError, match="is damaged"):
        load_potential(saved, device="cpu")


def test_files_of_version_1_hash_config_and_weights_only(tmp_path):
    def old(metadata, _):
        metadata.update(format_version="1", extra='{"note": "x"}')

    path = _forge(tmp_path / "old.safetensors", old)
    header, data = _parts(path)
    header["__metadata__"]["extra"] = '{"note": "another"}'
    _rewrite(path, header, data)
    assert load_potential(path, device="cpu").metadata["extra"] == {"note": "another"}


def _with_mode(tmp_path, version, **frames):
    def change(metadata, _):
        config = json.loads(metadata["config"])
        config["frames"] |= frames
        metadata.update(format_version=version, config=json.dumps(config))

    return load_potential(_forge(tmp_path / "modes.safetensors", change), device="cpu").config.frame_mode


def test_older_files_have_the_present_default_of_lattice_frames(tmp_path):
    """Before version 3 "all" was the default and cannot be told from a choice; from then on it is a choice."""
    assert _with_mode(tmp_path, "2", mode="all") == "pair" == _with_mode(tmp_path, "3", mode="auto")
    assert _with_mode(tmp_path, "3", mode="all") == "all"
    assert _with_mode(tmp_path, "2", mode="one") == "one"
    assert _with_mode(tmp_path, "2", mode="all", kind="pca3d") == "all"


def test_control_characters_of_the_metadata_are_removed(tmp_path):
    extra = {"note\x1b[2J": ["\x1b[31mred\u202e", {"a": "line\nline\ttab\x07"}, 3]}
    path = save_potential(_small(), tmp_path / "a.safetensors", extra=extra)
    assert read_metadata(path)["extra"] == {"note[2J": ["[31mred", {"a": "line\nline\ttab"}, 3]}


def test_unchanged_rewriting_is_accepted(saved):
    """The control of the damage tests: the same surgery without damage loads."""
    _rewrite(saved, *_parts(saved))
    load_potential(saved, device="cpu")


def test_swapped_names_are_found(saved):
    header, data = _parts(saved)
    pair = ["model.interaction_blocks.0.lin_down.weight", "model.interaction_blocks.0.lin_geom.weight"]
    header[pair[0]], header[pair[1]] = header[pair[1]], header[pair[0]]
    _rewrite(saved, header, data)
    with pytest.raises(InputError, match="is damaged"):
        load_potential(saved, device="cpu")


def _forge(path, change):
    """A file whose hash is right but whose content was changed by ``change(metadata, tensors)``."""
    potential = _small()
    tensors = dict(potential.state_dict())
    metadata = {
        "format": "faenet-calc", "format_version": "3", "package_version": "0", "extra": "{}",
        "config": json.dumps(to_mapping(potential.config)),
    }  # fmt: skip
    change(metadata, tensors)
    metadata.setdefault("sha256", checkpoint._content_hash(metadata, tensors))
    save_file(tensors, path, {key: value for key, value in metadata.items() if value is not None})
    return path


BIAS = "model.output_block.lin1.bias"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m, t: t.pop(BIAS), r"missing \['model\.output_block\.lin1\.bias'\]"),
        (lambda m, t: t.update(spare=torch.zeros(2)), r"unknown \['spare'\]"),
        (lambda m, t: t.update({BIAS: torch.zeros(2)}), "lin1.bias has shape"),
        (lambda m, t: t.update({BIAS: t[BIAS].double()}), "float32 or float64 only"),
        (lambda m, t: m.update(format="pt"), "of format 'pt', expected 'faenet-calc'"),
        (lambda m, t: m.update(format_version="4"), "upgrade faenet-calc"),
        (lambda m, t: m.update(format_version="new"), "format_version new"),
        (lambda m, t: m.update(sha256=None), "lacks the metadata sha256"),
        (lambda m, t: m.update(extra="{"), "'extra' is not JSON"),
        (lambda m, t: m.update(config=m["config"].replace("cutoff", "cuttoff")), "did you mean 'cutoff'"),
    ],
)
def test_files_that_do_not_fit_are_refused(tmp_path, change, message):
    with pytest.raises(InputError, match=message):
        load_potential(_forge(tmp_path / "forged.safetensors", change), device="cpu")


def test_a_faithful_forgery_is_accepted(tmp_path):
    load_potential(_forge(tmp_path / "forged.safetensors", lambda m, t: None), device="cpu")


@pytest.mark.parametrize("keep", [0, 5, 200, 0.5, -1])
def test_truncated_files_are_refused(saved, keep):
    raw = saved.read_bytes()
    saved.write_bytes(raw[: int(keep * len(raw)) if isinstance(keep, float) else keep])
    with pytest.raises(InputError, match="cut off, damaged"):
        load_potential(saved, device="cpu")


def test_other_files_are_refused(tmp_path):
    pickled, text = tmp_path / "pickle.safetensors", tmp_path / "notes.txt"
    torch.save({"a": torch.zeros(2)}, pickled)
    text.write_text("these are notes, not weights")
    with pytest.raises(InputError, match=r"is a pickle .*faenet-calc convert"):
        load_potential(pickled, device="cpu")
    with pytest.raises(InputError, match="cut off, damaged or not"):
        load_potential(text, device="cpu")
    with pytest.raises(InputError, match=r"is a folder.*holds pickle\.safetensors"):
        load_potential(tmp_path, device="cpu")
    with pytest.raises(InputError, match="neither a file nor the name"):
        load_potential("no-such-model", device="cpu")


def test_a_failed_save_leaves_the_old_file(saved, monkeypatch):
    before = saved.read_bytes()

    def fail(*arguments):
        raise OSError("disk full")

    monkeypatch.setattr("faenet_calc.files.os.fsync", fail)
    with pytest.raises(OSError, match="disk full"):
        save_potential(_small(), saved)
    assert saved.read_bytes() == before
    assert [file.name for file in saved.parent.iterdir()] == [saved.name]


def test_saving_refuses_what_cannot_be_loaded(tmp_path):
    with pytest.raises(InputError, match=r"ends in \.safetensors"):
        save_potential(_small(), tmp_path / "model.pt")
    with pytest.raises(InputError, match="extra is not JSON"):
        save_potential(_small(), tmp_path / "model.safetensors", extra={"weights": torch.zeros(2)})
    assert list(tmp_path.iterdir()) == []


def test_devices(saved, monkeypatch):
    assert pick_device("cpu").type == "cpu"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    assert pick_device(None).type == "cpu" and load_potential(saved).device.type == "cpu"
    with pytest.raises(InputError, match="no cuda"):
        pick_device("cuda")
    with pytest.raises(InputError, match="not a torch device"):
        pick_device("gpu")
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert pick_device(None).type == "mps"
    with pytest.raises(InputError, match="no float64"):
        load_potential(saved, device="mps", dtype="float64")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert pick_device(None).type == "cuda"
