"""Equations as MathML, which browsers render without scripts or fonts from the network."""

from typing import Any

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx
from sphinx.util.math import get_node_equation_number


def visit_inline(writer: Any, node: nodes.math) -> None:
    """Write an equation inside a line."""
    writer.body.append(tex2mathml(node.astext(), as_block=False))
    raise nodes.SkipNode


def visit_block(writer: Any, node: nodes.math_block) -> None:
    """Write a displayed equation, with its number if it has one."""
    number = f"<span class='eqno'>({get_node_equation_number(writer, node)})</span>" if node["number"] else ""
    writer.body.append(f'<div class="math">{number}{tex2mathml(node.astext(), as_block=True)}</div>')
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the renderer."""
    app.add_html_math_renderer("mathml", (visit_inline, None), (visit_block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
