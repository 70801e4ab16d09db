"""Reads a range of a scan outside the instance's process: puts its objects, and an offer naming them, into the store.

The range is read as an instance reads it, from its leader, newest range first, by `LocalRanges`. The instance decides
whether it counts (`sink.read.scan.accept_ranges`).
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property

import structlog

from tandem.backup_avro.chain import layout
from tandem.backup_avro.chain.entries import Base, PartitionKey, RecordHash, StoredObject
from tandem.backup_avro.documents.range_offer import RangeOffer, encode_offer
from tandem.backup_avro.errors import PermanentError, TandemError, TransientError
from tandem.backup_avro.record.container import Codec
from tandem.sink.encryption.key_ring import keys_of
from tandem.sink.encryption.record_keys import RecordKeys
from tandem.sink.kafka.auth.client_config import Value
from tandem.sink.kafka.events import TopicPartition
from tandem.sink.kafka.fetch.fetcher import RawFetcher
from tandem.sink.process import clock
from tandem.sink.read.progress.next_scan_range import ScanPlan
from tandem.sink.read.progress.partition_progress import PartitionProgress
from tandem.sink.read.reader_context import FetchSource, ReaderContext
from tandem.sink.read.scan.fetch_allowance import FetchAllowance
from tandem.sink.read.scan.local_ranges import LocalRanges
from tandem.sink.read.scan.range_tasks import RangeRead, RangeTask
from tandem.sink.store.chain.chain_writer import now_ms
from tandem.sink.store.contract.object_store import ObjectStore, put_new
from tandem.sink.store.encrypted_objects import new_seal
from tandem.sink.transcode.implementation_choice import best_transcoder
from tandem.sink.transcode.transcoder_result import Transcoder
from tandem.sink.write.object_buffer import ObjectBuffer

_LOG = structlog.get_logger()
_POLL_S = 0.2
_TRIES = 2
"""Failures in a row after which the instance has to try again, because this process has other ranges to read."""


class TopicGoneError(PermanentError):
    """The topic, or the topic with this id, no longer exists."""


class LeaderMovedError(TransientError):
    """Another replica leads, or did in between, or the leader was away: this range may be of two logs."""


class UnreadableError(TransientError):
    """The range can't be read: damaged, or not allowed. `at` is the offset at which damage stopped the reader."""

    def __init__(self, message: str, *, code: str, at: int | None = None, remedy: str | None = None) -> None:
        super().__init__(message, code=code, remedy=remedy)
        self.at = at


class RangeReader:
    """Reads ranges one after the other in a process of workers or of Spark; keeps its connections between them.

    `batch_limit`: most bytes that the records of one batch may decompress to.
    """

    def __init__(self, props: Mapping[str, Value], open_store: Callable[[], ObjectStore], *, batch_limit: int) -> None:
        self._props = props
        self._open_store = open_store
        self._batch_limit = batch_limit
        self._sources: dict[bool, RawFetcher] = {}
        self._allowance = FetchAllowance(None)

    @cached_property
    def store(self) -> ObjectStore:
        """The store, opened when it is first used. Raises its errors."""
        return self._open_store()

    def read(self, task: RangeTask) -> RangeRead:
        """Read a range and store it, see `read_range`."""
        committed = task.opening.isolation_level == "read_committed"
        store = self.store
        if self._allowance.rate != task.sizes.rate:
            self._allowance = FetchAllowance(task.sizes.rate)
        source = self._sources.pop(committed, None) or RawFetcher(self._props, read_committed=committed)
        try:
            transcoder = best_transcoder(batch_limit=self._batch_limit)
            read = read_range(task, source=source, store=store, transcoder=transcoder, allowance=self._allowance)
        except Exception:
            # The state of the source is unknown: the next range begins with a new connection.
            with suppress(Exception):
                source.close()
            raise
        self._sources[committed] = source
        return read

    def close(self) -> None:
        """Close the connections to the brokers."""
        for source in self._sources.values():
            source.close()


def read_range(
    task: RangeTask,
    *,
    source: FetchSource,
    store: ObjectStore,
    transcoder: Transcoder,
    allowance: FetchAllowance | None = None,
) -> RangeRead:
    """Read a range and store it. Raises TransientError, PermanentError, and the store's errors.

    Before it raises, it deletes the objects that it has stored, as far as the store allows.
    """
    return _Reading(task, source, store, transcoder).run(allowance or FetchAllowance(task.sizes.rate))


def put_offer(store: ObjectStore, task: RangeTask, offer: RangeOffer) -> None:
    """Offer a range that was read to the instance. Raises the store's errors."""
    name = layout.offer_name(
        layout.OfferedOffsets(*task.key, floor=task.floor, leader=task.leader, low=task.low, high=task.high),
        secrets.token_hex(8),
    )
    keyed = replace(offer, newest=RecordKeys(keys_of(store)).of(offer.newest))
    store.put_if_absent(layout.offers_prefix(*task.folder) + name, encode_offer(keyed))


def delete_unused(store: ObjectStore, names: Sequence[str], *, of: str) -> None:
    """Delete the objects of ranges that do not count, as far as the store allows; no chain may name them."""
    try:
        store.delete(names)
    except TandemError as error:
        event = "objects of a discarded range stay until their generation is cleared"
        _LOG.warning(event, range=of, objects=len(names), error=error)


class _Reading:
    def __init__(self, task: RangeTask, source: FetchSource, store: ObjectStore, transcoder: Transcoder) -> None:
        self._task = task
        self._store = store
        self._source = source
        self._tp = TopicPartition(task.topic, task.key.partition)
        self._stored: list[StoredObject] = []
        self._named: list[str] = []
        self._gone = False
        self._context = ReaderContext(
            store=store,
            buffer=ObjectBuffer(
                codec=Codec(task.opening.codec),
                sync=bytes.fromhex(task.opening.sync),
                block_size=task.sizes.block_size,
                level=task.sizes.compression_level,
            ),
            transcoder=transcoder,
            read_committed=task.opening.isolation_level == "read_committed",
            hurry_survey=self._topic_gone,
            a_range=True,
            copies=lambda _: task.copies,
        )
        base = Base(start=task.low, end=task.high, leader=task.leader, epoch=task.epoch)
        self._progress = PartitionProgress(
            key=task.key,
            topic=task.topic,
            offset=task.high,
            epoch=-1,
            log_start=-1,
            head_at=0,
            head_mono=0.0,
            head_offset=task.high,
            scan=ScanPlan(base, limit_s=task.limit_s, best_effort=task.best_effort),
            retention_s=None,
            expires=True,  # the instance knows whether that is so
            known=(RecordHash(task.known_to, ""),) if task.known_to >= 0 else (),
        )
        self._context.progress_of[self._tp] = self._progress

    def run(self, allowance: FetchAllowance) -> RangeRead:
        task, began, started_at = self._task, clock.now(), now_ms(self._store)
        reader = LocalRanges(self._context, self._source, parallel=1, allowance=allowance)
        reader.add(self._tp)
        try:
            try:
                self._read(reader)
            finally:
                if reader.busy:
                    reader.remove(self._tp)
            self._flush()
            ended = clock.now()
            offer = RangeOffer(
                generation=task.folder[2],
                key=task.key,
                floor=task.floor,
                leader=task.leader,
                low=task.low,
                high=task.high,
                started_at=started_at,
                ended_at=now_ms(self._store),
                took_ms=round((ended - began) * 1000),
                objects=self._counting(),
                run=task.run,
                newest=self._progress.hashes[-1] if self._progress.known_to > task.known_to else None,
            )
        except Exception:
            # No other process knows their names, so no chain can name them.
            delete_unused(self._store, self._named, of=task.place)
            raise
        return RangeRead(offer=offer, began=began, ended=ended, log_start=self._progress.log_start)

    def _topic_gone(self) -> None:
        self._gone = True

    def _read(self, reader: LocalRanges) -> None:
        task, moved = self._task, clock.now()
        seen: object = None
        while True:
            reader.step(_POLL_S)
            base = self._progress.scan.base
            if self._gone:
                raise TopicGoneError(
                    f"{task.place}: the topic is gone",
                    code="TDM-B003",
                    remedy="nothing to do: a deleted topic needs no scan",
                )
            if base.floor > 1:  # it was begun anew
                raise LeaderMovedError(
                    f"{task.place}: the leader moved or was away: broker {base.leader} leads now in epoch {base.epoch},"
                    f" broker {task.leader} led in epoch {task.epoch}",
                    code="TDM-B004",
                )
            if not reader.busy:
                return
            if reader.failures(self._tp) >= _TRIES:
                why = "; ".join(self._context.trouble.values())
                raise UnreadableError(
                    f"{task.place}: {why}", code="TDM-B005", at=max(self._progress.scan.stops, default=None)
                )
            if self._context.buffer.bytes >= task.sizes.object_size:
                self._flush()
            # A standstill is a time without a range that counts, whether no records arrive or all attempts fail.
            if base.done != seen:
                seen, moved = base.done, clock.now()
            elif clock.now() - moved > task.give_up_s:
                why = "; ".join(self._context.trouble.values()) or "the brokers send nothing"
                raise TransientError(
                    f"{task.place}: nothing was read for {task.give_up_s:.0f} s: {why}", code="TDM-B006"
                )

    def _flush(self) -> None:
        for assembly in self._context.buffer.cut(self, max_objects=2):
            built = assembly.build(new_seal(self._store, assembly.key))
            self._named.append(built.item.key)
            put_new(self._store, built.item.key, built.data)
            self._stored.append(built.item)

    def data(self, key: PartitionKey, first: int, last: int) -> str:
        """Return the key of a new object (called by the object buffer)."""
        nonce = layout.marked(secrets.token_hex(8), layout.NOBODY)
        return layout.data_key(
            self._task.folder, topic=self._task.topic, partition=key.partition, first=first, last=last, nonce=nonce
        )

    def journal(self) -> str:
        """Never called: the buffer holds one partition, which never shares an object."""
        raise AssertionError("a range is of one partition")

    def _counting(self) -> tuple[StoredObject, ...]:
        """Return the objects with the parts that count, without those of attempts that took too long."""
        base = self._progress.scan.base
        kept = (
            replace(item, parts=tuple(part for part in item.parts if part.scan is not None and base.counts(part.scan)))
            for item in self._stored
        )
        return tuple(item for item in kept if item.parts)
