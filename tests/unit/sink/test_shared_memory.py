"""One memory budget for all pipelines of a process: the sum holds, and none takes what is guaranteed to another."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.backups.chains import CLUSTER, OPENING, PAIR
from support.pipeline.pipelines import QUICK, Bench, through

from tandem.controller.instance.pipelines import PipelineRuns
from tandem.sink.pipeline import PipelineParts
from tandem.sink.pipeline_report import PipelineReport
from tandem.sink.process.memory_budget import MemoryBudget
from tandem.sink.store.chain.chain_reader import ChainReader
from tandem.sink.store.chain.chain_writer import Identity, claim
from tandem.sink.store.contract.object_store import StoreTransientError
from tandem.sink.transcode.plain_transcoder import ReferenceTranscoder

BUDGET = 6000
SLACK = 1000
"""What is read beyond the budget: four records in each lane of each pipeline, and the header of a file."""


class Process:
    """Two generations of one instance, read from one log into one store, which may take no data of either."""

    def __init__(self) -> None:
        self.bench = Bench()
        self.refusing: set[int] = set()
        self.bench.store.before = self._refuse
        self.runs = PipelineRuns(
            PipelineParts(
                store=self.bench.store,
                cluster=self.bench.cluster,
                open_source=self.bench.log.open,
                transcoder=ReferenceTranscoder(),
                policy=replace(QUICK, memory_budget=BUDGET),
                abort=self.bench.abort,
            )
        )

    def _refuse(self, op: str, name: str) -> Exception | None:
        full = op == "put" and any(f"/generation={number:08d}/" in name for number in self.refusing)
        return StoreTransientError("503 SlowDown", code="TDM-X001") if full else None

    def start(self, number: int) -> None:
        """Claim a generation and read it."""
        bench = self.bench
        who = Identity(pair=PAIR, instance="a", incarnation="a-1", cluster_id=CLUSTER)
        writer = claim(bench.store, who, number, opening=OPENING, reason="test", stop=bench.abort)
        self.runs.start(writer, resumed=False)

    def report(self, number: int) -> PipelineReport:
        """What a generation's pipeline says."""
        return next(report for report in self.runs.reports() if report.generation == number)

    def held(self) -> int:
        """Bytes of all pipelines."""
        return sum(report.held_bytes for report in self.runs.reports())

    def wait(self, true: Callable[[], object], seconds: float = 8.0) -> None:
        """Wait until something is so."""
        deadline = time.monotonic() + seconds
        while not true():
            assert time.monotonic() < deadline, self.runs.reports()
            time.sleep(0.01)

    def is_through(self, number: int, offset: int) -> bool:
        """Whether a generation has stored all up to an offset."""
        return bool(through(offset)(ChainReader(self.bench.store, PAIR).load(number)))


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch) -> Iterator[Process]:
    """An instance without a broker; a response is never more than a fraction of its budget."""
    monkeypatch.setattr("tandem.sink.pipeline.OUTPUT_LIMIT", 1)
    monkeypatch.setattr("tandem.sink.write.commit._RETRY_S", 0.01)
    it = Process()
    yield it
    it.bench.abort.set()
    assert it.runs.drain_all(time.monotonic() + 8.0)


def test_two_pipelines_hold_no_more_than_one_budget(process: Process) -> None:
    """An old generation is tailed and a new one is built, while the store takes nothing of either."""
    process.refusing = {1, 2}
    process.bench.log.append(*range(2000))
    process.start(1)
    process.start(2)
    process.wait(lambda: all(report.waited_s > 0.3 for report in process.runs.reports()))
    assert BUDGET / 2 < process.held() < BUDGET + SLACK
    assert min(report.held_bytes for report in process.runs.reports()) >= BUDGET / 4
    assert all(report.memory_budget == BUDGET for report in process.runs.reports())
    assert len({id(run.pipeline._merger._turn) for run in process.runs._runs.values()}) == 1


def test_a_build_that_takes_all_it_may_does_not_stop_the_tail(process: Process) -> None:
    """The store takes nothing of the build, which holds what it can; the older generation commits all the same."""
    process.bench.log.append(*range(100))
    process.start(1)
    process.wait(lambda: process.is_through(1, 100))
    process.refusing = {2}
    process.bench.log.append(*range(100, 1000))
    process.start(2)
    process.wait(lambda: process.report(2).waited_s > 0.2)
    process.bench.log.append(*range(1000, 1300))
    process.wait(lambda: process.is_through(1, 1300))
    process.wait(lambda: process.report(2).held_bytes > BUDGET / 2)
    assert process.held() < BUDGET + SLACK


def test_a_pipeline_that_ends_gives_back_what_it_held(process: Process) -> None:
    """Whether it was drained or failed: the one that is left has the whole budget, and its buffers are gone."""
    process.refusing = {2}
    process.bench.log.append(*range(100))
    process.start(1)
    process.start(2)
    process.wait(lambda: process.is_through(1, 100) and process.report(2).held_bytes > 0)
    process.bench.abort.set()
    process.runs.drain(2)
    process.wait(lambda: process.report(2).error is not None and process.report(2).held_bytes == 0)
    assert process.runs._budget.shares == 1
    process.runs.drain(1)
    process.wait(lambda: process.report(1).held_bytes == 0)
    assert process.runs._budget.guaranteed == BUDGET // 2


def test_a_pipeline_that_begins_late_waits_until_the_other_has_stored() -> None:
    """The sum holds even then; from that moment on the other one is beyond what it may hold."""
    budget = MemoryBudget(100)
    first = budget.open_share()
    assert (first.limit, first.is_full(), first.worth_storing) == (100, False, 50)
    first.held = 100
    second = budget.open_share()
    assert (second.limit, second.is_full(), second.worth_storing) == (0, True, 12)
    assert (first.limit, first.is_full()) == (75, True)
    first.held = 40
    assert (second.limit, second.is_full()) == (60, False)
    assert (first.limit, first.is_full()) == (75, False)
    first.close()
    first.close()
    assert (second.limit, budget.shares) == (100, 1)


def test_what_is_read_at_once_beyond_a_share_takes_nothing_from_the_other() -> None:
    """A response expands to more than there is room for, and then the store takes nothing of that pipeline."""
    budget = MemoryBudget(100)
    first, second = budget.open_share(), budget.open_share()
    assert not first.is_full()
    first.held = 130
    assert (first.charged, first.is_full()) == (75, True)
    assert (second.limit, second.is_full()) == (25, False)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(-60, 40)), max_size=200))
def test_the_sum_holds_and_none_is_below_its_guarantee(steps: list[tuple[int, int]]) -> None:
    """Whoever reads and stores when, of four: beyond the budget is at most what each read last."""
    budget, most = MemoryBudget(400), 40
    shares = [budget.open_share() for _ in range(4)]
    for number, size in steps:
        share = shares[number]
        if size <= 0:
            share.held = max(0, share.held + size)
        elif not share.is_full():
            share.held += size
        assert sum(one.charged for one in shares) <= budget.bytes
        assert all(one.held - one.charged < most for one in shares)
        assert all(one.limit >= budget.guaranteed for one in shares)
