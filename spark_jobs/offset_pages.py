"""Reading and writing the pages of an offset map."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence

from sink.object_store import ObjectStore
from sink.object_store.base import put_new
from spark_jobs.offset_map import LARGEST_PAGE, Row, decode_page, encode_page, page_key


def write(
    store: ObjectStore,
    rows: Sequence[Row],
    previous: str | None,
    *,
    pair: str,
    restore: str,
    topic_id: str,
    task: int,
) -> str:
    """Put at least one row in pages after `previous`; return the key of the last one. Raises the store's errors."""
    for at in range(0, len(rows), LARGEST_PAGE):
        key = page_key(pair, restore, topic_id=topic_id, task=task, nonce=secrets.token_hex(8))
        put_new(store, key, encode_page(rows[at : at + LARGEST_PAGE], previous))
        previous = key
    assert previous is not None
    return previous


def read(store: ObjectStore, last: str | None) -> Iterator[Row]:
    """Yield a task's rows, the newest page first. Raises the store's errors, DamagedError."""
    while last is not None:
        rows, last = decode_page(store.get(last), last)
        yield from rows
