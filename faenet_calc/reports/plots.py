"""Matplotlib figures of results.

Figures are built with the object-oriented interface: no pyplot, no global state, no display.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, LogFormatterSciNotation, MaxNLocator
from numpy.typing import ArrayLike, NDArray

COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00")
"""Okabe–Ito palette, distinguishable with color vision deficiencies."""

STYLE: dict[str, Any] = {
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.labelsize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e4e4e4",
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "svg.hashsalt": "faenet-calc",  # the same figure gives the same file
}
WIDTH_IN, HEIGHT_IN = 5.2, 3.5
RASTER_DPI = 200


def line_plot(
    title: str, series: Mapping[str, tuple[ArrayLike, ArrayLike]], *, x_label: str, y_label: str, log_y: bool = False
) -> Figure | None:
    """Plot lines by name; None if no series has a finite point.

    Args:
        title: Of the figure.
        series: Name → (x, y). Points that are not finite (or not positive, with ``log_y``) are left out.
        x_label: With the unit.
        y_label: With the unit.
        log_y: Logarithmic vertical axis.
    """
    points = {name: _finite(x, y, positive=log_y) for name, (x, y) in series.items()}
    points = {name: xy for name, xy in points.items() if len(xy[0])}
    if not points:
        return None
    with rc_context(STYLE):
        figure, axes = _figure(title, x_label, y_label)
        for (name, (x, y)), color in zip(points.items(), _colors(len(points)), strict=True):
            axes.plot(x, y, color=color, linewidth=1.5, marker="o" if len(x) < 30 else "", markersize=3, label=name)
        if log_y:
            axes.set_yscale("log")
            _readable_log_axis(axes)
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True, steps=[1, 2, 5, 10]))
        if max(np.abs(x).max() for x, _ in points.values()) >= 10_000:
            axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        if len(points) > 1:
            axes.legend()
    return figure


def parity_plot(quantity: str, reference: ArrayLike, predicted: ArrayLike, *, unit: str) -> Figure | None:
    """Plot predictions against reference values on equal axes; None without finite pairs.

    Args:
        quantity: What is compared, e.g. "energy per atom".
        reference: Any shape, as ``predicted``.
        predicted: Any shape.
        unit: Of both.
    """
    x, y = _finite(reference, predicted)
    if not len(x):
        return None
    low, high = float(min(x.min(), y.min())), float(max(x.max(), y.max()))
    margin = 0.05 * (high - low) or 0.05 * abs(high) or 1.0
    limits = (low - margin, high + margin)
    mae, rmse = float(np.abs(y - x).mean()), float(np.sqrt(np.square(y - x).mean()))
    with rc_context(STYLE):
        figure, axes = _figure(quantity.capitalize(), f"reference ({unit})", f"prediction ({unit})", square=True)
        axes.plot(limits, limits, color="#777777", linewidth=0.8, linestyle="--", zorder=1)
        size, alpha = (14.0, 0.7) if len(x) < 300 else (5.0, 0.35)
        axes.scatter(x, y, s=size, alpha=alpha, color=COLORS[0], linewidths=0, rasterized=True, zorder=2)
        axes.set(xlim=limits, ylim=limits, aspect="equal")
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(MaxNLocator(6, steps=[1, 2, 2.5, 5, 10]))
        summary = f"MAE {_with_unit(mae, unit)}\nRMSE {_with_unit(rmse, unit)}\nn = {len(x):,}"
        axes.text(0.04, 0.96, summary, transform=axes.transAxes, va="top", linespacing=1.4)
    return figure


def bar_plot(title: str, values: Mapping[str, float], *, x_label: str) -> Figure | None:
    """Plot horizontal bars by name, from top to bottom; None without values."""
    shown = {name: value for name, value in values.items() if np.isfinite(value)}
    if not shown:
        return None
    with rc_context(STYLE):
        figure, axes = _figure(title, x_label, "", height=0.9 + 0.24 * len(shown))
        bars = axes.barh(list(shown), list(shown.values()), color=COLORS[0], height=0.65)
        axes.bar_label(
            bars, [f"{value:.0f}" if value >= 100 else f"{value:.3g}" for value in shown.values()], padding=3
        )
        axes.invert_yaxis()
        axes.margins(x=0.15, y=0.03)
        axes.grid(visible=False, axis="y")
        axes.tick_params(axis="y", length=0)
    return figure


def interval_plot(
    title: str, names: Sequence[str], values: Sequence[float], half_widths: Sequence[float], *, y_label: str
) -> Figure:
    """Plot named values with error bars and their numbers; a half-width of 0 draws no bar."""
    with rc_context(STYLE):
        figure, axes = _figure(title, "", y_label)
        places = range(len(names))
        axes.errorbar(places, values, half_widths, fmt="o", ms=7, capsize=5, color=COLORS[0], ecolor="0.45")
        for place, value in zip(places, values, strict=True):
            text = f"{value:.2f}".replace("-", "\N{MINUS SIGN}")
            axes.annotate(text, (place, value), xytext=(9, -3), textcoords="offset points")
        axes.set_xticks(places, names)
        axes.margins(x=0.7 / len(names), y=0.15)
        axes.grid(visible=False, axis="x")
    return figure


def heat_map(title: str, values: NDArray[np.float64], *, rows: Sequence[str], columns: Sequence[str]) -> Figure:
    """Draw a table of numbers as colored cells with their values; NaN cells stay empty.

    Args:
        title: Of the figure, with the unit.
        values: [n_rows, n_columns].
        rows: Labels of the rows.
        columns: Labels of the columns.
    """
    with rc_context(STYLE):
        figure = Figure(figsize=(2.2 + 0.62 * len(columns), 1.5 + 0.42 * len(rows)), layout="constrained")
        axes = figure.add_subplot()
        limit = float(np.nanmax(np.abs(values), initial=1e-9))
        image = axes.imshow(values, cmap="RdBu_r", vmin=-limit, vmax=limit, aspect="auto")
        axes.set_title(title)
        axes.set_xticks(range(len(columns)), columns, rotation=45, ha="right")
        axes.set_yticks(range(len(rows)), rows)
        axes.grid(False)
        for (i, j), value in np.ndenumerate(values):
            if np.isfinite(value):
                color = "white" if abs(value) > 0.6 * limit else "black"
                axes.text(j, i, f"{value:.2f}", ha="center", va="center", color=color, fontsize=8)
        figure.colorbar(image, ax=axes)
    return figure


def stacked_histogram(title: str, groups: Mapping[str, Sequence[float]], *, x_label: str, y_label: str) -> Figure:
    """Draw a stacked histogram of named groups of numbers."""
    with rc_context(STYLE):
        figure, axes = _figure(title, x_label, y_label)
        axes.hist(list(groups.values()), bins=24, stacked=True, label=list(groups), color=_colors(len(groups)))
        axes.yaxis.set_major_locator(MaxNLocator(6, integer=True))
        axes.legend(fontsize=8)
    return figure


def _figure(
    title: str, x_label: str, y_label: str, *, height: float = HEIGHT_IN, square: bool = False
) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(HEIGHT_IN if square else WIDTH_IN, height), dpi=RASTER_DPI, layout="constrained")
    axes = figure.add_subplot()
    axes.set(title=title, xlabel=x_label, ylabel=y_label)
    return figure, axes


def _readable_log_axis(axes: Axes) -> None:
    """Label minor ticks too where the range spans less than two decades."""
    formatter = LogFormatter(minor_thresholds=(2, 0.5))
    axes.yaxis.set_major_formatter(formatter)
    axes.yaxis.set_minor_formatter(formatter)


class LogFormatter(LogFormatterSciNotation):
    """Plain numbers (0.3, 20) where they are short, powers of ten elsewhere."""

    def __call__(self, x: float, pos: int | None = None) -> str:
        """The label of a tick, as matplotlib calls it."""
        label = str(super().__call__(x, pos))
        return f"{x:g}" if label and 1e-3 <= x < 1e5 else label


def _with_unit(value: float, unit: str) -> str:
    return f"{value:.3g} {unit}" if value >= 1 else f"{1e3 * value:.3g} m{unit}"


def _colors(n: int) -> list[str]:
    return [COLORS[i % len(COLORS)] for i in range(n)]


def _finite(x: ArrayLike, y: ArrayLike, *, positive: bool = False) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    a, b = np.asarray(x, dtype=float).ravel(), np.asarray(y, dtype=float).ravel()
    kept = np.isfinite(a) & np.isfinite(b)
    if positive:
        kept &= b > 0
    return a[kept], b[kept]
