"""The phone's pixels: backdrops and tiles, drawn once with Pillow and copied after that. Called by the device.

Everything is drawn at four times its size and reduced, so that it looks smooth; text is drawn at its size, so that it is
crisp. Arrays are uint8 of shape [height, width, 3] and read-only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from distrl.connectors.simulated_phone.catalogue import APPS, SWITCHES, Colour
from distrl.connectors.simulated_phone.glyph import GLYPHS, WHITE, Pen
from distrl.connectors.simulated_phone.layout import CELL, HEIGHT, WIDTH
from distrl.connectors.simulated_phone.page import PAGES
from distrl.connectors.simulated_phone.widget import Widget

Pixels = NDArray[np.uint8]
FINE = 4
"""Drawn so many times larger than shown."""
INK: Colour = (32, 33, 36)
FAINT: Colour = (128, 134, 139)
SHEET: Colour = (248, 249, 251)


def paint(app: str, results: bool, items: Sequence[Widget]) -> bytes:
    """The screen as rows of RGB bytes, shape [192, 96, 3]."""
    canvas = backdrop(app, results).copy()
    for item in items:
        if item.tile:
            left, top, columns, rows = (cell * CELL for cell in item.cells)
            canvas[top : top + rows, left : left + columns] = tile(item.tile)
    return canvas.tobytes()


@lru_cache(maxsize=64)
def backdrop(app: str, results: bool) -> Pixels:
    """What stays the same on a screen: the home screen's wallpaper, or an app's frame and contents."""
    if not app:
        return _frozen(_navigation(_wallpaper(), WHITE))
    colour = APPS[app].colour

    def draw(pen: ImageDraw.ImageDraw) -> None:
        s = FINE
        pen.rectangle((0, 0, WIDTH * s, 16 * s), fill=_shade(colour, 0.82))
        pen.rectangle((0, 16 * s, WIDTH * s, 32 * s), fill=colour)
        pen.rectangle((0, 176 * s, WIDTH * s, HEIGHT * s), fill=(238, 240, 243))
        _status(pen)
        GLYPHS[app](Pen(pen, 5 * s, 18 * s, 12 / 24 * s, WHITE, colour))
        PAGES["results" if results else app](pen, s, colour)

    image = _drawn(WIDTH, HEIGHT, SHEET, draw)
    _write(image, (22, 17), APPS[app].label, WHITE, 11)
    _write(image, (5, 2), "9:41", WHITE, 10)
    return _frozen(_navigation(image, FAINT))


@lru_cache(maxsize=4096)
def tile(key: tuple[str, ...]) -> Pixels:
    """The pixels of a widget: ``key`` is its kind and what it depends on."""
    kind, *arguments = key
    return _frozen(TILES[kind](*arguments))


def _icon(app: str, place: str) -> Image.Image:
    left, top = 32 * (int(place) % 3), 16 + 48 * (int(place) // 3)
    colour = APPS[app].colour
    ground = _wallpaper().crop((left, top, left + 32, top + 48)).resize((32 * FINE, 48 * FINE))
    pen = ImageDraw.Draw(ground)
    s = FINE
    pen.rounded_rectangle((3 * s, 4 * s, 29 * s, 30 * s), 7 * s, fill=_shade(colour, 0.7))
    pen.rounded_rectangle((3 * s, 3 * s, 29 * s, 29 * s), 7 * s, fill=colour)
    GLYPHS[app](Pen(pen, 7 * s, 7 * s, 18 / 24 * s, WHITE, colour))
    image = ground.resize((32, 48), Image.Resampling.BOX)
    _write(image, (16, 34), APPS[app].label, WHITE, 7, centred=True)
    return image


def _switch(name: str, state: str) -> Image.Image:
    switch, on, s = SWITCHES[name], state == "on", FINE

    def draw(pen: ImageDraw.ImageDraw) -> None:
        pen.ellipse((4 * s, 5 * s, 26 * s, 27 * s), fill=switch.colour)
        GLYPHS[switch.slug](Pen(pen, 8 * s, 9 * s, 14 / 24 * s, WHITE, switch.colour))
        track: Colour = (26, 115, 232) if on else (189, 193, 198)
        pen.rounded_rectangle((70 * s, 10 * s, 92 * s, 22 * s), 6 * s, fill=track)
        knob = 81 if on else 71
        pen.ellipse((knob * s, 11 * s, (knob + 10) * s, 21 * s), fill=WHITE)
        pen.line((30 * s, 31.5 * s, WIDTH * s, 31.5 * s), fill=(224, 226, 230), width=s)

    image = _drawn(WIDTH, 32, SHEET, draw)
    words = switch.label.split(" ")
    for index, word in enumerate(words):
        _write(image, (29, (11 if len(words) == 1 else 5) + 10 * index), word, INK, 8)
    return image


def _field(text: str, focused: str) -> Image.Image:
    s = FINE

    def draw(pen: ImageDraw.ImageDraw) -> None:
        border: Colour = (26, 115, 232) if focused else (200, 204, 209)
        pen.rounded_rectangle((3 * s, 4 * s, 63 * s, 28 * s), 11 * s, fill=border)
        thick = (2 if focused else 1) * s
        pen.rounded_rectangle((3 * s + thick, 4 * s + thick, 63 * s - thick, 28 * s - thick), 10 * s, fill=WHITE)

    image = _drawn(64, 32, SHEET, draw)
    shown = _fitting(text, 8, 51)
    right = 7 + _write(image, (7, 11), shown or ("" if focused else "Search"), INK if text else FAINT, 8)
    if focused:
        ImageDraw.Draw(image).line((right + 1, 10, right + 1, 21), fill=(26, 115, 232))
    return image


def _button(app: str) -> Image.Image:
    s, colour = FINE, APPS[app].colour

    def draw(pen: ImageDraw.ImageDraw) -> None:
        pen.ellipse((4 * s, 4 * s, 28 * s, 28 * s), fill=colour)
        GLYPHS["search"](Pen(pen, 9 * s, 9 * s, 14 / 24 * s, WHITE, colour))

    return _drawn(32, 32, SHEET, draw)


def _keyboard() -> Image.Image:
    s = FINE
    rows = ("qwertyuiop", "asdfghjkl", "zxcvbnm")

    def draw(pen: ImageDraw.ImageDraw) -> None:
        for row, letters in enumerate(rows):
            indent = (WIDTH - 9.4 * len(letters)) / 2
            for index in range(len(letters)):
                left, top = indent + 9.4 * index, 2 + 15.5 * row
                pen.rounded_rectangle(((left + 0.7) * s, top * s, (left + 8.7) * s, (top + 13) * s), 2 * s, fill=WHITE)
        pen.rounded_rectangle((22 * s, 49 * s, 62 * s, 62 * s), 2 * s, fill=WHITE)
        pen.rounded_rectangle((66 * s, 49 * s, 94 * s, 62 * s), 6 * s, fill=(26, 115, 232))
        enter = Pen(pen, 73 * s, 48.5 * s, 14 / 24 * s, WHITE, INK)
        enter.line(20, 6, 20, 13, 5, 13)
        enter.line(9.5, 8.5, 5, 13, 9.5, 17.5)

    image = _drawn(WIDTH, 64, (218, 221, 226), draw)
    for row, letters in enumerate(rows):
        indent = (WIDTH - 9.4 * len(letters)) / 2
        for index, letter in enumerate(letters):
            _write(image, (round(indent + 9.4 * index + 4.7), round(3 + 15.5 * row)), letter, INK, 8, centred=True)
    return image


def _query(app: str, text: str) -> Image.Image:
    image = Image.new("RGB", (WIDTH, 32), SHEET)
    _write(image, (6, 3), "Results for", FAINT, 8)
    _write(image, (6, 14), _fitting(text, 10, 84), _shade(APPS[app].colour, 0.8), 10)
    return image


TILES: dict[str, Callable[..., Image.Image]] = {
    "icon": _icon,
    "switch": _switch,
    "field": _field,
    "button": _button,
    "keyboard": _keyboard,
    "query": _query,
}


@lru_cache(maxsize=1)
def _wallpaper() -> Image.Image:
    top, bottom = np.array((38, 52, 110.0)), np.array((150, 84, 140.0))
    share = np.linspace(0, 1, HEIGHT)[:, None, None]
    image = Image.fromarray(np.broadcast_to(top + (bottom - top) * share, (HEIGHT, WIDTH, 3)).astype(np.uint8))
    fine = image.resize((WIDTH * FINE, HEIGHT * FINE))
    _status(ImageDraw.Draw(fine))
    image = fine.resize((WIDTH, HEIGHT), Image.Resampling.BOX)
    _write(image, (5, 2), "9:41", WHITE, 10)
    return image


def _status(pen: ImageDraw.ImageDraw) -> None:
    """Signal bars and a battery, in the right corner of the status bar."""
    s = FINE
    for bar in range(4):
        pen.rectangle(((60 + 3 * bar) * s, (10 - 2 * bar) * s, (62 + 3 * bar) * s - 1, 12 * s), fill=WHITE)
    pen.rounded_rectangle((76 * s, 4 * s, 90 * s, 12 * s), 2 * s, outline=WHITE, width=s)
    pen.rectangle((78 * s, 6 * s, 86 * s, 10 * s - 1), fill=WHITE)
    pen.rectangle((90 * s, 6.5 * s, 92 * s - 1, 9.5 * s), fill=WHITE)


def _navigation(image: Image.Image, ink: Colour) -> Image.Image:
    """The navigation bar: back, home, recent apps."""
    s = FINE
    bar = image.crop((0, 176, WIDTH, HEIGHT)).resize((WIDTH * s, 16 * s))
    pen = ImageDraw.Draw(bar)
    pen.polygon([(12 * s, 8 * s), (20 * s, 3.5 * s), (20 * s, 12.5 * s)], fill=ink)
    pen.ellipse((43.5 * s, 3.5 * s, 52.5 * s, 12.5 * s), outline=ink, width=round(1.6 * s))
    pen.rounded_rectangle((76 * s, 4 * s, 84 * s, 12 * s), s, outline=ink, width=round(1.4 * s))
    image.paste(bar.resize((WIDTH, 16), Image.Resampling.BOX), (0, 176))
    return image


def _drawn(width: int, height: int, ground: Colour, draw: Callable[[ImageDraw.ImageDraw], None]) -> Image.Image:
    fine = Image.new("RGB", (width * FINE, height * FINE), ground)
    draw(ImageDraw.Draw(fine))
    return fine.resize((width, height), Image.Resampling.BOX)


@lru_cache(maxsize=8)
def _font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(size)


def _write(image: Image.Image, at: tuple[int, int], text: str, ink: Colour, size: int, *, centred: bool = False) -> int:
    """Write ``text`` with its top left corner (or the middle of its top) at ``at``; returns its width in pixels."""
    width = round(_font(size).getlength(text))
    left = round(at[0] - width / 2) if centred else at[0]
    ImageDraw.Draw(image).text((left, at[1]), text, fill=ink, font=_font(size))
    return width


def _fitting(text: str, size: int, width: int) -> str:
    """The end of ``text`` that fits into ``width`` pixels: where the cursor is."""
    while text and _font(size).getlength(text) > width:
        text = text[1:]
    return text


def _shade(colour: Colour, factor: float) -> Colour:
    red, green, blue = (round(part * factor) for part in colour)
    return red, green, blue


def _frozen(image: Image.Image) -> Pixels:
    pixels = np.asarray(image.convert("RGB"), dtype=np.uint8).copy()
    pixels.flags.writeable = False
    return pixels
