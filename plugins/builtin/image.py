"""Screenshots as arrays. Policies call it; needs numpy, and Pillow for what is compressed."""

from __future__ import annotations

import io

import numpy as np
import numpy.typing as npt
from PIL import Image, UnidentifiedImageError

from distrl.core.contracts.observation import Screenshot
from distrl.core.errors import PolicyError

RAW = "image/x-rgb"


def rgb(screenshot: Screenshot) -> npt.NDArray[np.uint8]:
    """The pixels, uint8 [height, width, 3]; of a raw screenshot a read-only view. Raises ``PolicyError`` for bytes that are no image
    or have another size than stated."""
    expected = (screenshot.height, screenshot.width, 3)
    if screenshot.media_type == RAW:
        if len(screenshot.data) != expected[0] * expected[1] * 3:
            raise PolicyError(f"a raw screenshot of {expected[1]} x {expected[0]} has {len(screenshot.data)} bytes")
        return np.frombuffer(screenshot.data, dtype=np.uint8).reshape(expected)
    try:
        with Image.open(io.BytesIO(screenshot.data)) as image:
            if image.size != (
                screenshot.width,
                screenshot.height,
            ):  # before it is unpacked: a small file can hold a huge image
                raise PolicyError(
                    f"a screenshot of {image.width} x {image.height} pixels says {screenshot.width} x {screenshot.height}"
                )
            return np.asarray(image.convert("RGB"))
    except (UnidentifiedImageError, Image.DecompressionBombError, OSError, ValueError, SyntaxError) as error:
        raise PolicyError(f"a screenshot of type {screenshot.media_type} cannot be decoded: {error}") from error
