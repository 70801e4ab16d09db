"""Yield the records of slices from the newest to the oldest: the proof that two generations may be joined."""

from __future__ import annotations

from collections.abc import Iterator

from tandem.backup_avro.selection.one_history import Records
from tandem.backup_avro.selection.restorable_state import Slice
from tandem.sink.store import ObjectStore
from tandem.spark_jobs.reading.object_reader import ObjectReader


def newest_first(store: ObjectStore) -> Records:
    """Return a function that reads slices from a store.

    It raises DamagedError that names the object, and errors of the store.
    """
    reader = ObjectReader(store, apart=True)

    def records(piece: Slice) -> Iterator[tuple[int, bytes]]:
        for body in reader.bodies(piece, newest_first=True):
            for span in reversed(list(body.spans())):
                yield span[2], body.body[span[1] : span[-1]]

    return records
