"""The hash that a restore is verified by."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from tandem.sink.transcode.content_hash import START, advance

_BYTES = st.none() | st.binary(max_size=6)
_HEADERS = st.lists(st.tuples(st.text(max_size=3), _BYTES), max_size=3)
_RECORD = st.tuples(st.integers(-1, 3), _BYTES, _BYTES, _HEADERS)


def _of(records: list[tuple[int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]]) -> bytes:
    state = START
    for record in records:
        state = advance(state, *record)
    return state


@given(st.lists(_RECORD, max_size=4), st.lists(_RECORD, max_size=4))
def test_equal_hashes_mean_equal_records(
    one: list[tuple[int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]],
    other: list[tuple[int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]],
) -> None:
    """Two lists of records have the same hash if and only if they are the same, in the same order."""
    assert (_of(one) == _of(other)) == (one == other)


def test_every_difference_counts() -> None:
    """Null and empty, borders between fields, order and repeats of headers, and times all tell."""
    variants = [
        advance(START, 0, b"k", b"v", []),
        advance(START, 1, b"k", b"v", []),
        advance(START, -1, b"k", b"v", []),
        advance(START, 0, None, b"v", []),
        advance(START, 0, b"", b"v", []),
        advance(START, 0, b"kv", b"", []),
        advance(START, 0, b"kv", None, []),
        advance(START, 0, b"", b"kv", []),
        advance(START, 0, b"k", b"v", [("a", b"1")]),
        advance(START, 0, b"k", b"v", [("a", None)]),
        advance(START, 0, b"k", b"v", [("a", b"")]),
        advance(START, 0, b"k", b"v", [("a", b"1"), ("a", b"1")]),
        advance(START, 0, b"k", b"v", [("a", b"1"), ("b", b"2")]),
        advance(START, 0, b"k", b"v", [("b", b"2"), ("a", b"1")]),
        advance(START, 0, b"k", b"v", [("a1", b"")]),
        advance(START, 0, b"k", b"v", [("\udcff", b"")]),
    ]
    assert all(one != other for one, other in itertools.combinations(variants, 2))


def test_no_headers_are_no_headers() -> None:
    """A client that gives None for no headers counts as one that gives an empty list."""
    assert advance(START, 0, b"k", b"v", None) == advance(START, 0, b"k", b"v", [])


def test_the_hash_never_changes() -> None:
    """Progress of an older release is resumed by a newer one: the hash of a record is fixed for good."""
    state = advance(START, 1_600_000_000_000, b"k", None, [("h", b"1"), ("h", None)])
    assert state.hex() == "de4ad076e40591f3c44d85f7e238dc35f36f2fa7db92286d44eb1b6f8037bf9e"
