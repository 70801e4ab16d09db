"""Looks up the log bounds of guarded partitions that are not read yet, in a thread for each look-up.

A partition without a leader, or slow brokers, delay neither the tail nor the other partitions. A partition without an
answer has unknown bounds: it is not read, and never assumed to be empty.
"""

from __future__ import annotations

import heapq
import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tandem.backup_avro.chain.entries import PartitionKey, Position, RecordHash, Topic
from tandem.backup_avro.errors import TransientError
from tandem.sink.encryption.record_keys import PLAIN, RecordKeys
from tandem.sink.kafka.events import LogBounds, LogPlace, TopicPartition
from tandem.sink.kafka.fetch.assignment import backoff
from tandem.sink.process import clock
from tandem.sink.process.resource_limits import resource_shortage
from tandem.sink.read.reader_context import FetchSource

_FIRST_REST_S = 0.5
_LONGEST_REST_S = 5.0
_NAMED = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class NewPartition:
    """A partition that can be read now. `asked` is when its bounds were requested, in seconds by `sink.process.clock`.

    `hashes` holds the hash of a record below the first offset to read, for a partition whose chain has none that this
    process can compare.
    """

    topic: Topic
    bounds: LogBounds
    asked: float
    hashes: tuple[RecordHash, ...] = ()


@dataclass(slots=True, kw_only=True)
class _LogLookup:
    """One look-up and its result."""

    topics: Mapping[TopicPartition, Topic]
    asked: float
    found: Mapping[TopicPartition, LogBounds] = field(default_factory=dict)
    missing: Mapping[TopicPartition, str] = field(default_factory=dict)
    hashes: dict[TopicPartition, tuple[RecordHash, ...]] = field(default_factory=dict)
    error: Exception | None = None


class NewPartitions:
    """Looks up the bounds of partitions, each time over a connection of its own; one look-up runs at a time.

    New partitions are looked up at once, partitions without an answer again after a rest. Used by the pipeline's
    thread. `recorded` returns the position of a partition that was read before; any thread may call it.
    """

    def __init__(
        self,
        open_source: Callable[[], FetchSource],
        *,
        recorded: Callable[[PartitionKey], Position | None] = lambda _: None,
        record_keys: RecordKeys = PLAIN,
    ) -> None:
        self._open_source = open_source
        self._recorded = recorded
        self._record_keys = record_keys
        self._wanted: dict[TopicPartition, Topic] = {}
        self._missing: dict[TopicPartition, str] = {}
        self._asking = False
        self._again = 0.0
        self._failures = 0
        self._done: deque[_LogLookup] = deque()

    @property
    def waiting(self) -> bool:
        """Whether any guarded partition is not read yet."""
        return bool(self._wanted)

    @property
    def missing(self) -> int:
        """How many partitions had no answer at their last look-up."""
        return len(self._missing)

    @property
    def trouble(self) -> str | None:
        """The partitions that can't be read, the first few with the reason; None if there is none."""
        if not self._missing:
            return None
        first = heapq.nsmallest(_NAMED, self._missing.items())
        named = ", ".join(f"{tp.topic}-{tp.partition} ({why})" for tp, why in first)
        more = f" and {len(self._missing) - _NAMED} more" if len(self._missing) > _NAMED else ""
        return f"partitions are not read, because no leader answers for them: {named}{more}"

    def want(self, wanted: Mapping[TopicPartition, Topic]) -> None:
        """Replace the set of guarded partitions that are not read yet by that of the newest survey."""
        self._wanted = dict(wanted)
        self._missing = {tp: why for tp, why in self._missing.items() if tp in wanted}

    def forget(self, topic_id: str) -> None:
        """Stop looking up the partitions of a topic."""
        self.want({tp: topic for tp, topic in self._wanted.items() if topic.topic_id != topic_id})

    def step(self, now: float) -> dict[TopicPartition, NewPartition]:
        """Start the look-up that is due, and return the partitions that can be read now, each once.

        `now` is by `sink.process.clock`. Raises permanent errors of the brokers, which only a person can repair.
        """
        came: dict[TopicPartition, NewPartition] = {}
        while self._done:
            came |= self._accept_lookup(self._done.popleft(), now)
        ask = {} if self._asking else self._due(now)
        if ask:
            self._asking = True
            look = _LogLookup(topics=ask, asked=now)
            threading.Thread(target=self._run_lookup, args=(look,), name="newcomers", daemon=True).start()
        return came

    def _due(self, now: float) -> dict[TopicPartition, Topic]:
        rested = now >= self._again
        return {tp: topic for tp, topic in self._wanted.items() if rested or tp not in self._missing}

    def _run_lookup(self, look: _LogLookup) -> None:
        try:
            source = self._open_source()
            try:
                look.asked = clock.now()
                look.found, look.missing = source.bounds(list(look.topics))
                self._know_again(look, source)
            finally:
                source.close()
        except Exception as error:  # noqa: BLE001 (raised again in the pipeline's thread)
            look.error = error
        self._done.append(look)

    def _know_again(self, look: _LogLookup, source: FetchSource) -> None:
        """Look up the hash of a record of each log that the chain has none to compare of: the last one, or one below.

        A log may end in offsets without records, as transaction markers have them: the distance doubles until a record
        is found.
        """
        ends: dict[TopicPartition, int] = {}
        for tp, bounds in look.found.items():
            before = self._recorded(PartitionKey(look.topics[tp].topic_id, tp.partition))
            if before is None or not any(self._record_keys.can_compare(one) for one in before.hashes):
                ends[tp] = bounds.end if before is None else before.offset
        ends = {tp: end for tp, end in ends.items() if end > look.found[tp].start}
        silent: set[TopicPartition] = set()
        distance = 1
        while ends:
            first = {tp: max(end - distance, look.found[tp].start) for tp, end in ends.items()}
            newest = source.record_hashes(
                {tp: LogPlace(look.topics[tp].topic_id, first[tp], end) for tp, end in ends.items()}
            )
            silent |= ends.keys() - newest.keys()
            for tp, record in newest.items():
                known = self._record_keys.of(record)
                if known is not None:
                    look.hashes[tp] = (known,)
            sought = [tp for tp, one in newest.items() if one is None and first[tp] > look.found[tp].start]
            ends = {tp: ends[tp] for tp in sought}
            distance *= 2
        look.missing = {**look.missing, **dict.fromkeys(silent, "no leader tells what its log holds")}
        look.found = {tp: bounds for tp, bounds in look.found.items() if tp not in silent}

    def _accept_lookup(self, look: _LogLookup, now: float) -> dict[TopicPartition, NewPartition]:
        self._asking = False
        missing = look.missing
        if isinstance(look.error, TransientError) or (
            look.error is not None and resource_shortage(look.error) is not None
        ):
            missing = dict.fromkeys(look.topics, str(look.error))
        elif look.error is not None:
            raise look.error
        # The look-up is by name: meanwhile the name may have got another topic id, or may be guarded no longer.
        same = {tp for tp, topic in look.topics.items() if tp in self._wanted and self._same(tp, topic)}
        for tp in same:
            self._missing.pop(tp, None)
        self._missing |= {tp: why for tp, why in missing.items() if tp in same}
        self._failures = self._failures + 1 if missing else 0
        self._again = now + backoff(self._failures, first=_FIRST_REST_S, most=_LONGEST_REST_S)
        return {
            tp: NewPartition(
                topic=self._wanted.pop(tp),
                bounds=bounds,
                asked=look.asked,
                hashes=look.hashes.get(tp, ()),
            )
            for tp, bounds in look.found.items()
            if tp in same
        }

    def _same(self, tp: TopicPartition, topic: Topic) -> bool:
        return self._wanted[tp].topic_id == topic.topic_id
