"""Self-contained HTML pages from jinja2 templates.

The templates lie in ``reports/templates`` and extend ``base.html``. Every value is escaped; the filter ``svg`` embeds a
matplotlib figure.
"""

import base64
import io
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup, escape
from matplotlib import rc_context
from matplotlib.figure import Figure

from faenet_calc import __version__
from faenet_calc.files import write_atomically
from faenet_calc.reports.plots import STYLE


def write_page(path: str | Path, template: str, **context: Any) -> None:
    """Render a template into a file, which appears complete or not at all.

    Args:
        path: HTML file; replaced if it exists.
        template: Name of a file in ``reports/templates``.
        context: Variables of the template.
    """
    page = _environment().get_template(template).render(version=__version__, **context)
    write_atomically(path, page.encode())


def figure_html(figure: Figure) -> Markup:
    """An ``img`` element that holds the figure as SVG; its text alternative is the figure's titles."""
    buffer = io.StringIO()
    with rc_context(STYLE):
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    data = base64.b64encode(buffer.getvalue().encode()).decode()
    text = escape("; ".join(axes.get_title() for axes in figure.axes))
    return Markup('<img alt="{}" src="data:image/svg+xml;base64,{}">').format(text, data)


@cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("faenet_calc.reports"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["svg"] = figure_html
    return environment
