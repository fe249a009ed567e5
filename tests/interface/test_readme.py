"""What the README shows must work: its Python runs, its commands and options exist, its files are there."""

import re

import click
import pytest

from faenet_calc.cli import main


@pytest.fixture(scope="module")
def readme(repository):
    return (repository / "README.md").read_text()


def test_python_blocks_run(readme, capsys):
    blocks = re.findall(r"```python\n(.*?)```", readme, flags=re.DOTALL)
    assert blocks
    for block in blocks:
        exec(compile(block, "README.md", "exec"), {})
    assert "True" in capsys.readouterr().out


def _command_lines(text):
    return re.findall(r"^faenet-calc [^\n#]*", text, flags=re.MULTILINE)


def _unknown_words(line):
    """Commands and options of a line that do not exist."""
    words = line.split()[1:]
    command, context = main, click.Context(main)
    while isinstance(command, click.Group):
        name = words.pop(0)
        command = command.get_command(context, name)
        if command is None:
            return [name]
    options = {name for parameter in command.params for name in parameter.opts}
    return [word for word in words if word.startswith("-") and word not in options]


def test_commands_and_options_exist(readme):
    lines = _command_lines(readme)
    assert len(lines) > 5
    assert {line: _unknown_words(line) for line in lines if _unknown_words(line)} == {}


def test_unknown_commands_and_options_are_noticed():
    assert _unknown_words("faenet-calc relaxx in.xyz") == ["relaxx"]
    assert _unknown_words("faenet-calc relax in.xyz --fmaks 3") == ["--fmaks"]


def test_files_and_targets_exist(readme, repository):
    makefile = (repository / "Makefile").read_text()
    for target in re.findall(r"^make (\w+)$", readme, flags=re.MULTILINE):
        assert f"\n{target}:" in makefile, target
    benchmarks = re.findall(r"`(?:python )?(?:benchmarks/)?(\w+\.py)", readme)
    assert len(benchmarks) > 5
    for name in benchmarks:
        assert (repository / "benchmarks" / name).exists(), name
    for path in re.findall(r"\]\((pretrained/[^)]*)\)", readme):
        assert (repository / path).exists(), path
