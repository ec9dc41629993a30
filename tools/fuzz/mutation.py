"""Inputs that are nearly right: seeds changed as transport, storage and malice change bytes. Used by ``worker``; deterministic."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

MOST_BYTES = 65_536
"""Of one input."""
INTERESTING = (0, 1, 0x7F, 0x80, 0xFE, 0xFF)
TOKENS = (
    b"{", b"}", b"[", b"]", b'"', b"\\", b"\\u0000", b"\\ud800", b"null", b"true", b"-1", b"1e999", b"NaN", b"Infinity", b"=", b"\n",
    b"<", b">", b"</", b"&", b"&#0;", b"<!DOCTYPE a [<!ENTITY b 'c'>]>", b"..", b"/", b"\x00", b"\xff\xfe", b"\xf0\x9f\x92\xa9", b"\xed\xa0\x80",
)  # fmt: skip
"""What text formats stumble over."""


def varint(number: int) -> bytes:
    """Avro's zig-zag encoding of a long."""
    number = ((number << 1) ^ (number >> 63)) & (2**64 - 1)
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


LENGTHS = (
    *(varint(number) for number in (2**62, 2**40, 2**31, 2**16, 255, 64, 1, 0, -1, -64, -(2**31), -(2**62), -(2**63))),
    b"\xff" * 12,
    b"\xff" * 9 + b"\x01",
    *(number.to_bytes(4) for number in (2**32 - 1, 2**31 - 1, 2**31, 2**16, 0)),
    *(number.to_bytes(8, "little") for number in (2**64 - 1, 2**63 - 1, 2**40, 2**31, 0)),
)
"""Claims of size, as Avro, the embedded log's headers and safetensors write them."""


def mutated(seeds: Sequence[bytes], source: random.Random) -> bytes:
    """One input: a seed changed one to six times; one in 50 is random from its first byte."""
    if source.random() < 0.02:
        return source.randbytes(source.randrange(400))
    data = bytearray(source.choice(seeds))
    for _ in range(source.choice((1, 1, 1, 2, 3, 6))):
        source.choice(MUTATORS)(data, seeds, source)
    return bytes(data[:MOST_BYTES])


def _place(data: bytearray, source: random.Random) -> int:
    return source.randrange(len(data) + 1)


def _flip(data: bytearray, _: Sequence[bytes], source: random.Random) -> None:
    if data:
        data[source.randrange(len(data))] ^= 1 << source.randrange(8)


def _set(data: bytearray, _: Sequence[bytes], source: random.Random) -> None:
    if data:
        data[source.randrange(len(data))] = source.choice((*INTERESTING, source.randrange(256)))


def _truncate(data: bytearray, _: Sequence[bytes], source: random.Random) -> None:
    del data[_place(data, source) :]


def _cut(data: bytearray, _: Sequence[bytes], source: random.Random) -> None:
    place = _place(data, source)
    del data[place : place + source.choice((1, 2, 4, 8, 64))]


def _insert(data: bytearray, _: Sequence[bytes], source: random.Random) -> None:
    place = _place(data, source)
    data[place:place] = source.randbytes(source.choice((1, 2, 4, 8, 64)))


def _repeat(data: bytearray, _: Sequence[bytes], source: random.Random) -> None:
    """A piece, up to thousands of times: nesting and long lists."""
    place = _place(data, source)
    piece = data[place : place + source.choice((1, 2, 4, 16, 64))]
    data[place:place] = piece * source.choice((1, 1, 2, 10, 100, 3000))


def _token(data: bytearray, _: Sequence[bytes], source: random.Random) -> None:
    place = _place(data, source)
    data[place:place] = source.choice(TOKENS) * source.choice((1, 1, 1, 1, 3000))


def _digits(data: bytearray, _: Sequence[bytes], source: random.Random) -> None:
    """A number of many digits."""
    place = _place(data, source)
    data[place:place] = source.choice((b"9", b"0", b"1")) * source.choice((3, 20, 400, 5000))


def _length(data: bytearray, _: Sequence[bytes], source: random.Random) -> None:
    """A claim of size in the place of what is there."""
    place = _place(data, source)
    data[place : place + source.randrange(9)] = source.choice(LENGTHS)


def _splice(data: bytearray, seeds: Sequence[bytes], source: random.Random) -> None:
    """The start of this one and the end of another."""
    other = source.choice(seeds)
    data[_place(data, source) :] = other[source.randrange(len(other) + 1) :]


def _header(data: bytearray, seeds: Sequence[bytes], source: random.Random) -> None:
    """Another frame: the first five bytes of another seed, or an id that nobody knows."""
    other = source.choice(seeds)[:5] if source.random() < 0.7 else b"\x00" + source.randbytes(4)
    data[:5] = other


MUTATORS: tuple[Callable[[bytearray, Sequence[bytes], random.Random], None], ...] = (
    _flip, _flip, _set, _set, _truncate, _cut, _insert, _repeat, _token, _digits, _length, _length, _splice, _header,
)  # fmt: skip
