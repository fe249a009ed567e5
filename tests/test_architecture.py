"""The layout of the package: data walks one way through the folders. Imports are read with ``ast``, not run."""

import ast
from pathlib import Path

import import_graph
import pytest

# Folder -> the folders directly below it. A folder may import these and everything below them, and the package root.
BELOW = {
    "elements": (),
    "graphs": ("elements",),
    "frames": ("graphs",),
    "network": ("frames",),
    "potential": ("network",),
    "testing": ("potential",),
    "calculator": ("potential",),
    "simulate": ("calculator",),
    "screening": ("simulate",),
    "data": ("graphs",),
    "training": ("data", "potential"),
    "labelling": ("data", "screening"),
    "reports": ("training", "screening"),
    "cli": ("reports", "labelling", "testing"),
}
MAX_ROOT_MODULES = 8


def reachable(folder: str) -> set[str]:
    """All folders that a folder may import."""
    found = {import_graph.ROOT}
    for below in BELOW[folder]:
        found |= {below} | reachable(below)
    return found


def layer_violations(package: Path) -> list[str]:
    """Imports that do not go downward, folders without a place, and a crowded package root."""
    problems = []
    for folder, targets in import_graph.folder_imports(package).items():
        if folder != import_graph.ROOT and folder not in BELOW:
            problems.append(f"{folder}/ has no place in BELOW")
            continue
        allowed = reachable(folder) if folder in BELOW else set()
        for target, places in targets.items():
            if target not in allowed:
                problems += [f"{place} imports {target}" for place in places]
    n_root = len(list(package.glob("*.py")))
    if n_root > MAX_ROOT_MODULES:
        problems.append(f"{n_root} modules at the package root, at most {MAX_ROOT_MODULES}")
    return problems


def undescribed_folders(package: Path) -> list[str]:
    """Folders whose ``__init__`` does not say what comes in, what goes out and what it may import."""
    missing = []
    for folder in sorted(path for path in package.iterdir() if (path / "__init__.py").is_file()):
        text = ast.get_docstring(ast.parse((folder / "__init__.py").read_text())) or ""
        if not all(word in text for word in ("In:", "Out:", "May import")):
            missing.append(folder.name)
    return missing


def test_imports_go_downward(repository):
    assert layer_violations(repository / "faenet_calc") == []


def test_every_folder_says_what_comes_in_and_out(repository):
    assert undescribed_folders(repository / "faenet_calc") == []


def test_there_is_no_utils_module(repository):
    assert not [
        path for path in (repository / "faenet_calc").rglob("*.py") if path.stem in ("utils", "util", "helpers")
    ]


@pytest.fixture
def package(tmp_path):
    """An empty package with the folders graphs, potential, calculator, training and simulate."""
    package = tmp_path / "faenet_calc"
    for folder in ("graphs", "potential", "calculator", "training", "simulate"):
        (package / folder).mkdir(parents=True)
        (package / folder / "__init__.py").write_text("")
    (package / "__init__.py").write_text('_HOME = {"relax": "faenet_calc.simulate"}\n')
    return package


@pytest.mark.parametrize(
    ("path", "source", "expected"),
    [
        ("graphs/graph.py", "from faenet_calc.potential import P\n", "graphs/graph.py:1 imports potential"),
        ("graphs/graph.py", "def f():\n    import faenet_calc.potential.x\n", "graphs/graph.py:2 imports potential"),
        ("graphs/graph.py", "from ..potential.layers import x\n", "graphs/graph.py:1 imports potential"),
        ("potential/potential.py", "from faenet_calc import relax\n", "potential/potential.py:1 imports simulate"),
        ("simulate/relax.py", "from ..training.loop import fit\n", "simulate/relax.py:1 imports training"),
        ("training/loop.py", "from faenet_calc import calculator\n", "training/loop.py:1 imports calculator"),
        ("errors.py", "import faenet_calc.graphs\n", "errors.py:1 imports graphs"),
        ("helpers/x.py", "", "helpers/ has no place in BELOW"),
    ],
)
def test_the_layer_check_sees_bad_imports(package, path, source, expected):
    (package / path).parent.mkdir(exist_ok=True)
    (package / path).write_text(source)
    assert layer_violations(package) == [expected]


def test_the_layer_check_allows_good_imports(package):
    (package / "simulate" / "md.py").write_text("import ase\nfrom ..calculator import x\nfrom .relax import y\n")
    (package / "training" / "loop.py").write_text(
        "from faenet_calc import errors\nfrom faenet_calc.potential import z\n"
    )
    assert layer_violations(package) == []


def test_the_layer_check_sees_a_crowded_root(package):
    for number in range(MAX_ROOT_MODULES):
        (package / f"module_{number}.py").write_text("")
    assert layer_violations(package) == ["9 modules at the package root, at most 8"]


def test_the_folder_check_sees_a_missing_description(package):
    (package / "graphs" / "__init__.py").write_text('"""In: a. Out: b. May import c."""\n')
    assert undescribed_folders(package) == ["calculator", "potential", "simulate", "training"]


def test_the_import_graph_sees_folders_that_import_each_other(package):
    (package / "graphs" / "a.py").write_text("import faenet_calc.potential\n")
    (package / "potential" / "b.py").write_text("import faenet_calc.graphs\n")
    with pytest.raises(ValueError, match="graphs -> potential -> graphs"):
        import_graph.levels(import_graph.folder_imports(package))
