"""State that the lanes share: progress of partitions, buffers, transcoder, counters, troubles. One thread uses it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import structlog

from tandem.backup_avro.chain.entries import PartitionKey, RecordHash, StoredObject
from tandem.backup_avro.errors import DamagedError, TransientError
from tandem.backup_avro.selection.last_records import PartitionCopy
from tandem.sink.encryption.record_keys import PLAIN, RecordKeys
from tandem.sink.kafka.events import AtHead, Evidence, Fetched, FetchFault, LogBounds, LogPlace, TopicPartition
from tandem.sink.process import clock
from tandem.sink.process.memory_budget import MemoryBudget, MemoryShare
from tandem.sink.process.meters import NOBODY, Meters
from tandem.sink.read.progress.partition_progress import PartitionProgress
from tandem.sink.read.skip.copied_records import CopiedRecords, LookupPendingError
from tandem.sink.store.chain.chain_writer import now_ms
from tandem.sink.store.contract.object_store import ObjectStore
from tandem.sink.transcode.transcoder_result import Transcoded, Transcoder
from tandem.sink.write.object_buffer import ObjectBuffer

_LOG = structlog.get_logger()
DAMAGED_RETRY_S = 5.0
NAMED_PATIENCE_S = 240.0
"""Seconds for which a range is requested again in which the leader's index names a record that does not come. The index
may be wrong, so the wait is bounded. It is less than the time that a range read elsewhere may stand still."""
LOOKUP_PATIENCE_S = 60.0
"""Seconds for which the objects of other copies may be read before a partition that waits for them is a trouble."""


def reading(tp: TopicPartition, *, tail: bool) -> object:
    """Return the subject of troubles in reading a partition, by the tail or by its scan."""
    return (tp, tail)


@dataclass(frozen=True, slots=True, kw_only=True)
class EmptyTail:
    """A broker's answer that no readable record is in [start, end) of a log, which ends there; times as in `Fetched`.

    `named` is the offset that the leader's own index names (`FetchSource.named_records`), None if there was no answer.
    """

    start: int
    end: int
    requested: float
    received: float
    evidence: Evidence | None = None
    named: int | None = -1


class _Doubt(NamedTuple):
    """Since when the leader names a record above `start` that it does not send; `named`: None if it gives no answer."""

    named: int | None
    start: int
    since: float


@dataclass(frozen=True, slots=True)
class _Withheld:
    """The subject of the trouble that nothing comes of a partition, for the tail or for its scan."""

    tp: TopicPartition
    tail: bool


class FetchSource(Protocol):
    """Raw fetches of one lane, implemented by `sink.kafka.fetch.fetcher`. Used by one thread."""

    def assign(
        self,
        tp: TopicPartition,
        offset: int,
        last_epoch: int = -1,
        *,
        topic_id: str | None = None,
        led_by: tuple[int, int] | None = None,
    ) -> None:
        """Begin to fetch a partition at `offset`, only from the topic with this id.

        `led_by` is the leader that the reader knows, and its epoch: if another one leads, that is a moved leader.
        """
        ...

    def seek(self, tp: TopicPartition, offset: int, last_epoch: int = -1) -> None:
        """Fetch from another offset; responses under way for the partition are dropped."""
        ...

    def advance(self, tp: TopicPartition, offset: int, last_epoch: int = -1) -> None:
        """Fetch on from `offset`, after the records that were handed out."""
        ...

    def unassign(self, tp: TopicPartition) -> None:
        """Stop fetching a partition."""
        ...

    def poll(self, timeout_s: float) -> Sequence[Fetched | AtHead | FetchFault]:
        """Return the events that have arrived, after waiting at most `timeout_s` for the first one."""
        ...

    def bounds(
        self, tps: Sequence[TopicPartition]
    ) -> tuple[Mapping[TopicPartition, LogBounds], Mapping[TopicPartition, str]]:
        """Return the bounds and leaders of logs, and the reason for each partition without a leader or a right."""
        ...

    def known_ends(self, tps: Sequence[TopicPartition]) -> dict[TopicPartition, tuple[int, int]]:
        """Return the ends of logs (by isolation level), each with the leader epoch of the record before it.

        The call takes little time: partitions without an answer of their leader are left out.
        """
        ...

    def epoch_ends(self, epochs: Mapping[TopicPartition, int]) -> dict[TopicPartition, tuple[int, int]]:
        """Return for each epoch the largest one up to it that the leader knows, and its end offset (KIP-320)."""
        ...

    def record_hashes(self, places: Mapping[TopicPartition, LogPlace]) -> dict[TopicPartition, RecordHash | None]:
        """Return the hash of the last record below `until` in the first record batch that ends at or above the offset.

        None where that batch of the leader's log has none. At a readable place the first batch counts that has a
        record. The call takes little time: partitions without an answer of their leader are left out, and so are
        readable places of which an open transaction decides.
        """
        ...

    def named_records(self, tps: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the offset of a record that each leader's own index names, -1 where it names none.

        The call takes little time: partitions without an answer of their leader are left out.
        """
        ...

    def close(self) -> None:
        """Close the connections to the brokers."""
        ...


def named_records(source: FetchSource, tps: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
    """Return the result of `FetchSource.named_records`, an empty one if the brokers can't be asked now."""
    try:
        return source.named_records(tps) if tps else {}
    except TransientError as error:
        _LOG.warning("cannot ask leaders which records they have", error=error)
        return {}


@dataclass(slots=True, kw_only=True)
class ReaderContext:
    """State of a pipeline that its lanes work on.

    `floor` is the last time in ms that the chain records: the context's clock never goes back behind it.
    `adopted` are objects that other processes have stored and that the next commit has to name. With `a_range` the
    scans are single ranges of another process's scan. `room` are the bytes that a step may still transcode however full
    `share`, the pipeline's part of the memory budget, is. `damaged` are the subjects of troubles with damaged contents
    of a partition, whose reading rests then. `copies` returns the copies of a partition in other generations; their
    objects are read in `pool`, if there is one.
    """

    store: ObjectStore
    buffer: ObjectBuffer
    transcoder: Transcoder
    read_committed: bool
    hurry_survey: Callable[[], None]
    progress_of: dict[TopicPartition, PartitionProgress] = field(default_factory=dict)
    trouble: dict[object, str] = field(default_factory=dict)
    damaged: dict[object, TopicPartition] = field(default_factory=dict)
    adopted: dict[PartitionKey, list[StoredObject]] = field(default_factory=dict)
    records: int = 0
    floor: int = 0
    a_range: bool = False
    room: float = math.inf
    share: MemoryShare = field(default_factory=MemoryBudget(0).open_share)
    record_keys: RecordKeys = PLAIN
    meters: Meters = NOBODY
    copies: Callable[[PartitionProgress], Sequence[PartitionCopy]] = lambda _: ()
    pool: Executor | None = None
    _ahead_ms: float = field(init=False)
    _copied: CopiedRecords = field(init=False)
    _doubts: dict[object, _Doubt] = field(default_factory=dict)
    _looked_up_since: dict[object, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Start the clock at the floor, so that every later request is later than all times that the chain records."""
        self._ahead_ms = self.floor - clock.now() * 1000
        self._copied = CopiedRecords(self.store, self.pool)

    @property
    def is_full(self) -> bool:
        """Whether this step must not transcode any more."""
        return self.room <= 0 and self.share.is_full()

    def now(self) -> int:
        """Return the store's time in ms; it advances by `process.clock` where the store's own clock is set back."""
        mono_ms = clock.now() * 1000
        self._ahead_ms = max(self._ahead_ms, now_ms(self.store) - mono_ms)
        return round(mono_ms + self._ahead_ms)

    def at(self, mono: float) -> int:
        """Return the store's time in ms for a time in s by `sink.process.clock`."""
        return self.now() - round((clock.now() - mono) * 1000)

    def skew(self) -> int:
        """Return by how many ms the local clock is ahead of `now`."""
        return clock.local_ms() - self.now()

    def transcode_and_buffer(
        self, fetched: Fetched, *, key: PartitionKey, scan: int | None, start: int, until: int | None
    ) -> Transcoded:
        """Transcode fetched records and buffer them. Raises DamagedError, and buffers nothing, on a bad batch."""
        result = self.transcoder.transcode(
            fetched.records,
            topic=fetched.topic,
            partition=fetched.partition,
            start=start,
            until=until,
            aborted=fetched.aborted,
            read_committed=self.read_committed,
        )
        self.buffer.add(key, scan, result.segments)
        size = sum(len(segment.body) for segment in result.segments)
        self.room -= size
        self.share.held += size
        self.records += sum(segment.records for segment in result.segments)
        self.clear_trouble(reading(TopicPartition(fetched.topic, fetched.partition), tail=scan is None))
        return result

    def may_skip(self, progress: PartitionProgress, seen: EmptyTail, *, to: int, tail: bool) -> bool:
        """Return whether to skip the offsets below `to`, of which the brokers say that no readable record is left.

        False if another copy has a record there that compaction leaves in the log: then the brokers withhold it or have
        lost it. False also, for four minutes, where the leader names a record there, or does not answer whether there
        is one. That is a trouble until records arrive (`reads_on`). False while other copies are looked up, which is a
        trouble after a minute.
        """
        start, end = seen.start, seen.end
        subject = _Withheld(TopicPartition(progress.topic, progress.key.partition), tail)
        nothing = f"{progress.topic}-{progress.key.partition}: nothing comes of offsets {start} to {end}"
        remedy = "it is asked again. Find out what the broker, or what lies between, holds back"
        try:
            record = self._copied.proof(self.copies(progress), start, end, now=self.now())
        except LookupPendingError as error:
            if clock.now() - self._looked_up_since.setdefault(subject, clock.now()) >= LOOKUP_PATIENCE_S:
                self.report_trouble(
                    subject,
                    f"{nothing}, and after {LOOKUP_PATIENCE_S:.0f} s it is not known whether other copies have records "
                    f"there: {error.args[0]}; nothing is skipped before. Find out why the store is slow",
                )
            return False
        except TransientError as error:
            self.report_trouble(
                subject, f"{nothing}, and what other copies have there can't be read now, trying again: {error}"
            )
            return False
        self._looked_up_since.pop(subject, None)
        if record is not None:
            self.report_trouble(
                subject,
                f"{nothing}, but generation {record.generation} has the record at offset {record.offset}, which "
                f"compaction does not remove; {remedy}; if the topic has lost these records, bring them back with "
                "`tandem restore`",
            )
            return False
        doubted_s = self._doubted_s(subject, seen)
        if doubted_s is not None and doubted_s < NAMED_PATIENCE_S:
            but = "but its leader names" if seen.named is not None else "and its leader does not say whether there is"
            at = f"the record at offset {seen.named}" if seen.named is not None else "a record"
            self.report_trouble(subject, f"{nothing}, {but} {at}; for {NAMED_PATIENCE_S:.0f} s {remedy}")
            return False
        if to > start:
            where = {"topic": progress.topic, "partition": progress.key.partition, "start": start, "to": to, "end": end}
            found = {"evidence": str(seen.evidence)}
            if doubted_s is None:
                _LOG.info("nothing is left of a range of a log, reading skips it", **where, **found)
            else:
                _LOG.warning(
                    "a range is skipped in which the leader names a record that it does not send",
                    **where,
                    **found,
                    named=seen.named,
                    remedy="compare the topic with the backup (tandem verify), and look at the broker's log",
                )
            self.meters.skipped(to - start)
        self.clear_trouble(subject)
        return True

    def _doubted_s(self, subject: object, seen: EmptyTail) -> float | None:
        """Return how many seconds the leader has named a record in the range, None if it names none."""
        now, named = clock.now(), seen.named
        if named is not None and not seen.start <= named < seen.end:
            return None
        before = self._doubts.get(subject)
        if before is None or (named is not None and before.named is not None and before.named != named):
            before = _Doubt(named, seen.start, now)
        # The doubt is kept when the range is skipped: a range that took too long meanwhile is read again.
        self._doubts[subject] = _Doubt(before.named if named is None else named, seen.start, before.since)
        return now - before.since

    def reads_on(self, tp: TopicPartition, *, tail: bool, upto: int | None = None) -> None:
        """End the trouble of withheld records: records arrived up to `upto`, or the position is at the log's end.

        Records below the doubted range, as arrive when a range is read again, prove nothing about it.
        """
        subject = _Withheld(tp, tail)
        self.clear_trouble(subject)
        self._looked_up_since.pop(subject, None)
        doubt = self._doubts.get(subject)
        if doubt is not None and (upto is None or upto > doubt.start):
            del self._doubts[subject]

    def withheld(self) -> set[TopicPartition]:
        """Return the partitions of which nothing comes although records may be there."""
        return {subject.tp for subject in list(self.trouble) if isinstance(subject, _Withheld)}

    def report_trouble(self, subject: object, text: str) -> None:
        """Record a trouble, and log it if its text is new."""
        if self.trouble.get(subject) != text:
            _LOG.warning("trouble while reading", detail=text)
        self.trouble[subject] = text

    def report_damaged(self, tp: TopicPartition, error: DamagedError, *, tail: bool) -> None:
        """Record that a partition has unreadable contents: it is set aside, and all others are read on."""
        subject = reading(tp, tail=tail)
        self.damaged[subject] = tp
        self.report_trouble(subject, str(error))

    def forget(self, subject: object) -> str | None:
        """Remove a trouble; return its text if there was one."""
        self.damaged.pop(subject, None)
        return self.trouble.pop(subject, None)

    def clear_trouble(self, subject: object) -> None:
        """Remove a trouble, and log that it is over if there was one."""
        text = self.forget(subject)
        if text is not None:
            _LOG.info("trouble is over", detail=text)
