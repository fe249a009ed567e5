"""What the folder of a run protects: earlier runs, changed data, damaged files, two processes at once."""

import json
import subprocess
import sys

import pytest
import torch
from click.testing import CliRunner
from small_set import SMALL, write_small_set

from faenet_calc.cli import main
from faenet_calc.errors import InputError
from faenet_calc.files import locked
from faenet_calc.training.config import OptimConfig, TrainConfig
from faenet_calc.training.config_file import read_config
from faenet_calc.training.loop import train

OUT_OF_RANGE = """\
run: {time_limit_s: .nan, max_epochs: 0, threads: -1}
data: {val_fraction: 1.5}
model: {cutoff: 0.5}
loss: {energy: -1, forces: -2}
optim: {grad_clip: -1, ema_decay: 2, batch_size: -3, accumulate: 0, lr: 0}
"""


@pytest.fixture
def data(tmp_path, monkeypatch):
    monkeypatch.setenv("FAENET_CALC_CACHE", str(tmp_path / "cache"))
    return write_small_set(tmp_path / "small.extxyz")


def config(data, folder, *more):
    given = [f"data.train={[str(data)]}", f"run.out_dir={folder}", *SMALL, "optim.batch_size=4", "run.max_epochs=1"]
    return read_config("", [*given, *more])


def command(data, folder, *more):
    settings = [f"--set={setting}" for setting in (*SMALL, "optim.batch_size=4")]
    return ["train", str(data), "-o", str(folder), *settings, *more]


def test_an_overwritten_run_that_is_stopped_early_does_not_report_the_old_weights(data, tmp_path):
    folder = tmp_path / "run"
    train(config(data, folder))
    assert (folder / "best.safetensors").exists()
    arguments = command(data, folder, "--set=run.max_epochs=100", "--overwrite", "--time-limit=0.01", "--json")
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 3, result.output
    assert json.loads(result.stdout)["checkpoint"] is None
    assert "no weights yet" in result.stderr
    assert not (folder / "best.safetensors").exists()


def test_a_run_that_cannot_start_leaves_the_old_weights(data, tmp_path):
    folder = tmp_path / "run"
    train(config(data, folder))
    before = (folder / "best.safetensors").read_bytes()
    with pytest.raises(InputError, match="does not exist"):
        train(config(tmp_path / "missing.extxyz", folder), overwrite=True)
    assert (folder / "best.safetensors").read_bytes() == before


def test_resuming_with_changed_data_is_refused(data, tmp_path):
    folder = tmp_path / "run"
    train(config(data, folder))
    write_small_set(data, seed=1)
    with pytest.raises(InputError, match=r"other contents of data\.train, data\.val"):
        train(config(data, folder, "run.max_epochs=2"), resume=True)
    write_small_set(data)
    assert train(config(data, folder, "run.max_epochs=2"), resume=True).state.epoch == 2


@pytest.mark.parametrize("resume", [False, True])
def test_weights_without_a_state_are_not_replaced(data, tmp_path, resume):
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "best.safetensors").write_bytes(b"precious")
    with pytest.raises(InputError, match=r"no state\.pt.*--overwrite"):
        train(config(data, folder), resume=resume)
    assert (folder / "best.safetensors").read_bytes() == b"precious"
    train(config(data, folder), overwrite=True)
    assert (folder / "best.safetensors").read_bytes() != b"precious"


@pytest.mark.parametrize("damage", ["cut", "flipped", "other"])
def test_a_damaged_state_is_named(data, tmp_path, damage):
    folder = tmp_path / "run"
    train(config(data, folder))
    path = folder / "state.pt"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes({"cut": content[:1000], "flipped": content, "other": b"text"}[damage])
    result = CliRunner().invoke(main, command(data, folder, "--set=run.max_epochs=1", "--resume=auto"))
    assert result.exit_code == 2
    assert "state.pt is damaged" in result.stderr and "--overwrite" in result.stderr


def test_a_folder_holds_one_run_at_a_time(data, tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    with locked(folder / ".lock"):
        run = subprocess.run(
            [sys.executable, "-m", "faenet_calc", *command(data, folder, "--set=run.max_epochs=1")],
            capture_output=True,
            text=True,
            check=False,
        )
    assert run.returncode == 2 and "in use by another process" in run.stderr
    assert not (folder / "best.safetensors").exists()


def test_every_setting_out_of_range_is_reported_at_once():
    with pytest.raises(InputError) as caught:
        read_config(OUT_OF_RANGE, source="run.yaml")
    message = str(caught.value)
    names = (
        "run.time_limit_s", "run.max_epochs", "run.threads", "data.val_fraction", "model.cutoff", "loss.energy",
        "loss.forces", "optim.grad_clip", "optim.ema_decay", "optim.batch_size", "optim.accumulate", "optim.lr",
    )  # fmt: skip
    assert f"{len(names)} mistakes" in message
    assert all(f"{name} = " in message for name in names)
    assert "line 5: optim.ema_decay = 2.0, expected at least 0 and below 1" in message


def test_settings_made_in_python_are_checked_too():
    with pytest.raises(InputError, match=r"batch_size = -3, expected at least 1"):
        train(TrainConfig(optim=OptimConfig(batch_size=-3)))


@pytest.mark.parametrize("limit", ["nan", "-1", "0", "inf"])
def test_a_time_limit_is_a_positive_number(data, tmp_path, limit):
    result = CliRunner().invoke(main, command(data, tmp_path / "run", f"--time-limit={limit}"))
    assert result.exit_code == 2 and ("--time-limit" in result.stderr or "time limit" in result.stderr)


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad, lambda: torch.autocast("cpu", torch.bfloat16)])
def test_a_run_inside_another_mode_of_torch_is_the_same_run(data, tmp_path, mode):
    outside = train(config(data, tmp_path / "outside"))
    with mode():
        inside = train(config(data, tmp_path / "inside"))
    assert inside.state.best == outside.state.best


@pytest.mark.parametrize("device", ["meta", "cuda:99", "nonsense"])
def test_a_device_that_cannot_train_is_named(data, tmp_path, device):
    result = CliRunner().invoke(main, command(data, tmp_path / "run", f"--device={device}"))
    assert result.exit_code == 2 and device in result.stderr
    assert "Error:" in result.stderr and "RuntimeError" not in result.stderr


def test_a_closed_pipe_ends_a_command_quietly(data):
    arguments = [sys.executable, "-m", "faenet_calc", "data", "stats", str(data)]
    process = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    process.stdout.close()
    errors = process.stderr.read()
    process.wait()
    process.stderr.close()
    assert "Error" not in errors and "Traceback" not in errors
