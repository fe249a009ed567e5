import sys

from faenet_calc import progress
from faenet_calc.progress import print_above_bars, progress_bar


class Terminal:
    """Says what is written to it and claims to be a terminal, or not."""

    def __init__(self, *, interactive):
        self.interactive, self.text = interactive, ""

    def isatty(self):
        return self.interactive

    def write(self, text):
        self.text += text

    def flush(self):
        pass


def shown_on(monkeypatch, *, interactive, shown=True):
    stream = Terminal(interactive=interactive)
    monkeypatch.setattr(sys, "stderr", stream)
    with progress_bar(shown=shown, total=500, file=stream) as bar:
        for _ in range(500):
            bar.update()
            bar.refresh() if interactive and bar.n == 250 else None
    return stream.text


def test_a_log_file_gets_few_lines_and_a_silent_bar_none(monkeypatch):
    assert shown_on(monkeypatch, interactive=False).count("\r") <= 3
    assert "250/500" in shown_on(monkeypatch, interactive=True)
    assert shown_on(monkeypatch, interactive=True, shown=False) == ""


def test_a_line_in_a_log_file_does_not_draw_the_bars_again(monkeypatch):
    stream = Terminal(interactive=False)
    monkeypatch.setattr(sys, "stderr", stream)
    with progress_bar(shown=True, total=500, file=stream):
        print_above_bars("epoch 1")
        assert stream.text == "epoch 1\n"


def test_short_reading_leaves_nothing_in_a_log_file(monkeypatch, tmp_path):
    from ase.build import bulk

    from faenet_calc.data.formats import read_records

    bulk("Cu").write(tmp_path / "one.extxyz")
    stream = Terminal(interactive=False)
    monkeypatch.setattr(sys, "stderr", stream)
    list(read_records([tmp_path / "one.extxyz"], progress=True))
    assert stream.text == ""


def test_messages_in_a_log_file_begin_on_lines_of_their_own(capsys, monkeypatch):
    monkeypatch.setattr(progress, "_LOG_INTERVAL_S", 0.0)
    bar = progress.progress_bar(shown=True, total=10)
    bar.update(1)
    for text in ("first", "second"):
        progress.print_above_bars(text)
    bar.close()
    lines = capsys.readouterr().err.split("\n")
    first = lines.index("first")
    assert "1/10" in lines[first - 1] and lines[first + 1] == "second"
