"""What the apps show besides what can be tapped: mail, a map, covers, goods. Called by ``art`` alone, once a page.

Each function draws below the title bar, in pixels of the screen times ``s``.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from PIL import ImageDraw

from distrl.connectors.simulated_phone.catalogue import Colour

Draw = ImageDraw.ImageDraw
LINE: Colour = (224, 226, 230)
DIM: Colour = (198, 202, 208)
SOFT: tuple[Colour, ...] = ((255, 205, 178), (178, 223, 219), (197, 202, 233), (255, 224, 130), (248, 187, 208), (200, 230, 201))  # fmt: skip


def _settings(draw: Draw, s: int, colour: Colour) -> None:
    del colour
    draw.rectangle((0, 160 * s, 96 * s, 176 * s - 1), fill=(238, 240, 243))
    draw.rounded_rectangle((30 * s, 166 * s, 66 * s, 170 * s), 2 * s, fill=DIM)


def _mail(draw: Draw, s: int, colour: Colour) -> None:
    for row in range(6):
        top = 34 + 23 * row
        draw.ellipse((5 * s, (top + 4) * s, 19 * s, (top + 18) * s), fill=SOFT[row])
        draw.rounded_rectangle(
            (24 * s, (top + 5) * s, (62 + 7 * (row % 3)) * s, (top + 8) * s), s, fill=(110, 115, 122)
        )
        draw.rounded_rectangle((24 * s, (top + 12) * s, (84 - 9 * (row % 2)) * s, (top + 15) * s), s, fill=DIM)
        draw.line((24 * s, (top + 22) * s, 96 * s, (top + 22) * s), fill=LINE, width=s)
    draw.ellipse((70 * s, 150 * s, 92 * s, 172 * s), fill=colour)
    draw.line((76 * s, 161 * s, 86 * s, 161 * s), fill=(255, 255, 255), width=2 * s)
    draw.line((81 * s, 156 * s, 81 * s, 166 * s), fill=(255, 255, 255), width=2 * s)


def _maps(draw: Draw, s: int, colour: Colour) -> None:
    draw.rectangle((0, 32 * s, 96 * s, 176 * s - 1), fill=(232, 236, 226))
    draw.polygon([(0, 150 * s), (30 * s, 138 * s), (60 * s, 152 * s), (96 * s, 134 * s), (96 * s, 176 * s - 1), (0, 176 * s - 1)], fill=(170, 211, 235))  # fmt: skip
    draw.rounded_rectangle((56 * s, 98 * s, 90 * s, 124 * s), 3 * s, fill=(190, 226, 190))
    for x0, y0, x1, y1 in ((0, 96, 96, 84), (0, 128, 96, 130), (26, 32, 36, 140), (70, 32, 50, 150)):
        draw.line((x0 * s, y0 * s, x1 * s, y1 * s), fill=(250, 250, 250), width=5 * s)
    draw.ellipse((43 * s, 99 * s, 55 * s, 111 * s), fill=colour)
    draw.polygon([(43.6 * s, 107 * s), (54.4 * s, 107 * s), (49 * s, 118 * s)], fill=colour)
    draw.ellipse((47 * s, 103 * s, 51 * s, 107 * s), fill=(255, 255, 255))


def _music(draw: Draw, s: int, colour: Colour) -> None:
    for index in range(4):
        left, top = 8 + 42 * (index % 2), 100 + 36 * (index // 2)
        draw.rounded_rectangle((left * s, top * s, (left + 38) * s, (top + 26) * s), 3 * s, fill=SOFT[index + 1])
        draw.ellipse(((left + 12) * s, (top + 6) * s, (left + 26) * s, (top + 20) * s), fill=colour)
        draw.ellipse(((left + 17) * s, (top + 11) * s, (left + 21) * s, (top + 15) * s), fill=(255, 255, 255))
        draw.rounded_rectangle((left * s, (top + 28) * s, (left + 24) * s, (top + 31) * s), s, fill=DIM)


def _shop(draw: Draw, s: int, colour: Colour) -> None:
    for index in range(4):
        left, top = 6 + 44 * (index % 2), 98 + 38 * (index // 2)
        draw.rounded_rectangle((left * s, top * s, (left + 40) * s, (top + 35) * s), 3 * s, fill=(255, 255, 255), outline=LINE, width=s)  # fmt: skip
        draw.rounded_rectangle(
            ((left + 10) * s, (top + 3) * s, (left + 30) * s, (top + 21) * s), 4 * s, fill=SOFT[index]
        )
        draw.rounded_rectangle(((left + 4) * s, (top + 24) * s, (left + 30) * s, (top + 27) * s), s, fill=DIM)
        draw.rounded_rectangle(((left + 4) * s, (top + 29) * s, (left + 18) * s, (top + 32) * s), s, fill=colour)


def _browser(draw: Draw, s: int, colour: Colour) -> None:
    del colour
    for index in range(6):
        left, top = 8 + 30 * (index % 3), 104 + 34 * (index // 3)
        draw.ellipse((left * s, top * s, (left + 20) * s, (top + 20) * s), fill=SOFT[index])
        draw.rounded_rectangle(((left + 2) * s, (top + 24) * s, (left + 18) * s, (top + 27) * s), s, fill=DIM)


def _camera(draw: Draw, s: int, colour: Colour) -> None:
    draw.rectangle((0, 32 * s, 96 * s, 176 * s - 1), fill=(18, 18, 20))
    draw.rectangle((0, 36 * s, 96 * s, 136 * s), fill=(120, 170, 210))
    draw.ellipse((66 * s, 44 * s, 84 * s, 62 * s), fill=(255, 236, 170))
    draw.polygon([(0, 136 * s), (0, 112 * s), (30 * s, 80 * s), (62 * s, 136 * s)], fill=(84, 110, 92))
    draw.polygon([(34 * s, 136 * s), (68 * s, 96 * s), (96 * s, 124 * s), (96 * s, 136 * s)], fill=(60, 90, 76))
    draw.ellipse((36 * s, 144 * s, 60 * s, 168 * s), outline=(255, 255, 255), width=2 * s)
    draw.ellipse((40 * s, 148 * s, 56 * s, 164 * s), fill=(255, 255, 255))
    draw.rounded_rectangle((8 * s, 149 * s, 22 * s, 163 * s), 3 * s, fill=colour, outline=DIM, width=s)


def _clock(draw: Draw, s: int, colour: Colour) -> None:
    middle_x, middle_y, radius = 48, 92, 36
    draw.ellipse(((middle_x - radius) * s, (middle_y - radius) * s, (middle_x + radius) * s, (middle_y + radius) * s), fill=(255, 255, 255), outline=colour, width=3 * s)  # fmt: skip
    for hour in range(12):
        angle = math.tau * hour / 12
        x, y = math.cos(angle), math.sin(angle)
        draw.line(((middle_x + 28 * x) * s, (middle_y + 28 * y) * s, (middle_x + 31 * x) * s, (middle_y + 31 * y) * s), fill=DIM, width=2 * s)  # fmt: skip
    draw.line((middle_x * s, middle_y * s, (middle_x - 17) * s, (middle_y - 6) * s), fill=(60, 64, 67), width=3 * s)
    draw.line((middle_x * s, middle_y * s, (middle_x - 21) * s, (middle_y + 10) * s), fill=colour, width=2 * s)
    draw.rounded_rectangle((26 * s, 142 * s, 70 * s, 158 * s), 8 * s, fill=colour)


def _notes(draw: Draw, s: int, colour: Colour) -> None:
    for index in range(4):
        left, top = 6 + 44 * (index % 2), 38 + (58 if index >= 2 else 0)
        tall = 52 if index != 3 else 64
        draw.rounded_rectangle((left * s, top * s, (left + 40) * s, (top + tall) * s), 3 * s, fill=(255, 246, 208), outline=colour, width=s)  # fmt: skip
        for line in range(4):
            end = left + 34 - 6 * ((line + index) % 3)
            draw.rounded_rectangle(((left + 5) * s, (top + 7 + 10 * line) * s, end * s, (top + 10 + 10 * line) * s), s, fill=(206, 190, 140))  # fmt: skip


def _results(draw: Draw, s: int, colour: Colour) -> None:
    for row in range(3):
        top = 66 + 36 * row
        draw.rounded_rectangle((5 * s, top * s, 91 * s, (top + 32) * s), 4 * s, fill=(255, 255, 255), outline=LINE, width=s)  # fmt: skip
        draw.rounded_rectangle((9 * s, (top + 5) * s, 31 * s, (top + 27) * s), 3 * s, fill=SOFT[row])
        draw.rounded_rectangle((36 * s, (top + 7) * s, (80 - 6 * row) * s, (top + 11) * s), s, fill=colour)
        draw.rounded_rectangle((36 * s, (top + 15) * s, 84 * s, (top + 18) * s), s, fill=DIM)
        draw.rounded_rectangle((36 * s, (top + 21) * s, (64 + 5 * row) * s, (top + 24) * s), s, fill=DIM)


PAGES: dict[str, Callable[[Draw, int, Colour], None]] = {
    "settings": _settings,
    "mail": _mail,
    "maps": _maps,
    "music": _music,
    "shop": _shop,
    "browser": _browser,
    "camera": _camera,
    "clock": _clock,
    "notes": _notes,
    "results": _results,
}
