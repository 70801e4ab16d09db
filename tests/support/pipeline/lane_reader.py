"""One lane that reads one partition of a scripted log."""

from __future__ import annotations

from concurrent.futures import Executor

from support.pipeline.doubles import Event, MemoryStore, ScriptedSource, evidence, fetched
from support.pipeline.partition_progress import progress
from support.pipeline.pipelines import bare_context
from tandem.backup_avro.chain.entries import Base
from tandem.backup_avro.selection.last_records import PartitionCopy
from tandem.sink.kafka.events import Evidence, TopicPartition
from tandem.sink.process import clock
from tandem.sink.process.meters import Meters
from tandem.sink.read.progress.next_scan_range import ScanPlan
from tandem.sink.read.scan.fetch_allowance import FetchAllowance
from tandem.sink.read.scan.local_ranges import LocalRanges
from tandem.sink.read.tail import TailReader

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


class Reader:
    """A tail or a base of [0, 9), of which the brokers answer what the test says."""

    def __init__(
        self,
        *,
        tail: bool,
        copies: tuple[PartitionCopy, ...] = (),
        limit_s: float = 60.0,
        store: MemoryStore | None = None,
        pool: Executor | None = None,
    ) -> None:
        self.events: list[Event] = []
        self.skipped: list[int] = []
        self.source = ScriptedSource(ends={T0: (9, 1)}, answer=lambda _: [self.events.pop(0)] if self.events else [])
        self.context = bare_context(
            store=store or MemoryStore(), pool=pool, copies=lambda _: copies, meters=Meters(skipped=self.skipped.append)
        )
        base = Base(start=0, end=0, leader=1, done_at=1) if tail else Base(start=0, end=9, leader=1)
        self.progress = self.context.progress_of[T0] = progress(
            offset=0 if tail else 9, head_at=0, head_offset=0, scan=ScanPlan(base, limit_s=limit_s), retention_s=600.0
        )
        if tail:
            self.lane: TailReader | LocalRanges = TailReader(self.context, self.source, patience_s=60.0)
            self.lane.add(T0, self.progress)
        else:
            self.lane = LocalRanges(self.context, self.source, parallel=1, allowance=FetchAllowance(None))
            self.lane.add(T0)
        self.lane.step(0.0)

    def take(self, found: Evidence | None = None, *, end: int = 9) -> None:
        """The broker answers without records."""
        self.events.append(fetched(b"", self.source.positions[T0], end=end, at=clock.now(), evidence=found))
        self.lane.step(0.0)

    def take_evidence(self) -> None:
        """It has answered so often enough."""
        self.take(evidence(clock.now()))

    @property
    def through(self) -> bool:
        """Whether it went on to offset 9."""
        return self.progress.scan.base.complete if isinstance(self.lane, LocalRanges) else self.progress.offset == 9
