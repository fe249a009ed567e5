"""Warn about pages that load scripts, styles or pictures from the network."""

import re
from pathlib import Path

from sphinx.application import Sphinx
from sphinx.util import logging

_LOADED = re.compile(
    r"""<(?:script|img|iframe)[^>]*\ssrc="https?:[^"]*"|<link[^>]*rel="stylesheet"[^>]*href="https?:[^"]*\""""
)


def find_remote_resources(html: str) -> list[str]:
    """Elements of a page that are loaded from the network."""
    return _LOADED.findall(html)


def check_pages(app: Sphinx, failure: Exception | None) -> None:
    """Read every page that was built."""
    if failure is None and app.builder.name == "html":
        for path in sorted(Path(app.outdir).rglob("*.html")):
            for element in find_remote_resources(path.read_text(encoding="utf-8")):
                logging.getLogger(__name__).warning("%s is loaded from the network: %s", path, element)


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the check."""
    app.connect("build-finished", check_pages)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
