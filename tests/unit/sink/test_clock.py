"""Time asleep: a suspended machine reads nothing, while brokers go on to drop tombstones."""

from __future__ import annotations

import math
import time
from types import ModuleType, SimpleNamespace

import pytest
from support.backups.chains import Chain, key
from support.pipeline.doubles import MemoryStore, ScriptedSource, evidence, fetched
from support.pipeline.partition_progress import progress as progress_at
from support.pipeline.pipelines import bare_context

from tandem.backup_avro.chain.entries import Base
from tandem.sink import commit_draft
from tandem.sink.commit_draft import CommitDrafter
from tandem.sink.kafka.events import TopicPartition
from tandem.sink.kafka.fetch import fetcher
from tandem.sink.kafka.lookup import log_ends
from tandem.sink.process import clock
from tandem.sink.read import reader_context, tail
from tandem.sink.read.progress.next_scan_range import ScanPlan
from tandem.sink.read.progress.partition_progress import PartitionProgress
from tandem.sink.read.progress.tombstone_guarantee import away_s
from tandem.sink.read.reader_context import ReaderContext
from tandem.sink.read.tail import TailReader
from tandem.sink.store.s3 import client

T0 = TopicPartition("t", 0)
HOUR = 3600.0


def asleep(monkeypatch: pytest.MonkeyPatch, slept_s: float) -> None:
    """Have the system's clocks go on as after a suspension: only the one since boot counted it."""
    was = time.clock_gettime(time.CLOCK_BOOTTIME)
    system = SimpleNamespace(
        CLOCK_BOOTTIME=7,
        monotonic=lambda: was,
        clock_gettime=lambda which: was + slept_s + which,
        time=lambda: 1e9 + slept_s,
    )
    monkeypatch.setattr(clock, "time", system)


def test_the_time_asleep_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """And where the system can't tell it, the monotonic clock is what is left."""
    before = clock.now()
    asleep(monkeypatch, HOUR)
    assert clock.now() >= before + HOUR
    monkeypatch.setattr(clock, "time", SimpleNamespace(monotonic=lambda: 5.0))
    assert clock.now() == 5.0


def at_head() -> tuple[ReaderContext, CommitDrafter, PartitionProgress, float]:
    """A partition that is at head now, at 5, all committed; its tombstones are promised for ten minutes."""
    context = bare_context()
    now = clock.now()
    progress = progress_at(
        offset=5,
        head_mono=now,
        head_offset=5,
        scan=ScanPlan(Base(start=0, end=0, leader=1, done_at=900), limit_s=60.0),
        retention_s=600.0,
    )
    context.progress_of[T0] = progress
    drafter = CommitDrafter(context, Chain().open().state, max_objects=4, flush_interval_s=60.0)
    drafter.draft()
    return context, drafter, progress, now


def test_a_machine_that_slept_has_a_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the tail reads after an hour asleep may lack tombstones: a taint, though the monotonic clock stood still."""
    context, drafter, progress, now = at_head()
    asleep(monkeypatch, HOUR)
    woke = clock.now()
    head = fetched(b"", 5, end=9, at=woke, evidence=evidence(woke))
    answers = [head, head]  # the first one after a restart shows that the log does not end below, and is not read
    source = ScriptedSource(ends={T0: (9, 1)}, answer=lambda _: [answers.pop()] if answers else [])
    lane = TailReader(context, source, patience_s=60.0)
    lane.add(T0, progress)
    lane.step(0.0)
    lane.step(0.0)
    found = drafter.draft()
    assert found is not None
    assert [taint.key for taint in found.taints] == [key()]
    assert context.at(now) <= context.at(woke) - HOUR * 1000


def test_a_store_whose_clock_is_set_back_stops_no_time() -> None:
    """Being at head goes on to be newer than the base's end; a chain's last time is never undercut."""
    store = MemoryStore(clock_ms=90_000_000, step_ms=0)
    context = bare_context(store=store, floor=95_000_000)
    first = context.now()
    assert first >= 95_000_000
    store.clock_ms = 3_600_000
    assert context.now() >= first
    low = context.now()
    at = context.at(clock.now() - 10.0)
    assert low - 10_050 <= at <= context.now() - 9_950
    store.clock_ms = 200_000_000
    assert context.now() >= 200_000_000


def test_an_absence_of_unknown_length_is_a_gap() -> None:
    """After a restart only the store's clock tells how long nobody read; set back, it tells nothing."""
    progress = progress_at(
        offset=5,
        head_mono=-math.inf,
        head_offset=5,
        scan=ScanPlan(Base(start=0, end=0, leader=1), limit_s=60.0),
        retention_s=600.0,
    )
    progress.record_commit()
    assert progress.taint(50.0) is None, "nothing was read since"
    progress.advance_to(offset=6, epoch=1)
    progress.at_head(offset=6, requested=40.0, received=41.0, at=2000)
    taint = progress.taint(50.0)
    assert taint is not None
    assert "the store's clock was set back" in taint.reason


@pytest.mark.parametrize(
    ("store_s", "local_s", "away"),
    [
        pytest.param(20.0, 20.0, 20.0, id="both agree"),
        pytest.param(20.0, 25.0, 20.0, id="as clocks differ that nobody has set"),
        pytest.param(20.0, 26.0, 26.0, id="the store's clock was set back"),
        pytest.param(-4.0, 600.0, 600.0, id="it was set back by nearly as much as the process was away"),
        pytest.param(-4.0, 0.5, 0.0, id="answers of two servers of one store"),
        pytest.param(-5.0, 0.0, 0.0, id="the same, as far apart as they may be"),
        pytest.param(-6.0, 20.0, math.inf, id="it was set back by more"),
        pytest.param(20.0, -3600.0, 20.0, id="the machine's clock was set back, or it is another machine"),
        pytest.param(3600.0, 20.0, 3600.0, id="the machine's was set back by nearly as much"),
    ],
)
def test_how_long_a_process_was_away(store_s: float, local_s: float, away: float) -> None:
    """The longer of what two clocks say, but for what they may differ anyway."""
    head_at, skew = 1_000_000, 700_000
    store_ms, local_ms = head_at + round(store_s * 1000), head_at + skew + round(local_s * 1000)
    assert away_s(head_at=head_at, skew=skew, store_ms=store_ms, local_ms=local_ms) == away
    before = away_s(head_at=head_at, skew=None, store_ms=store_ms, local_ms=local_ms)
    assert before == (math.inf if store_s == -6.0 else max(0.0, store_s)), "an old chain has the store's word alone"


def test_what_an_entry_says_of_the_local_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """How far it is ahead of the store's time as the entry tells that, whatever the store's clock says by now."""
    context, drafter, progress, _ = at_head()
    monkeypatch.setattr(clock, "local_ms", lambda: context.now() - 7000)
    progress.advance_to(offset=6, epoch=1)
    found = drafter.draft()
    assert found is not None
    assert found.skew == pytest.approx(-7000, abs=500)
    assert found.positions[key()].skew is None


def test_what_an_earlier_life_saw_keeps_its_skew() -> None:
    """As long as this one has not been at head: the store's clock may have been set back between the two."""
    context, drafter, progress, _ = at_head()
    progress.skew, progress.head_at = 5, context.now()
    found = drafter.draft()
    assert found is not None
    assert (found.head_at, found.positions[key()].skew) == (None, 5)
    woke = clock.now()
    progress.at_head(offset=5, requested=woke, received=woke, at=context.at(woke))
    found = drafter.draft()
    assert found is not None
    assert (found.head_at, found.positions) == (progress.head_at, {})


def test_what_was_read_after_the_sleep_is_not_committed_as_sound(monkeypatch: pytest.MonkeyPatch) -> None:
    """The log's end is not in sight yet: the gap is measured up to the commit, by the same clock."""
    _, drafter, progress, _ = at_head()
    asleep(monkeypatch, HOUR)
    progress.advance_to(offset=9, epoch=1)
    found = drafter.draft()
    assert found is not None
    assert [taint.offset for taint in found.taints] == [5]


@pytest.mark.parametrize("module", [fetcher, log_ends, reader_context, tail, commit_draft, client])
def test_who_stamps_or_compares_stamps_has_no_other_clock(module: ModuleType) -> None:
    """Two clocks that are mixed differ by the time asleep: a gap would be taken for none, or the other way round."""
    assert not hasattr(module, "time")
