"""Frame modes against labels and against each other, by the command on a small model."""

import json

import pytest
from ase.build import bulk
from ase.io import write
from frame_modes import main
from labelled_slabs import words, write_slabs


def test_the_command(tmp_path, monkeypatch, capsys, repository):
    data = write_slabs(tmp_path / "labels.extxyz", [words("heldout")] * 4)
    model = str(repository / "tests" / "data" / "emt-copper.safetensors")
    monkeypatch.setattr("sys.argv", ["x", model, "--data", str(data), "--limit", "3"])
    main()
    rows = {row["frames"]: row for row in map(json.loads, capsys.readouterr().out.splitlines())}
    assert list(rows) == ["all", "pair", "one"]
    assert rows["all"]["forces_from_all"] == rows["all"]["energy_from_all"] == 0.0
    assert rows["pair"]["forces_from_all"] > 0
    assert all(row["n_structures"] == 3 and row["forces_mae"] > 0 and row["cpu_ms"] > 0 for row in rows.values())


def test_data_without_labels_are_refused(tmp_path, monkeypatch):
    write(tmp_path / "bare.extxyz", [bulk("Cu")] * 2)
    monkeypatch.setattr("sys.argv", ["x", "copper-s", "--data", str(tmp_path / "bare.extxyz")])
    with pytest.raises(SystemExit, match="energy and forces"):
        main()
