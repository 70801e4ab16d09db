"""Bases that can't be read for a while: what that costs is bounded, and the others are read meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import SimpleNamespace

import pytest
from support.backups.chains import key
from support.pipeline.doubles import Event, ScriptedSource, evidence, fetched
from support.pipeline.partition_progress import progress
from support.pipeline.pipelines import bare_context

from tandem.backup_avro.chain.entries import Base, PartitionKey, RecordHash
from tandem.backup_avro.errors import DamagedError
from tandem.backup_avro.record.container import Codec
from tandem.sink.kafka.events import FaultKind, FetchFault, TopicPartition
from tandem.sink.process import clock
from tandem.sink.read.progress.next_scan_range import ScanPlan
from tandem.sink.read.scan.accept_ranges import restart_scan
from tandem.sink.read.scan.fetch_allowance import FetchAllowance
from tandem.sink.read.scan.local_ranges import LocalRanges
from tandem.sink.transcode.transcoder_result import Segment, Transcoded
from tandem.sink.write.object_buffer import ObjectBuffer

RESPONSE = 7000
"""Records of 300 bytes in a response of 2 MiB."""
RECORD_BYTES = 300
OBJECT_BYTES = 64 << 20
DAY_S = 86_400.0
LONGEST_REST_S = 600.0
ORDERS = TopicPartition("orders", 0)


class Counting(ObjectBuffer):
    """Counts bytes instead of holding them. What is full is stored, as the pipeline does."""

    def __init__(self) -> None:
        super().__init__(codec=Codec.NULL, sync=b"0" * 16, block_size=1000)
        self.held: dict[tuple[PartitionKey, int | None], int] = {}
        self.stored: dict[tuple[PartitionKey, int | None], int] = {}

    def add(self, key: PartitionKey, scan: int | None, segments: Iterable[Segment]) -> None:
        lane = (key, scan)
        self.held[lane] = self.held.get(lane, 0) + sum(segment.records for segment in segments) * RECORD_BYTES
        if self.held[lane] >= OBJECT_BYTES:
            self.stored[lane] = self.stored.get(lane, 0) + self.held.pop(lane)

    def discard(self, key: PartitionKey, scan: int) -> None:
        self.held.pop((key, scan), None)


class Lane:
    """A lane over logs of `end` records each, in a time that only it moves. Tests change what can be read."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *tps: TopicPartition, end: int = 1000) -> None:
        self.now = 1000.0
        self.end = end
        self.damaged: dict[TopicPartition, int] = {}
        self.gone_below = 0
        self.hole = range(0)
        self.faults: dict[TopicPartition, FaultKind] = {}
        self.silent: set[TopicPartition] = set()
        self.told: set[TopicPartition] = set()
        self.leader = 1
        self.response_s = 0.04
        self.assigned: list[TopicPartition] = []
        monkeypatch.setattr(clock, "time", SimpleNamespace(monotonic=lambda: self.now))
        monkeypatch.setattr("tandem.sink.read.scan.local_ranges.time", SimpleNamespace(sleep=self.wait))
        self.buffer = Counting()
        self.surveys = 0
        self.context = bare_context(buffer=self.buffer, transcoder=self, hurry_survey=self._hurry)
        self.source = ScriptedSource(ends={}, answer=self.answer)
        plain = self.source.assign

        def assign(tp: TopicPartition, *args: int, topic_id: str | None = None) -> None:
            self.assigned.append(tp)
            self.told.discard(tp)
            plain(tp, *args, topic_id=topic_id)

        monkeypatch.setattr(self.source, "assign", assign)
        monkeypatch.setattr(self.source, "poll", self.poll)
        self.lane = LocalRanges(self.context, self.source, parallel=8, allowance=FetchAllowance(None))
        for tp in tps:
            self.add(tp)

    name = "counting"

    def _hurry(self) -> None:
        self.surveys += 1

    def add(self, tp: TopicPartition) -> None:
        self.context.progress_of[tp] = progress(
            key=key(*tp),
            topic=tp.topic,
            offset=self.end,
            head_at=0,
            head_offset=self.end,
            scan=ScanPlan(Base(start=0, end=self.end, leader=1, epoch=1), limit_s=60.0),
            known=(RecordHash(self.end - 1, "a" * 12),),
            retention_s=DAY_S,
        )
        self.lane.add(tp)

    def wait(self, seconds: float) -> None:
        self.now += seconds

    def transcode(
        self,
        records: bytes | memoryview,
        *,
        topic: str,
        partition: int,
        start: int,
        until: int | None,
        aborted: tuple[tuple[int, int], ...],
        read_committed: bool,
    ) -> Transcoded:
        """As many records as a response has."""
        del records, aborted, read_committed
        assert until is not None
        last = min(until, start + RESPONSE)
        bad = self.damaged.get(TopicPartition(topic, partition))
        if bad is not None and start <= bad < last:
            raise DamagedError(
                f"topic {topic}, partition {partition}, record batch at offset {bad}: its CRC is wrong", code="TDM-X001"
            )
        first = self.hole.stop if start in self.hole else start
        segment = Segment(
            body=b"",
            records=last - first,
            tombstones=0,
            first_offset=first,
            last_offset=last - 1,
            last_at=0,
            min_timestamp=0,
            max_timestamp=0,
            largest=RECORD_BYTES,
            codecs=1,
        )
        return Transcoded(segments=(segment,), next_offset=last, leader_epoch=1)

    def poll(self, timeout_s: float) -> list[Event]:
        """What there is, or nothing after that time."""
        events = self.source.answer(self.source)
        if not events:
            self.now += timeout_s
        return events

    def answer(self, source: ScriptedSource) -> list[Event]:
        """A response of each partition that can be read; a fault once for those that can't."""
        events: list[Event] = []
        for tp, offset in source.positions.items():
            kind = self.faults.get(tp)
            if tp in self.silent:
                continue
            if kind is not None:
                if tp not in self.told:
                    self.told.add(tp)
                    events.append(self.fault(tp, kind))
            elif offset < self.gone_below:
                start = self.gone_below
                events.append(self.fault(tp, FaultKind.OUT_OF_RANGE, log_start=start, log_end=self.end))
            else:
                asked = self.now
                self.now += self.response_s
                events.append(
                    fetched(
                        b"x",
                        offset,
                        end=self.end,
                        topic=tp.topic,
                        partition=tp.partition,
                        leader_id=self.leader,
                        requested_at=asked,
                        received_at=self.now,
                    )
                )
        return events

    def fault(self, tp: TopicPartition, kind: FaultKind, **more: int) -> FetchFault:
        return FetchFault(
            topic=tp.topic,
            partition=tp.partition,
            kind=kind,
            detail=kind.value,
            at=self.now,
            **more,  # type: ignore[arg-type]  # its integer fields
        )

    def base(self, tp: TopicPartition) -> Base:
        """How far one is."""
        return self.context.progress_of[tp].scan.base

    def done(self, *tps: TopicPartition) -> bool:
        """Whether these have been read."""
        return all(self.base(tp).complete for tp in tps)

    def run(self, seconds: float, over: Callable[[], object] = lambda: False) -> float:
        """Step until it is over, for so long at most; return how long it took."""
        began = self.now
        while self.now < began + seconds and not over():
            before = self.now
            self.lane.step(1.0)
            if self.now == before:
                self.now += 0.001
        return self.now - began

    def in_vain(self) -> int:
        """Bytes of orders-0 that were stored by attempts that don't count."""
        return sum(size for (_, n), size in self.buffer.stored.items() if not self.base(ORDERS).counts(n or 0))

    def that_counts(self) -> int:
        """Bytes of orders-0, stored or yet to be, that do."""
        every = [*self.buffer.stored.items(), *self.buffer.held.items()]
        return sum(size for (_, n), size in every if self.base(ORDERS).counts(n or 0))


END = 2_400_000
BAD = 2_300_000


@pytest.mark.parametrize("end", ["the batch is read again", "it was compacted away", "the log start moved past it"])
def test_a_damaged_batch_costs_one_chunk_and_a_few_numbers(monkeypatch: pytest.MonkeyPatch, end: str) -> None:
    """It lies 1.1 million offsets above the lower end of the first chunk, and nobody mends it for a day."""
    it = Lane(monkeypatch, ORDERS, end=END)
    it.damaged[ORDERS] = BAD
    it.run(3600)
    first = it.in_vain()
    assert 200e6 < first < 340e6, "what lies below it in the chunk in which it was found"
    assert len(it.base(ORDERS).void) <= 15
    it.run(DAY_S - 3600)
    assert it.in_vain() == first, "and nothing after that"
    assert 100 <= len(it.base(ORDERS).void) <= 200
    assert "record batch at offset 2300000: its CRC is wrong" in " ".join(it.context.trouble.values())
    assert it.buffer.held == {}, "nothing of an attempt that is over waits for a commit"
    del it.damaged[ORDERS]
    if end == "the log start moved past it":
        it.gone_below = BAD + 500
    elif end == "it was compacted away":
        it.hole = range(BAD - 5000, BAD + 500)
    assert it.run(DAY_S, lambda: it.done(ORDERS)) < LONGEST_REST_S + 120
    assert it.base(ORDERS).done == ((0, END),)
    assert it.context.trouble == {}
    if end == "the batch is read again":
        assert it.that_counts() == END * RECORD_BYTES
    assert it.in_vain() == first


def test_two_damaged_batches_cost_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """The upper one is found when the lower one is mended; each is met first in its chunk from then on."""
    it = Lane(monkeypatch, ORDERS, end=END)
    it.damaged[ORDERS] = BAD
    it.run(3600)
    first = it.in_vain()
    it.damaged[ORDERS] = BAD + 50_000
    it.run(3600)
    it.damaged[ORDERS] = BAD
    it.run(3600)
    ((low, high),) = it.base(ORDERS).done
    assert (BAD < low <= BAD + 50_000, high) == (True, END), "what lies above the one is in the backup"
    assert it.in_vain() == first
    it.damaged.clear()
    it.run(LONGEST_REST_S + 120, lambda: it.done(ORDERS))
    assert it.base(ORDERS).done == ((0, END),)
    assert it.that_counts() == END * RECORD_BYTES


def test_rests_are_short_again_after_something_was_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is damaged further below is another trouble."""
    it = Lane(monkeypatch, ORDERS, end=END)
    it.damaged[ORDERS] = BAD
    it.run(3600)
    it.damaged[ORDERS] = 500_000
    it.run(LONGEST_REST_S + 120, lambda: it.base(ORDERS).done and it.context.trouble)
    before = len(it.base(ORDERS).void)
    it.run(60)
    assert len(it.base(ORDERS).void) - before >= 3


AUDIT = [TopicPartition("audit", number) for number in range(12)]
AUDIT_MORE = [TopicPartition("audit", number) for number in range(12, 60)]
OTHERS = [TopicPartition("orders", number) for number in range(4)]


@pytest.mark.parametrize(
    ("what", "within_s"),
    [
        (FaultKind.UNAUTHORIZED, 2),
        (FaultKind.TRANSIENT, 30),
        (FaultKind.UNKNOWN_TOPIC, 30),
        (FaultKind.OUT_OF_RANGE, 2),
        ("damaged", 2),
        ("silent", 200),
    ],
)
def test_partitions_that_can_t_be_read_hold_up_no_other(
    monkeypatch: pytest.MonkeyPatch, what: FaultKind | str, within_s: float
) -> None:
    """More of them than are read at a time, and they come first. Each is named, and read as soon as it can be."""
    it = Lane(monkeypatch, *AUDIT, *OTHERS)
    it.damaged = dict.fromkeys(AUDIT, 0) if what == "damaged" else {}
    it.silent = set(AUDIT) if what == "silent" else set()
    it.faults = dict.fromkeys(AUDIT, what) if isinstance(what, FaultKind) else {}
    assert it.run(3600, lambda: it.done(*OTHERS)) < within_s
    it.run(4 * 3600)
    told = [*it.context.trouble.values()]
    for tp in AUDIT:
        assert any(
            text.startswith((f"audit-{tp.partition}: ", f"topic audit, partition {tp.partition},")) for text in told
        )
    assert len(told) == len(AUDIT)
    assert all(len(it.base(tp).void) < 45 for tp in AUDIT)
    late = TopicPartition("late", 0)
    it.add(late)
    assert it.run(3600, lambda: it.done(late)) < within_s
    for trouble in (it.damaged, it.silent, it.faults):
        trouble.clear()  # type: ignore[attr-defined]  # a set or a dictionary
    assert it.run(3600, lambda: it.done(*AUDIT)) < LONGEST_REST_S + 5
    assert it.context.trouble == {}
    assert not it.lane.busy


def test_no_more_give_up_their_places_than_others_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight stand still, one comes."""
    it = Lane(monkeypatch, *AUDIT[:8])
    it.faults = dict.fromkeys(AUDIT, FaultKind.UNAUTHORIZED)
    it.run(60)
    it.add(ORDERS)
    it.run(60, lambda: it.done(ORDERS))
    assert sum(len(it.base(tp).void) for tp in AUDIT[:8]) == 1


def test_trouble_that_is_over_is_no_standstill(monkeypatch: pytest.MonkeyPatch) -> None:
    """They had no leader for a moment, and get on since, though another one waits for a place."""
    it = Lane(monkeypatch, *AUDIT[:9], end=1_000_000)
    it.faults = dict.fromkeys(AUDIT[:8], FaultKind.TRANSIENT)
    it.run(2)
    it.faults.clear()
    it.run(600, lambda: it.done(*AUDIT[:9]))
    assert [it.base(tp).void for tp in AUDIT[:9]] == [()] * 9
    assert it.assigned == AUDIT[:9]


def test_what_can_be_read_again_does_not_wait_for_all_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands may wait, and a trouble that is over would be told for hours."""
    many = [TopicPartition("orders", number) for number in range(2000)]
    it = Lane(monkeypatch, *AUDIT, *many, end=20_000)
    it.faults = dict.fromkeys(AUDIT, FaultKind.TRANSIENT)
    it.run(60)
    it.faults.clear()
    it.run(90)
    assert it.done(*AUDIT)
    assert it.context.trouble == {}
    assert not it.done(*many[1000:])


def test_what_gets_on_again_makes_way_for_the_next_try(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may take hours, and is one of those that are read."""
    it = Lane(monkeypatch, *AUDIT, *(TopicPartition("orders", number) for number in range(100)), end=600_000)
    it.faults = dict.fromkeys(AUDIT, FaultKind.TRANSIENT)
    it.run(30)
    it.faults.clear()
    assert it.run(300, lambda: len(it.source.positions.keys() & set(AUDIT)) >= 3) < 200


def test_what_can_t_be_read_takes_one_place_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    """While others wait. Each try of a silent one takes a minute, and there are enough of them to fill all places."""
    many = [TopicPartition("orders", number) for number in range(3000)]
    it = Lane(monkeypatch, *AUDIT, *AUDIT_MORE, *many, end=20_000)
    it.silent = {*AUDIT, *AUDIT_MORE}
    it.run(1000, lambda: it.done(many[0]))
    it.run(100)
    for _ in range(100):
        it.run(1.0)
        assert len(it.silent & it.source.positions.keys()) <= 1
    assert not it.done(many[-1]), "others waited all the time"


def test_what_can_be_read_is_read_in_its_order_and_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight at a time, none is put off."""
    tps = [TopicPartition("t", number) for number in range(40)]
    it = Lane(monkeypatch, *tps, end=100_000)
    it.run(600, lambda: it.done(*tps))
    assert it.assigned == tps
    assert all(it.base(tp).void == () and it.base(tp).attempts == 1 for tp in tps)


def test_a_slow_broker_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each partition's answer comes half a minute after it was asked for, all but one after the others."""
    tps = [TopicPartition("t", number) for number in range(20)]
    it = Lane(monkeypatch, *tps, end=20_000)
    it.response_s = 5.0
    it.run(3600, lambda: it.done(*tps))
    assert it.done(*tps)
    assert it.assigned == tps


def test_time_in_which_nobody_asked_is_no_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    """A full memory budget keeps the lane from reading for hours; those that wait must wait on."""
    it = Lane(monkeypatch, *AUDIT)
    it.silent = set(AUDIT)
    it.run(20)
    it.now += 7200
    it.run(20)
    assert it.context.trouble == {}
    it.silent.clear()
    it.run(60, lambda: it.done(*AUDIT))
    assert it.assigned == AUDIT


@pytest.mark.parametrize("kind", [FaultKind.UNAUTHORIZED, FaultKind.TRANSIENT, None])
def test_where_nobody_waits_a_partition_keeps_its_place(
    monkeypatch: pytest.MonkeyPatch, kind: FaultKind | None
) -> None:
    """The fetcher tries again by itself, sooner than anybody else could; no attempt is spent on it."""
    it = Lane(monkeypatch, ORDERS)
    if kind is None:
        it.silent.add(ORDERS)
    else:
        it.faults[ORDERS] = kind
    it.run(3600)
    assert it.base(ORDERS).void == ()
    it.faults.clear()
    it.silent.clear()
    assert it.run(3600, lambda: it.done(ORDERS)) < 5


def test_trouble_that_is_told_again_and_again_does_not_begin_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that sends readers elsewhere says so in each of its empty answers."""
    it = Lane(monkeypatch, *AUDIT, *OTHERS)
    it.faults = dict.fromkeys(AUDIT, FaultKind.TRANSIENT)
    plain = it.source.answer

    def again(source: ScriptedSource) -> list[Event]:
        it.told.clear()
        it.now += 0.5
        return plain(source)

    it.source.answer = again
    assert it.run(3600, lambda: it.done(*OTHERS)) < 30


def test_a_new_leader_is_read_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the old one could not say is no reason to let the new one wait."""
    it = Lane(monkeypatch, ORDERS)
    it.damaged[ORDERS] = 0
    it.run(7200)
    it.damaged.clear()
    it.leader = 2
    assert restart_scan(it.context, ORDERS, 2, 2, elsewhere=False)
    it.lane.restart(ORDERS)
    assert it.run(3600, lambda: it.done(ORDERS)) < 2
    assert it.base(ORDERS).leader == 2


def test_a_partition_that_rests_can_be_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its topic was deleted."""
    it = Lane(monkeypatch, ORDERS)
    it.damaged[ORDERS] = 0
    it.run(100)
    assert it.lane.busy
    it.lane.remove(ORDERS)
    assert not it.lane.busy
    assert it.context.trouble == {}
    it.run(1000)
    assert it.source.positions == {}


def test_an_end_that_was_told_before_the_rest_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A response that speaks of a partition that was just set aside."""
    it = Lane(monkeypatch, ORDERS)
    it.damaged[ORDERS] = 0
    it.run(1.0)
    plain = it.source.answer
    topic, partition = ORDERS
    empty: list[Event] = [
        fetched(b"", 0, end=1000, at=it.now, topic=topic, partition=partition, evidence=evidence(it.now))
    ]
    it.source.answer = lambda source: plain(source) + empty
    it.run(60)
    assert not it.done(ORDERS)
