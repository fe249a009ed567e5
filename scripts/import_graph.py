"""Print the import graph of the package by folder: levels, imports between folders, modules at the package root.

``python scripts/import_graph.py [PACKAGE]`` (also ``make graph``). Imports are read with ``ast``, never executed, and
include those inside functions. Exits with 1 if two folders import each other, directly or through others.
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = "(root)"


def imports(path: Path, package: str) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of every import in a file of the package that refers to the package itself."""
    parts = path.with_suffix("").parts
    parts = parts[parts.index(package) :]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = list(parts[: len(parts) - node.level]) if node.level else []
            module = ".".join([*above, *([node.module] if node.module else [])])
            names = [f"{module}.{alias.name}" for alias in node.names]
        else:
            continue
        yield from ((node.lineno, name) for name in names if name.split(".")[0] == package)


def public_names(package: Path) -> dict[str, str]:
    """Public name -> module that defines it, from the table in the package's ``__init__``."""
    for node in ast.parse((package / "__init__.py").read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "_HOME":
            return ast.literal_eval(node.value)
    return {}


def folder_of(dotted: str, package: Path) -> str:
    """The top-level folder that a dotted name belongs to, or ``(root)``."""
    parts = dotted.split(".")
    if len(parts) > 1 and (home := public_names(package).get(parts[1])):
        parts = home.split(".")
    return parts[1] if len(parts) > 1 and (package / parts[1]).is_dir() else ROOT


def folder_imports(package: Path) -> dict[str, dict[str, list[str]]]:
    """Importing folder -> imported folder -> places (``file:line``)."""
    graph: dict[str, dict[str, list[str]]] = {}
    for path in sorted(package.rglob("*.py")):
        inside = path.relative_to(package)
        if inside.parts in (("__init__.py",), ("__main__.py",)):
            continue  # the public names and the command line: both point to the top on purpose
        own = inside.parts[0] if len(inside.parts) > 1 else ROOT
        edges = graph.setdefault(own, {})
        for line, name in imports(path, package.name):
            target = folder_of(name, package)
            if target != own:
                edges.setdefault(target, []).append(f"{inside}:{line}")
    return graph


def levels(graph: dict[str, dict[str, list[str]]]) -> dict[str, int]:
    """Folder -> level, one above the highest folder that it imports.

    Raises:
        ValueError: Folders import each other; the message names them.
    """
    level: dict[str, int] = {}

    def visit(folder: str, path: tuple[str, ...]) -> int:
        if folder in path:
            raise ValueError(" -> ".join([*path[path.index(folder) :], folder]))
        if folder not in level:
            below = [visit(target, (*path, folder)) for target in graph.get(folder, {})]
            level[folder] = 1 + max(below, default=-1)
        return level[folder]

    for folder in sorted(graph):
        visit(folder, ())
    return level


def main() -> int:
    """Print the graph; 1 if it has a cycle."""
    package = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parents[1] / "faenet_calc").resolve()
    root_modules = sorted(path.name for path in package.glob("*.py"))
    graph = folder_imports(package)
    print(f"{len(root_modules)} modules at the package root: {', '.join(root_modules)}")
    try:
        by_level = levels(graph)
    except ValueError as error:
        print(f"folders that import each other: {error}")
        return 1
    for level in range(max(by_level.values()) + 1):
        for folder in sorted(name for name, value in by_level.items() if value == level):
            n_modules = len(root_modules) if folder == ROOT else len(list((package / folder).rglob("*.py")))
            targets = ", ".join(f"{name} ({len(places)})" for name, places in sorted(graph.get(folder, {}).items()))
            print(f"level {level}  {folder:<11}{n_modules:>3} modules  imports {targets or 'nothing'}")
    print("folders that import each other: none")
    return 0


if __name__ == "__main__":
    sys.exit(main())
