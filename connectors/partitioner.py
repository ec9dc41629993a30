"""Which partition a key belongs to, as Kafka's default partitioner decides it.

Called by both logs, so that a run recorded on one log and copied to the other keeps its keys where they were.
Source: ``org.apache.kafka.common.utils.Utils.murmur2`` of Apache Kafka (32-bit MurmurHash2, seed 0x9747b28c).
"""

from __future__ import annotations

import struct
from functools import lru_cache

SEED = 0x9747B28C
MULTIPLIER = 0x5BD1E995
MASK = 0xFFFFFFFF


def murmur2(data: bytes) -> int:
    """The hash of ``data``, 0 to 2**32 - 1."""
    length = len(data)
    words = length // 4
    value = SEED ^ length
    for word in struct.unpack_from(f"<{words}I", data):
        word = word * MULTIPLIER & MASK
        word = (word ^ word >> 24) * MULTIPLIER & MASK
        value = value * MULTIPLIER & MASK ^ word
    tail = data[4 * words :]
    if tail:
        value = (value ^ int.from_bytes(tail, "little")) * MULTIPLIER & MASK
    value = (value ^ value >> 13) * MULTIPLIER & MASK
    return value ^ value >> 15


@lru_cache(maxsize=4096)
def partition_of(key: bytes, partitions: int) -> int:
    """The partition of ``key`` in a topic of ``partitions`` partitions, 0 to ``partitions - 1``."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions
