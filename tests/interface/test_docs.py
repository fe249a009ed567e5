"""Code blocks of the documentation run in the order of their page, and its commands and files exist.

``python`` and ``bash`` blocks are executed, the latter in this process and with ``faenet-calc`` commands only. In
``console`` blocks, which need a cluster or another program, commands and options must exist.
"""

import re
from pathlib import Path

import pytest
from doc_blocks import blocks_of, commands_of, run_command, run_python, unknown_words

REPOSITORY = Path(__file__).parents[2]
DOCS = REPOSITORY / "docs"
TEXTS = {
    path.relative_to(DOCS).as_posix(): path.read_text(encoding="utf-8")
    for path in sorted(DOCS.rglob("*.md"))
    if not {"_generated", "_build"} & set(path.parts)
}
EXECUTED = [page for page, text in TEXTS.items() if blocks_of(text, ("python", "bash"))]
SLOW = {"tutorials/training.md", "tutorials/finetuning.md", "tutorials/relax.md"}
FILE = re.compile(r"`(?:python )?((?:examples|benchmarks|scripts|pretrained|datasets)/[\w./-]+)`")


def run_page(name, text):
    """Execute the blocks of a page."""
    namespace = {"__name__": name}
    for kind, block in blocks_of(text, ("python", "bash")):
        if kind == "python":
            run_python(block, name, namespace)
            continue
        lines = block.replace("\\\n", " ").splitlines()
        assert all(line.startswith(("faenet-calc ", "#")) for line in lines if line), block
        for words in commands_of(block):
            run_command(words)


# pymatgen calls spglib in a way that spglib has deprecated.
@pytest.mark.filterwarnings("ignore:Set OLD_ERROR_HANDLING:DeprecationWarning")
@pytest.mark.parametrize("page", [pytest.param(page, marks=[pytest.mark.slow] * (page in SLOW)) for page in EXECUTED])
def test_blocks_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FAENET_CALC_CACHE", str(tmp_path / "cache"))
    run_page(page, TEXTS[page])


def test_slow_pages_exist():
    assert set(EXECUTED) >= SLOW
    assert len(EXECUTED) > 15


def test_blocks_are_found_behind_directives():
    text = "```{toctree}\n:hidden:\n```\n\n```python\nx = 1\n```\n"
    assert blocks_of(text, ("python",)) == [("python", "x = 1\n")]


def test_number_of_executed_blocks(capsys):
    """Printed with every run, so that a page whose blocks are no longer found is noticed."""
    counts = {kind: sum(len(blocks_of(text, (kind,))) for text in TEXTS.values()) for kind in ("python", "bash")}
    with capsys.disabled():
        print(f"\ndocumentation: {sum(counts.values())} blocks on {len(EXECUTED)} pages are executed: {counts}")
    assert counts["python"] > 20
    assert counts["bash"] >= 5


@pytest.mark.parametrize("page", TEXTS)
def test_commands_and_files_exist(page):
    for _, block in blocks_of(TEXTS[page], ("bash", "console")):
        assert {tuple(words): unknown_words(words) for words in commands_of(block) if unknown_words(words)} == {}
    assert [name for name in FILE.findall(TEXTS[page]) if not (REPOSITORY / name).exists()] == []


def test_unknown_commands_and_options_are_noticed():
    assert unknown_words(["relaxx", "in.xyz"]) == ["relaxx"]
    assert unknown_words(["relax", "in.xyz", "--fmaks", "3"]) == ["--fmaks"]


@pytest.mark.parametrize("block", ["```python\nassert 1 + 1 == 3\n```\n", "```bash\nfaenet-calc relaxx in.xyz\n```\n"])
def test_a_block_that_fails_is_noticed(block):
    with pytest.raises(AssertionError):
        run_page("broken.md", block)


def test_every_picture_has_a_command(monkeypatch):
    monkeypatch.syspath_prepend(str(REPOSITORY / "scripts"))
    import docs_pictures

    made = {*docs_pictures.EXAMPLES, docs_pictures.REPORT}
    assert made == {path.name for path in (DOCS / "_static").glob("*.png")}
    shown = {Path(name).name for text in TEXTS.values() for name in re.findall(r"!\[.*?\]\((.*?)\)", text)}
    assert made == shown


def test_a_picture_is_made_again(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(REPOSITORY / "scripts"))
    import docs_pictures

    monkeypatch.setattr("sys.argv", ["x", "--only", "equation_of_state.png", "--quick", "--out", str(tmp_path / "new")])
    docs_pictures.main()
    assert (tmp_path / "new/equation_of_state.png").read_bytes()[:4] == b"\x89PNG"


def test_card_links_become_links_between_pages(monkeypatch):
    monkeypatch.syspath_prepend(str(DOCS / "_ext"))
    from generated_pages import card_page

    links = "[a](../metals-s/card.md) [b](../../docs/x.md) [c](../../datasets/metals-v1/README.md)"
    assert card_page(links) == "[a](metals-s.md) [b](../../x.md) `c`"


LINK = re.compile(r"\]\((?!https?:|#)([^)#]+)")
COMMENT = re.compile(r"<!--.*?-->", flags=re.DOTALL)


@pytest.mark.parametrize("page", TEXTS)
def test_links_of_the_plain_file_lead_to_files(page):
    text = COMMENT.sub("", TEXTS[page])
    assert [link for link in LINK.findall(text) if not (DOCS / page).parent.joinpath(link).exists()] == []
    assert "_generated" not in text
    assert "{toctree}" not in text and "{image}" not in text


def test_pages_are_completed_for_sphinx(monkeypatch):
    monkeypatch.syspath_prepend(str(DOCS / "_ext"))
    from generated_pages import for_sphinx

    text = "a\n<!-- without make docs -->\nb\n<!-- end -->\n<!-- make docs\n```{toctree}\nx\n```\n-->\nc\n"
    assert for_sphinx(text) == "a\n```{toctree}\nx\n```\n\nc\n"
    links = "[a](../../pretrained/metals-s/card.md) [b](../CONTRIBUTING.md) [c](../examples/x.py) [d](relax.md)"
    assert for_sphinx(links) == "[a](/_generated/models/metals-s.md) [b](/contributing.md) c [d](relax.md)"
    assert not any("<!--" in for_sphinx(text) for text in TEXTS.values())


def test_the_table_of_models_is_that_of_the_cards(monkeypatch):
    monkeypatch.syspath_prepend(str(DOCS / "_ext"))
    from generated_pages import model_table

    assert model_table() in TEXTS["models.md"], f"the table in docs/models.md must be\n{model_table()}"


def test_the_page_of_the_command_line_names_every_command():
    from faenet_calc.cli import COMMANDS
    from faenet_calc.cli.data import COMMANDS as DATA_COMMANDS

    table = "".join(line for line in TEXTS["cli.md"].splitlines() if line.startswith("|"))
    assert [name for name in [*COMMANDS, *DATA_COMMANDS] if not re.search(rf"`(data )?{name}`", table)] == ["data"]


def test_signatures_show_array_like(monkeypatch):
    monkeypatch.syspath_prepend(str(DOCS / "_ext"))
    from array_like import with_alias
    from sphinx.util.typing import stringify_annotation

    from faenet_calc.graphs.tags import TagSource

    shown = with_alias(stringify_annotation(TagSource, "smart"))
    assert shown.count("ArrayLike") == 2 and "_SupportsArray" not in shown


def test_resources_from_the_network_are_noticed(monkeypatch):
    monkeypatch.syspath_prepend(str(DOCS / "_ext"))
    from offline import find_remote_resources

    assert find_remote_resources('<script src="https://cdn.example/x.js"></script>')
    assert find_remote_resources('<link rel="stylesheet" href="https://cdn.example/x.css">')
    assert not find_remote_resources('<a href="https://example.org">x</a><img src="_images/demo.png">')
