"""Files of the original code: every generation of checkpoints, read without running what is in them."""

import argparse
import collections
import json
import pathlib
import sys
import types

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

from faenet_calc.errors import InputError
from faenet_calc.potential.checkpoint import load_potential, save_potential
from faenet_calc.potential.upstream import load_upstream
from faenet_calc.potential.upstream_files import QM7X_REFERENCES, read_config, read_upstream

MEAN, STD, GRAD_STD = -1.525913953781128, 2.279365062713623, 2.887317180633545


@pytest.fixture(scope="module")
def golden(golden_dir):
    """Config, state dict (tensors) and outputs of upstream's default network on the slab."""
    with np.load(golden_dir / "default__slab.npz") as file:
        arrays = {key: file[key] for key in file}
    state = {key[3:]: torch.tensor(value) for key, value in arrays.items() if key.startswith("sd/")}
    return json.loads(str(arrays["__config__"])), state, {k[4:]: v for k, v in arrays.items() if k.startswith("out/")}


@pytest.fixture(scope="module")
def slab(golden_dir):
    with np.load(golden_dir / "input_slab.npz") as file:
        return Data(**{key: torch.tensor(file[key]) for key in file})


def _trainer(model, **changes):
    """A flat ocp trainer config with the things that real ones hold."""
    config = {
        "task": {"dataset": "trajectory_lmdb", "description": "energies and forces", "name": "s2ef",
                 "train_on_free_atoms": True},
        "config": "faenet-s2ef-2M", "model_name": "faenet", "trainer": "single", "gpus": 1, "cpu": False, "slurm": {},
        "frame_averaging": "2D", "fa_method": "all", "graph_rewiring": "", "use_pbc": True,
        "run_dir": pathlib.PosixPath("/network/runs/7"), "logdir": pathlib.PosixPath("/network/runs/7/logs"),
        "dataset": {"default_val": "val_id", "train": {"src": "/data/s2ef/2M", "normalize_labels": True,
                    "target_mean": MEAN, "target_std": STD, "grad_target_mean": 0.0, "grad_target_std": GRAD_STD}},
        "optim": {"lr_initial": np.float64(2e-3), "ema_decay": 0.999},
        "model": {**model, "use_pbc": True, "otf_graph": False, "graph_rewiring": "", "dropout_lin": 0.0,
                  "first_trainable_layer": "", "edge_embed_type": "all_rij", "att_heads": 1, "num_targets": 1},
    }  # fmt: skip
    return config | changes


def _checkpoint(golden, prefix="module.", ema=None, trainer=None, normalizers="both"):
    model, state, _ = golden
    norms = {
        "target": {"mean": torch.tensor(MEAN), "std": torch.tensor(STD)},
        "grad_target": {"mean": torch.tensor(0.0), "std": torch.tensor(GRAD_STD)},
    }
    if normalizers == "none":
        norms = {}
    content = {
        "state_dict": collections.OrderedDict((prefix + key, value) for key, value in state.items()),
        "normalizers": norms,
        "config": _trainer(model) if trainer is None else trainer,
        "val_metrics": {
            "energy_mae": {"metric": np.float64(0.54), "total": np.float32(3.5), "numel": 7},
            "h": np.arange(3),
        },
        "amp": None,
    }
    if ema is not None:
        content |= {
            "epoch": 3.5,
            "step": 1200,
            "optimizer": {"state": {}, "param_groups": []},
            "scheduler": None,
            "ema": ema,
        }
    return content


BUFFERS = (
    "offset",
    "phys_emb.group",
    "phys_emb.period",
    "phys_emb.properties",
    "running_mean",
    "running_var",
    "tracked",
)


def _parameters(state):
    return [key for key in state if not key.endswith(BUFFERS)]


def _save(tmp_path, content, name="best_checkpoint.pt", **options):
    path = tmp_path / name
    torch.save(content, path, **options)
    return path


def _assert_golden(potential, golden, slab, mode="2D_all", scale=STD, shift=MEAN, force_scale=GRAD_STD):
    found = potential.predict(slab, ("energy", "forces"))
    energy = float(golden[2][f"energy_{mode}"][0]) * scale + shift
    assert found.energy.item() == pytest.approx(energy, rel=5e-6)
    assert np.abs(found.forces.numpy() - golden[2][f"forces_{mode}"] * force_scale).max() < 2e-5 * force_scale


@pytest.mark.parametrize("prefix", ["", "module.", "module.module."])
@pytest.mark.parametrize("legacy", [False, True])
def test_best_checkpoint(tmp_path, golden, slab, prefix, legacy):
    path = _save(tmp_path, _checkpoint(golden, prefix), _use_new_zipfile_serialization=not legacy)
    potential = read_upstream(path)
    _assert_golden(potential, golden, slab)
    config = potential.config
    assert config.energy.kind == "adsorption" and config.energy.level_of_theory == "RPBE (VASP), as in OC20"
    assert config.graph.max_neighbors == 50 and config.graph.rewiring == "none"
    assert config.forces == "direct" and config.forces_on_free_atoms_only
    assert potential.metadata["extra"]["val_metrics"]["energy_mae"]["metric"] == 0.54
    assert potential.metadata["extra"]["upstream_model"]["mp_type"] == "updownscale_base"
    assert any("symmetric" in note for note in potential.metadata["extra"]["notes"])


def test_load_potential_and_convert_give_the_same(tmp_path, golden, slab):
    path = _save(tmp_path, _checkpoint(golden))
    direct = load_potential(path, device="cpu")
    _assert_golden(direct, golden, slab)
    save_potential(direct, tmp_path / "new.safetensors")
    again = load_potential(tmp_path / "new.safetensors", device="cpu")
    assert again.config == direct.config
    assert again.metadata["extra"] == direct.metadata["extra"]
    assert torch.equal(again.predict(slab).energy, direct.predict(slab).energy)


def test_training_state_uses_the_moving_average(tmp_path, golden, slab):
    """The stored weights are noise and the average is upstream's network, so a wrong choice or order shows."""
    model, state, _ = golden
    parameters = _parameters(state)
    noise = {key: torch.randn_like(state[key]) if key in parameters else state[key] for key in state}
    ema = {
        "decay": 0.999,
        "num_updates": 1200,
        "shadow_params": [state[key] for key in parameters],
        "collected_params": [],
    }
    content = _checkpoint((model, noise, None), ema=ema)
    path = _save(tmp_path, content, "checkpoint-0001200.pt")
    _assert_golden(read_upstream(path), golden, slab)
    raw = read_upstream(path, use_ema=False)
    assert torch.equal(raw.model.output_block.lin1.weight, noise["output_block.lin1.weight"])
    assert raw.metadata["extra"]["step"] == 1200
    ema["shadow_params"] = ema["shadow_params"][:-1]
    with pytest.raises(InputError, match="--raw-weights"):
        read_upstream(_save(tmp_path, content))


def test_moving_average_of_a_trained_property_table(tmp_path, golden):
    """With phys_hidden_channels the table of properties is a parameter and takes part in the average."""
    model, state, _ = golden
    state = dict(state)
    state["embed_block.emb.weight"] = torch.randn(85, 48 - 4 - 6 - 10)
    keys = list(state)
    keys.insert(keys.index("embed_block.period_embedding.weight"), "embed_block.phys_lin.weight")
    state |= {"embed_block.phys_lin.weight": torch.randn(6, 14), "embed_block.phys_lin.bias": torch.randn(6)}
    state = {key: state[key] for key in [*keys, "embed_block.phys_lin.bias"]}
    buffers = tuple(set(BUFFERS) - {"phys_emb.properties"})
    names = [key for key in state if not key.endswith(buffers)]
    ema = {"decay": 0.999, "shadow_params": [state[key] + 1 for key in names]}
    potential = read_upstream(_save(tmp_path, _checkpoint((model, state, None), ema=ema)))
    found = potential.model.atom_embedding.phys_emb.properties
    assert torch.equal(found[:86], state["embed_block.phys_emb.properties"] + 1)


@pytest.mark.parametrize(
    ("words", "mode", "proper", "note"),
    [
        ({"frame_averaging": "2D", "fa_method": "random"}, "2D_all", False, "one random frame"),
        ({"frame_averaging": "2D", "fa_method": "se3-random"}, "2D_se3-all", True, "one random frame"),
        ({"frame_averaging": "3D", "fa_method": "stochastic"}, "3D_all", False, "one random frame"),
        ({"frame_averaging": "3D", "fa_method": "se3-all"}, "3D_se3-all", True, ""),
        ({"frame_averaging": "3D", "fa_method": None, "fa_frames": "full"}, "3D_all", False, ""),
        ({"frame_averaging": "2D", "fa_method": "qr-minimal"}, "2D_all", False, "'qr-minimal' is not known"),
        ({"frame_averaging": "MFA-2D", "fa_method": "all"}, "2D_all", False, "'MFA-2D' are not known"),
        ({"frame_averaging": ""}, "none", False, ""),
        ({"frame_averaging": False}, "none", False, ""),
    ],
)
def test_frame_words_of_all_generations(tmp_path, golden, slab, words, mode, proper, note):
    potential = read_upstream(_save(tmp_path, _checkpoint(golden, trainer=_trainer(golden[0], **words))))
    _assert_golden(potential, golden, slab, mode)
    assert potential.config.frames.proper == proper
    assert note in " ".join(potential.metadata["extra"]["notes"])


def test_fa_frames_without_fa_method(tmp_path, golden, slab):
    trainer = _trainer(golden[0], frame_averaging="3D", fa_frames="se3-multiple")
    del trainer["fa_method"]
    _assert_golden(read_upstream(_save(tmp_path, _checkpoint(golden, trainer=trainer))), golden, slab, "3D_se3-all")


def test_is2re_file_of_the_public_run(tmp_path, golden, slab):
    """The words of the one public trained FAENet: energy only, 2D se3-random, sub-surface atoms deleted."""
    model, state, _ = golden
    words = {
        "regress_forces": "",
        "graph_rewiring": "remove-tag-0",
        "force_decoder_type": "mlp",
        "dropout_lowest_layer": "output",
    }
    energy_only = {key: value for key, value in state.items() if not key.startswith("decoder")}
    trainer = _trainer(
        {**model, **words},
        task={"dataset": "single_point_lmdb", "labels": ["relaxed energy"], "name": "is2re", "split": "all"},
        config="faenet-is2re-all", fa_method="se3-random", graph_rewiring="remove-tag-0",
    )  # fmt: skip
    trainer["model"]["graph_rewiring"] = "remove-tag-0"
    content = _checkpoint((model, energy_only, None), trainer=trainer)
    del content["normalizers"]["grad_target"]
    potential = read_upstream(_save(tmp_path, content))
    config = potential.config
    assert config.energy.kind == "relaxed-adsorption" and config.forces == "none" and config.model.decoder is None
    assert config.frames.kind == "pca2d" and config.frames.proper and config.frames.mode == "all"
    assert config.graph.rewiring == "remove-tag-0" and config.graph.max_neighbors == 50
    assert "no forces" in " ".join(potential.metadata["extra"]["notes"])
    kept = slab.tags != 0
    index = torch.cumsum(kept.long(), 0) - 1
    inside = kept[slab.edge_index].all(dim=0)
    reduced = Data(
        pos=slab.pos[kept], atomic_numbers=slab.atomic_numbers[kept], tags=slab.tags[kept], cell=slab.cell,
        edge_index=index[slab.edge_index[:, inside]], cell_offsets=slab.cell_offsets[inside],
    )  # fmt: skip
    plain = load_upstream(model | {"regress_forces": ""}, energy_only, frame_averaging="2D", fa_method="se3-all")
    expected = plain.predict(reduced).energy.item() * STD + MEAN
    assert 0 < int(kept.sum()) < len(kept)
    assert potential.predict(slab).energy.item() == pytest.approx(expected, rel=1e-6)


def test_qm7x_references(tmp_path, golden, slab):
    trainer = _trainer(
        golden[0], task={"dataset": "qm7x"}, config="faenet-qm7x-all", use_pbc=False, frame_averaging="3D"
    )
    trainer["model"]["use_pbc"] = False
    trainer["dataset"] = {"train": {"src": "/data/qm7x", "lse_shift": True, "normalize_labels": False}}
    potential = read_upstream(_save(tmp_path, _checkpoint(golden, trainer=trainer, normalizers="none")))
    assert potential.config.normalization.references == QM7X_REFERENCES
    assert potential.config.energy.kind == "total" and "PBE0+MBD" in potential.config.energy.level_of_theory
    assert potential.config.trained_elements == (1, 6, 7, 8, 16, 17)
    assert potential.config.graph.max_neighbors is None
    carbon = int((slab.atomic_numbers == 6).sum()) * QM7X_REFERENCES["C"]
    oxygen = int((slab.atomic_numbers == 8).sum()) * QM7X_REFERENCES["O"]
    network = float(golden[2]["energy_3D_all"][0])
    assert potential.predict(slab).energy.item() - carbon - oxygen == pytest.approx(network, abs=1e-4)


def test_normalisation_from_the_config(tmp_path, golden, slab):
    path = _save(tmp_path, _checkpoint(golden, normalizers="none"))
    _assert_golden(read_upstream(path), golden, slab)


def test_heats_of_formation_are_refused(tmp_path, golden):
    content = _checkpoint(golden)
    content["normalizers"]["target"]["hof_stats"] = {"mean": torch.tensor(1.0), "std": torch.tensor(2.0)}
    with pytest.raises(InputError, match="heats of formation"):
        read_upstream(_save(tmp_path, content))
    content["normalizers"]["target"]["hof_stats"] = None
    read_upstream(_save(tmp_path, content))


@pytest.mark.parametrize("place", ["json", "yaml", "argument", "none"])
def test_bare_state_dict(tmp_path, golden, slab, place):
    model, state, _ = golden
    path = _save(tmp_path, state, "weights.pth")
    config = {**model, "frame_averaging": "3D", "fa_method": "all"}
    if place == "none":
        with pytest.raises(InputError, match="--config"):
            read_upstream(path)
        return
    if place != "argument":
        path.with_suffix(f".{place}").write_text(json.dumps(config))
    potential = read_upstream(path, config=config if place == "argument" else None)
    _assert_golden(potential, golden, slab, "3D_all", 1.0, 0.0, 1.0)
    assert potential.config.energy.kind == "other"


def test_yaml_config_with_paths_of_upstream(tmp_path):
    file = tmp_path / "config-7.yaml"
    file.write_text(
        "logdir: !!python/object/apply:pathlib.PosixPath\n- ocp\n- runs\nmodel:\n  cutoff: 6.0\n  skip_co: false\n"
    )
    config = read_config(file)
    assert config["model"] == {"cutoff": 6.0, "skip_co": False}
    file.write_text("[1, 2")
    with pytest.raises(InputError, match="not YAML"):
        read_config(file)


@pytest.mark.parametrize(
    ("name", "has_filter", "expected"),
    [("simple", True, "edge_filter"), ("sfarinet", False, "simple"), ("simple", False, "simple")],
)
def test_words_of_the_first_generation(golden_dir, name, has_filter, expected):
    with np.load(golden_dir / "mp_simple__mol.npz") as file:
        config = json.loads(str(file["__config__"]))
        state = {key[3:]: torch.tensor(file[key]) for key in file if key.startswith("sd/")}
    if has_filter:
        config["num_filters"] = 48
        for block in range(config["num_interactions"]):
            state[f"interaction_blocks.{block}.lin_geom.weight"] = torch.randn(48, 48)
            state[f"interaction_blocks.{block}.lin_geom.bias"] = torch.randn(48)
    potential = load_upstream(config | {"mp_type": name, "edge_embed_type": "all_rij"}, state)
    assert potential.config.model.message == expected


def test_edge_embedding_of_the_first_generation(golden):
    model, state, _ = golden
    with pytest.raises(InputError, match="edge_embed_type='sh'"):
        load_upstream(model | {"edge_embed_type": "sh"}, state)
    r_only = {key: value for key, value in state.items() if "lin_e12" not in key}
    r_only |= {"embed_block.lin_e1.weight": torch.randn(40, 3), "embed_block.lin_e1.bias": torch.randn(40)}
    assert load_upstream(model | {"edge_embed_type": "rij"}, r_only).config.model.edge_features == "r"


class _Malicious:
    """Writes a file when it is unpickled by an unrestricted reader."""

    def __init__(self, target):
        self.target = target

    def __reduce__(self):
        return pathlib.Path.touch, (self.target,)


class _Evaluates:
    def __init__(self, code):
        self.code = code

    def __reduce__(self):
        return eval, (self.code,)


@pytest.mark.parametrize("kind", ["touch", "eval"])
@pytest.mark.parametrize("load", [read_upstream, lambda path: load_potential(path, device="cpu")])
def test_code_in_a_pickle_does_not_run(tmp_path, golden, kind, load):
    target = tmp_path / "ran"
    content = _checkpoint(golden)
    content["extra"] = _Malicious(target) if kind == "touch" else _Evaluates(f"open({str(target)!r}, 'w').close()")
    path = _save(tmp_path, content)
    with pytest.raises(InputError, match="--trust-pickle") as caught:
        load(path)
    assert f"object of {'eval' if kind == 'eval' else 'getattr'}," in str(caught.value)
    assert not target.exists()


def test_trusted_pickles_run(tmp_path, golden, slab):
    """The control of the test above: the same file does run when it is trusted."""
    target = tmp_path / "ran"
    path = _save(tmp_path, _checkpoint(golden) | {"extra": _Evaluates(f"open({str(target)!r}, 'w').close()")})
    _assert_golden(read_upstream(path, trust_pickle=True), golden, slab)
    assert target.exists()


def test_harmless_types_of_upstream_tools(tmp_path, golden, slab, monkeypatch):
    content = _checkpoint(golden)
    module = types.ModuleType("minydra.dict")
    module.MinyDict = type("MinyDict", (dict,), {"__module__": "minydra.dict", "__qualname__": "MinyDict"})
    mini = module.MinyDict(content["config"])
    mini.frozen = False
    content["config"] = mini
    content["config"]["args"] = argparse.Namespace(seed=0, run=pathlib.PurePosixPath("/x"))
    content["config"]["counts"] = {"a": [np.int64(3), np.bool_(True), np.str_("x")]}
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "minydra", types.ModuleType("minydra"))
        patch.setitem(sys.modules, "minydra.dict", module)
        path = _save(tmp_path, content)
    _assert_golden(read_upstream(path), golden, slab)


def test_numpy_scalars_of_numpy_1(tmp_path, golden, slab):
    """Older files name numpy's functions by their old module; lines of a legacy pickle can be changed in place."""
    path = _save(tmp_path, _checkpoint(golden), _use_new_zipfile_serialization=False)
    data = path.read_bytes()
    assert data.count(b"cnumpy._core.multiarray\n") >= 2
    path.write_bytes(data.replace(b"cnumpy._core.multiarray\n", b"cnumpy.core.multiarray\n"))
    _assert_golden(read_upstream(path), golden, slab)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([1, 2, 3], "holds a list"),
        ({"epoch": 3}, "holds a dict"),
        ({"state_dict": {"lin.weight": torch.zeros(2, 2)}, "config": {"model": {}}}, "is it a FAENet"),
    ],
)
def test_other_files_are_refused(tmp_path, content, message):
    with pytest.raises(InputError, match=message):
        read_upstream(_save(tmp_path, content))


@pytest.mark.parametrize("damage", ["truncated", "text", "empty"])
def test_damaged_files_are_refused(tmp_path, golden, damage):
    path = _save(tmp_path, _checkpoint(golden))
    data = path.read_bytes()
    path.write_bytes(
        {"truncated": data[: len(data) // 2], "text": b"hello, this is no checkpoint\n", "empty": b""}[damage]
    )
    with pytest.raises(InputError, match="best_checkpoint"):
        read_upstream(path)


def test_impossible_words_are_refused(golden):
    model, state, _ = golden
    wrong = {"act": "warp", "skip_co": "fold", "energy_head": "graclus", "mp_type": "att", "graph_rewiring": "node"}
    for key, word in wrong.items():
        with pytest.raises(InputError, match=word):
            load_upstream(model | {key: word}, state)
    with pytest.raises(InputError, match="missing"):
        load_upstream(model | {"skip_co": "add"}, {k: v for k, v in state.items() if "lin_up" not in k})


def test_loading_leaves_the_global_generator_alone(golden):
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    load_upstream(golden[0], golden[1])
    assert torch.equal(torch.rand(1), expected)
