"""Code blocks of Markdown pages: find them, run them in order, and check that commands and options exist."""

import re
import shlex

import click
from click.testing import CliRunner

from faenet_calc.cli import main

BLOCK = re.compile(r"^```([^\n`]*)\n(.*?)^```$", flags=re.DOTALL | re.MULTILINE)  # directives of MyST included


def blocks_of(text, kinds):
    """(kind, content) of the blocks of some kinds, in order."""
    return [(kind, content) for kind, content in BLOCK.findall(text) if kind in kinds]


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


def run_command(words):
    """Run `faenet-calc` in this process; it must succeed. `evaluate` exits with 3 outside the domain of the model."""
    result = CliRunner().invoke(main, words)
    assert result.exit_code in ((0, 3) if words[0] == "evaluate" else (0,)), (
        f"faenet-calc {shlex.join(words)}\n{result.output}"
    )


def run_python(block, name, namespace):
    """Execute a block in a namespace that the blocks of a page share."""
    exec(compile(block, name, "exec"), namespace)
