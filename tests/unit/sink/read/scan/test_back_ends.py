"""One contract for the three back-ends of a scan: the same log gives the same scan, whatever happens to one range."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Protocol

import pytest
from support.backups.chains import PAIR, key, topic
from support.pipeline.doubles import Event, ScriptedSource, StandInCluster, fetched
from support.pipeline.pipelines import QUICK, T0, Bench, through
from support.pipeline.range_tasks import FOLDER

from tandem.backup_avro.chain import layout
from tandem.backup_avro.chain.generation import Generation
from tandem.backup_avro.errors import TransientError
from tandem.sink.kafka.events import FaultKind, FetchFault
from tandem.sink.process import clock
from tandem.sink.read.scan.range_reader import put_offer, read_range
from tandem.sink.read.scan.range_tasks import RangeRead, RangeSizes, RangeTask, offered_ranges
from tandem.sink.read.scan.worker_processes import WorkerLostError
from tandem.sink.transcode.plain_transcoder import ReferenceTranscoder
from tandem.spark_jobs.catch_up.plan import CatchUpPace, generation_being_built, remaining_ranges

PREFIX = layout.offers_prefix(*FOLDER)
WHAT = ["nothing", "a failure", "a death", "twice", "late", "another claim", "another leader", "a hole"]


def lead(bench: Bench, leader: int) -> None:
    """Another broker leads from now on."""
    with bench.log.lock:
        bench.log.leader = leader
        for source in bench.log.sources:
            source.leader[T0] = leader
        moved = FetchFault(
            topic="t", partition=0, kind=FaultKind.LEADER_MOVED, detail="", at=0.0, old_leader=1, new_leader=leader
        )
        bench.log.faults.append(moved)


class Side(Protocol):
    """A pipeline whose scan is read by one back-end, and what happens to one of its ranges."""

    bench: Bench
    happened: bool

    def useless(self) -> set[str]:
        """Return the objects of the range to which something happened, if it must not count."""
        ...

    def begin(self) -> None:
        """Start it all."""
        ...

    def revive(self) -> None:
        """Start again what has died."""
        ...

    def end(self) -> None:
        """End what is not the pipeline."""
        ...


@dataclass
class Local:
    """The instance itself reads. What happens, happens to the first response with records of the scan."""

    what: str
    bench: Bench = field(default_factory=lambda: Bench(policy=replace(QUICK, chunk_ceiling_s=1.0)))
    happened: bool = False
    holes: int = 3

    def useless(self) -> set[str]:
        """None: its records are in objects of many ranges."""
        return set()

    def begin(self) -> None:
        """Start."""
        self.plain = self.bench.log.answer
        self.bench.log.answer = self.answer  # type: ignore[method-assign]  # what it does, and more
        self.bench.start()

    def answer(self, source: ScriptedSource) -> list[Event]:
        """What the log answers, but for one time."""
        position = source.positions.get(T0, 100)
        if self.happened or position >= 100:
            return self.plain(source)
        if self.what == "silence":
            return []
        self.happened = True
        match self.what:
            case "a failure":
                with self.bench.log.lock:
                    self.bench.log.spoilt = True
                    events = self.plain(source)
                    self.bench.log.spoilt = False
                return events
            case "a death":
                raise RuntimeError("the process dies")
            case "twice":
                return self.plain(source) * 2
            case "late":
                time.sleep(1.2)
            case "another leader":
                events = self.plain(source)
                lead(self.bench, 2)
                return events
            case "a hole":
                self.holes -= 1
                self.happened = self.holes == 0
                return [fetched(b"", position, end=100, at=clock.now(), leader_id=1, leader_epoch=1)]
            case _:
                pass
        return self.plain(source)

    def revive(self) -> None:
        """Start again what has failed."""
        if self.bench.started[-1].error is not None:
            self.bench.again()

    def end(self) -> None:
        """Nothing else runs."""


@dataclass
class Remote:
    """Other processes read. What happens, happens to the second range that is read."""

    what: str
    bench: Bench = field(default_factory=Bench)
    happened: bool = False
    reads: list[RangeRead] = field(default_factory=list)
    stop: threading.Event = field(default_factory=threading.Event)

    def useless(self) -> set[str]:
        """Those of the second range."""
        counts = self.what in ("nothing", "twice")
        return set() if counts else {item.key for item in self.reads[1].offer.objects}

    def begin(self) -> None:
        """Start the readers and the pipeline."""
        self.thread = threading.Thread(target=self.work, daemon=True)
        if self.what == "silence":
            self.stop.set()
        self.thread.start()
        self.bench.start()

    def work(self) -> None:
        """Read until `stop`."""

    def revive(self) -> None:
        """They go on by themselves."""

    def end(self) -> None:
        """End the readers."""
        self.stop.set()
        self.thread.join(5)

    def read(self, task: RangeTask) -> RangeRead:
        """Read a range; something happens to it once."""
        source = self.bench.log.open()
        try:
            read = read_range(task, source=source, store=self.bench.store, transcoder=ReferenceTranscoder())
        finally:
            self.bench.log.sources.remove(source)
        self.reads.append(read)
        if self.happened or len(self.reads) < 2:
            return read
        self.happened = True
        offer = read.offer
        match self.what:
            case "a failure":
                raise TransientError("no answer", code="TDM-X001")
            case "a death":
                raise WorkerLostError("a process has ended", code="TDM-X001")
            case "twice":
                return self.reads[0]
            case "late":
                return replace(
                    read, began=read.began - 1000, offer=replace(offer, started_at=offer.started_at - 1_000_000)
                )
            case "another claim":
                return replace(read, offer=replace(offer, generation=2))
            case "another leader":
                lead(self.bench, 2)
            case "a hole":
                return replace(read, offer=replace(offer, high=offer.high - 5))
            case _:
                pass
        return read


@dataclass
class Workers(Remote):
    """Worker processes read."""

    count: int = 1
    waiting: queue.SimpleQueue[tuple[RangeTask, Future[RangeRead]]] = field(default_factory=queue.SimpleQueue)

    def __post_init__(self) -> None:
        """The pipeline gives its ranges to these."""
        self.bench.workers = self

    def submit(self, task: RangeTask) -> Future[RangeRead]:
        """Queue a range."""
        future: Future[RangeRead] = Future()
        self.waiting.put((task, future))
        return future

    def work(self) -> None:
        """One range after the other; all that wait are lost with a process that ends."""
        while not self.stop.is_set():
            try:
                task, future = self.waiting.get(timeout=0.05)
            except queue.Empty:
                continue
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(self.read(task))
            except WorkerLostError as error:
                future.set_exception(error)
                while not self.waiting.empty():
                    lost = self.waiting.get()[1]
                    if lost.set_running_or_notify_cancel():
                        lost.set_exception(error)
            except TransientError as error:
                future.set_exception(error)


@dataclass
class Spark(Remote):
    """Tasks of a catch-up job read."""

    def __post_init__(self) -> None:
        """The pipeline waits for a job."""
        self.bench.policy = replace(QUICK, offers_patience_s=60.0)
        self.bench.store.step_ms = 0

    def work(self) -> None:
        """Plan and read; one pass after the other, as jobs that are started again."""
        pace = CatchUpPace(range_offsets=30, sizes=RangeSizes(block_size=100))
        while not self.stop.wait(0.02):
            if not any(name.startswith(f"{PAIR}/generations/") for name in list(self.bench.store.objects)):
                continue
            state = self.bench.chain()
            if state.opening is None or generation_being_built([state]) is None:
                continue
            offers = offered_ranges(name for name in list(self.bench.store.objects) if name.startswith(PREFIX))
            for task in remaining_ranges(self.bench.chain(), offers.values(), pace, run="job").ranges:
                try:
                    read = self.read(task)
                except WorkerLostError:
                    break
                except TransientError:
                    continue
                bounds = {"low": read.offer.low, "high": read.offer.high}
                put_offer(self.bench.store, replace(task, **bounds), read.offer)  # type: ignore[arg-type]  # named


BACK_ENDS: dict[str, Callable[[str], Side]] = {"local": Local, "workers": Workers, "spark": Spark}


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    scan = "tandem.sink.read.scan"
    monkeypatch.setattr(f"{scan}.spark_ranges._LOOK_S", 0.02)
    monkeypatch.setattr(f"{scan}.local_ranges.DAMAGED_RETRY_S", 0.05)
    for name, value in {"_FIRST_OFFSETS": 30, "_MOST_OFFSETS": 30, "_SMALL_OFFSETS": 10, "_REST_S": 0.05}.items():
        monkeypatch.setattr(f"{scan}.worker_ranges.{name}", value)
    monkeypatch.setattr("tandem.sink.pipeline._SCAN_POLL_S", 0.01)


@pytest.fixture
def side(request: pytest.FixtureRequest) -> Iterator[Side]:
    """A log of a hundred records, with holes where records were compacted away."""
    kind, what = request.param
    it = BACK_ENDS[kind](what)
    it.bench.log.append(*(offset for offset in range(100) if offset % 10))
    yield it
    it.end()
    it.bench.abort.set()
    for pipeline in it.bench.started:
        pipeline.drain()
        assert pipeline.join(5.0)


@pytest.mark.parametrize(
    "side",
    # The instance itself reads for its own claim alone.
    [(kind, what) for what in WHAT for kind in BACK_ENDS if (kind, what) != ("local", "another claim")],
    indirect=True,
    ids=" ".join,
)
def test_the_same_log_gives_the_same_scan(side: Side, request: pytest.FixtureRequest) -> None:
    """Each record once, from one leader, without a hole, and no object that is of no use."""
    side.begin()

    def ended(state: Generation) -> bool:
        side.revive()
        return bool(through(100)(state))

    state = side.bench.until(ended, seconds=15)
    assert side.happened
    base = state.positions[key()].base
    assert (base.start, base.end, base.done) == (0, 100, ((0, 100),))
    assert side.bench.stored(state) == [offset for offset in range(100) if offset % 10]
    assert not state.taints
    assert (base.leader, base.floor > 1) == ((2, True) if "another leader" in request.node.name else (1, False))
    if "local late" in request.node.name:
        assert base.attempts > 1, "the first one took too long"
    live = {item.key for item, _ in state.live_parts()}
    assert live <= side.bench.store.objects.keys()
    assert not side.useless() & live


@pytest.mark.parametrize("side", [(kind, "silence") for kind in BACK_ENDS], indirect=True, ids=" ".join)
def test_a_scan_of_which_nothing_is_left_ends(side: Side) -> None:
    """Retention deletes all that was to be read, and then another replica leads: nobody reads a range any more."""
    bench = side.bench
    bench.cluster = StandInCluster(topics={"t": replace(topic(), config={"cleanup.policy": "compact,delete"})})
    side.begin()
    bench.until(lambda state: key() in state.positions)
    with bench.log.lock:
        bench.log.start = 100
        for source in bench.log.sources:
            source.starts[T0] = (100, 0)
        bench.log.append(100)
    bench.until(lambda state: state.positions[key()].log_start == 100)
    lead(bench, 2)
    state = bench.until(through(101))
    base = state.positions[key()].base
    assert (base.start, base.end, base.leader) == (100, 100, 2)
    assert bench.stored(state) == [100]


@pytest.mark.parametrize("side", [(kind, "nothing") for kind in BACK_ENDS], indirect=True, ids=" ".join)
@pytest.mark.parametrize(("policy", "start"), [("compact,delete", 45), ("delete", 45), ("compact", 0)])
def test_what_expires_while_it_is_scanned_lies_below_the_log_start(side: Side, policy: str, start: int) -> None:
    """No answer to the tail tells of it. Else a comparison with an older copy would take it for lost."""
    bench = side.bench
    bench.cluster = StandInCluster(topics={"t": replace(topic(), config={"cleanup.policy": policy})})
    plain = bench.log.answer

    def answer(source: ScriptedSource) -> list[Event]:
        position = source.positions.get(T0, 100)
        if position >= 45:
            return plain(source)
        fault = FetchFault(topic="t", partition=0, kind=FaultKind.OUT_OF_RANGE, detail="", at=clock.now())
        return [replace(fault, offset=position, log_start=45, log_end=100)]

    bench.log.answer = answer  # type: ignore[method-assign]  # the script of this test
    side.begin()
    state = bench.until(through(100))
    base = state.positions[key()].base
    assert (base.start, base.end, base.done) == (0, 100, ((0, 100),))
    assert bench.stored(state) == [offset for offset in range(45, 100) if offset % 10]
    assert state.positions[key()].log_start == start
    assert not state.taints
