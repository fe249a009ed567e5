"""Code blocks of the documentation run in the order of their page, and its commands and links exist.

``python`` and ``bash`` blocks are executed, the latter in this process and only for ``faenet-calc`` commands. In
``console`` blocks, which need a cluster or another program, commands and options must exist.
"""

import re
import shlex
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from faenet_calc.cli import main

REPOSITORY = Path(__file__).parents[2]
DOCS = REPOSITORY / "docs"
PAGES = sorted(path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md") if "_generated" not in path.parts)
SLOW = {"tutorials/training.md", "tutorials/finetuning.md", "tutorials/relax.md"}
BLOCK = re.compile(r"^```(python|bash|console)\n(.*?)^```", flags=re.DOTALL | re.MULTILINE)


def blocks_of(page):
    return BLOCK.findall((DOCS / page).read_text(encoding="utf-8"))


def commands_of(block):
    """Words of every `faenet-calc` command of a block, without the first."""
    lines = block.replace("\\\n", " ").splitlines()
    return [shlex.split(line, comments=True)[1:] for line in lines if line.startswith("faenet-calc ")]


def unknown_words(words):
    """Commands and options that do not exist."""
    words, command, context = list(words), main, click.Context(main)
    while isinstance(command, click.Group):
        name = words.pop(0)
        command = command.get_command(context, name)
        if command is None:
            return [name]
    options = {name for parameter in command.params for name in parameter.opts}
    return [word for word in words if word.startswith("-") and word.split("=")[0] not in options]


def run_page(page):
    """Execute the blocks of a page; returns their number."""
    namespace, done = {"__name__": page}, 0
    for kind, text in blocks_of(page):
        if kind == "python":
            exec(compile(text, page, "exec"), namespace)
        elif kind == "bash":
            assert all(
                line.startswith(("faenet-calc ", "#")) for line in text.replace("\\\n", " ").splitlines() if line
            )
            for words in commands_of(text):
                result = CliRunner().invoke(main, words)
                assert result.exit_code == 0, f"faenet-calc {shlex.join(words)}\n{result.output}"
        else:
            continue
        done += 1
    return done


EXECUTED = [page for page in PAGES if any(kind != "console" for kind, _ in blocks_of(page))]


@pytest.mark.parametrize(
    "page", [pytest.param(page, marks=[pytest.mark.slow] if page in SLOW else []) for page in EXECUTED]
)
# pymatgen calls spglib in a way that spglib has deprecated.
@pytest.mark.filterwarnings("ignore:Set OLD_ERROR_HANDLING:DeprecationWarning")
def test_blocks_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FAENET_CALC_CACHE", str(tmp_path / "cache"))
    assert run_page(page) >= 1


def test_slow_pages_exist():
    assert set(EXECUTED) >= SLOW


@pytest.mark.parametrize("page", [page for page in PAGES if any(kind == "console" for kind, _ in blocks_of(page))])
def test_commands_exist(page):
    for _, text in blocks_of(page):
        for words in commands_of(text):
            assert unknown_words(words) == [], words


def test_unknown_commands_and_options_are_noticed():
    assert unknown_words(["relaxx", "in.xyz"]) == ["relaxx"]
    assert unknown_words(["relax", "in.xyz", "--fmaks", "3"]) == ["--fmaks"]


def test_a_block_that_fails_is_noticed(tmp_path, monkeypatch):
    (tmp_path / "broken.md").write_text("```python\nassert 1 + 1 == 3\n```\n")
    monkeypatch.setattr(sys.modules[__name__], "DOCS", tmp_path)
    with pytest.raises(AssertionError):
        run_page("broken.md")


def test_repository_files_exist():
    """Files of the repository that pages name in code."""
    for page in PAGES:
        for name in re.findall(
            r"`(?:python )?((?:examples|benchmarks|scripts|pretrained|datasets)/[\w./-]+)`", (DOCS / page).read_text()
        ):
            assert (REPOSITORY / name).exists(), f"{page} names {name}"


def test_card_links_become_links_between_pages(monkeypatch):
    monkeypatch.syspath_prepend(str(DOCS / "_ext"))
    from generated_pages import card_page

    text = card_page("[a](../metals-s/card.md) [b](../../docs/x.md) [c](../../datasets/metals-v1/README.md)")
    assert text == "[a](metals-s.md) [b](../../x.md) `c`"
