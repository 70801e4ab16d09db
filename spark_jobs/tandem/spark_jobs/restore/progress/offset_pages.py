"""Reading and writing the pages of an offset map."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tandem.backup_avro.chain.document_limits import LISTS
from tandem.backup_avro.errors import DamagedError
from tandem.sink.store import ObjectStore
from tandem.sink.store.contract.object_store import put_new
from tandem.spark_jobs.restore.progress.offset_map import (
    LARGEST_PAGE,
    OffsetRow,
    decode_page,
    encode_page,
    is_page,
    page_key,
)

_REMEDY = "the bucket or the progress topic was changed by another writer: restore again"


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskMap:
    """Identifies the offset map of one task of a restore."""

    pair: str
    restore: str
    topic_id: str
    task: int


def write(store: ObjectStore, rows: Sequence[OffsetRow], previous: str | None, of: TaskMap) -> str:
    """Put at least one row in pages after `previous`; return the key of the last one. Raises the store's errors."""
    for at in range(0, len(rows), LARGEST_PAGE):
        key = page_key(of.pair, of.restore, topic_id=of.topic_id, task=of.task, nonce=secrets.token_hex(8))
        put_new(store, key, encode_page(rows[at : at + LARGEST_PAGE], previous))
        previous = key
    assert previous is not None
    return previous


def read(store: ObjectStore, last: str | None, *, pair: str, restore: str) -> Iterator[OffsetRow]:
    """Yield a task's rows, the newest page first.

    Raises the store's errors, and DamagedError: also for a named page that does not belong to this restore, and for a
    page that is named twice, before it is read.
    """
    seen: set[str] = set()
    while last is not None:
        if not is_page(last, pair, restore):
            raise DamagedError(
                f"{last[:200]!r} is named as a page of the offset map of restore {restore} of pair {pair}, and is none",
                code="TDM-R054",
                remedy=_REMEDY,
            )
        if last in seen:
            raise DamagedError(
                f"{last}: the pages of this offset map refer to each other in a circle", code="TDM-R055", remedy=_REMEDY
            )
        seen.add(last)
        rows, last = decode_page(store.get(last, most=LISTS), last)
        yield from rows
