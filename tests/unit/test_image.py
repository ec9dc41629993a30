"""Screenshots as arrays: raw ones as they are, files unpacked, and nothing else."""

from __future__ import annotations

import io
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from distrl.core.contracts.observation import Screenshot
from distrl.core.errors import PolicyError
from distrl.plugins.builtin.image import rgb

PIXELS = np.arange(4 * 5 * 3, dtype=np.uint8).reshape(4, 5, 3)
RAW = Screenshot(5, 4, PIXELS.tobytes(), "image/x-rgb")


def packed(image: Image.Image, kind: str = "PNG") -> Screenshot:
    buffer = io.BytesIO()
    image.save(buffer, kind)
    return Screenshot(image.width, image.height, buffer.getvalue(), f"image/{kind.lower()}")


def test_raw_rows_are_a_view() -> None:
    pixels = rgb(RAW)
    assert np.array_equal(pixels, PIXELS)
    assert pixels.dtype == np.uint8
    assert not pixels.flags.owndata


def test_a_file_is_unpacked() -> None:
    assert np.array_equal(rgb(packed(Image.fromarray(PIXELS))), PIXELS)


@pytest.mark.parametrize("mode", ["L", "RGBA", "P", "1"])
def test_every_kind_of_file_becomes_rgb(mode: str) -> None:
    image = Image.fromarray(PIXELS).convert(mode)
    assert np.array_equal(rgb(packed(image)), np.asarray(image.convert("RGB")))


@pytest.mark.parametrize(
    "shot",
    [
        replace(RAW, data=RAW.data[:-1]),
        replace(RAW, width=4),
        Screenshot(5, 4, b"not an image"),
        Screenshot(5, 4, b""),
        replace(packed(Image.fromarray(PIXELS)), width=4, height=5),
        replace(packed(Image.fromarray(PIXELS)), data=packed(Image.fromarray(PIXELS)).data[:40]),
    ],
)
def test_what_is_not_as_it_says_is_refused(shot: Screenshot) -> None:
    with pytest.raises(PolicyError):
        rgb(shot)


def test_a_small_file_of_a_huge_image_is_not_unpacked() -> None:
    bomb = packed(Image.new("1", (9000, 9000)))
    assert len(bomb.data) < 20_000
    with pytest.raises(PolicyError, match="9000 x 9000"):
        rgb(replace(bomb, width=5, height=4))
