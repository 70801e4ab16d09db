"""Rows that stand for keys: packed, dealt into buckets, and grouped by hash."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from tandem.spark_jobs.compaction.keyed_rows import KeyedHash, RowBuffer, bucket_of, in_company, unpack

SECRET = bytes(range(32))
KEYS = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 12)), max_size=60)


@given(KEYS, st.sampled_from([1, 8, 128]), st.integers(1, 7))
def test_rows_of_equal_hashes_are_found_in_one_bucket(keys: list[tuple[int, int]], bits: int, buckets: int) -> None:
    """A row is in company exactly if another one has its place and hash."""
    digest = KeyedHash(secret=SECRET, bits=bits)
    packed: dict[int, list[bytes]] = {}
    for place in range(3):
        rows = RowBuffer(place)
        for at, (number, key) in enumerate(keys):
            if number == place:
                rows.add(digest(b"%d" % key), at, key)
        for bucket, blob in rows.drain(buckets):
            packed.setdefault(bucket, []).append(blob)
        assert len(rows) == 0
    count = Counter((place, digest(b"%d" % key)) for place, key in keys)
    found = {}
    for bucket, blobs in packed.items():
        rows = unpack(blobs)
        for row, company in zip(rows, in_company(rows).tolist(), strict=True):
            assert bucket_of(digest(b"%d" % row["flags"]), buckets) == bucket
            found[int(row["at"])] = company
    assert found == {at: count[place, digest(b"%d" % key)] > 1 for at, (place, key) in enumerate(keys)}


def test_a_hash_depends_on_the_secret_of_the_run() -> None:
    """So keys that collide can't be prepared."""
    assert KeyedHash(secret=SECRET)(b"key") != KeyedHash(secret=bytes(32))(b"key")
    assert len({KeyedHash(secret=SECRET, bits=8)(b"%d" % number) for number in range(5000)}) == 256
