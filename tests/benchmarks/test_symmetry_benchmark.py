"""The symmetry benchmark: exact methods are exact, the others are not, and its rows make a table."""

import json

from symmetry import METHODS, main


def test_a_quick_run_tells_exact_from_inexact_methods(tmp_path):
    out, picture = tmp_path / "rows.jsonl", tmp_path / "symmetry.svg"
    main(["--quick", "--out", str(out), "--plot", str(picture)])
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    value = {(row["case"], row["metric"]): row["value"] for row in rows}
    for name in METHODS:
        exact = name in ("Full FA", "SchNet", "this package")
        for metric in ("Rot-I", "F-Rot-E"):
            assert (value[name, metric] < 0.1) == exact, (name, metric, value[name, metric])
    assert value["Untrained", "force MAE"] > value["No FA", "force MAE"]
    assert picture.stat().st_size > 0
