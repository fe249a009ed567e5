"""Signatures show `ArrayLike`, as in the source, instead of the union that numpy defines it as.

`autodoc_type_aliases` works only for annotations that are not evaluated, as with `from __future__ import annotations`.
"""

from numpy.typing import ArrayLike
from sphinx.application import Sphinx
from sphinx.util.typing import stringify_annotation

EXPANDED = stringify_annotation(ArrayLike, "smart")


def with_alias(text: str | None) -> str | None:
    """A signature or return annotation with `ArrayLike` in place of its definition."""
    return text and text.replace(EXPANDED, "ArrayLike")


def shorten(
    _app: Sphinx, _what: str, _name: str, _object: object, _options: object, signature: str | None, returns: str | None
) -> tuple[str | None, str | None]:
    """Shorten the signature of a documented object."""
    return with_alias(signature), with_alias(returns)


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the hook."""
    app.connect("autodoc-process-signature", shorten)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
