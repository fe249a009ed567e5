"""The door and the command line: names, what an import costs, exit codes."""

import json
import re
import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

import faenet_calc
from faenet_calc.cli import COMMANDS, main
from faenet_calc.cli.lazy import RootGroup
from faenet_calc.cli.options import verbosity_options
from faenet_calc.errors import InputError

HEAVY = ("torch", "numpy", "ase", "torch_geometric", "pymatgen", "mendeleev", "scipy")


def _python(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=True)


@pytest.mark.parametrize("name", faenet_calc.__all__)
def test_public_names_resolve(name):
    assert getattr(faenet_calc, name) is not None
    assert name in dir(faenet_calc)


def test_unknown_names_are_refused():
    with pytest.raises(AttributeError, match="has no attribute 'relaxx'"):
        _ = faenet_calc.relaxx


@pytest.mark.parametrize(
    "statement", ["import faenet_calc", "import faenet_calc.cli", "from faenet_calc import errors"]
)
def test_import_is_light(statement):
    script = f"{statement}; import sys, json; print(json.dumps([m for m in {HEAVY!r} if m in sys.modules]))"
    assert json.loads(_python("-c", script).stdout) == []


def test_help_is_light():
    script = (
        "import sys\nfrom faenet_calc.cli import main\n"
        "main(['--help'], standalone_mode=False)\n"
        f"print('HEAVY', [m for m in {HEAVY!r} if m in sys.modules])"
    )
    assert "HEAVY []" in _python("-c", script).stdout


def commands_in_files(repository) -> set[str]:
    """The modules of the command line that define a command of the outermost group."""
    files = [file for file in (repository / "faenet_calc" / "cli").glob("*.py") if "_" not in file.stem]
    return {file.stem for file in files if re.search(r"^def command\(", file.read_text(), re.M)}


def test_help_lists_every_command(repository):
    result = CliRunner().invoke(main, ["--help"])
    assert result.exit_code == 0
    listed = re.findall(r"^  (\w+) +(\S.*)$", result.output.partition("Commands:\n")[2], re.M)
    assert {name for name, _ in listed} == commands_in_files(repository) >= {"predict", "relax", "md", "train", "data"}
    for name, text in listed:
        assert COMMANDS[name].startswith(text), "the line in the listing was cut"


def test_every_command_explains_itself():
    for name in main.list_commands(None):
        result = CliRunner().invoke(main, [name, "--help"])
        assert result.exit_code == 0, f"{name}: {result.output}"


def options_of(command: click.Command, path: str) -> dict[str, str]:
    """Every option of a command and its subcommands, with its help text."""
    found = {f"{path} {p.opts[-1]}": p.help or "" for p in command.params if isinstance(p, click.Option)}
    if isinstance(command, click.Group):
        for name in command.list_commands(None):
            found |= options_of(command.get_command(None, name), f"{path} {name}")
    return found


def test_every_option_is_explained_by_a_complete_phrase():
    texts = options_of(main, "faenet-calc")
    assert len(texts) > 100
    wrong = {}
    for option, text in texts.items():
        phrase = text.partition("  [default: ")[0]
        if not re.fullmatch(r"[A-Z].*\.", phrase, re.S) or len(phrase.split()) < 2:
            wrong[option] = text
    assert wrong == {}


def test_version():
    assert CliRunner().invoke(main, ["--version"]).output.strip() == f"faenet-calc, version {faenet_calc.__version__}"


@pytest.fixture
def lazy_app(tmp_path, monkeypatch):
    """A root group with a good command, one that cannot be imported, and one that has no file."""
    package = tmp_path / "lazy_commands"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "good.py").write_text("import click\n\n@click.command()\ndef command():\n    click.echo('done')\n")
    (package / "broken.py").write_text("raise ImportError('no such library')\n")
    monkeypatch.syspath_prepend(tmp_path)
    table = {"good": "Does it.", "broken": "Cannot.", "absent": "Not written."}
    yield RootGroup("app", commands_help=table, module_prefix="lazy_commands.")
    for name in [name for name in sys.modules if name.startswith("lazy_commands")]:
        del sys.modules[name]


def test_commands_are_imported_when_invoked(lazy_app):
    listing = CliRunner().invoke(lazy_app, ["--help"])
    assert listing.exit_code == 0 and "Cannot." in listing.output and "Not written." in listing.output
    assert "lazy_commands.good" not in sys.modules and "lazy_commands.broken" not in sys.modules
    good = CliRunner().invoke(lazy_app, ["good"])
    assert good.exit_code == 0 and good.output == "done\n"
    broken = CliRunner().invoke(lazy_app, ["broken"])
    assert broken.exit_code == 1 and "no such library" in broken.stderr and "Traceback" not in broken.stderr
    assert CliRunner().invoke(lazy_app, ["absent"]).exit_code == 1, "listed, but the module does not exist"
    assert CliRunner().invoke(lazy_app, ["unknown"]).exit_code == 2


@pytest.fixture
def app(monkeypatch):
    """A root group with one command that does what the test asks for."""

    @click.group(cls=RootGroup, commands_help={}, module_prefix="none.")
    @verbosity_options
    def root() -> None:
        pass

    def add(action):
        @click.command()
        @verbosity_options
        @click.pass_context
        def go(ctx):
            action(ctx)

        monkeypatch.setattr(root, "get_command", lambda ctx, name: go if name == "go" else None)
        return root

    return add


def _raise(error):
    def action(ctx):
        raise error

    return action


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (InputError("cell is singular"), 2, "Error: cell is singular"),
        (FileNotFoundError(2, "No such file", "x.xyz"), 2, "x.xyz"),
        (PermissionError(13, "Permission denied", "out.xyz"), 2, "Error: out.xyz: Permission denied"),
        (OSError(28, "No space left on device", "out.xyz"), 1, "Error: out.xyz: No space left on device"),
        (RuntimeError("out of memory"), 1, "Error: out of memory (RuntimeError); -v shows the traceback"),
        (AssertionError(), 1, "Error: no message (AssertionError); -v shows the traceback"),
        (click.UsageError("bad option"), 2, "bad option"),
    ],
)
def test_errors_become_messages_and_exit_codes(app, error, code, message):
    result = CliRunner().invoke(app(_raise(error)), ["go"])
    assert result.exit_code == code
    assert message in result.stderr and "Traceback" not in result.stderr and result.stdout == ""


@pytest.mark.parametrize("arguments", [["-v", "go"], ["go", "-v"]])
def test_verbose_shows_the_traceback(app, arguments):
    result = CliRunner().invoke(app(_raise(RuntimeError("out of memory"))), arguments)
    assert result.exit_code == 1
    assert "Traceback" in result.stderr and "out of memory" in result.stderr


@pytest.mark.parametrize("code", [0, 3])
def test_commands_set_their_exit_code(app, code):
    assert CliRunner().invoke(app(lambda ctx: ctx.exit(code)), ["go"]).exit_code == code


def test_unknown_command_is_bad_input():
    result = CliRunner().invoke(main, ["relaks"])
    assert result.exit_code == 2 and "relaks" in result.stderr
