"""Reading and writing the pages of an offset map."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator

from sink.object_store import ObjectStore
from sink.object_store.base import put_new
from spark_jobs.offset_map import Row, decode_page, encode_page, page_key


def write(
    store: ObjectStore,
    rows: Iterable[Row],
    previous: str | None,
    *,
    pair: str,
    restore: str,
    topic_id: str,
    task: int,
) -> str:
    """Put a page after `previous` and return its key. Raises the store's errors."""
    key = page_key(pair, restore, topic_id=topic_id, task=task, nonce=secrets.token_hex(8))
    put_new(store, key, encode_page(rows, previous))
    return key


def read(store: ObjectStore, last: str | None) -> Iterator[Row]:
    """Yield a task's rows, the newest page first. Raises the store's errors, DamagedError."""
    while last is not None:
        rows, last = decode_page(store.get(last), last)
        yield from rows
