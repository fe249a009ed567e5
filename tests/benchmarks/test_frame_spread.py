"""Spread over frames against errors: closed forms, and the command on a small model."""

import json

import numpy as np
import pytest
from ase.build import bulk
from ase.io import write
from frame_spread import agreement, main
from labelled_slabs import words, write_slabs

SPREAD = np.random.default_rng(0).permutation(np.linspace(0.1, 1.0, 1000))


def test_a_spread_that_is_a_tenth_of_the_error_tells_everything():
    found = agreement(SPREAD, 10 * SPREAD)
    assert found["rank_correlation"] == pytest.approx(1.0)
    assert found["error_over_spread"] == pytest.approx(10.0)
    assert found["worst_tenth_found"] == 1.0
    middles = np.linspace(0.1, 1.0, 11)[1::2]  # of the fifths of a uniform distribution
    assert found["error_by_fifth"] == pytest.approx(1e4 * middles, rel=0.01)


def test_a_spread_that_has_nothing_to_do_with_the_error_tells_nothing():
    found = agreement(SPREAD, np.random.default_rng(1).permutation(SPREAD))
    assert abs(found["rank_correlation"]) < 0.1
    assert found["worst_tenth_found"] < 0.2
    assert found["error_by_fifth"] == pytest.approx([550.0] * 5, rel=0.1)


def test_the_wrong_way_round_is_seen():
    assert agreement(SPREAD, 1.1 - SPREAD)["rank_correlation"] == pytest.approx(-1.0)


def test_the_command(tmp_path, monkeypatch, capsys, repository):
    data = write_slabs(tmp_path / "labels.extxyz", [words("heldout")] * 8)
    model = str(repository / "tests" / "data" / "emt-copper.safetensors")
    monkeypatch.setattr("sys.argv", ["x", model, "--data", str(data), "--limit", "6"])
    main()
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["case"] for row in rows] == ["atoms", "worst atom of a structure"]
    assert rows[1]["n"] == 6 and rows[0]["n"] > 6
    assert all(row["error_over_spread"] > 0 for row in rows)


def test_data_without_forces_are_refused(tmp_path, monkeypatch):
    write(tmp_path / "bare.extxyz", [bulk("Cu")] * 2)
    monkeypatch.setattr("sys.argv", ["x", "copper-s", "--data", str(tmp_path / "bare.extxyz")])
    with pytest.raises(SystemExit, match=r"2 of 2 structures .* have no forces"):
        main()
