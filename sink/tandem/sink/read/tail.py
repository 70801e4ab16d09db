"""The tail lane: reads every guarded partition from the log end at the claim on, without a pause."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import structlog

from tandem.backup_avro.chain.entries import RecordHash
from tandem.backup_avro.errors import DamagedError, TransientError
from tandem.sink.kafka.events import AtHead, FaultKind, Fetched, FetchFault, TopicPartition
from tandem.sink.kafka.lookup.leader_epochs import log_holds
from tandem.sink.process import clock
from tandem.sink.read import log_identity
from tandem.sink.read.deferred_responses import DeferredResponses
from tandem.sink.read.open_transactions import HeldOffset, OpenTransactions
from tandem.sink.read.progress.partition_progress import PartitionProgress
from tandem.sink.read.reader_context import (
    DAMAGED_RETRY_S,
    EmptyTail,
    FetchSource,
    ReaderContext,
    named_records,
    reading,
)
from tandem.sink.transcode.content_hash import last_record

_LOG = structlog.get_logger()
_HELD = "held back"
_BROKERS = "brokers"
_COMPARE_RETRY_S = 1.0
_UNSAID = "not compared"
_UNSAID_PATIENCE_S = 60.0


class TailReader:
    """Reads tails. `moved` collects (partition, new leader, its epoch) of leader changes, for the scan lane.

    Leader and epoch are -1 where the leader was away. `patience_s` is how long an open transaction may hold a partition
    back before that is a trouble.
    """

    def __init__(self, context: ReaderContext, source: FetchSource, *, patience_s: float) -> None:
        self._context = context
        self._source = source
        self._held = OpenTransactions(patience_s=patience_s)
        self._deferred = DeferredResponses(context)
        self._retry_at: dict[TopicPartition, float] = {}
        self._trouble_since: float | None = None
        self._empty: dict[TopicPartition, EmptyTail] = {}
        self._skip_at = 0.0
        self._epoch_unknown: set[TopicPartition] = set()
        self._doubtful: dict[TopicPartition, bool] = {}
        self._unsaid_since: dict[TopicPartition, float] = {}
        self._compare_at = 0.0
        self.moved: list[tuple[TopicPartition, int, int]] = []

    def hanging(self) -> frozenset[TopicPartition]:
        """Return the partitions that an open transaction holds back for too long; any thread may call it."""
        return self._held.reported()

    def add(self, tp: TopicPartition, progress: PartitionProgress) -> None:
        """Begin to read a partition at its position, once its log is known to be the one that was read before.

        Its leader may have moved since it was looked up, and back: a scan that is read elsewhere learns of it from the
        tail.
        """
        if progress.recorded is not None:
            self._doubt(tp, progress)
        base = progress.scan.base
        led_by = None if base.complete or base.leader < 0 else (base.leader, base.epoch)
        self._source.assign(tp, progress.offset, progress.epoch, topic_id=progress.key.topic_id, led_by=led_by)

    def remove(self, tp: TopicPartition) -> None:
        """Stop reading a partition."""
        self._source.unassign(tp)
        self._retry_at.pop(tp, None)
        self._empty.pop(tp, None)
        self._epoch_unknown.discard(tp)
        self._forget_doubt(tp)
        self._held.forget(tp)
        self._deferred.forget(tp)
        self._context.reads_on(tp, tail=True)
        for subject in (_held(tp), reading(tp, tail=True)):
            self._context.forget(subject)

    def step(self, timeout_s: float) -> None:
        """Process the events that arrive within `timeout_s`."""
        for event in self._deferred.order_events(self._source.poll(timeout_s)):
            if isinstance(event, AtHead):
                self._at_head(event)
                continue
            if isinstance(event, FetchFault) and event.partition < 0:
                self._trouble_since = clock.now()
                self._context.meters.retried("brokers")
                self._context.report_trouble(_BROKERS, event.detail)
                continue
            tp = TopicPartition(event.topic, event.partition)
            progress = self._context.progress_of.get(tp)
            if progress is None or progress.frozen:
                continue
            if isinstance(event, FetchFault):
                self._fault(event, tp, progress)
            elif event.fetch_offset != progress.offset:
                continue
            elif tp in self._doubtful:
                self._doubtful[tp] = True
            elif self._deferred.must_defer(event):
                self._source.seek(tp, progress.offset, progress.epoch)
            else:
                self._read(event, tp, progress)
        if self._trouble_since is not None:
            self._look_whether_over(self._trouble_since)
        for tp, held in self._held.due(clock.now()):
            self._log_held(tp, held)
        self._compare()
        self._skip()
        self._retry()

    def _look_whether_over(self, since: float) -> None:
        """End the trouble with a broker, or all of them, if every partition has been at head after it."""
        if all(progress.frozen or progress.head_mono > since for progress in self._context.progress_of.values()):
            self._trouble_since = None
            self._context.clear_trouble(_BROKERS)

    def _at_head(self, event: AtHead) -> None:
        at = self._context.at(event.requested_at)
        progress_of = self._context.progress_of
        for tp, offset in event.partitions.items():
            progress = progress_of.get(tp)
            if tp in self._doubtful:
                self._doubtful[tp] = True
            elif progress is not None and not progress.frozen and tp not in self._retry_at:
                if offset == progress.offset and tp in self._epoch_unknown:
                    self._empty[tp] = EmptyTail(
                        start=offset, end=offset, requested=event.requested_at, received=event.received_at
                    )
                progress.at_head(offset=offset, requested=event.requested_at, received=event.received_at, at=at)
                # The trouble ends here, not with the next record, which may come days later.
                self._context.clear_trouble(reading(tp, tail=True))

    def _doubt(self, tp: TopicPartition, progress: PartitionProgress) -> None:
        """Ignore all responses of a log until it is known to be the one that was read so far.

        Earlier answers about its end are ignored too. The log is compared once its leader has answered a fetch: that
        shows that the log does not end below the position, where a missing record would prove nothing. If no hash is
        known yet, the scan may leave one until then.
        """
        if self._doubtful.get(tp):  # its records were handed out, and no others come before it is sought
            self._source.seek(tp, progress.offset, progress.epoch)
        self._doubtful[tp] = False
        self._empty.pop(tp, None)

    def _compare(self) -> None:
        """Compare the logs of brokers that were away, or that lead now, with the records read, and read on.

        The volumes of brokers may have been put back to a snapshot, and other records written since, with the offsets
        and the epochs that were used before. A partition whose log was rewritten is frozen.
        """
        if clock.now() < self._compare_at:
            return
        for tp in [tp for tp in self._doubtful if self._context.progress_of[tp].frozen]:
            self._forget_doubt(tp)
        progress_of = {tp: self._context.progress_of[tp] for tp, answered in self._doubtful.items() if answered}
        wanted = {
            tp: log_identity.ReadPosition.of(progress.key, progress.position(), empty=progress.found_empty)
            for tp, progress in progress_of.items()
        }
        if not wanted:
            return
        try:
            found = log_identity.compare(self._source, wanted, self._context.record_keys)
        except TransientError as error:
            found = {}
            _LOG.warning("cannot compare logs with what was read, trying again", error=error)
        for tp, rewritten in found.items():
            self._forget_doubt(tp)
            progress = progress_of[tp]
            if rewritten is not None and rewritten.appeared is None:
                self._freeze(progress, rewritten.reason, cut_at=rewritten.cut_at)
                continue
            if rewritten is not None:
                self._record_unread(progress, rewritten.reason, rewritten.appeared)
            self._source.seek(tp, progress.offset, progress.epoch)
        unsaid = wanted.keys() - found.keys()
        for tp in unsaid:
            self._report_unsaid(tp, wanted[tp].offset)
        self._compare_at = clock.now() + _COMPARE_RETRY_S if unsaid else 0.0

    def _report_unsaid(self, tp: TopicPartition, offset: int) -> None:
        """Report a log of which nobody has told for a while what it holds, so that nothing is read of it."""
        now = clock.now()
        if now - self._unsaid_since.setdefault(tp, now) >= _UNSAID_PATIENCE_S:
            self._context.report_trouble(
                (_UNSAID, tp),
                f"{tp.topic}-{tp.partition}: its leader was away, and since {_UNSAID_PATIENCE_S:.0f} s nothing tells "
                f"whether it still has what was read up to {offset}; nothing is read of it before. Find out whether it "
                "has a leader, and whether an open transaction holds it back (kafka-transactions.sh find-hanging)",
            )

    def _forget_doubt(self, tp: TopicPartition) -> None:
        self._doubtful.pop(tp, None)
        if self._unsaid_since.pop(tp, None) is not None:
            self._context.clear_trouble((_UNSAID, tp))

    def _skip(self) -> None:
        """Advance to log ends below which no record is left: compaction removed them, with the epochs of their batches.

        The epoch of the last record before the end is looked up. The leader's own epoch would not do: generations that
        reach the same end under different leaders have read the same records, and their positions must show it.
        """
        if not self._empty or clock.now() < self._skip_at:
            return
        try:
            ends = self._source.known_ends(list(self._empty))
        except TransientError as error:
            self._skip_at = clock.now() + DAMAGED_RETRY_S
            _LOG.warning("cannot ask for the epochs of log ends, trying again", error=error)
            return
        if len(ends) < len(self._empty):  # no record is read while the brokers are asked
            self._skip_at = clock.now() + DAMAGED_RETRY_S
        asked = [tp for tp in ends if self._empty[tp].evidence is not None]
        named = named_records(self._source, asked)
        for tp, (end, epoch) in ends.items():
            seen, progress = self._empty.pop(tp), self._context.progress_of[tp]
            if tp in asked:
                seen = replace(seen, named=named.get(tp))
            if end != seen.end or progress.frozen:  # if the log has grown, the next response brings records
                continue
            if self._context.may_skip(progress, seen, to=end, tail=True):
                self._epoch_unknown.discard(tp)
                progress.advance_to(offset=end, epoch=epoch)
                self._source.advance(tp, end, progress.epoch)
                at = self._context.at(seen.requested)
                progress.at_head(offset=end, requested=seen.requested, received=seen.received, at=at)

    def _read(self, fetched: Fetched, tp: TopicPartition, progress: PartitionProgress) -> None:
        try:
            result = self._context.transcode_and_buffer(
                fetched, key=progress.key, scan=None, start=progress.offset, until=None
            )
        except DamagedError as error:
            self._context.report_damaged(tp, error, tail=True)
            self._retry_at[tp] = clock.now() + DAMAGED_RETRY_S
            return
        newest = self._context.record_keys.of(last_record(result.segments))
        progress.advance_to(offset=result.next_offset, epoch=result.leader_epoch, newest=newest)
        if result.leader_epoch >= 0:
            self._epoch_unknown.discard(tp)
        if fetched.evidence is not None:
            self._empty[tp] = EmptyTail(
                start=fetched.fetch_offset,
                end=fetched.end_offset,
                requested=fetched.requested_at,
                received=fetched.received_at,
                evidence=fetched.evidence,
            )
        elif fetched.records:
            self._empty.pop(tp, None)
            self._context.reads_on(tp, tail=True, upto=progress.offset)
        if progress.expires:  # else what was read stays: the policy does not delete it
            progress.log_start = max(progress.log_start, fetched.log_start_offset)
        progress.high_watermark, progress.end_offset = fetched.high_watermark, fetched.end_offset
        ended = self._held.seen(tp, stable=fetched.end_offset, high=fetched.high_watermark, now=fetched.received_at)
        if ended is not None:
            self._log_released(tp, ended, fetched.received_at)
        # A leader that was just elected may name an end below the position: it does not know its own log yet.
        if progress.offset == fetched.end_offset:
            self._context.reads_on(tp, tail=True)
            progress.at_head(
                offset=progress.offset,
                requested=fetched.requested_at,
                received=fetched.received_at,
                at=self._context.at(fetched.requested_at),
            )
        self._source.advance(tp, progress.offset, progress.epoch)

    def _log_held(self, tp: TopicPartition, held: HeldOffset) -> None:
        since = datetime.fromtimestamp(self._context.at(held.since) / 1000, UTC).isoformat(timespec="seconds")
        self._context.trouble[_held(tp)] = (
            f"{tp.topic}-{tp.partition}: an open transaction holds back what comes from offset {held.offset} on, "
            f"since {since}; it can't be backed up before that transaction ends"
        )
        _LOG.warning(
            "an open transaction holds back a partition",
            topic=tp.topic,
            partition=tp.partition,
            offset=held.offset,
            since=since,
            remedy="find its producer (kafka-transactions.sh find-hanging) and let it end, or abort the transaction",
        )

    def _log_released(self, tp: TopicPartition, held: HeldOffset, now: float) -> None:
        self._context.trouble.pop(_held(tp), None)
        _LOG.info(
            "the open transaction has ended",
            topic=tp.topic,
            partition=tp.partition,
            offset=held.offset,
            seconds=round(now - held.since),
        )

    def _fault(self, fault: FetchFault, tp: TopicPartition, progress: PartitionProgress) -> None:
        match fault.kind:
            case FaultKind.OUT_OF_RANGE if fault.log_start is not None and fault.log_start > progress.offset:
                self._skip_to(fault.log_start, tp, progress)
            case FaultKind.OUT_OF_RANGE if fault.log_end is not None and fault.log_end < progress.offset:
                self._freeze_cut(progress, fault.log_end)
            case FaultKind.DIVERGED if log_holds(
                fault.diverging_epoch, fault.diverging_offset, of_epoch=progress.epoch, offset=progress.offset
            ):
                # This leader does not know the requested epoch, but its log is the one read, up to the tail's position.
                progress.epoch = fault.diverging_epoch
                self._source.seek(tp, progress.offset, fault.diverging_epoch)
            case FaultKind.DIVERGED:
                cut_at = fault.diverging_offset
                self._freeze_cut(progress, cut_at if cut_at < progress.offset else -1)
            case FaultKind.UNKNOWN_TOPIC:
                self._context.hurry_survey()
            case FaultKind.LEADER_MOVED | FaultKind.EPOCH_RAISED | FaultKind.LEADER_LOST:
                self.moved.append((tp, fault.new_leader, fault.new_epoch))
                self._doubt(tp, progress)
            case FaultKind.OUT_OF_RANGE:
                # The log's bounds are unknown, or the position lies between them: the log was not truncated.
                self._context.report_trouble(reading(tp, tail=True), f"{tp.topic}-{tp.partition}: {fault.detail}")
                self._retry_at[tp] = clock.now() + DAMAGED_RETRY_S
            case FaultKind.TOO_LARGE:
                self._context.report_damaged(tp, DamagedError(fault.detail, code="TDM-B013"), tail=True)
            case _:
                self._context.report_trouble(reading(tp, tail=True), f"{tp.topic}-{tp.partition}: {fault.detail}")

    def _skip_to(self, log_start: int, tp: TopicPartition, progress: PartitionProgress) -> None:
        why = f"the log start moved to {log_start} before offsets from {progress.offset} on were read"
        where = {"topic": tp.topic, "partition": tp.partition, "why": why}
        if progress.expires:
            # No restorable record is missing: restores leave out the offsets below the log start of a position.
            progress.log_start = log_start
            _LOG.warning("records expired before they were read", **where)
        else:
            progress.lost = why
            _LOG.error("records were deleted before they were read", **where)
        progress.advance_to(offset=log_start, epoch=-1)
        self._empty.pop(tp, None)
        self._epoch_unknown.add(tp)
        self._source.seek(tp, log_start, progress.epoch)

    def _freeze_cut(self, progress: PartitionProgress, cut_at: int) -> None:
        where = f"at {cut_at}" if cut_at >= 0 else "somewhere"
        self._freeze(progress, f"the log was cut {where} below what was read ({progress.offset})", cut_at=cut_at)

    def _freeze(self, progress: PartitionProgress, why: str, *, cut_at: int) -> None:
        # Only this generation has the truncated records; new records with the same offsets must not mix with them.
        progress.freeze(why, cut_at=cut_at)
        _LOG.error(
            "reading of a partition stops, another generation is needed",
            topic=progress.topic,
            partition=progress.key.partition,
            why=progress.lost,
        )

    def _record_unread(self, progress: PartitionProgress, why: str, appeared: RecordHash | None) -> None:
        progress.record_unread(why, self._context.record_keys.of(appeared))
        _LOG.error(
            "records that were never read are in the log, another generation is needed",
            topic=progress.topic,
            partition=progress.key.partition,
            why=why,
        )

    def _retry(self) -> None:
        now = clock.now()
        for tp in [tp for tp, when in self._retry_at.items() if when <= now]:
            del self._retry_at[tp]
            progress = self._context.progress_of[tp]
            self._source.seek(tp, progress.offset, progress.epoch)


def held_back(context: ReaderContext) -> tuple[TopicPartition, ...]:
    """Return the partitions that an open transaction has held back for too long, in order."""
    subjects = [subject for subject in list(context.trouble) if isinstance(subject, tuple) and subject[0] == _HELD]
    return tuple(sorted(TopicPartition(*tp) for _, tp in subjects))


def _held(tp: TopicPartition) -> tuple[str, TopicPartition]:
    return (_HELD, tp)
