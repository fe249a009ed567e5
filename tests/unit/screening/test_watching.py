"""Progress of a screening, as its journals tell it."""

import io
import json
import logging
import sys
import time

import pytest

from faenet_calc.screening import watching
from faenet_calc.screening.results import Row


class Terminal(io.StringIO):
    def isatty(self):
        return True


def record(folder, key, process):
    """What a worker process does when a configuration is finished."""
    row = Row(key=key, slab="Cu(111)", adsorbate="H", site="fcc", orientation="upright-0", coverage=1, converged=True)
    with (folder / "journals" / f"{process}.jsonl").open("a") as stream:
        stream.write(json.dumps(row.to_json()) + "\n")


@pytest.mark.parametrize("shown", [True, False])
def test_configurations_finished_by_all_processes_are_shown(tmp_path, monkeypatch, caplog, shown):
    monkeypatch.setattr(watching, "_INTERVAL_S", 0.01)
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    caplog.set_level(logging.INFO, "faenet_calc")
    (tmp_path / "journals").mkdir()
    record(tmp_path, "a", process=1)
    record(tmp_path, "of another shard", process=2)
    with watching.watched(tmp_path, {"a", "b", "c", "d"}, shown=shown):
        record(tmp_path, "b", process=2)
        for _ in range(60_000):
            if "finished b (" in caplog.text:  # while the work goes on, not at its end
                break
            time.sleep(0.01)
        assert ("2/4" in terminal.getvalue()) == shown
        record(tmp_path, "c", process=3)
        record(tmp_path, "d", process=2)
    assert ("4/4" in terminal.getvalue()) == shown
    messages = [one.message for one in caplog.records]
    assert messages[0] == "4 configurations, 1 of them finished before"
    assert messages[-1].startswith("finished ") and messages[-1].endswith("(4 of 4)")
    assert "of another shard" not in caplog.text
