"""Line charts as inline SVG without scripts, readable on light and dark pages."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise

Point = tuple[float, float]

COLORS = ("#3b82f6", "#ea7317", "#1fa35c", "#d9485f", "#9464e0", "#0e9fb0", "#b8860b", "#8a8f98")
"""Colors of the curves, whose contrast is sufficient on white and on black; repeated from the ninth curve on."""
MAX_POINTS = 400
"""Maximum number of points of a curve; a longer one is reduced to the extremes of its parts."""
MAX_VALUE, MIN_VALUE = 1e300, 1e-300
"""Largest value of a curve, as a range must be finite; and smallest range of an axis."""
FONT_SIZE = 11
_CHARACTER_WIDTH = 0.58 * FONT_SIZE
_LEFT, _RIGHT, _BOTTOM, _LINE = 52, 12, 34, 16


@dataclass(frozen=True, slots=True)
class _Axis:
    """Linear mapping of values to pixels."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)


def draw_curves(
    curves: Mapping[str, Sequence[Point]],
    *,
    title: str = "",
    x_label: str = "epoch",
    width: int = 360,
    height: int = 230,
) -> str:
    """Draw curves as an SVG element. Names are escaped, and points that are not finite are gaps.

    Args:
        curves: Points (x, y) of each curve, by the name in the legend.
        title: Title above the legend.
        x_label: Label of the horizontal axis.
        width: Width in pixels.
        height: Height in pixels.
    """
    legend, rows = _draw_legend(list(curves), width, 2 * _LINE if title else _LINE)
    top = (rows + bool(title)) * _LINE + 8
    points = [point for curve in curves.values() for point in curve if _is_finite(point)]
    if points:
        x = _Axis(*_get_limits((x for x, _ in points), 0), _LEFT, width - _RIGHT)
        y = _Axis(*_get_limits((y for _, y in points), 0.05), height - _BOTTOM, top)
        min_step = 1.0 if all(float(x).is_integer() for x, _ in points) else 0.0
        plot = [*_draw_grid(x, y, min_step), *(_draw_curve(n, c, i, x, y) for i, (n, c) in enumerate(curves.items()))]
    else:
        plot = [_draw_text(width / 2, height / 2, "no finite values", "middle")]
    heading = [_draw_text(_LEFT, _LINE - 4, title, weight=600)] if title else []
    label = _draw_text((_LEFT + width - _RIGHT) / 2, height - 4, x_label, "middle")
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        f'role="img" aria-label="{escape(title or ", ".join(curves))}" font-family="sans-serif" '
        f'font-size="{FONT_SIZE}" fill="currentColor" style="max-width:100%">'
        f"{''.join([*heading, *legend, *plot, label])}</svg>"
    )


def find_ticks(low: float, high: float, count: int = 5, min_step: float = 0.0) -> list[float]:
    """Return the multiples from `low` to `high` of the least round step with at most `count` steps between them.

    Args:
        low: Lower limit.
        high: Upper limit, greater than `low`.
        count: Maximum number of steps.
        min_step: Minimum of the step, which is 1, 2 or 5 times a power of ten; 1 for integers.
    """
    power = 10.0 ** math.floor(math.log10((high - low) / count))
    steps = (power * factor for factor in (1, 2, 5, 10))
    step = max(min_step, next(step for step in steps if (high - low) / step <= count))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    digits = max(0, -math.floor(math.log10(step)))
    return [round(index * step, digits) for index in range(first, last + 1)]


def reduce_points(points: Sequence[Point], limit: int = MAX_POINTS) -> list[Point]:
    """Return at most `limit` points: of each of equal parts, those with the least and the greatest y, in order.

    Args:
        points: Points (x, y) with finite values.
        limit: Maximum number of points, at least 2.
    """
    if len(points) <= limit:
        return list(points)
    parts = limit // 2
    borders = [len(points) * index // parts for index in range(parts + 1)]
    reduced: list[Point] = []
    for begin, end in pairwise(borders):
        part = points[begin:end]
        extremes = {min(range(len(part)), key=lambda i: part[i][1]), max(range(len(part)), key=lambda i: part[i][1])}
        reduced += [part[index] for index in sorted(extremes)]
    return reduced


def _get_limits(values: Iterable[float], margin: float) -> tuple[float, float]:
    """Return the limits of an axis, which differ also for equal values."""
    numbers = list(values)
    low, high = min(numbers), max(numbers)
    gap = (high - low) * margin
    if high - low <= max(1e-9 * max(abs(low), abs(high)), MIN_VALUE):
        gap = abs(low) / 2 or 0.5
    return low - gap, high + gap


def _is_finite(point: Point) -> bool:
    return math.isfinite(point[0]) and abs(point[1]) <= MAX_VALUE


def _draw_grid(x: _Axis, y: _Axis, min_x_step: float) -> Iterator[str]:
    for tick in find_ticks(y.low, y.high):
        yield (
            f'<line x1="{x.start}" x2="{x.end}" y1="{y(tick):.1f}" y2="{y(tick):.1f}" stroke="currentColor" '
            f'stroke-opacity=".15"/>{_draw_text(x.start - 6, y(tick) + 4, f"{tick:g}", "end")}'
        )
    for tick in find_ticks(x.low, x.high, min_step=min_x_step):
        yield _draw_text(x(tick), y.start + 15, f"{tick:g}", "middle")


def _draw_curve(name: str, curve: Sequence[Point], index: int, x: _Axis, y: _Axis) -> str:
    color = COLORS[index % len(COLORS)]
    return f'<g stroke="{color}" fill="{color}"><title>{escape(name)}</title>{"".join(_draw_parts(curve, x, y))}</g>'


def _draw_parts(curve: Sequence[Point], x: _Axis, y: _Axis) -> Iterator[str]:
    """Draw the parts of a curve between gaps: lines, and single points as dots."""
    parts: list[list[Point]] = [[]]
    for point in curve:
        if _is_finite(point):
            parts[-1].append(point)
        elif parts[-1]:
            parts.append([])
    for part in parts:
        pixels = [f"{x(px):.1f},{y(py):.1f}" for px, py in reduce_points(part)]
        if len(pixels) > 1:
            yield f'<polyline points="{" ".join(pixels)}" fill="none" stroke-width="1.8" stroke-linejoin="round"/>'
        elif pixels:
            cx, cy = pixels[0].split(",")
            yield f'<circle cx="{cx}" cy="{cy}" r="3" stroke="none"/>'


def _draw_legend(names: Sequence[str], width: int, y: int) -> tuple[list[str], int]:
    """Draw the names next to their colors, in as many rows as necessary; return the elements and the rows."""
    limit = int((width - _LEFT - _RIGHT - 16) / _CHARACTER_WIDTH)
    x, rows, elements = float(_LEFT), 1 if names else 0, []
    for index, name in enumerate(names):
        text = name if len(name) <= limit else f"{name[: limit - 1]}…"
        entry = 16 + len(text) * _CHARACTER_WIDTH + 12
        if x > _LEFT and x + entry - 12 > width - _RIGHT:
            x, rows = float(_LEFT), rows + 1
        bottom, color = y - 4 + (rows - 1) * _LINE, COLORS[index % len(COLORS)]
        box = f'<rect x="{x:.0f}" y="{bottom - 8}" width="10" height="8" rx="2" fill="{color}"/>'
        elements.append(box + _draw_text(x + 14, bottom, text))
        x += entry
    return elements, rows


def _draw_text(x: float, y: float, text: str, anchor: str = "start", weight: int = 400) -> str:
    style = f' text-anchor="{anchor}"' * (anchor != "start") + f' font-weight="{weight}"' * (weight != 400)
    return f'<text x="{x:.0f}" y="{y:.0f}"{style}>{escape(text)}</text>'
