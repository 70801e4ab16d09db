"""How a keyed pass is shared out."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from tandem.spark_jobs.compaction.keyed_rows import KeyedLimits
from tandem.spark_jobs.compaction.keyed_shares import Buckets, piece_ranges

LIMITS = KeyedLimits(range_bytes=100, range_records=10, bucket_keys=5, bucket_bytes=1000)


def piece(size: int, records: int) -> Any:
    """A part of an object."""
    return SimpleNamespace(part=SimpleNamespace(start=7, end=7 + size, records=records))


def test_ranges_are_bounded_and_leave_nothing_out() -> None:
    """By bytes and by records; a piece that is larger than that is a range of its own."""
    large = [piece(500, 1), piece(60, 1), piece(40, 1), piece(1, 9), piece(1, 1), piece(1, 50)]
    found = piece_ranges([large, [piece(1, 1)]], LIMITS)
    assert found == ((0, 0, 1), (0, 1, 3), (0, 3, 5), (0, 5, 6), (1, 0, 1))


def test_each_place_has_buckets_for_its_keys() -> None:
    """For as many records, and for keys as long as the records; no place is without one."""
    buckets = Buckets.of([[piece(10, 11)], [piece(1600, 1)], [piece(1, 1)]], LIMITS, parallelism=1)
    assert [len(buckets.of_place(place)) for place in range(3)] == [3, 3, 1]
    assert buckets.count == 7
    assert [buckets.place_of(bucket) for bucket in range(7)] == [0, 0, 0, 1, 1, 1, 2]
    assert Buckets.of([[piece(1, 1)], [piece(1, 1)]], LIMITS, parallelism=9).count == 8
