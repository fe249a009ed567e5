"""Pages that are generated from the repository into docs/_generated before the pages are read.

Model pages come from the model cards, the command line reference from the commands, and the layer diagram from the
imports of the package.

The pages in docs/ are also read as plain files, on GitHub or in an editor. Their links point to files of the
repository. Directives that only Sphinx understands are in comments, ``<!-- make docs`` to ``-->``; text for plain files
only is between ``<!-- without make docs -->`` and ``<!-- end -->``. `for_sphinx` converts a page for Sphinx.
"""

import re
from pathlib import Path

import networkx as nx
from docutils import nodes
from import_graph import ROOT, folder_imports, levels
from matplotlib.figure import Figure
from ruamel.yaml import YAML
from sphinx.application import Sphinx

from faenet_calc.cli import COMMANDS
from faenet_calc.cli.data import COMMANDS as DATA_COMMANDS
from faenet_calc.potential import shipped
from faenet_calc.potential.checkpoint import read_metadata

REPOSITORY = Path(__file__).resolve().parents[2]
_FOR_SPHINX = re.compile(r"^<!-- make docs\n(.*?)^-->$", flags=re.DOTALL | re.MULTILINE)
_FOR_FILES = re.compile(r"^<!-- without make docs -->\n.*?^<!-- end -->\n", flags=re.DOTALL | re.MULTILINE)


def for_sphinx(text: str) -> str:
    """A page as Sphinx reads it: with its directives, and links to pages instead of files of the repository.

    Links to files that are no pages become plain text.
    """
    text = _FOR_SPHINX.sub(r"\1", _FOR_FILES.sub("", text))
    text = re.sub(r"\]\((?:\.\./)+pretrained/([\w-]+)/card\.md\)", r"](/_generated/models/\1.md)", text)
    text = re.sub(r"\]\((?:\.\./)+(CONTRIBUTING|CHANGELOG)\.md\)", lambda found: f"](/{found[1].lower()}.md)", text)
    return re.sub(r"\[([^\]]+)\]\((?:\.\./)+(?:benchmarks|datasets|examples|pretrained|scripts)/[^)]*\)", r"\1", text)


def read_for_sphinx(_: Sphinx, name: str, source: list[str]) -> None:
    """Apply `for_sphinx` to a page; generated pages are complete."""
    if not name.startswith("_generated/"):
        source[0] = for_sphinx(source[0])


def card_page(text: str) -> str:
    """A model card with links that work in these pages; links to files that are no pages become plain text."""
    text = re.sub(r"\]\(\.\./([\w-]+)/card\.md\)", r"](\1.md)", text)
    text = re.sub(r"\]\(\.\./\.\./docs/([\w-]+\.md)\)", r"](../../\1)", text)
    return re.sub(r"\[([^\]]+)\]\((?:\.\./)+(?!\.\.)(?:datasets|pretrained|benchmarks)[^)]*\)", r"`\1`", text)


def write_model_pages(folder: Path) -> None:
    """Write one page per shipped model."""
    folder.mkdir(parents=True, exist_ok=True)
    for card in sorted((REPOSITORY / "pretrained").glob("*/card.md")):
        _write(folder / f"{card.parent.name}.md", card_page(card.read_text(encoding="utf-8")))


def model_table() -> str:
    """The table of the shipped models in models.md, the default model first; a test compares them."""
    lines = [
        "| model | content | error against DFT | energy (meV/atom) | forces (meV/Å) | against |",
        "|---|---|---|---|---|---|",
    ]
    default = shipped.default_name()
    for name in sorted(shipped.names(), key=lambda name: (name != default, name)):
        card = YAML(typ="safe").load((REPOSITORY / "pretrained" / name / "card.yaml").read_text(encoding="utf-8"))
        errors, reference = card["errors"], card["reference"]["calculator"]
        title = f"[{name}](../pretrained/{name}/card.md)" + (" (default)" if name == default else "")
        energy, forces = errors["energy (meV/atom)"], errors["forces (meV/Å)"]
        against, dft = ("DFT", "these errors") if reference.startswith("DFT") else ("teacher", _error_against_dft(name))
        lines.append(f"| {title} | {card['summary']} | {dft} | {energy} | {forces} | {against} |")
    return "\n".join(lines) + "\n"


def _error_against_dft(name: str) -> str:
    """Mean absolute error of adsorption energies against DFT, from the card inside the checkpoint."""
    measured = read_metadata(shipped.path(name))["extra"]["model_card"]["measured"]
    errors = measured.get("dft_adsorption", {}).get("DFT geometry", {}).get("all")
    return "–" if errors is None else f"{errors['mae_eV']:.3f} eV (adsorption energies)"


def write_commands(path: Path) -> None:
    """Write the reference of the commands; cli.md includes it."""
    modules = {name: name for name in COMMANDS if name != "data"}
    modules |= {f"data {name}": f"data_{name}" for name in DATA_COMMANDS}
    sections = [
        f".. click:: faenet_calc.cli.{module}:command\n   :prog: faenet-calc {name}\n"
        for name, module in modules.items()
    ]
    _write(path, "\n".join(sections))


def without_mail_links(_: Sphinx, doctree: nodes.document) -> None:
    """Turn ``FILE@INDEX``, which docutils takes for a mail address, back into text."""
    for link in list(doctree.findall(nodes.reference)):
        if link.get("refuri", "").startswith("mailto:"):
            link.replace_self(nodes.literal(text=link.astext()))


def write_contributor_guide(path: Path) -> None:
    """Write CONTRIBUTING.md with links that work in these pages; contributing.md includes it."""
    text = (REPOSITORY / "CONTRIBUTING.md").read_text(encoding="utf-8")
    _write(path, text.replace("(CHANGELOG.md)", "(changelog.md)"))


def draw_layers(path: Path) -> None:
    """Draw the folders of the package by level; an arrow is an import that no longer chain of imports implies."""
    imports = folder_imports(REPOSITORY / "faenet_calc")
    by_level = levels(imports)
    graph = nx.transitive_reduction(nx.DiGraph([(name, target) for name in imports for target in imports[name]]))
    places = {}
    for level in range(max(by_level.values()) + 1):
        members = sorted(name for name, value in by_level.items() if value == level)
        places |= {name: (number - (len(members) - 1) / 2, level) for number, name in enumerate(members)}
    figure = Figure(figsize=(7, 8))
    axis = figure.add_axes((0, 0, 1, 1))
    for name, target in graph.edges:
        arrow = {"arrowstyle": "-|>", "color": "0.55", "shrinkA": 14, "shrinkB": 14, "connectionstyle": "arc3,rad=0.15"}
        axis.annotate("", places[target], places[name], arrowprops=arrow)
    for name, (x, y) in places.items():
        label = "root modules" if name == ROOT else name
        box = {"boxstyle": "round,pad=0.4", "facecolor": "#e8eef7", "edgecolor": "#4477aa"}
        axis.text(x, y, label, ha="center", va="center", bbox=box)
    axis.set(xlim=(-2.2, 2.2), ylim=(-0.6, max(by_level.values()) + 0.6))
    axis.set_axis_off()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None})


def _write(path: Path, text: str) -> None:
    """Write a page unless it is unchanged, so that Sphinx does not read it again."""
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")


def generate(app: Sphinx) -> None:
    """Generate everything."""
    folder = Path(app.srcdir) / "_generated"
    write_model_pages(folder / "models")
    write_commands(folder / "commands.rst")
    write_contributor_guide(folder / "contributing.md")
    draw_layers(folder / "layers.svg")


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the generator."""
    app.connect("builder-inited", generate)
    app.connect("source-read", read_for_sphinx)
    app.connect("doctree-read", without_mail_links)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
