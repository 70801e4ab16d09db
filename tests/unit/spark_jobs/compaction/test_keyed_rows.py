"""Rows that stand for keys: packed, dealt into buckets by hash, and compared key by key."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tandem.spark_jobs.compaction.keyed_rows import ROW, KeyedHash, KeyedRows, joined, unpacked

SECRET = bytes(range(16))
KEYS = st.lists(st.binary(max_size=2) | st.sampled_from([b"a", b"a key that is longer", b""]), max_size=60)


def rows_of(keys: list[bytes]) -> KeyedRows:
    """Each key is where its number in the list says."""
    rows = np.zeros(len(keys), ROW)
    rows["at"], rows["length"] = np.arange(len(keys)), [len(key) for key in keys]
    return KeyedRows(rows, b"".join(keys))


def keys_of(found: KeyedRows) -> list[tuple[int, bytes]]:
    """Where each key is, and the key."""
    ends = np.cumsum(found.rows["length"]).tolist()
    begins = [0, *ends][:-1]
    keys = [found.keys[begin:end] for begin, end in zip(begins, ends, strict=True)]
    return list(zip(found.rows["at"].tolist(), keys, strict=True))


@given(KEYS, st.sampled_from([1, 8, 64]), st.integers(1, 7))
def test_equal_keys_meet_in_one_bucket_and_others_are_told_apart(keys: list[bytes], bits: int, buckets: int) -> None:
    """Whatever hashes collide, the newest row of each key is found, and no row or key is lost."""
    digest = KeyedHash(secret=SECRET, bits=bits)
    received: dict[int, list[tuple[bytes, bytes]]] = {}
    middle = len(keys) // 2
    whole = rows_of(keys)
    for half in (whole.picked(np.arange(middle)), whole.picked(np.arange(middle, len(keys)))):
        for bucket, dealt in digest.deal(half, buckets):
            received.setdefault(bucket, []).append(dealt.packed())
    newest, seen = {}, []
    for messages in received.values():
        found = unpacked(messages)
        seen += keys_of(found)
        at = found.rows["at"].tolist()
        rows = digest.newest(found, np.arange(len(found.rows))).tolist()
        newest.update(zip(at, [at[row] for row in rows], strict=True))
    last = {key: number for number, key in enumerate(keys)}
    assert sorted(seen) == list(enumerate(keys))
    assert newest == {number: last[key] for number, key in enumerate(keys)}


def test_a_bucket_depends_on_the_secret_of_the_run() -> None:
    """So keys that fall into one bucket can't be prepared; and the secret is in no text."""
    whole = rows_of([b"%d" % number for number in range(500)])
    one, other = KeyedHash(), KeyedHash()
    sizes = [[dealt.keys for _, dealt in digest.deal(whole, 4)] for digest in (one, other)]
    assert sizes[0] != sizes[1]
    assert "secret" not in repr(one)


def test_nothing_is_joined_to_nothing() -> None:
    """A bucket may get no message."""
    assert joined([]).packed() == (b"", b"")
    assert list(KeyedHash().deal(joined([]), 3)) == []
