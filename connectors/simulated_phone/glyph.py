"""Glyphs of apps and switches as vector drawings with Pillow. Called by ``art`` alone, once a glyph.

Each function draws into a box of 24 by 24 units, scaled by the pen; colours are RGB.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from PIL import ImageDraw

from distrl.connectors.simulated_phone.catalogue import Colour

WHITE: Colour = (255, 255, 255)


class Pen:
    """Draws in a box of 24 by 24 units whose corner is at (``left``, ``top``) pixels, ``scale`` pixels a unit."""

    def __init__(
        self, draw: ImageDraw.ImageDraw, left: float, top: float, scale: float, ink: Colour, paper: Colour
    ) -> None:
        self._draw = draw
        self._left, self._top, self._scale = left, top, scale
        self.ink, self.paper = ink, paper

    def points(self, flat: Sequence[float]) -> list[tuple[float, float]]:
        pairs = zip(flat[::2], flat[1::2], strict=True)
        return [(self._left + x * self._scale, self._top + y * self._scale) for x, y in pairs]

    def line(self, *flat: float, width: float = 2.2, ink: Colour | None = None) -> None:
        points = self.points(flat)
        colour, pixels = ink or self.ink, width * self._scale
        self._draw.line(points, fill=colour, width=round(pixels), joint="curve")
        for x, y in (points[0], points[-1]):
            radius = pixels / 2
            self._draw.ellipse((x - radius, y - radius, x + radius, y + radius), fill=colour)

    def shape(self, *flat: float, ink: Colour | None = None) -> None:
        self._draw.polygon(self.points(flat), fill=ink or self.ink)

    def disc(self, x: float, y: float, radius: float, ink: Colour | None = None) -> None:
        (left, top), (right, bottom) = self.points((x - radius, y - radius, x + radius, y + radius))
        self._draw.ellipse((left, top, right, bottom), fill=ink or self.ink)

    def box(self, x0: float, y0: float, x1: float, y1: float, *, radius: float = 0, ink: Colour | None = None) -> None:
        (left, top), (right, bottom) = self.points((x0, y0, x1, y1))
        self._draw.rounded_rectangle((left, top, right, bottom), radius * self._scale, fill=ink or self.ink)

    def arc(self, x: float, y: float, radius: float, start: float, end: float, *, width: float = 2.2) -> None:
        """Degrees, clockwise from the right."""
        (left, top), (right, bottom) = self.points((x - radius, y - radius, x + radius, y + radius))
        self._draw.arc((left, top, right, bottom), start, end, fill=self.ink, width=round(width * self._scale))


def settings(pen: Pen) -> None:
    for turn in range(8):
        angle = math.tau * turn / 8
        pen.line(
            12 + 5 * math.cos(angle),
            12 + 5 * math.sin(angle),
            12 + 9 * math.cos(angle),
            12 + 9 * math.sin(angle),
            width=3.4,
        )
    pen.disc(12, 12, 7)
    pen.disc(12, 12, 3, pen.paper)


def mail(pen: Pen) -> None:
    pen.box(2.5, 5.5, 21.5, 18.5, radius=1.5)
    pen.line(4, 7.5, 12, 13.5, 20, 7.5, width=1.8, ink=pen.paper)


def maps(pen: Pen) -> None:
    pen.shape(5.6, 11.5, 12, 22, 18.4, 11.5)
    pen.disc(12, 9, 7)
    pen.disc(12, 9, 2.8, pen.paper)


def music(pen: Pen) -> None:
    pen.line(9, 17, 9, 5, 19, 3, 19, 15, width=2)
    pen.line(9, 6.5, 19, 4.5, width=3)
    pen.disc(6.4, 17.5, 3.4)
    pen.disc(16.4, 15.5, 3.4)


def shop(pen: Pen) -> None:
    pen.arc(12, 8, 4.5, 180, 360)
    pen.shape(4.5, 8, 19.5, 8, 21, 21.5, 3, 21.5)
    pen.disc(8.5, 11.5, 1.2, pen.paper)
    pen.disc(15.5, 11.5, 1.2, pen.paper)


def browser(pen: Pen) -> None:
    pen.disc(12, 12, 9.5)
    inside = Pen(pen._draw, pen._left, pen._top, pen._scale, pen.paper, pen.ink)
    inside.line(2.5, 12, 21.5, 12, width=1.4)
    inside.line(12, 2.5, 12, 21.5, width=1.4)
    inside.arc(1, 12, 13, -46, 46, width=1.4)
    inside.arc(23, 12, 13, 134, 226, width=1.4)


def camera(pen: Pen) -> None:
    pen.shape(8, 7, 9.5, 3.5, 14.5, 3.5, 16, 7)
    pen.box(2, 6, 22, 20, radius=2.5)
    pen.disc(12, 13, 5.2, pen.paper)
    pen.disc(12, 13, 3.2, (90, 170, 255))


def clock(pen: Pen) -> None:
    pen.disc(12, 12, 9.8)
    pen.line(12, 12, 12, 5.5, width=2, ink=pen.paper)
    pen.line(12, 12, 16.5, 14.5, width=2, ink=pen.paper)


def notes(pen: Pen) -> None:
    pen.box(4, 2.5, 20, 21.5, radius=1.5)
    for y, right in ((7.5, 17), (12, 17), (16.5, 13)):
        pen.line(7, y, right, y, width=1.6, ink=pen.paper)


def wifi(pen: Pen) -> None:
    for radius in (13.5, 9, 4.5):
        pen.arc(12, 19, radius, 225, 315, width=2.4)
    pen.disc(12, 18.6, 2)


def bluetooth(pen: Pen) -> None:
    pen.line(6.5, 7, 17, 16.5, 12, 21, 12, 3, 17, 7.5, 6.5, 17, width=2)


def airplane_mode(pen: Pen) -> None:
    pen.shape(12, 1.5, 14, 5, 14, 9, 22.5, 15, 22.5, 17, 14, 14, 13.5, 19, 16.5, 21, 16.5, 22.5, 12, 21.5, 7.5, 22.5, 7.5, 21, 10.5, 19, 10, 14, 1.5, 17, 1.5, 15, 10, 9, 10, 5)  # fmt: skip


def location(pen: Pen) -> None:
    pen.shape(6, 11, 12, 21.5, 18, 11)
    pen.disc(12, 9, 6.6)
    pen.disc(12, 9, 2.6, pen.paper)


def hotspot(pen: Pen) -> None:
    pen.disc(12, 13, 2.6)
    pen.arc(12, 13, 6.5, 130, 410)
    pen.arc(12, 13, 10.5, 130, 410)


def dark_mode(pen: Pen) -> None:
    pen.disc(11, 12, 9)
    pen.disc(15.5, 9, 7.6, pen.paper)


def rotation(pen: Pen) -> None:
    pen.arc(12, 12, 8, 300, 580)
    pen.shape(14, 1.2, 20.5, 5.5, 13.5, 9)


def battery_saver(pen: Pen) -> None:
    pen.box(9.5, 1.5, 14.5, 5)
    pen.box(6, 3.5, 18, 22.5, radius=1.5)
    pen.line(12, 9.5, 12, 17.5, width=2, ink=pen.paper)
    pen.line(8.2, 13.5, 15.8, 13.5, width=2, ink=pen.paper)


def search(pen: Pen) -> None:
    pen.arc(10, 10, 7, 0, 360, width=2.6)
    pen.line(15, 15, 20.5, 20.5, width=2.8)


GLYPHS: dict[str, Callable[[Pen], None]] = {
    function.__name__: function
    for function in (
        settings, mail, maps, music, shop, browser, camera, clock, notes,
        wifi, bluetooth, airplane_mode, location, hotspot, dark_mode, rotation, battery_saver, search,
    )
}  # fmt: skip
"""By app name or by a switch's slug."""
