"""Rows that stand for keys: packed, dealt into buckets, and grouped by hash."""

from __future__ import annotations

from hashlib import blake2b

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tandem.spark_jobs.compaction.keyed_rows import KeyedHash, deal, in_company, rows_of, unpack

SECRET = bytes(range(32))
KEYS = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 12)), max_size=60)


def hashes(keys: list[bytes], bits: int = 128, secret: bytes = SECRET) -> list[tuple[int, int]]:
    """The hashes of keys."""
    return [(low, high) for low, high in KeyedHash(secret=secret, bits=bits).of(keys).tolist()]


@given(KEYS, st.sampled_from([1, 8, 70, 128]), st.integers(1, 7))
def test_rows_of_equal_hashes_are_found_in_one_bucket(keys: list[tuple[int, int]], bits: int, buckets: int) -> None:
    """A row is in company exactly if another one has its place and hash."""
    digest = KeyedHash(secret=SECRET, bits=bits)
    packed: dict[int, list[bytes]] = {}
    for place in range(3):
        mine = [(at, key) for at, (number, key) in enumerate(keys) if number == place]
        at = np.array([at for at, _ in mine], dtype=np.uint64)
        rows = rows_of(place, digest.of([b"%d" % key for _, key in mine]), at, np.zeros(len(mine), np.uint32))
        for bucket, chosen in deal(rows["low"][:, None], buckets):
            packed.setdefault(bucket, []).append(rows[chosen].tobytes())
    names = [(place, *hashes([b"%d" % key], bits)[0]) for place, key in keys]
    found = {}
    for bucket, blobs in packed.items():
        rows = unpack(blobs)
        for row, company in zip(rows, in_company(rows).tolist(), strict=True):
            assert int(row["low"]) % buckets == bucket
            found[int(row["at"])] = company
    assert found == {at: names.count(name) > 1 for at, name in enumerate(names)}


def test_a_hash_depends_on_the_secret_of_the_run() -> None:
    """So keys that collide can't be prepared."""
    assert hashes([b"key"]) != hashes([b"key"], secret=bytes(32))
    whole = blake2b(b"key", digest_size=16, key=SECRET).digest()
    assert hashes([b"key"]) == [(int.from_bytes(whole[:8], "little"), int.from_bytes(whole[8:], "little"))]
    assert len(set(hashes([b"%d" % number for number in range(5000)], 8))) == 256
