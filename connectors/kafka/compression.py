"""Which batches are compressed, and how (``bus.compression``). Used by ``backdoor`` when a batch is closed.

``auto`` looks at a sample of a batch, which says whether compressing makes it clearly smaller. What is compressed already (PNG,
JPEG, safetensors) is sent as it is, and where nothing else comes, few batches are looked at. Readers see one log, whichever way
a batch was written.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable
from importlib.util import find_spec
from typing import Literal

from distrl.core.errors import MissingPackageError

Name = Literal["auto", "none", "gzip", "lz4", "zstd"]
Pack = Callable[[memoryview], bytes]

NUMBERS = {"none": 0, "gzip": 1, "lz4": 3, "zstd": 4}
"""The codec's number in a batch's attributes (Kafka's record batch format, version 2)."""
AUTO = "zstd"
"""What ``auto`` compresses with. Its package is always installed, so that every reader can read it."""
LEAST_BYTES = 256
"""A batch that is smaller than this is not worth the time."""
SAMPLE_BYTES = 16_384
"""Of a larger batch so much is tried, in ``SLICES`` pieces spread over it."""
SLICES = 8
BEGIN, STOP = 0.8, 0.9
"""A topic's batches begin to be compressed at this ratio of sizes, and stop above that one: what lies between does not
change its mind with every batch."""
LOOKS, LOOK_EVERY = 4, 8
"""After so many of a topic's batches in a row that were not worth it, one in so many is looked at: each look lets another
thread have the processor, which a stream of screenshots would feel."""


class Compression:
    """The choice for one client's batches. Not safe for use by several threads: a client closes batches in one thread."""

    def __init__(self, name: Name) -> None:
        """Raises ``MissingPackageError`` if the codec's package is not installed."""
        require(name)
        self._auto = name == "auto"
        chosen = AUTO if self._auto else name
        self._number = NUMBERS[chosen]
        self._pack = None if chosen == "none" else _packer(chosen)
        self._left_alone: dict[str, int] = {}
        """By topic, the batches in a row that were not worth it."""

    def pack(self, topic: str, body: memoryview) -> tuple[int, bytes] | None:
        """The codec's number and the compressed records of a batch, or ``None`` to send them as they are."""
        pack = self._pack
        if pack is None:
            return None
        if not self._auto:
            packed = pack(body)
            return (self._number, packed) if len(packed) < len(body) else None
        if len(body) < LEAST_BYTES:
            return None
        left_alone = self._left_alone.get(topic, 1)
        if left_alone > LOOKS and left_alone % LOOK_EVERY:
            self._left_alone[topic] = left_alone + 1
            return None
        limit = BEGIN if left_alone else STOP
        sample = body if len(body) <= SAMPLE_BYTES else _sample(body)
        packed = pack(sample)
        if len(packed) > limit * len(sample):
            self._left_alone[topic] = left_alone + 1
            return None
        self._left_alone[topic] = 0
        if sample is not body:
            packed = pack(body)
        return (self._number, packed) if len(packed) < len(body) else None


def require(name: Name) -> None:
    """Raise ``MissingPackageError`` if this codec's package is not installed."""
    package = {"auto": "zstandard", "zstd": "zstandard", "lz4": "lz4"}.get(name)
    if package is not None and find_spec(package) is None:
        raise MissingPackageError(
            f"bus.compression = {name!r} needs the package {package}: pip install "
            + ("distrl[lz4]" if package == "lz4" else package)
        )


def _sample(body: memoryview) -> memoryview:
    size = SAMPLE_BYTES // SLICES
    step = (len(body) - size) // (SLICES - 1)
    return memoryview(b"".join(body[step * index : step * index + size] for index in range(SLICES)))


def _packer(name: str) -> Pack:
    if name == "gzip":
        return lambda body: gzip.compress(body, 6, mtime=0)
    if name == "lz4":
        import lz4.frame

        # Kafka reads no blocks that lean on the one before.
        return lambda body: bytes(lz4.frame.compress(body, block_linked=False))
    import zstandard

    return zstandard.ZstdCompressor().compress
