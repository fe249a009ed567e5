"""The layout of the package: imports go downward, files and functions stay small. Imports are read, not run."""

import ast
from pathlib import Path

import pytest

# DESIGN of the layers: a module may import its own layer and those below. "use" and "learn" are side by side.
LAYERS = {
    0: ("units", "elements", "config", "presets", "errors", "memory", "progress"),
    1: (
        *("kernels", "graph", "neighbors", "convert", "tags", "compressed"),
        *("frames", "lattice_frames", "pair_frames", "pca_frames"),
    ),
    2: (
        *("messages", "embeddings", "layers", "faenet", "prediction", "evaluation", "potential", "checkpoint"),
        *("upstream", "upstream_files", "pretrained", "testing", "selfcheck"),
    ),
    3: (
        *("calculator", "members", "committee", "graph_source", "batches", "answer_checks", "net_force"),
        *("foreign_keywords", "reading", "writing", "drivers", "training"),
    ),
    4: ("cli", "reports", "__main__"),
}
LAYER_OF = {name: layer for layer, modules in LAYERS.items() for name in modules}
LEARN = {"training"}
MAX_FILE_LINES, MAX_FUNCTION_LINES = 400, 60
MAX_LINES_OF = {"calculator.py": 200}


def _top(module: str) -> str | None:
    """`faenet_calc.drivers.relax` → `drivers`; None for the door itself and for other packages."""
    parts = module.split(".")
    return parts[1] if parts[0] == "faenet_calc" and len(parts) > 1 else None


def _imports(tree: ast.AST, package: tuple[str, ...]) -> list[tuple[int, str]]:
    """(line, full module name) of every import, including those inside functions and `from faenet_calc import x`."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = list(package[: len(package) - node.level + 1]) if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            if module == "faenet_calc":
                found += [(node.lineno, f"faenet_calc.{alias.name}") for alias in node.names]
            else:
                found.append((node.lineno, module))
    return found


def _door(package: Path) -> dict[str, str]:
    """Public name → the module it comes from, as written in the door's table."""
    for node in ast.parse((package / "__init__.py").read_text()).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "_HOME":
            return ast.literal_eval(node.value)
    return {}


def layer_violations(package: Path) -> list[str]:
    """Every import that goes up a layer or sideways between use and learn, and every module without a layer."""
    door = _door(package)
    problems = []
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package).with_suffix("").parts
        if parts == ("__init__",):
            continue
        own = parts[0]
        if own not in LAYER_OF:
            problems.append(f"{path.name}: {own} has no layer; name it in LAYERS")
            continue
        for line, module in _imports(ast.parse(path.read_text()), ("faenet_calc", *parts[:-1])):
            name = _top(module)
            if name in door:
                name = _top(door[name])
            if name is None or name not in LAYER_OF:
                continue
            sideways = LAYER_OF[own] == LAYER_OF[name] == 3 and (own in LEARN) != (name in LEARN)
            if LAYER_OF[name] > LAYER_OF[own] or sideways:
                problems.append(f"{path.relative_to(package)}:{line} imports {module}")
    return problems


def size_violations(package: Path) -> list[str]:
    """Files and functions that are too long, and files named utils.py."""
    problems = []
    for path in sorted(package.rglob("*.py")):
        text = path.read_text()
        n_lines, limit = len(text.splitlines()), MAX_LINES_OF.get(path.name, MAX_FILE_LINES)
        if n_lines > limit:
            problems.append(f"{path.relative_to(package)}: {n_lines} lines, at most {limit}")
        if path.stem in ("utils", "util"):
            problems.append(f"{path.relative_to(package)}: a helper lives beside its user or gets a noun")
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                length = node.end_lineno - node.lineno + 1
                if length > MAX_FUNCTION_LINES:
                    problems.append(f"{path.relative_to(package)}:{node.lineno} {node.name}: {length} lines")
    return problems


def test_imports_go_downward(repository):
    assert layer_violations(repository / "faenet_calc") == []


def test_files_and_functions_are_small(repository):
    assert size_violations(repository / "faenet_calc") == []


DOOR = '_HOME = {"relax": "faenet_calc.drivers"}\n'


@pytest.mark.parametrize(
    ("path", "source", "expected"),
    [
        ("graph.py", "from faenet_calc.potential import Potential\n", "graph.py:1 imports faenet_calc.potential"),
        ("graph.py", "def f():\n    import faenet_calc.faenet\n", "graph.py:2 imports faenet_calc.faenet"),
        ("graph.py", "from .layers import x\n", "graph.py:1 imports faenet_calc.layers"),
        ("potential.py", "from faenet_calc import relax\n", "potential.py:1 imports faenet_calc.relax"),
        (
            "drivers/relax.py",
            "from ..training.loop import fit\n",
            "drivers/relax.py:1 imports faenet_calc.training.loop",
        ),
        (
            "training/loop.py",
            "from faenet_calc import calculator\n",
            "training/loop.py:1 imports faenet_calc.calculator",
        ),
        ("calculator.py", "import faenet_calc.cli\n", "calculator.py:1 imports faenet_calc.cli"),
        ("helpers.py", "", "helpers.py: helpers has no layer; name it in LAYERS"),
    ],
)
def test_the_layer_check_sees_bad_imports(tmp_path, path, source, expected):
    (tmp_path / "__init__.py").write_text(DOOR)
    (tmp_path / path).parent.mkdir(exist_ok=True)
    (tmp_path / path).write_text(source)
    assert layer_violations(tmp_path) == [expected]


def test_the_layer_check_allows_good_imports(tmp_path):
    (tmp_path / "__init__.py").write_text(DOOR)
    (tmp_path / "drivers").mkdir()
    (tmp_path / "drivers" / "md.py").write_text("import ase\nfrom ..calculator import x\nfrom .relax import y\n")
    (tmp_path / "graph.py").write_text("from faenet_calc import units\nfrom faenet_calc.frames import z\n")
    assert layer_violations(tmp_path) == []


def test_the_size_check_sees_long_code(tmp_path):
    (tmp_path / "utils.py").write_text("")
    (tmp_path / "calculator.py").write_text("x = 1\n" * 201)
    (tmp_path / "long.py").write_text("x = 1\n" * 401)
    (tmp_path / "graph.py").write_text("def f():\n" + "    x = 1\n" * 60)
    assert [problem.split(":")[0] for problem in size_violations(tmp_path)] == [
        "calculator.py",
        "graph.py",
        "long.py",
        "utils.py",
    ]
