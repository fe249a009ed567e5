"""Pages and pictures that are generated from the repository into docs/_generated before the pages are read.

Model pages come from the model cards, the command line reference from the commands, the layer diagram from the imports
of the package, and the pictures of the tutorials from the examples.
"""

import os
import re
import subprocess
import sys
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

REPOSITORY = Path(__file__).resolve().parents[2]
PICTURES = {
    "equation_of_state.py": "equation_of_state.png",
    "neb_diffusion.py": "neb_diffusion.png",
    "md_rdf.py": "rdf.png",
}


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


def write_model_table(path: Path) -> None:
    """Write the table of the shipped models, the default model first; models.md includes it."""
    lines = ["| model | content | energy error (meV/atom) | force error (meV/Å) |", "|---|---|---|---|"]
    default = shipped.default_name()
    for name in sorted(shipped.names(), key=lambda name: (name != default, name)):
        card = YAML(typ="safe").load((REPOSITORY / "pretrained" / name / "card.yaml").read_text(encoding="utf-8"))
        errors = card["errors"]
        title = f"[{name}](_generated/models/{name}.md)" + (" (default)" if name == default else "")
        lines.append(f"| {title} | {card['summary']} | {errors['energy (meV/atom)']} | {errors['forces (meV/Å)']} |")
    _write(path, "\n".join(lines) + "\n")


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


def run_examples(folder: Path) -> None:
    """Run the examples whose pictures are missing or older than the example."""
    for script, picture in PICTURES.items():
        source, target = REPOSITORY / "examples" / script, folder / picture
        if not target.exists() or target.stat().st_mtime < source.stat().st_mtime:
            environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
            command = [sys.executable, str(source), "--quick", "--out", str(folder)]
            subprocess.run(command, check=True, env=environment, capture_output=True)


def _write(path: Path, text: str) -> None:
    """Write a page unless it is unchanged, so that Sphinx does not read it again."""
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")


def generate(app: Sphinx) -> None:
    """Generate everything."""
    folder = Path(app.srcdir) / "_generated"
    write_model_pages(folder / "models")
    write_model_table(folder / "models.md")
    write_commands(folder / "commands.rst")
    write_contributor_guide(folder / "contributing.md")
    draw_layers(folder / "layers.svg")
    run_examples(folder / "examples")


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the generator."""
    app.connect("builder-inited", generate)
    app.connect("doctree-read", without_mail_links)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
