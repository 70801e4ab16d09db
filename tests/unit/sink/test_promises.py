"""What topics promise for tombstones may change: what was missed is judged by the promise of then."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from support.backups.chains import Chain, key, position, topic
from support.pipeline.partition_progress import progress as progress_at
from support.pipeline.pipelines import T0, Bench, bare_context, through

from tandem.backup_avro.chain.entries import Base, PartitionKey, Topic
from tandem.backup_avro.chain.generation import Generation
from tandem.sink.commit_draft import CommitDrafter
from tandem.sink.kafka.cluster.guarded_topics import DeniedTopic, GuardedTopics
from tandem.sink.process import clock
from tandem.sink.read.progress.next_scan_range import ScanPlan
from tandem.sink.read.progress.partition_progress import PartitionProgress
from tandem.sink.read.progress.tombstone_guarantee import SHORTEST_RETENTION_S, longest_gap_s
from tandem.sink.read.scan.accept_ranges import most_overlap_s
from tandem.sink.read.survey import ClusterSurvey

WEEK, HOUR = 604_800.0, 3600.0


def promising(seconds: float | None, **more: str) -> Topic:
    """Topic `t`, whose tombstones live so long; None: it only deletes."""
    config = {"cleanup.policy": "delete" if seconds is None else "compact", **more}
    if seconds is not None:
        config["delete.retention.ms"] = str(round(seconds * 1000))
    return replace(topic(), config=config)


@pytest.mark.parametrize("later", [promising(WEEK), promising(None)])
def test_a_promise_that_grew_while_nobody_read_excuses_nothing(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, later: Topic
) -> None:
    """Tombstones of then were cleaned, and dropped, by the promise of then."""
    bench.cluster.topics["t"] = promising(HOUR)
    first = bench.read(0, 1)
    first.drain()
    assert first.join(5.0)
    later_ms = clock.local_ms() + 3 * 3_600_000
    monkeypatch.setattr(clock, "local_ms", lambda: later_ms)
    bench.cluster.topics["t"] = later
    bench.again()
    bench.log.append(5)
    state = bench.until(through(6))
    assert state.taints[key()].offset == 2
    assert state.taints[key()].reason.endswith("tombstones are promised for 3600 s")
    assert bench.until(lambda state: state.topics["t"] == later), "at head since: the next life judges by that"


def test_a_promise_that_grew_in_time_is_kept(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was at head after that: nothing that is missed from then on has the old one."""
    bench.cluster.topics["t"] = promising(HOUR)
    first = bench.read(0, 1)
    bench.cluster.topics["t"] = promising(WEEK)
    bench.until(lambda state: state.topics["t"] == promising(WEEK))
    first.drain()
    assert first.join(5.0)
    later_ms = clock.local_ms() + 3 * 3_600_000
    monkeypatch.setattr(clock, "local_ms", lambda: later_ms)
    bench.again()
    bench.log.append(5)
    assert not bench.until(through(6)).taints


# --- what the chain is told -------------------------------------------------------------------------------------------


def read_before(partitions: int) -> Generation:
    """A generation whose chain says that tombstones of `t` live for an hour."""
    positions = {key(partition=number): position() for number in range(partitions)}
    return Chain().open().commit(positions, topics=(promising(HOUR),)).state


def drafting(state: Generation, *heads: float) -> tuple[CommitDrafter, list[PartitionProgress]]:
    """A drafter of partitions of `t` that were at head then."""
    context = bare_context()
    for number, at in enumerate(heads):
        context.progress_of[T0._replace(partition=number)] = progress_at(
            key=key(partition=number),
            offset=0,
            head_mono=at,
            head_offset=0,
            scan=ScanPlan(state.positions[key()].base, limit_s=60.0),
            retention_s=HOUR,
        )
    return CommitDrafter(context, state, max_objects=4, flush_interval_s=60.0), list(context.progress_of.values())


def told(drafter: CommitDrafter, *topics: Topic) -> dict[str, Topic]:
    """What the next commit says of topics after a survey of these."""
    drafter.survey(ClusterSurvey(found=GuardedTopics(topics=topics), groups=None))
    draft = drafter.draft()
    return {} if draft is None else {topic.name: topic for topic in draft.topics}


@pytest.mark.parametrize("longer", [WEEK, None])
def test_the_chain_learns_of_a_longer_promise_once_all_were_at_head(longer: float | None) -> None:
    """Whoever goes on judges by what it says; a partition that nobody reads now counts as well."""
    state = read_before(2)
    now = clock.now()
    drafter, (first, second) = drafting(state, now - 10, now - 10)
    after = promising(longer)
    assert told(drafter, after) == {}
    first.head_mono = clock.now() + 1
    assert told(drafter, after) == {}
    second.head_mono = clock.now() + 1
    assert told(drafter, after) == {"t": after}
    assert told(drafter, after) == {}
    alone, _ = drafting(state, now + 100)
    assert told(alone, after) == {}


@pytest.mark.parametrize("unread", [False, True])
def test_a_commit_may_add_a_partition_meanwhile(unread: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The committer's thread takes in what was appended while the pipeline's looks through the positions."""
    state = read_before(2)
    later = clock.now() + 100
    drafter, progress_of = drafting(state, *([later] if unread else [later, later]))

    def commit() -> None:
        state.positions.setdefault(key(partition=7), position())

    class Looked(PartitionKey):
        """Looked at while another thread works."""

        @property
        def topic_id(self) -> str:
            commit()
            return "t"

    if unread:
        progress_of[0].recorded = progress_of[0].position()
        progress_of[0].head_at = 10**15
        restated = state.restated
        monkeypatch.setattr(Generation, "restated", lambda _, of: (commit(), restated(of))[1])
    else:
        state.positions = {Looked(*of): at for of, at in state.positions.items()}
    told(drafter, promising(WEEK))
    assert key(partition=7) in state.positions


def test_at_head_at_the_very_moment_of_a_change_is_not_since() -> None:
    """A request that left at that moment may have been answered by the log of before."""
    _, (progress,) = drafting(read_before(1), 50.0)
    progress.scan.begin(now=50.0, at=1000)
    assert [progress.settled_since(mono) for mono in (49.0, 50.0)] == [True, False]
    progress.set_guarantee(WEEK, now=50.0)
    progress.record_commit()
    assert progress.held_to_s == HOUR
    progress.at_head(offset=0, requested=51.0, received=51.5, at=2000)
    assert progress.held_to_s == WEEK


def test_what_else_changes_and_shorter_promises_are_told_at_once() -> None:
    """And one that is taken back is none; the next one waits for heads of its own time."""
    state = read_before(1)
    drafter, (progress,) = drafting(state, clock.now() - 10)
    assert told(drafter, promising(WEEK, **{"segment.ms": "1"})) == {}
    other = promising(HOUR, **{"segment.ms": "1"})
    assert told(drafter, other) == {"t": other}
    assert told(drafter, promising(60.0)) == {"t": promising(60.0)}
    progress.head_mono = clock.now()
    assert told(drafter, promising(HOUR)) == {}, "at head before that was known"


# --- what can't be judged yet -----------------------------------------------------------------------------------------


def test_what_came_late_waits_for_a_survey() -> None:
    """A promise may have become shorter meanwhile; what came in time is right by the shortest one that there is."""
    state = read_before(1)
    drafter, (progress,) = drafting(state, clock.now())
    longest = longest_gap_s(SHORTEST_RETENTION_S)
    found = GuardedTopics(topics=(promising(HOUR),))
    drafter.survey(ClusterSurvey(found=found, groups=None, asked=clock.now() - longest - 1))
    assert not drafter.unsure()
    progress.head_mono = clock.now() - longest - 1
    assert not drafter.unsure(), "nothing was read since"
    progress.advance_to(offset=1, epoch=1)
    assert drafter.unsure()
    drafter.survey(ClusterSurvey(found=found, groups=None, asked=clock.now() - longest + 5))
    assert not drafter.unsure()


def test_a_topic_that_may_not_be_described_is_not_known_by_the_others() -> None:
    """What it promises was asked for long ago, though a survey has just told of the rest."""
    state = read_before(1)
    drafter, (progress,) = drafting(state, clock.now() - HOUR / 2)
    other = replace(topic("u"), config=promising(HOUR).config)
    drafter.survey(
        ClusterSurvey(found=GuardedTopics(topics=(promising(HOUR), other)), groups=None, asked=clock.now() - HOUR)
    )
    denied = DeniedTopic(name="t", why="no right", topic=replace(promising(HOUR), config={}))
    drafter.survey(ClusterSurvey(found=GuardedTopics(topics=(other,), denied=(denied,)), groups=None))
    progress.advance_to(offset=1, epoch=1)
    assert drafter.unsure()
    progress.frozen = True
    assert not drafter.unsure(), "it is tainted anyway"
    progress.frozen, progress.lost = False, "gone"
    assert not drafter.unsure()


def test_nobody_waits_for_ever_for_a_topic_that_may_not_be_described(monkeypatch: pytest.MonkeyPatch) -> None:
    """After ten minutes what came late is held to the shortest promise that there is: all others are committed."""
    drafter, (progress,) = drafting(read_before(1), clock.now() - 100.0)
    found = GuardedTopics(topics=(promising(HOUR),))
    drafter.survey(ClusterSurvey(found=found, groups=None, asked=clock.now() - HOUR))
    progress.advance_to(offset=1, epoch=1)
    assert drafter.unsure()
    assert progress.taint(clock.now()) is None
    later = clock.now() + 601.0
    monkeypatch.setattr("tandem.sink.commit_draft.clock.now", lambda: later)
    assert not drafter.unsure()
    draft = drafter.draft()
    assert draft is not None
    assert [taint.key for taint in draft.taints] == [key()]
    assert not drafter.unsure(), "what comes after it is held to that as well"


# --- bases ------------------------------------------------------------------------------------------------------------


def test_a_base_is_held_to_the_shortest_promise_while_it_is_read() -> None:
    """Ranges that others have read long ago may come to it now, under a promise that is longer now."""
    _, (progress,) = drafting(read_before(1), clock.now())
    assert most_overlap_s(progress) == 900.0
    progress.set_guarantee(600.0, now=clock.now())
    assert most_overlap_s(progress) == 150.0
    for longer in (WEEK, None):
        progress.set_guarantee(longer, now=clock.now())
        assert most_overlap_s(progress) == 150.0
    progress.at_head(offset=0, requested=clock.now() + 1, received=clock.now() + 1, at=1)
    assert (progress.held_to_s, most_overlap_s(progress)) == (None, 150.0)


def test_the_chain_learns_of_a_longer_promise_once_bases_are_done() -> None:
    """And the wait begins anew if it grows again."""
    drafter, (progress,) = drafting(read_before(1), clock.now() - 10)
    done = progress.scan
    progress.scan = ScanPlan(Base(start=0, end=9, leader=1), limit_s=60.0)
    assert told(drafter, promising(2 * HOUR)) == {}
    progress.head_mono = clock.now()
    assert told(drafter, promising(2 * HOUR)) == {}
    progress.scan = done
    assert told(drafter, promising(WEEK)) == {}, "at head before that was known"
    progress.head_mono = clock.now()
    assert told(drafter, promising(WEEK)) == {"t": promising(WEEK)}


def test_what_a_commit_has_left_out_is_told_again() -> None:
    """By what the chain knows: the topic may have been another one for a moment."""
    state = read_before(1)
    drafter, (progress,) = drafting(state, clock.now() + 100)
    shorter = promising(60.0)
    assert told(drafter, shorter) == {"t": shorter}
    drafter.reset_topic("t")
    assert told(drafter, shorter) == {"t": shorter}
    drafter.reset_topic("u")
    assert told(drafter, shorter) == {}
    progress.head_mono = clock.now() - 100
    drafter.reset_topic("t")
    assert told(drafter, promising(WEEK)) == {}, "a longer one waits as before"


def test_nothing_is_committed_of_a_gap_before_the_topic_was_asked_for(bench: Bench) -> None:
    """The brokers describe no topic after a long gap: nothing is said of what was read, or lost; later it is."""
    bench.cluster.topics["t"] = promising(HOUR)
    pipeline = bench.read(0, 1)
    (progress,) = pipeline._context.progress_of.values()
    bench.cluster.error = TimeoutError("no answer")
    bench.log.quiet = True
    bench.until(lambda _: pipeline._surveyor.trouble and pipeline._surveyor._latest is None)
    steps = clock.now() + 0.2
    bench.until(lambda _: clock.now() > steps)
    pipeline._drafter._asked["t"] -= HOUR
    seq = bench.chain().seq
    progress.head_mono -= HOUR / 2
    bench.log.append(2)
    bench.log.quiet = False
    bench.until(lambda _: progress.offset == 3)
    clock_s = clock.now() + 1.0
    bench.until(lambda _: clock.now() > clock_s)
    assert bench.chain().seq == seq
    assert any(text.startswith("nothing is committed") for text in pipeline.report().trouble)
    bench.cluster.topics["t"] = promising(60.0)
    bench.cluster.error = None
    assert key() in bench.until(through(3)).taints


# --- a restore adds to a topic ----------------------------------------------------------------------------------------


LAG = str(2**63 - 1)
OWN = {"cleanup.policy": "compact,delete", "retention.ms": "1000", "segment.ms": "7"}
HELD = {
    **OWN,
    "retention.ms": "-1",
    "retention.bytes": "-1",
    "min.compaction.lag.ms": LAG,
    "max.compaction.lag.ms": LAG,
    "max.message.bytes": "5000000",
}


def first_told(config: Mapping[str, str], *others: Mapping[str, str]) -> dict[str, str]:
    """What a generation that knows nothing yet records of a topic; older generations recorded these, ascending."""
    copies = [
        Chain(number=number).open().commit({}, topics=(replace(promising(HOUR), config=dict(one)),)).state
        for number, one in enumerate(others, 1)
    ]
    drafter = CommitDrafter(
        bare_context(), Chain(number=9).open().state, max_objects=4, flush_interval_s=60.0, copies=lambda: copies
    )
    return told(drafter, replace(promising(HOUR), config=dict(config)))["t"].config


def test_a_generation_that_begins_while_a_restore_adds_to_a_topic_records_the_topics_own_config() -> None:
    """The newest generation that knows it tells; where none does, what the restore has set is left out."""
    assert first_told(HELD, {"retention.ms": "2000"}, OWN) == OWN
    assert first_told(HELD, OWN, HELD) == OWN
    without = {key: value for key, value in OWN.items() if key != "retention.ms"}
    assert first_told(HELD) == without
    assert first_told(HELD, HELD) == without
    assert first_told(OWN, {"retention.ms": "2000"}) == OWN
    own = {key: value for key, value in HELD.items() if key != "max.compaction.lag.ms"}
    assert first_told(own) == own, "no restore sets the one without the other: it is the topic's own"
