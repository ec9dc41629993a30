"""Keys go to the partition that Kafka's default partitioner gives them."""

from __future__ import annotations

import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distrl.connectors.partitioner import murmur2, partition_of

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # of the standard library's, on import
    from kafka.partitioner.default import murmur2 as reference

# org.apache.kafka.common.utils.UtilsTest.testMurmur2, as unsigned numbers.
KNOWN = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


@pytest.mark.parametrize("key", KNOWN)
def test_known_hashes(key: bytes) -> None:
    assert murmur2(key) == KNOWN[key] % 2**32


@given(st.binary(max_size=70), st.integers(1, 100))
def test_agrees_with_kafka_python(key: bytes, partitions: int) -> None:
    assert murmur2(key) == reference(key)
    assert partition_of(key, partitions) == (reference(key) & 0x7FFFFFFF) % partitions
