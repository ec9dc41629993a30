"""Charts as inline SVG, drawn from plain numbers. Used by ``core.runtime.report``.

Everything is built as XML elements, so text can never become markup. Colours are CSS classes (``s0`` to ``s7``) that the page
defines for light and dark.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from xml.etree import ElementTree as ET

Point = tuple[float, float]
WIDTH, HEIGHT = 560.0, 240.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 52.0, 14.0, 10.0, 34.0
COLOURS = 8
POINTS = 400
"""A line is thinned to so many points: more than the chart has pixels for."""


def line_chart(
    lines: Mapping[str, Sequence[Point]],
    *,
    x_label: str,
    y_range: tuple[float, float] | None = None,
    percent: bool = False,
    steps: bool = False,
) -> ET.Element:
    """Lines over a common axis from 0. ``steps``: the value stands until the next point."""
    xs = [x for points in lines.values() for x, _ in points]
    ys = [y for points in lines.values() for _, y in points if math.isfinite(y)]
    x_low, x_high = _spread(min([0.0, *xs]), max(xs, default=1.0))
    low, high = y_range or _padded(min(ys, default=0.0), max(ys, default=1.0))
    svg = _svg()
    across, up = _scale(x_low, x_high, _LEFT, WIDTH - _RIGHT), _scale(low, high, HEIGHT - _BOTTOM, _TOP)
    _axes(svg, x_low, x_high, low, high, across, up, x_label, percent=percent)
    if not xs:
        _text(svg, WIDTH / 2, HEIGHT / 2, "no data", "middle")
    for number, (name, points) in enumerate(lines.items()):
        path: list[str] = []
        previous: float | None = None
        for x, y in _thin([point for point in points if math.isfinite(point[1])]):
            at_x, at_y = across(x), up(min(max(y, low), high))
            if previous is None:
                path.append(f"M{at_x:.1f} {at_y:.1f}")
            else:
                path.append(f"H{at_x:.1f}V{at_y:.1f}" if steps else f"L{at_x:.1f} {at_y:.1f}")
            previous = at_y
        line = ET.SubElement(svg, "path", {"class": f"line s{number % COLOURS}", "d": "".join(path) or "M0 0"})
        ET.SubElement(line, "title").text = name
    return svg


def histogram(counts: Mapping[int, int], *, x_label: str) -> ET.Element:
    """Bars of whole numbers from 0 on; what lies far out is gathered in the last bar."""
    last = min(max(counts, default=0), 24)
    bars = dict.fromkeys(range(last + 1), 0)
    for value, count in counts.items():
        bars[min(max(value, 0), last)] += count
    high = max([*bars.values(), 1])
    svg = _svg()
    across, up = _scale(-0.5, last + 0.5, _LEFT, WIDTH - _RIGHT), _scale(0, high, HEIGHT - _BOTTOM, _TOP)
    _axes(svg, 0, last, 0, high, across, up, x_label, whole=True)
    if not counts:
        _text(svg, WIDTH / 2, HEIGHT / 2, "no data", "middle")
    for value, count in bars.items():
        left, right = across(value - 0.42), across(value + 0.42)
        bar = ET.SubElement(
            svg,
            "rect",
            {
                "class": "bar s0",
                "x": f"{left:.1f}",
                "y": f"{up(count):.1f}",
                "width": f"{right - left:.1f}",
                "height": f"{up(0) - up(count):.1f}",
            },
        )
        more = " and more" if value == last and max(counts, default=0) > last else ""
        ET.SubElement(bar, "title").text = f"{value}{more}: {count}"
    return svg


def stacked_bars(rows: Mapping[str, Mapping[str, float]], parts: Sequence[str]) -> ET.Element:
    """One horizontal bar a row, its parts (shares from 0 to 1) side by side in the order and colour of ``parts``."""
    row_height, left = 34.0, 92.0
    height = row_height * max(len(rows), 1) + 30
    svg = _svg(height)
    across = _scale(0, 1, left, WIDTH - _RIGHT)
    for tick in (0.0, 0.25, 0.5, 0.75, 1.0):
        _line(svg, across(tick), 4, across(tick), height - 24, "grid")
        _text(svg, across(tick), height - 8, f"{tick:.0%}", "middle")
    for number, (name, shares) in enumerate(rows.items()):
        top = number * row_height + 8
        _text(svg, left - 8, top + 14, name, "end")
        at = 0.0
        for part, share in shares.items():
            if share <= 0:
                continue
            right = min(at + share, 1.0)
            bar = ET.SubElement(
                svg,
                "rect",
                {
                    "class": f"bar s{parts.index(part) % COLOURS}" if part in parts else "bar rest",
                    "x": f"{across(at):.1f}",
                    "y": f"{top:.1f}",
                    "width": f"{max(across(right) - across(at), 0):.1f}",
                    "height": "20",
                },
            )
            ET.SubElement(bar, "title").text = f"{part}: {share:.1%}"
            at = right
    return svg


def ticks(low: float, high: float, count: int = 5, *, whole: bool = False) -> list[float]:
    """Round numbers that cover [low, high], about ``count`` of them."""
    step = (high - low) / max(count, 1)
    magnitude = 10.0 ** math.floor(math.log10(step)) if step > 0 else 1.0
    step = next((factor * magnitude for factor in (1, 2, 2.5, 5, 10) if factor * magnitude >= step * 0.999), magnitude)
    if whole:
        step = max(1.0, math.ceil(step))
    first = math.ceil(low / step - 1e-9)
    return [number * step for number in range(first, math.floor(high / step + 1e-9) + 1)]


def _svg(height: float = HEIGHT) -> ET.Element:
    return ET.Element("svg", {"viewBox": f"0 0 {WIDTH:.0f} {height:.0f}", "role": "img"})


def _axes(
    svg: ET.Element,
    x_low: float,
    x_high: float,
    low: float,
    high: float,
    across: Callable[[float], float],
    up: Callable[[float], float],
    x_label: str,
    *,
    percent: bool = False,
    whole: bool = False,
) -> None:
    for value in ticks(low, high, 5, whole=whole):
        _line(svg, _LEFT, up(value), WIDTH - _RIGHT, up(value), "grid")
        _text(svg, _LEFT - 6, up(value) + 4, f"{value:.0%}" if percent else _short(value), "end")
    for value in ticks(x_low, x_high, 6, whole=whole):
        _text(svg, across(value), HEIGHT - _BOTTOM + 15, _short(value), "middle")
    _line(svg, _LEFT, HEIGHT - _BOTTOM, WIDTH - _RIGHT, HEIGHT - _BOTTOM, "axis")
    _text(svg, WIDTH - _RIGHT, HEIGHT - 4, x_label, "end")


def _line(svg: ET.Element, x1: float, y1: float, x2: float, y2: float, kind: str) -> None:
    ET.SubElement(
        svg, "line", {"class": kind, "x1": f"{x1:.1f}", "y1": f"{y1:.1f}", "x2": f"{x2:.1f}", "y2": f"{y2:.1f}"}
    )


def _text(svg: ET.Element, x: float, y: float, text: str, anchor: str) -> None:
    ET.SubElement(svg, "text", {"x": f"{x:.1f}", "y": f"{y:.1f}", "text-anchor": anchor}).text = text


def _scale(low: float, high: float, to_low: float, to_high: float) -> Callable[[float], float]:
    span = high - low or 1.0
    return lambda value: to_low + (value - low) / span * (to_high - to_low)


def _spread(low: float, high: float) -> tuple[float, float]:
    return (low, high) if high > low else (low, low + 1.0)


def _padded(low: float, high: float) -> tuple[float, float]:
    """A range that starts at 0 unless values are negative or all far from it."""
    if 0 <= low < high * 0.7 or low == high == 0:
        low = 0.0
    margin = (high - low) * 0.06 or abs(high) * 0.1 or 1.0
    return (low if low == 0 else low - margin), high + margin


def _thin(points: Sequence[Point]) -> Iterable[Point]:
    if len(points) <= POINTS:
        return points
    stride = (len(points) - 1) / (POINTS - 1)
    return [points[round(number * stride)] for number in range(POINTS)]


def _short(value: float) -> str:
    if abs(value) >= 1_000_000:
        return f"{value / 1_000_000:g}M"
    if abs(value) >= 10_000:
        return f"{value / 1000:g}k"
    return f"{value:.4g}"
