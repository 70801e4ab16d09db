"""The partitioners of producers, from key to partition: the Java client's murmur2, librdkafka's CRC32. Pure.

Java: `org.apache.kafka.clients.producer.internals.BuiltInPartitioner.partitionForKey`, murmur2 with its sign bit taken
off. librdkafka: `partitioner=consistent` (its `consistent_random` for records that have a key), CRC-32 unsigned.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from enum import StrEnum
from functools import lru_cache
from typing import Final

_SEED: Final = 0x9747B28C
_MIX: Final = 0x5BD1E995
_MASK: Final = 0xFFFFFFFF
_POSITIVE: Final = 0x7FFFFFFF
_WORD: Final = 4


class Partitioner(StrEnum):
    """How producers choose a partition by a record's key."""

    MURMUR2 = "murmur2"
    CRC32 = "crc32"


def murmur2(data: bytes) -> int:
    """Return Kafka's 32-bit murmur2 (seed 0x9747b28c), unsigned."""
    length = len(data)
    h = _SEED ^ length
    whole = length & ~(_WORD - 1)
    for at in range(0, whole, _WORD):
        k = int.from_bytes(data[at : at + _WORD], "little") * _MIX & _MASK
        k = (k ^ k >> 24) * _MIX & _MASK
        h = h * _MIX & _MASK ^ k
    if whole < length:
        h = (h ^ int.from_bytes(data[whole:], "little")) * _MIX & _MASK
    h = (h ^ h >> 13) * _MIX & _MASK
    return h ^ h >> 15


# Keys of compacted topics occur many times.
@lru_cache(maxsize=100_000)
def _murmur2(key: bytes) -> int:
    return murmur2(key) & _POSITIVE


def chooser(partitioner: Partitioner, partitions: int) -> Callable[[bytes], int]:
    """Return the function from a key to its partition, among `partitions` partitions."""
    if partitioner is Partitioner.MURMUR2:
        return lambda key: _murmur2(key) % partitions
    return lambda key: zlib.crc32(key) % partitions
