"""Writes records of keys that vanished into the live topic, and never over a newer record of the key.

A log has one order. A transaction's records are sent first; then all that other producers wrote before the last of them
is read, also what is not committed yet. If a key of the transaction is among that, the transaction is aborted and sent
again without the key; else it is committed, and whatever another producer writes of a key lies behind its record here.

A run that was interrupted is repeated: keys that are back have a newer record, and are left alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from tandem.sink.transcode.batch import Compression
from tandem.sink.transcode.implementation_choice import best_bodies
from tandem.spark_jobs.restore.load.batch_producer import BatchProducer, ProduceError
from tandem.spark_jobs.restore.vanished.find import LostKeys, LostRecord
from tandem.spark_jobs.restore.vanished.live_log import LivePartition

_TRANSACTION_BYTES: Final = 8 << 20
_TRANSACTION_RECORDS: Final = 10_000
_BATCH_BYTES: Final = 900_000
_BATCH_RECORDS: Final = 5_000
_ANSWER_S: Final = 60.0


class WriteBack:
    """Writes the keys of one partition back. `open_producer` returns a producer whose transactional id is open."""

    def __init__(self, lost: LostKeys, log: LivePartition, open_producer: Callable[[], BatchProducer]) -> None:
        self._lost = lost
        self._log = log
        self._open_producer = open_producer
        self._producer: BatchProducer | None = None
        self.written = 0

    def look(self) -> None:
        """Read the log up to its end: keys with a newer record are left as they are."""
        for offset, key in self._log.records():
            self._lost.drop(key, offset)

    def write(self, records: Iterable[LostRecord]) -> None:
        """Write those of `records` whose keys are still lost. Raises the errors of the producer and of the cluster."""
        try:
            for some in _portions(records):
                self._write_portion(some)
        finally:
            self._discard()

    def _write_portion(self, records: Sequence[LostRecord]) -> None:
        while True:
            self.look()
            wanted = [one for one in records if self._lost.offsets.get(one.key) == one.offset]
            if not wanted:
                return
            before = self._lost.left
            mine = self._send(wanted)
            for offset, key in self._log.records(max(mine) + 1):
                if offset not in mine:
                    self._lost.drop(key, offset)
            if self._lost.left == before:
                assert self._producer is not None
                self._producer.commit()
                self.written += len(wanted)
                for record in wanted:
                    del self._lost.offsets[record.key]
                return
            # The next producer of the id aborts the transaction: left open, it would hold back readers for minutes.
            self._discard()
            self._producer = self._open_producer()

    def _send(self, records: Sequence[LostRecord]) -> set[int]:
        """Send the records in a transaction that stays open; return their offsets."""
        if self._producer is None:
            self._producer = self._open_producer()
        topic, number = self._lost.partition.topic, self._lost.partition.key.partition
        self._producer.know(topic)
        self._producer.begin()
        sent = [
            self._producer.append(topic, number, batch.data, batch.records)
            for batch in best_bodies().build_batches(
                b"".join(record.body for record in records),
                len(records),
                max_batch_bytes=_BATCH_BYTES,
                max_batch_records=_BATCH_RECORDS,
                compression=Compression.NONE,
            )
        ]
        mine: set[int] = set()
        for one in sent:
            base = one.base_offset(_ANSWER_S)
            if base < 0:  # the response to a repeated request
                raise ProduceError(
                    f"{self._lost.partition}: the broker has a batch, but does not say where",
                    code="TDM-R138",
                    remedy="run it again: what was written is not written twice",
                )
            mine.update(range(base, base + one.records))
        return mine

    def _discard(self) -> None:
        if self._producer is not None:
            self._producer.discard()
            self._producer = None


def _portions(records: Iterable[LostRecord]) -> Iterator[list[LostRecord]]:
    """Yield the records of one transaction after the other."""
    some: list[LostRecord] = []
    size = 0
    for record in records:
        some.append(record)
        size += len(record.body)
        if size >= _TRANSACTION_BYTES or len(some) >= _TRANSACTION_RECORDS:
            yield some
            some, size = [], 0
    if some:
        yield some
