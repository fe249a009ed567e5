"""The commands convert, info and models."""

import hashlib
import json

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from faenet_calc.cli import main
from faenet_calc.potential import shipped
from faenet_calc.potential.checkpoint import load_potential, save_potential
from faenet_calc.potential.potential import build_potential


def _run(*arguments):
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


@pytest.fixture
def upstream(golden_dir, tmp_path):
    """An IS2RE-like checkpoint that deletes sub-surface atoms, with raw and averaged weights."""
    with np.load(golden_dir / "default__slab.npz") as file:
        config = json.loads(str(file["__config__"]))
        state = {key[3:]: torch.tensor(file[key]) for key in file if key.startswith("sd/")}
    buffers = ("offset", "group", "period", "properties", "running_mean", "running_var", "num_batches_tracked")
    content = {
        "state_dict": {f"module.{key}": value for key, value in state.items()},
        "normalizers": {"target": {"mean": torch.tensor(-1.5), "std": torch.tensor(2.3)}},
        "ema": {"decay": 0.999, "shadow_params": [v + 1 for k, v in state.items() if not k.endswith(buffers)]},
        "config": {
            "task": {"name": "s2ef"}, "model": {**config, "use_pbc": True}, "frame_averaging": "2D",
            "fa_method": "random", "graph_rewiring": "remove-tag-0",
        },
    }  # fmt: skip
    torch.save(content, tmp_path / "checkpoint.pt")
    torch.save(state, tmp_path / "bare.pt")
    (tmp_path / "words.yaml").write_text(json.dumps(config | {"frame_averaging": "3D", "fa_method": "all"}))
    return tmp_path


def test_convert(upstream):
    out = upstream / "new.safetensors"
    result = _run("convert", upstream / "checkpoint.pt", out)
    assert result.exit_code == 0, result.stderr
    assert "adsorption energy, forces direct" in result.stdout and "no forces" in result.stdout
    assert _run("convert", upstream / "checkpoint.pt", out).exit_code == 2
    averaged = load_potential(out, device="cpu").metadata["sha256"]
    raw = _run("convert", upstream / "checkpoint.pt", out, "--overwrite", "--raw-weights", "--json")
    assert raw.exit_code == 0 and json.loads(raw.stdout)["sha256"] != averaged
    assert _run("-q", "convert", upstream / "checkpoint.pt", out, "--overwrite").stdout.count("\n") == 1


def test_convert_bare_weights_needs_a_config(upstream):
    out = upstream / "new.safetensors"
    refused = _run("convert", upstream / "bare.pt", out)
    assert refused.exit_code == 2 and "--config" in refused.stderr and not out.exists()
    given = _run("convert", upstream / "bare.pt", out, "--config", upstream / "words.yaml")
    assert given.exit_code == 0, given.stderr
    assert load_potential(out, device="cpu").config.frames.kind == "pca3d"


class _Runs:
    def __init__(self, target):
        self.target = target

    def __reduce__(self):
        return eval, (f"open({self.target!r}, 'w').close()",)


def test_convert_does_not_run_pickles(upstream):
    content = torch.load(upstream / "checkpoint.pt", weights_only=True)
    target = upstream / "ran"
    torch.save(content | {"x": _Runs(str(target))}, upstream / "bad.pt")
    out = upstream / "new.safetensors"
    refused = _run("convert", upstream / "bad.pt", out)
    assert refused.exit_code == 2 and "eval" in refused.stderr and "--trust-pickle" in refused.stderr
    assert not target.exists() and not out.exists()
    assert _run("convert", upstream / "bad.pt", out, "--trust-pickle").exit_code == 0
    assert target.exists()


@pytest.mark.parametrize("source", ["checkpoint.pt", "new.safetensors"])
def test_info_of_an_imported_model(upstream, source):
    assert _run("convert", upstream / "checkpoint.pt", upstream / "new.safetensors").exit_code == 0
    result = _run("info", upstream / source, "--json")
    assert result.exit_code == 0, result.stderr
    told = json.loads(result.stdout)
    assert told["energy"] == "adsorption" and told["level_of_theory"] == "RPBE (VASP), as in OC20"
    assert told["deletes_subsurface_atoms"] and told["needs_tags"] and told["max_neighbors"] == 50
    assert told["frames"] == "pca2d, all" and told["cutoff_A"] == 6.0 and told["forces"] == "direct"
    assert "Pt" in told["supported_elements"] and "La" in told["supported_elements"]
    assert "Nd" not in told["supported_elements"]
    text = _run("info", upstream / source).stdout
    assert "sub-surface atoms" in text and "one random frame" in text and told["sha256"] in text


def test_info_counts_parameters(tmp_path):
    potential = build_potential("modern-s", trained_elements=[29, 8])
    path = save_potential(potential, tmp_path / "model.safetensors", extra={"card": "card.md", "data": "emt"})
    told = json.loads(_run("info", path, "--json").stdout)
    assert told["parameters"] == sum(value.numel() for value in potential.parameters()) > 1000
    assert told["trained_elements"] == ["Cu", "O"] and len(told["supported_elements"]) == 118
    assert told["card"] == "card.md" and told["extra"]["data"] == "emt" and not told["deletes_subsurface_atoms"]
    assert "sub-surface" not in _run("info", path).stdout


def test_info_tells_the_card_inside(tmp_path):
    errors = {"structures": 7, "energy_mae (meV/atom)": 5.44, "forces_mae (meV/Å)": 51.5}
    card = {"domain": "copper", "bad_at": ["gold", "silver"], "licence": "MIT", "measured": {"test_errors": errors}}
    path = save_potential(build_potential("modern-s"), tmp_path / "model.safetensors", extra={"model_card": card})
    told = json.loads(_run("info", path, "--json").stdout)
    assert (told["domain"], told["bad_at"], told["licence"]) == ("copper", "gold, silver", "MIT")
    assert told["errors"].startswith("5.44 meV/atom and 51.5 meV/Å on 7 held-out structures")
    del errors["structures"]
    save_potential(build_potential("modern-s"), path, extra={"model_card": card})
    assert json.loads(_run("info", path, "--json").stdout)["errors"] is None


def test_info_of_something_else(tmp_path):
    (tmp_path / "x.safetensors").write_text("nothing")
    result = _run("info", tmp_path / "x.safetensors")
    assert result.exit_code == 2 and "damaged" in result.stderr
    assert _run("info", "no-such-model").exit_code == 2


def test_models_say_where_errors_hold_for_the_domain_only():
    printed = _run("models").stdout
    inside, every = ("{} of {} structures", "{:.1f} meV/atom, {:.0f} meV/Å")
    errors = load_potential("metals-m", device="cpu").metadata["extra"]["model_card"]["measured"]["heldout_errors"]
    counts = inside.format(errors["domain=inside"]["structures"], errors["all"]["structures"])
    values = every.format(errors["all"]["energy_mae (meV/atom)"], errors["all"]["forces_mae (meV/Å)"])
    assert f"metals-m: errors inside the domain ({counts}); all structures: {values}.\n" in printed
    assert "metals-s: errors inside" not in printed


def test_shipped_models_state_their_error_against_dft_and_their_reference_method():
    printed = _run("models").stdout
    (line,) = (line for line in printed.splitlines() if line.startswith("  metals-s "))
    errors = json.loads(_run("info", "metals-s", "--json").stdout)["error_against_DFT"]
    assert errors.split()[0] in line.split()
    assert "adsorption energies" in errors
    assert json.loads(_run("info", "copper-s", "--json").stdout)["error_against_DFT"] is None
    assert "  copper-s: nequix-oam-1\n" in printed


def test_models(tmp_path, monkeypatch):
    monkeypatch.setattr(shipped, "_root", lambda: tmp_path)
    assert json.loads(_run("models", "--json").stdout) == []
    assert "no models" in _run("models").stdout
    assert _run("info").exit_code == 2
    folder = tmp_path / "tiny"
    folder.mkdir()
    file = save_potential(build_potential("modern-s"), folder / "model.safetensors")
    (folder / "sha256").write_text(hashlib.sha256(file.read_bytes()).hexdigest())
    (folder / "card.md").write_text("# tiny\n\nRandom weights.\n")
    (tmp_path / "default").write_text("tiny")
    rows = json.loads(_run("models", "--json").stdout)
    assert [(row["name"], row["default"], row["card"]) for row in rows] == [("tiny", True, {})]
    assert rows[0]["path"] == str(file) and rows[0]["size_bytes"] == file.stat().st_size
    assert "* tiny" in _run("models").stdout
    card = {
        "summary": "Random weights",
        "forces": "gradient",
        "errors": {"energy (meV/atom)": 4.0, "forces (meV/Å)": 37.5},
    }
    (folder / "card.yaml").write_text(json.dumps(card))
    assert json.loads(_run("models", "--json").stdout)[0]["card"] == card
    (line,) = (line for line in _run("models").stdout.splitlines() if line.startswith("* tiny"))
    assert line.split() == [
        "*",
        "tiny",
        "Random",
        "weights",
        "gradient",
        "4",
        "37.5",
        f"{rows[0]['size_bytes'] / 1e6:.1f}",
    ]
    told = json.loads(_run("info", "--json").stdout)
    assert told["model"] == "tiny" and told["card"] == str(folder / "card.md")
