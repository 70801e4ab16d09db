"""Read one partition of a live topic as Avro bodies with the sink's fetcher: up to an offset, then on to its end."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from tandem.backup_avro.errors import PermanentError, TimedOutError
from tandem.sink.kafka.auth.client_config import Value
from tandem.sink.kafka.events import FaultKind, Fetched, FetchFault
from tandem.sink.kafka.fetch.fetcher import RawFetcher
from tandem.sink.transcode.implementation_choice import best_transcoder
from tandem.sink.transcode.plain_transcoder import BATCH_LIMIT
from tandem.sink.transcode.transcoder_result import Segment
from tandem.spark_jobs.reading.skipped_ranges import SkippedRanges

_POLL_S: Final = 1.0
_FINAL: Final = frozenset({FaultKind.DIVERGED, FaultKind.UNKNOWN_TOPIC, FaultKind.UNAUTHORIZED})


class TopicChangedError(PermanentError):
    """The topic was deleted, was created again, or is no longer readable."""


class LiveLog:
    """A partition of one topic id, read once, in order. `at` is the next offset to read.

    `start` is the highest log start offset seen. `end` is set if the log ends below the requested offset, because it
    was truncated. Methods raise TopicChangedError, TimedOutError if no record arrives for `stall_s` seconds (which
    says so if the leader's index names one), DamagedError, and the errors of a `RawFetcher`.
    """

    def __init__(
        self,
        fetcher: RawFetcher,
        place: tuple[str, int],
        *,
        topic_id: str,
        read_committed: bool,
        batch_limit: int = BATCH_LIMIT,
        stall_s: float = 120.0,
    ) -> None:
        self._fetcher = fetcher
        self._place = place
        self._read_committed = read_committed
        self._stall_s = stall_s
        self._transcoder = best_transcoder(batch_limit=batch_limit)
        self._skipped = SkippedRanges(fetcher)
        self.start = self.at = self._first()
        self.end: int | None = None
        self.behind = False
        fetcher.assign(place, self.at, topic_id=topic_id)

    def _first(self) -> int:
        return self._fetcher.start_offsets([self._place])[self._place][0]  # type: ignore[index]  # equal to the plain pair

    def head(self) -> int:
        """Return the current end offset of the log, for the fetcher's isolation level."""
        return self._fetcher.end_offsets([self._place])[self._place][0]  # type: ignore[index]  # as above

    def skip_to(self, offset: int) -> None:
        """Read on at `offset`, unless records up to there were read or deleted."""
        if offset > self.at:
            self.jump_to(offset)

    def jump_to(self, offset: int) -> None:
        """Read on from `offset`, which lies at or above the log's start."""
        self.at = offset
        self._fetcher.seek(self._place, offset)

    def look_again(self) -> None:
        """Update `start` with the current log start offset."""
        self.start = max(self.start, self._first())

    def below(self, offset: int) -> Iterator[Segment]:
        """Yield the records of [at, offset), or up to the log's end if it is lower, in which case `end` is set."""
        reach = min(offset, self.head())
        self.end = reach if reach < offset else None
        waited = 0.0
        while self.at < reach:
            before, began = self.at, time.monotonic()
            for event in self._fetcher.poll(_POLL_S):
                if isinstance(event, Fetched):
                    yield from self._decode_fetched(event, reach)
                elif isinstance(event, FetchFault):
                    self._raise_lasting_fault(event)
            waited = 0.0 if self.at > before else waited + time.monotonic() - began
            if waited > self._stall_s:
                raise TimedOutError(
                    f"{self._name} could be read to offset {self.at} only, its end is {reach}{self._skipped.withheld}",
                    code="TDM-P054",
                    remedy="look for a broker that is down, or that withholds records, then run it again",
                )

    def to_head(self, patience_s: float) -> Iterator[Segment]:
        """Yield the records from `at` on, until the log's end is reached.

        If the log grows faster than it can be read, reading stops after `patience_s` seconds and `behind` is set.
        """
        deadline = time.monotonic() + patience_s
        while (end := self.head()) > self.at:
            for segment in self.below(end):
                if time.monotonic() > deadline:
                    self.behind = True
                    return
                yield segment

    @property
    def _name(self) -> str:
        return f"{self._place[0]}-{self._place[1]}"

    def _decode_fetched(self, event: Fetched, until: int) -> Iterator[Segment]:
        found = self._transcoder.transcode(
            event.records,
            topic=event.topic,
            partition=event.partition,
            start=event.fetch_offset,
            until=until,
            aborted=event.aborted,
            read_committed=self._read_committed,
        )
        self.start = max(self.start, event.log_start_offset)
        self.at = max(self.at, min(self._skipped.reach(event, found.next_offset), until))
        self._fetcher.advance(self._place, self.at)
        yield from found.segments

    def _raise_lasting_fault(self, fault: FetchFault) -> None:
        if fault.kind is FaultKind.OUT_OF_RANGE and fault.log_start is not None and fault.log_start > self.at:
            self.start = self.at = fault.log_start
            self._fetcher.seek(self._place, self.at)
        elif fault.kind in _FINAL or fault.kind is FaultKind.OUT_OF_RANGE:
            raise TopicChangedError(
                f"{self._name} can't be read at offset {self.at}: {fault.detail}",
                code="TDM-P055",
                remedy="run it again; if it stays so, `tandem status` shows what became of the topic",
            )


@contextmanager
def open_live_log(
    props: Mapping[str, Value],
    place: tuple[str, int],
    *,
    topic_id: str,
    batch_limit: int,
    read_committed: bool = True,
    begin: int = 0,
) -> Iterator[LiveLog]:
    """Yield a partition's log, to be read from `begin` on, and close its connections after the block.

    Raises what `LiveLog` does.
    """
    with RawFetcher(props, read_committed=read_committed) as fetcher:
        log = LiveLog(fetcher, place, topic_id=topic_id, read_committed=read_committed, batch_limit=batch_limit)
        log.skip_to(begin)
        yield log
