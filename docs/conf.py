"""Sphinx configuration: `make docs` builds docs/_build/html. Builds and pages need no network."""

import sys
from pathlib import Path

DOCS = Path(__file__).parent
sys.path[:0] = [str(DOCS / "_ext"), str(DOCS.parent), str(DOCS.parent / "scripts")]

from faenet_calc import __version__ as release  # noqa: E402

project = "faenet-calc"
author = "faenet-calc developers"
copyright = "faenet-calc developers"
version = release

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_click",
    "sphinx_copybutton",
    "array_like",
    "mathml",
    "generated_pages",
    "offline",
]
exclude_patterns = [
    "_build",
    "_ext",
    "_generated/contributing.md",
    "_generated/commands.rst",
]  # the last two are included
nitpicky = True
# Types of other packages are not linked, because that needs their inventories from the network.
nitpick_ignore_regex = [
    ("py:.*", r"(?!faenet_calc).*"),
    ("py:.*", r"faenet_calc\..*(Choice|Source|Mode|Kind|Series|Size)"),  # unions of literals
    ("py:mod", r"faenet_calc\..*"),  # classes and functions are documented, not modules
]
default_role = "code"

myst_enable_extensions = ["dollarmath", "deflist", "colon_fence"]
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
napoleon_use_ivar = True

html_theme = "furo"
html_title = f"faenet-calc {release}"
html_static_path = ["_static"]
html_css_files = ["math.css"]
html_show_sourcelink = False
html_math_renderer = "mathml"
