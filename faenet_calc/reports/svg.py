"""Charts as inline SVG: lines and scatter with axes, no plotting library, no script, no outside file."""

import html
import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

WIDTH, HEIGHT = 430, 300
LEFT, RIGHT, TOP, BOTTOM = 62, 12, 26, 42
COLOURS = ("#1f6fb2", "#c8511b", "#3a8a3a", "#7a4fa0", "#555555")
MAX_POINTS = 3000

Range = tuple[float, float]


def line_chart(
    title: str, series: Mapping[str, tuple[ArrayLike, ArrayLike]], *, x_label: str, y_label: str, log_y: bool = False
) -> str:
    """Lines (x, y) by name."""
    clean = {name: _finite(x, y, positive=log_y) for name, (x, y) in series.items()}
    clean = {name: points for name, points in clean.items() if len(points[0])}
    if not clean:
        return ""
    x_range = _range(np.concatenate([x for x, _ in clean.values()]))
    y_values = np.concatenate([y for _, y in clean.values()])
    y_range = _range(np.log10(y_values) if log_y else y_values)
    body = [_axes(title, x_label, y_label, x_range, y_range, log_y=log_y)]
    for number, (name, (x, y)) in enumerate(clean.items()):
        heights = np.log10(y) if log_y else y
        points = " ".join(f"{_x(a, x_range):.1f},{_y(b, y_range):.1f}" for a, b in zip(x, heights, strict=True))
        colour = COLOURS[number % len(COLOURS)]
        body.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
        if len(clean) > 1:
            place = f'x="{WIDTH - RIGHT - 6}" y="{TOP + 14 + 14 * number}" text-anchor="end"'
            body.append(f'<text {place} fill="{colour}">{html.escape(name)}</text>')
    return _svg(body)


def parity_chart(title: str, true: ArrayLike, predicted: ArrayLike, *, unit: str) -> str:
    """Predicted against true values with the diagonal; at most 3000 points, evenly chosen."""
    x, y = _finite(true, predicted)
    if not len(x):
        return ""
    if len(x) > MAX_POINTS:
        chosen = np.linspace(0, len(x) - 1, MAX_POINTS).astype(int)
        x, y = x[chosen], y[chosen]
    both = _range(np.concatenate([x, y]))
    body = [_axes(title, f"label ({unit})", f"prediction ({unit})", both, both)]
    ends = f'x1="{_x(both[0], both)}" y1="{_y(both[0], both)}" x2="{_x(both[1], both)}" y2="{_y(both[1], both)}"'
    body.append(f'<line {ends} stroke="#999" stroke-dasharray="4 3"/>')
    dots = [f'<circle cx="{_x(a, both):.1f}" cy="{_y(b, both):.1f}" r="1.6"/>' for a, b in zip(x, y, strict=True)]
    body.append(f'<g fill="{COLOURS[0]}" fill-opacity="0.45">{"".join(dots)}</g>')
    return _svg(body)


def bar_chart(title: str, values: Mapping[str, float], *, unit: str) -> str:
    """Horizontal bars by name."""
    if not values:
        return ""
    top = max(values.values()) or 1.0
    height = 30 + 18 * len(values)
    rows = [
        f'<text x="{WIDTH / 2}" y="16" text-anchor="middle" class="t">{html.escape(title)} ({html.escape(unit)})</text>'
    ]
    for number, (name, value) in enumerate(values.items()):
        y = 26 + 18 * number
        width = (WIDTH - 190) * value / top
        rows.append(
            f'<text x="98" y="{y + 12}" text-anchor="end">{html.escape(name)}</text>'
            f'<rect x="104" y="{y + 2}" width="{width:.1f}" height="12" fill="{COLOURS[0]}"/>'
            f'<text x="{110 + width:.1f}" y="{y + 12}">{value:.3g}</text>'
        )
    return _svg(rows, height=height)


def _svg(body: Sequence[str], height: int = HEIGHT) -> str:
    return (
        f'<svg viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" xmlns="http://www.w3.org/2000/svg" '
        f'font-family="sans-serif" font-size="11">{"".join(body)}</svg>'
    )


def _axes(title: str, x_label: str, y_label: str, x_range: Range, y_range: Range, *, log_y: bool = False) -> str:
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
    parts = [
        f'<rect x="{LEFT}" y="{TOP}" width="{right - LEFT}" height="{bottom - TOP}" fill="none" stroke="#888"/>',
        f'<text x="{(LEFT + right) / 2}" y="16" text-anchor="middle" class="t">{html.escape(title)}</text>',
        f'<text x="{(LEFT + right) / 2}" y="{HEIGHT - 8}" text-anchor="middle">{html.escape(x_label)}</text>',
        f'<text transform="translate(13 {(TOP + bottom) / 2}) rotate(-90)" text-anchor="middle">'
        f"{html.escape(y_label)}</text>",
    ]
    for value in ticks(x_range):
        x = _x(value, x_range)
        parts.append(f'<line x1="{x:.1f}" y1="{bottom}" x2="{x:.1f}" y2="{bottom + 4}" stroke="#888"/>')
        parts.append(f'<text x="{x:.1f}" y="{bottom + 16}" text-anchor="middle">{value:.4g}</text>')
    for value in ticks(y_range):
        y = _y(value, y_range)
        shown = 10**value if log_y else value
        parts.append(f'<line x1="{LEFT - 4}" y1="{y:.1f}" x2="{LEFT}" y2="{y:.1f}" stroke="#888"/>')
        parts.append(f'<text x="{LEFT - 7}" y="{y + 4:.1f}" text-anchor="end">{shown:.3g}</text>')
    return "".join(parts)


def ticks(limits: Range) -> list[float]:
    """Three to seven round numbers within a range."""
    span = limits[1] - limits[0]
    step = 10 ** math.floor(math.log10(span / 3))
    for factor in (1, 2, 5, 10):
        if span / (step * factor) <= 6:
            step *= factor
            break
    first = math.ceil(limits[0] / step - 1e-9)
    last = math.floor(limits[1] / step + 1e-9)
    return [round(number * step, 12) for number in range(first, last + 1)]


def _finite(x: ArrayLike, y: ArrayLike, *, positive: bool = False) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    a, b = np.asarray(x, dtype=float).ravel(), np.asarray(y, dtype=float).ravel()
    kept = np.isfinite(a) & np.isfinite(b)
    if positive:
        kept &= b > 0
    return a[kept], b[kept]


def _range(values: NDArray[np.float64]) -> Range:
    low, high = float(values.min()), float(values.max())
    margin = 0.04 * (high - low) or 0.5 * abs(high) or 1.0
    return low - margin, high + margin


def _x(value: float, limits: Range) -> float:
    return LEFT + (value - limits[0]) / (limits[1] - limits[0]) * (WIDTH - LEFT - RIGHT)


def _y(value: float, limits: Range) -> float:
    return HEIGHT - BOTTOM - (value - limits[0]) / (limits[1] - limits[0]) * (HEIGHT - TOP - BOTTOM)
