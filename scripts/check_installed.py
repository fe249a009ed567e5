"""Check an installed faenet-calc: imported from site-packages, with its element data and every shipped model.

Usage: python scripts/check_installed.py PRETRAINED_DIR    (the repository's pretrained/ folder, to compare with)
"""

import hashlib
import sys
from pathlib import Path

import faenet_calc
from faenet_calc import elements


def _digests(folder: Path) -> dict[str, str]:
    """The sha256 of every model file below a folder, by relative path."""
    return {str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(folder.glob("*/*"))}


def main() -> None:
    """Compare the installation with the repository; exit with a message on the first difference."""
    repository = Path(__file__).resolve().parent.parent
    package = Path(faenet_calc.__file__).resolve().parent
    if package.is_relative_to(repository):
        sys.exit(f"{package} is the repository itself; install the wheel elsewhere and use that Python")
    if elements.symbols()[29] != "Cu" or elements.upstream_properties().shape != (86, 14):
        sys.exit(f"the element data in {package / 'data'} is not the table of this repository")
    expected, installed = _digests(Path(sys.argv[1])), _digests(package / "pretrained_models")
    if expected != installed:
        sys.exit(f"shipped models differ: repository {sorted(expected)}, installed {sorted(installed)}")
    print(f"faenet-calc {faenet_calc.__version__} in {package}: {len(installed)} model files, element data present")


if __name__ == "__main__":
    main()
