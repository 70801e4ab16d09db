"""Large bases read by worker processes: handed out newest first, taken once, in order, and only if read in time."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field, replace

import pytest
from support.backups.chains import complete_generation, key, topic
from support.pipeline.doubles import StandInCluster
from support.pipeline.pipelines import QUICK, T0, Bench, at_work, through

from tandem.backup_avro.chain.generation import Generation
from tandem.backup_avro.errors import TransientError
from tandem.sink.kafka.events import FaultKind, FetchFault
from tandem.sink.process import clock
from tandem.sink.read.scan.range_reader import TopicGoneError, UnreadableError, read_range
from tandem.sink.read.scan.range_tasks import RangeRead, RangeTask
from tandem.sink.store.contract.object_store import StoreTransientError
from tandem.sink.transcode.plain_transcoder import ReferenceTranscoder


@dataclass
class Crew:
    """Workers whose answers the test gives."""

    bench: Bench
    count: int = 2
    waiting: list[tuple[RangeTask, Future[RangeRead]]] = field(default_factory=list)
    handed_out: list[tuple[int, int]] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def submit(self, task: RangeTask) -> Future[RangeRead]:
        future: Future[RangeRead] = Future()
        with self.lock:
            self.handed_out.append((task.low, task.high))
            self.waiting.append((task, future))
        return future

    def wants(self, *ranges: tuple[int, int]) -> None:
        """Wait until exactly these are handed out and unanswered."""

        def pending() -> list[tuple[int, int]]:
            with self.lock:
                return [(task.low, task.high) for task, future in self.waiting if not future.cancelled()]

        self.bench.until(lambda _: pending() == list(ranges))

    def _pop(self, low: int) -> tuple[RangeTask, Future[RangeRead]]:
        with self.lock:
            self.waiting = [(task, future) for task, future in self.waiting if not future.cancelled()]
            (found,) = (item for item in self.waiting if item[0].low == low)
            self.waiting.remove(found)
        return found

    def begin(self, low: int) -> Callable[[], RangeRead]:
        """Have a worker read the range that begins at `low`; what is returned gives its answer."""
        task, future = self._pop(low)
        future.set_running_or_notify_cancel()
        source = self.bench.log.open()
        read = read_range(task, source=source, store=self.bench.store, transcoder=ReferenceTranscoder())
        self.bench.log.sources.remove(source)

        def answer(**changes: float) -> RangeRead:
            changed = replace(read, **changes)  # type: ignore[arg-type]  # named
            future.set_result(changed)
            return changed

        return answer

    def read(self, low: int) -> RangeRead:
        return self.begin(low)()

    def fail(self, low: int, error: Exception) -> None:
        """Answer with an error."""
        task, future = self._pop(low)
        assert task.low == low
        future.set_exception(error)


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tandem.sink.read.scan.worker_ranges._FIRST_OFFSETS", 30)
    monkeypatch.setattr("tandem.sink.read.scan.worker_ranges._SMALL_OFFSETS", 10)
    monkeypatch.setattr("tandem.sink.read.scan.worker_ranges._MOST_OFFSETS", 30)
    monkeypatch.setattr("tandem.sink.read.scan.worker_ranges._FEWEST_OFFSETS", 30)
    monkeypatch.setattr("tandem.sink.read.scan.worker_ranges._REST_S", 0.05)
    monkeypatch.setattr("tandem.sink.pipeline._SCAN_POLL_S", 0.01)


@pytest.fixture
def bench() -> Iterator[Bench]:
    """A pipeline with workers on a log of a hundred records."""
    with at_work() as it:
        it.workers = Crew(it)
        it.log.append(*range(100))
        yield it


@pytest.fixture
def crew(bench: Bench) -> Crew:
    assert isinstance(bench.workers, Crew)
    return bench.workers


def objects(bench: Bench) -> set[str]:
    """The data objects in the store."""
    return {name for name in bench.store.objects if name.endswith(".avro")}


def another_leads(bench: Bench) -> None:
    """Broker 2 leads from now on, and the log's reader is told so."""
    with bench.log.lock:
        bench.log.leader = 2
        for source in bench.log.sources:
            source.leader[T0] = 2
        bench.log.faults.append(
            FetchFault(
                topic="t", partition=0, kind=FaultKind.LEADER_MOVED, detail="", at=0.0, old_leader=1, new_leader=2
            )
        )


def done(low: int) -> Callable[[Generation], bool]:
    """Whether the chain has the base done from `low` on."""
    return lambda state: key() in state.positions and state.positions[key()].base.done == ((low, 100),)


def test_workers_are_told_what_other_copies_hold(bench: Bench, crew: Crew) -> None:
    """So that they don't skip it."""
    bench.copies = (complete_generation(7, {key(): 95}).state,)
    bench.start()
    crew.wants((70, 100), (40, 70), (10, 40), (0, 10))
    assert {task.copies[0][:2] for task, _ in crew.waiting} == {(7, 95)}


def test_ranges_are_handed_out_from_above_and_taken_in_that_order(bench: Bench, crew: Crew) -> None:
    """Two for the workers and two that wait; one that is read early waits for those above it."""
    bench.start()
    crew.wants((70, 100), (40, 70), (10, 40), (0, 10))
    crew.read(40)
    crew.read(0)
    assert bench.chain().positions.get(key()) is None or not bench.chain().positions[key()].base.done
    crew.read(70)
    bench.until(done(40))
    crew.read(10)
    state = bench.until(through(100))
    assert bench.stored(state) == list(range(100))
    assert {part.scan for _, part in state.live_parts()} == {1, 2, 3, 4}
    assert objects(bench) == state.objects.keys()


def test_tasks_name_the_epoch_in_which_the_same_broker_leads_on(bench: Bench, crew: Crew) -> None:
    """Raised twice, one at a time: a worker that is told the first one would refuse each range for ever."""
    pipeline = bench.start()
    crew.wants((70, 100), (40, 70), (10, 40), (0, 10))
    progress = pipeline._context.progress_of[T0]
    for _ in range(2):
        epoch = progress.scan.base.epoch
        raised = FetchFault(
            topic="t",
            partition=0,
            kind=FaultKind.EPOCH_RAISED,
            detail="",
            at=0.0,
            old_leader=1,
            new_leader=1,
            old_epoch=epoch,
            new_epoch=epoch + 1,
        )
        bench.log.faults.append(raised)
        bench.until(lambda _, wanted=epoch + 1: progress.scan.base.epoch == wanted)  # type: ignore[misc]
    assert progress.scan.base.floor == 1
    crew.read(70)
    state = bench.until(done(70))
    assert state.positions[key()].base.epoch == progress.scan.base.epoch, "and a catch-up job reads it in the chain"


def test_what_could_not_be_read_is_handed_out_again_with_all_below(bench: Bench, crew: Crew) -> None:
    """A trouble until it works; what was read below meanwhile is deleted."""
    pipeline = bench.start()
    crew.wants((70, 100), (40, 70), (10, 40), (0, 10))
    crew.read(40)
    stored = objects(bench)
    assert stored
    crew.fail(70, TransientError("no answer", code="TDM-X001"))
    crew.wants((70, 100), (40, 70), (10, 40), (0, 10))
    bench.until(lambda _: not stored & objects(bench))
    assert "t-0: a range could not be read, trying again: no answer" in " ".join(pipeline.report().trouble)
    for low in (70, 40, 10, 0):
        crew.read(low)
    state = bench.until(through(100))
    assert bench.stored(state) == list(range(100))
    assert objects(bench) == state.objects.keys()
    assert not pipeline.report().trouble


def test_what_is_damaged_is_begun_with_and_alone(bench: Bench, crew: Crew) -> None:
    """So nothing is read in vain before it fails again, and nothing below it. Once it is read, all goes on."""
    pipeline = bench.start()
    crew.wants((70, 100), (40, 70), (10, 40), (0, 10))
    crew.fail(70, UnreadableError("bad", code="TDM-X001", at=90))
    crew.wants((90, 100), (60, 90), (30, 60), (0, 30))
    crew.fail(90, UnreadableError("bad", code="TDM-X001", at=90))
    crew.wants((90, 100))
    assert "trying again: bad" in " ".join(pipeline.report().trouble)
    crew.read(90)
    crew.wants((60, 90), (30, 60), (0, 30))
    for low in (60, 30, 0):
        crew.read(low)
    state = bench.until(through(100))
    assert bench.stored(state) == list(range(100))
    assert objects(bench) == state.objects.keys()


def test_what_fails_again_and_again_is_tried_ever_more_rarely(
    bench: Bench, crew: Crew, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rests double, up to the longest one; a new leader is tried at once."""
    monkeypatch.setattr("tandem.sink.read.scan.worker_ranges._LONGEST_REST_S", 0.4)
    bench.start()
    times = []
    for _ in range(6):
        bench.until(lambda _: any(not future.cancelled() and task.low == 70 for task, future in crew.waiting))
        times.append(clock.now())
        crew.fail(70, TransientError("no answer", code="TDM-X001"))
    rests = [after - before for before, after in itertools.pairwise(times)]
    assert min(rests[:2]) < 0.3, "0.05 and 0.1; a busy machine may be late once"
    assert min(rests[3:]) >= 0.4
    bench.until(lambda _: any(not future.cancelled() and task.low == 70 for task, future in crew.waiting))
    monkeypatch.setattr("tandem.sink.read.scan.worker_ranges._LONGEST_REST_S", 600.0)
    monkeypatch.setattr("tandem.sink.read.scan.worker_ranges._REST_S", 60.0)
    crew.fail(70, TransientError("no answer", code="TDM-X001"))
    time.sleep(0.2)
    assert not any(not future.cancelled() and task.low == 70 for task, future in crew.waiting)
    another_leads(bench)
    crew.wants((70, 100), (40, 70), (10, 40), (0, 10))


def test_what_a_dead_store_keeps_is_no_reason_to_stop(
    bench: Bench, crew: Crew, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Deleting what is of no use may fail."""
    bench.start()
    crew.wants((70, 100), (40, 70), (10, 40), (0, 10))
    crew.read(40)

    def fail(_: object) -> None:
        raise StoreTransientError("503", code="TDM-X001")

    monkeypatch.setattr(bench.store, "delete", fail)
    crew.fail(70, TransientError("no answer", code="TDM-X001"))
    crew.wants((70, 100), (40, 70), (10, 40), (0, 10))
    for low in (70, 40, 10, 0):
        crew.read(low)
    assert bench.stored(bench.until(through(100))) == list(range(100))


def test_a_range_that_was_begun_too_early_does_not_count(bench: Bench, crew: Crew) -> None:
    """Those above must have been read to their end at most a quarter of the tombstones' time later."""
    bench.cluster = StandInCluster(topics={"t": replace(topic(), config={"delete.retention.ms": "400000"})})
    bench.start()
    crew.wants((70, 100), (40, 70), (10, 40), (0, 10))
    now = clock.now()
    crew.begin(70)(began=now, ended=now + 90)  # type: ignore[call-arg]  # by keyword
    crew.begin(40)(began=now - 9, ended=now + 1)  # type: ignore[call-arg]
    bench.until(done(40))
    early = crew.begin(10)(began=now - 11, ended=now + 1)  # type: ignore[call-arg]
    crew.wants((10, 40), (0, 10))
    bench.until(lambda _: not objects(bench) & {item.key for item in early.offer.objects})
    assert crew.handed_out.count((10, 40)) == 2
    crew.begin(10)(began=now - 9, ended=now + 95)  # type: ignore[call-arg]
    bench.until(done(10))
    crew.begin(0)(began=now - 6, ended=now)  # type: ignore[call-arg]
    crew.wants((0, 10))
    crew.begin(0)(began=now - 4, ended=now)  # type: ignore[call-arg]
    assert bench.stored(bench.until(through(100))) == list(range(100))


def test_after_a_restart_what_was_done_counts_as_read_until_then(bench: Bench, crew: Crew) -> None:
    """The clock of the process before says nothing."""
    bench.cluster = StandInCluster(topics={"t": replace(topic(), config={"delete.retention.ms": "400000"})})
    bench.start()
    crew.wants((70, 100), (40, 70), (10, 40), (0, 10))
    crew.read(70)
    bench.until(done(70))
    bench.started[-1].drain()
    assert bench.started[-1].join(5)
    crew.wants()
    begun = clock.now()
    bench.again()
    crew.wants((40, 70), (10, 40), (0, 10))
    crew.begin(40)(began=begun - 101)  # type: ignore[call-arg]
    crew.wants((40, 70), (10, 40), (0, 10))
    crew.begin(40)(began=begun - 99)  # type: ignore[call-arg]
    bench.until(done(40))


def test_small_bases_are_read_here(bench: Bench, crew: Crew) -> None:
    """They share journals; an object for each would be too many."""
    bench.log.offsets[:] = range(95, 100)
    bench.log.start = 95
    bench.start()
    assert bench.stored(bench.until(through(100))) == list(range(95, 100))
    assert crew.handed_out == []


def test_a_moved_leader_starts_the_base_again(bench: Bench, crew: Crew) -> None:
    """What workers read from the old one is thrown away, what none has begun is called off."""
    bench.start()
    crew.wants((70, 100), (40, 70), (10, 40), (0, 10))
    crew.read(70)
    bench.until(done(70))
    before = objects(bench)
    answer = crew.begin(40)
    another_leads(bench)
    bench.until(lambda state: state.positions[key()].base.floor > 1)
    crew.wants((70, 100), (40, 70), (10, 40), (0, 10))
    late = answer()
    assert late.offer.objects
    bench.until(lambda _: not objects(bench) & {item.key for item in late.offer.objects})
    for low in (70, 40, 10, 0):
        crew.read(low)
    state = bench.until(through(100))
    assert bench.stored(state) == list(range(100))
    assert state.positions[key()].base.leader == 2
    assert objects(bench) - before == {item.key for item, _ in state.live_parts()}


def test_the_tail_begins_from_the_leader_that_the_base_names(bench: Bench, crew: Crew) -> None:
    """It may have moved since that was asked for. Workers would refuse every range, and nobody would say why."""
    bench.start()
    crew.wants((70, 100), (40, 70), (10, 40), (0, 10))
    tail, *others = bench.log.sources
    assert not any(source.known for source in others)
    known = dict(tail.known)
    for low in (70, 40, 10, 0):
        crew.read(low)
    base = bench.until(through(100)).positions[key()].base
    assert known == {T0: (base.leader, base.epoch)}


def test_a_topic_that_is_gone_is_forgotten(bench: Bench, crew: Crew) -> None:
    """A worker's word makes the instance look at once; until it sees it too, the range is tried again."""
    bench.policy = replace(QUICK, survey_interval_s=60.0)
    pipeline = bench.start()
    crew.wants((70, 100), (40, 70), (10, 40), (0, 10))
    crew.fail(70, TopicGoneError("t is gone", code="TDM-X001"))
    crew.wants((70, 100), (40, 70), (10, 40), (0, 10))
    bench.cluster.topics.clear()
    crew.fail(70, TopicGoneError("t is gone", code="TDM-X001"))
    bench.until(lambda state: state.topics and all(one.removed for one in state.topics.values()))
    crew.wants()
    assert pipeline.report().partitions == 0


def test_ranges_grow_while_they_are_short_and_shrink_when_long(
    bench: Bench, crew: Crew, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What lies below a range waits for it."""
    monkeypatch.setattr("tandem.sink.read.scan.worker_ranges._FIRST_OFFSETS", 10)
    monkeypatch.setattr("tandem.sink.read.scan.worker_ranges._MOST_OFFSETS", 20)
    monkeypatch.setattr("tandem.sink.read.scan.worker_ranges._FEWEST_OFFSETS", 4)
    crew.count = 0
    now = clock.now()
    bench.start()
    crew.wants((90, 100), (80, 90))
    crew.read(90)
    crew.wants((80, 90), (60, 80))
    crew.begin(80)(began=now, ended=now + 30)  # type: ignore[call-arg]
    crew.wants((60, 80), (50, 60))
    crew.begin(60)(began=now, ended=now + 30)  # type: ignore[call-arg]
    crew.wants((50, 60), (45, 50))
    crew.begin(50)(began=now, ended=now + 30)  # type: ignore[call-arg]
    crew.wants((45, 50), (41, 45))
    crew.begin(45)(began=now, ended=now + 30)  # type: ignore[call-arg]
    crew.wants((41, 45), (37, 41))


def of_three(bench: Bench) -> Crew:
    """Workers for a pipeline on a topic of three large partitions alike."""
    crew = bench.workers = Crew(bench)
    bench.cluster = StandInCluster(topics={"t": topic(partitions=3)})
    bench.log.append(*range(1000))
    bench.log.quiet = True
    opened = bench.log.open

    def open_for_three() -> object:
        source = opened()
        for number in range(3):
            tp = T0._replace(partition=number)
            source.ends[tp], source.starts[tp], source.leader[tp] = (1000, 1), (0, 0), 1
        return source

    bench.log.open = open_for_three  # type: ignore[method-assign,assignment]  # three partitions alike
    return crew


@pytest.fixture
def wide() -> Iterator[Bench]:
    """A pipeline on three partitions."""
    it = Bench()
    yield it
    it.abort.set()
    for pipeline in it.started:
        pipeline.drain()
        assert pipeline.join(5)


def test_many_partitions_take_turns(wide: Bench) -> None:
    """A large one is no reason for the others to wait."""
    crew = of_three(wide)
    wide.start()
    wide.until(lambda _: len(crew.waiting) == 4)
    assert sorted(task.key.partition for task, _ in crew.waiting[:3]) == [0, 1, 2]


def test_a_partition_that_can_t_be_read_comes_last(wide: Bench) -> None:
    """It has nothing under way, as ever; the others, which can be read, get the workers all the same."""
    crew = of_three(wide)
    wide.start()
    wide.until(lambda _: len(crew.waiting) == 4)

    def fail(partition: int) -> None:
        with crew.lock:
            for task, future in crew.waiting:
                if task.key.partition == partition and future.set_running_or_notify_cancel():
                    future.set_exception(TransientError("no leader", code="TDM-X001"))
            crew.waiting = [item for item in crew.waiting if item[0].key.partition != partition]

    def given() -> list[int]:
        with crew.lock:
            return [task.key.partition for task, future in crew.waiting if not future.cancelled()]

    fail(0)
    wide.until(lambda _: len(given()) == 4)
    time.sleep(0.2)
    assert 0 not in given(), "its rest is over, and there are others to read"
    fail(1)
    wide.until(lambda _: given() == [2] * 4)
    fail(2)
    wide.until(lambda _: len(given()) == 4 and {0, 1} <= set(given()))


def test_workers_are_told_which_record_of_the_log_is_known(bench: Bench, crew: Crew) -> None:
    """The last one, nearly always; where it is not, what lies above the known one is a range of its own."""
    bench.log.hashes.pop(98)
    bench.log.hashes.pop(99)
    bench.start()
    bench.until(lambda _: len(crew.handed_out) >= 3)  # a fourth may follow at once
    assert crew.handed_out[:3] == [(97, 100), (67, 97), (37, 67)]
    assert {task.known_to for task, _ in crew.waiting} == {96}
    assert crew.read(97).offer.newest is not None
    assert [crew.read(low).offer.newest for low in (67, 37)] == [None, None]
    bench.until(lambda state: key() in state.positions and state.positions[key()].base.done == ((37, 100),))
    bench.until(lambda _: crew.waiting[-1][0].known_to == 99)
