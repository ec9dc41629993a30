"""Which batches ``bus.compression`` compresses."""

from __future__ import annotations

import gzip
import json
import random

import pytest
import zstandard

from distrl.connectors.kafka import compression
from distrl.connectors.kafka.compression import Compression, require
from distrl.core.errors import MissingPackageError

NOISE = random.Random(7).randbytes(1_000_000)
TREE = json.dumps(
    [{"class": "android.widget.Button", "text": f"item {i}", "bounds": [i, i, 9, 9]} for i in range(9000)]
)
TREES = TREE.encode()


def test_auto_compresses_what_gets_clearly_smaller() -> None:
    auto = Compression("auto")
    packed = auto.pack("trajectories", memoryview(TREES))
    assert packed is not None
    number, body = packed
    assert number == compression.NUMBERS["zstd"]
    assert len(body) < len(TREES) / 4
    assert zstandard.ZstdDecompressor().decompress(body) == TREES


@pytest.mark.parametrize("size", [300, 10_000, 1_000_000])
def test_auto_leaves_what_does_not(size: int) -> None:
    assert Compression("auto").pack("screens", memoryview(NOISE[:size])) is None


def test_auto_decides_each_batch_by_itself() -> None:
    auto = Compression("auto")
    kinds = [TREES, NOISE, TREES[:5000], NOISE[:5000], TREES]
    assert [auto.pack("mixed", memoryview(kind)) is not None for kind in kinds] == [True, False, True, False, True]


def test_auto_sees_screens_among_trees() -> None:
    """A batch that begins with what is incompressible and is mostly trees is worth it."""
    packed = Compression("auto").pack("mixed", memoryview(NOISE[:40_000] + TREES))
    assert packed is not None
    assert len(packed[1]) < 40_000 + len(TREES) / 4


def test_auto_does_not_change_its_mind_over_what_lies_between() -> None:
    """The same batch, about 0.85 of its size when compressed: left alone by a topic that was, compressed by one that was."""
    between = memoryview(NOISE[:8_500] + bytes(1_500))
    auto = Compression("auto")
    assert auto.pack("topic", between) is None
    assert auto.pack("topic", memoryview(TREES)) is not None
    assert auto.pack("topic", between) is not None
    assert auto.pack("other", between) is None
    assert auto.pack("topic", memoryview(NOISE)) is None
    assert auto.pack("topic", between) is None


def test_auto_looks_less_often_where_nothing_was_worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    auto = Compression("auto")
    looks: list[int] = []
    pack = auto._pack
    assert pack is not None

    def counted(body: memoryview) -> bytes:
        looks.append(len(body))
        return pack(body)

    monkeypatch.setattr(auto, "_pack", counted)
    for _ in range(80):
        assert auto.pack("screens", memoryview(NOISE)) is None
    assert len(looks) < 20
    assert max(looks) <= compression.SAMPLE_BYTES
    worth = [auto.pack("screens", memoryview(TREES)) is not None for _ in range(compression.LOOK_EVERY + 1)]
    assert worth[-1]  # noticed within as many batches, and from then on all of them
    assert all(worth[worth.index(True) :])


def test_auto_leaves_small_batches() -> None:
    assert Compression("auto").pack("topic", memoryview(bytes(200))) is None


def test_none_compresses_nothing() -> None:
    assert Compression("none").pack("topic", memoryview(TREES)) is None


def test_a_named_codec_compresses_whatever_gets_smaller() -> None:
    codec = Compression("gzip")
    number, body = codec.pack("topic", memoryview(TREES)) or (0, b"")
    assert number == 1
    assert gzip.decompress(body) == TREES
    assert codec.pack("topic", memoryview(NOISE)) is None


def test_a_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compression, "find_spec", lambda _: None)
    with pytest.raises(MissingPackageError, match=r"distrl\[lz4\]"):
        require("lz4")
    with pytest.raises(MissingPackageError, match="zstandard"):
        require("auto")
    require("none")
    require("gzip")
