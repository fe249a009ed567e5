"""The speed benchmark: times of every case and what follows from them, and potentials that cannot be loaded."""

import json

import pytest
from speed import LAYERS, PEERS, exponent, main, slab


def test_slabs_have_the_number_of_atoms_that_they_are_named_by():
    for n_atoms in LAYERS:
        if n_atoms <= 2000:
            assert n_atoms <= len(slab(n_atoms)) <= n_atoms + 2


def test_exponent_is_the_slope_from_200_atoms_on():
    assert exponent({12: 5.0, 200: 10.0, 400: 20.0, 800: 40.0}) == pytest.approx(1.0)
    assert exponent({200: 1.0, 2000: 100.0}) == pytest.approx(2.0)
    assert exponent({12: 1.0, 200: 2.0}) is None


def test_rows_of_a_small_run(tmp_path, capsys, repository):
    model = "copper-s"
    out, picture = tmp_path / "rows.jsonl", tmp_path / "speed.svg"
    options = ["--sizes", "12", "40", "--models", model, "no-such-model", "--frames", "one", "--repeats", "2"]
    options += ["--batch", "2", "--other", str(repository), "--peers", "--out", str(out), "--plot", str(picture)]
    main(options)
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    metrics = {(row["case"], row["metric"]) for row in rows}
    for metric in ("energy and forces", "other / this", "matrix products / sgemm", "MD", "memory per atom"):
        assert (f"{model}, frames=one", metric) in metrics
    # Memory that was allocated before may serve: its growth can be zero.
    assert all(row["value"] > 0 or row["metric"] == "memory per atom" for row in rows)
    assert picture.stat().st_size > 0
    skipped = capsys.readouterr().err
    assert "no-such-model" in skipped and not any("no-such-model" in row["case"] for row in rows)
    assert all(peer in skipped or any(row["case"] == peer for row in rows) for peer in PEERS)
