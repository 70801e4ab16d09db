"""Reads a range of a scan outside the instance's process: puts its objects, and an offer naming them, into the store.

The range is read as an instance reads it, from its leader, newest range first, by the same lane. The instance decides
in which order ranges are read and whether they count (`sink.read.scan.accept_ranges`).
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, replace

import structlog

from tandem.backup_avro.chain import layout
from tandem.backup_avro.chain.entries import Base, Opening, PartitionKey, StoredObject
from tandem.backup_avro.documents.range_offer import RangeOffer, encode_offer
from tandem.backup_avro.errors import PermanentError, TandemError, TransientError
from tandem.backup_avro.record.container import Codec
from tandem.backup_avro.selection.last_records import PartitionCopy
from tandem.sink import clock
from tandem.sink.encryption.objects import new_seal
from tandem.sink.kafka.fetch.events import TopicPartition
from tandem.sink.read.partition_progress import PartitionProgress
from tandem.sink.read.reader_context import FetchSource, ReaderContext
from tandem.sink.read.scan.local_ranges import LocalScanLane
from tandem.sink.read.scan.plan import ScanPlan
from tandem.sink.store.chain.chain_writer import now_ms
from tandem.sink.store.object_store import ObjectStore, put_new
from tandem.sink.transcode.transcoder_result import Transcoder
from tandem.sink.write.object_buffer import ObjectBuffer

_LOG = structlog.get_logger()
_POLL_S = 0.2
_TRIES = 2
"""Failures in a row after which the instance has to try again, because this process has other ranges to read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeTask:
    """The offsets [low, high) of a partition's scan. `limit_s` bounds one range, `give_up_s` a standstill.

    `object_size` and `block_size` are bytes, `rate` is bytes per second; `folder` is (pair, instance, generation).
    `copies` are the copies of the partition in other generations.
    """

    folder: tuple[str, str, int]
    key: PartitionKey
    topic: str
    floor: int
    leader: int
    low: int
    high: int
    opening: Opening
    limit_s: float
    best_effort: bool
    run: str
    compression_level: int | None = None
    epoch: int = -1
    object_size: int = 64 << 20
    block_size: int = 256 << 10
    give_up_s: float = 300.0
    rate: int | None = None
    copies: tuple[PartitionCopy, ...] = ()

    @property
    def place(self) -> str:
        """Topic, partition and offsets, for messages."""
        return f"{self.topic}-{self.key.partition}, offsets {self.low} to {self.high}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeRead:
    """A range that was read from `began` to `ended`, in seconds by `sink.clock` of this machine."""

    offer: RangeOffer
    began: float
    ended: float

    @property
    def records(self) -> int:
        """Number of records in the offer's objects."""
        return sum(item.records for item in self.offer.objects)

    @property
    def bytes(self) -> int:
        """Bytes of the offer's objects."""
        return sum(item.bytes for item in self.offer.objects)

    @property
    def seconds(self) -> float:
        """Seconds that reading took."""
        return self.ended - self.began


class TopicGoneError(PermanentError):
    """The topic, or the topic with this id, no longer exists."""


class LeaderMovedError(TransientError):
    """Another replica leads, or did in between: the scan starts again, and this range is of no use."""


class UnreadableError(TransientError):
    """The range can't be read: damaged, or not allowed. `at` is the offset at which damage stopped the reader."""

    def __init__(self, message: str, *, code: str, at: int | None = None, remedy: str | None = None) -> None:
        super().__init__(message, code=code, remedy=remedy)
        self.at = at


def read_range(task: RangeTask, *, source: FetchSource, store: ObjectStore, transcoder: Transcoder) -> RangeRead:
    """Read a range and store it. Raises TransientError, PermanentError, and the store's errors.

    Before it raises, it deletes the objects that it has stored, as far as the store allows.
    """
    return _Reading(task, source, store, transcoder).run()


def put_offer(store: ObjectStore, task: RangeTask, offer: RangeOffer) -> None:
    """Offer a range that was read to the instance. Raises the store's errors."""
    name = layout.offer_name(
        topic_id=task.key.topic_id,
        partition=task.key.partition,
        floor=task.floor,
        leader=task.leader,
        low=task.low,
        high=task.high,
        nonce=secrets.token_hex(8),
    )
    store.put_if_absent(layout.offers_prefix(*task.folder) + name, encode_offer(offer))


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
                block_size=task.block_size,
                level=task.compression_level,
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
            log_start=task.low,
            head_at=0,
            head_mono=0.0,
            head_offset=task.high,
            scan=ScanPlan(base, limit_s=task.limit_s, best_effort=task.best_effort),
            retention_s=None,
        )
        self._context.progress_of[self._tp] = self._progress

    def run(self) -> RangeRead:
        began = clock.now()
        started_at = now_ms(self._store)
        lane = LocalScanLane(self._context, self._source, parallel=1, rate=self._task.rate)
        lane.add(self._tp)
        try:
            try:
                self._read(lane)
            finally:
                if lane.busy:
                    lane.remove(self._tp)
            self._flush()
            ended = clock.now()
            offer = self._offer(started_at, now_ms(self._store), ended - began)
        except Exception:
            self._throw_away()
            raise
        return RangeRead(offer=offer, began=began, ended=ended)

    def _throw_away(self) -> None:
        """Delete the objects of a failed range. No other process knows their names, so no chain can name them."""
        try:
            self._store.delete(self._named)
        except TandemError as error:
            _LOG.warning(
                "what was read for nothing stays until its generation is cleared",
                range=self._task.place,
                objects=len(self._named),
                error=error,
            )

    def _topic_gone(self) -> None:
        self._gone = True

    def _read(self, lane: LocalScanLane) -> None:
        task, moved = self._task, clock.now()
        seen: object = None
        while True:
            lane.step(_POLL_S)
            base = self._progress.scan.base
            if self._gone:
                raise TopicGoneError(
                    f"{task.place}: the topic is gone", code="TDM-B003", remedy="nothing: its base is not needed"
                )
            if base.floor > 1:  # it was begun anew
                raise LeaderMovedError(
                    f"{task.place}: broker {base.leader} leads now in epoch {base.epoch},"
                    f" broker {task.leader} led in epoch {task.epoch}",
                    code="TDM-B004",
                )
            if not lane.busy:
                return
            if lane.failures(self._tp) >= _TRIES:
                why = "; ".join(self._context.trouble.values())
                raise UnreadableError(
                    f"{task.place}: {why}", code="TDM-B005", at=max(self._progress.scan.stops, default=None)
                )
            if self._context.buffer.bytes >= task.object_size:
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
            *self._task.folder, topic=self._task.topic, partition=key.partition, first=first, last=last, nonce=nonce
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

    def _offer(self, started_at: int, ended_at: int, seconds: float) -> RangeOffer:
        task = self._task
        return RangeOffer(
            generation=task.folder[2],
            key=task.key,
            floor=task.floor,
            leader=task.leader,
            low=task.low,
            high=task.high,
            started_at=started_at,
            ended_at=ended_at,
            took_ms=round(seconds * 1000),
            objects=self._counting(),
            run=task.run,
        )
