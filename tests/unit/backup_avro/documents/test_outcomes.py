"""What verifications and drills came to: written, read strictly, the oldest forgotten."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from support.pipeline.doubles import MemoryStore

from tandem.backup_avro.chain import layout
from tandem.backup_avro.chain.json_codec import unpack
from tandem.backup_avro.documents.outcome import (
    GENERATIONS,
    JobKind,
    JobOutcome,
    JobScope,
    UnsettledFindings,
    decode_outcome,
    encode_outcome,
)
from tandem.backup_avro.errors import DamagedError
from tandem.sink.store.chain import outcomes

DRILL = JobOutcome(
    kind=JobKind.DRILL,
    pair="shop",
    at=1_700_000_000_123,
    by="me@here",
    clean=True,
    what="3 topics",
    findings=0,
    records=7,
    bytes=99,
    generations={7: 42},
    phases={"load": 1.5, "check": 0.25},
)

READ = replace(
    DRILL, kind=JobKind.VERIFY, scope=JobScope.ALL, what="all", generations={6: 9, 7: 42}, at=1_700_000_000_000
)
SAMPLE = replace(READ, scope=JobScope.SAMPLE, what="a sample")
HURT = replace(SAMPLE, clean=False, findings=2, hurt=(7,))
KEYS = replace(READ, scope=JobScope.KEYS, what="keys of all topics", generations={})
DIFFER = replace(KEYS, clean=False, findings=3, hurt=(7,))
LEFT = UnsettledFindings(at=1_700_000_000_000, scope=JobScope.SAMPLE, what="a sample", findings=2, hurt=(7,))


@pytest.mark.parametrize(
    "outcome",
    [
        DRILL,
        replace(DRILL, clean=False, error="no broker", generations={}, phases={}),
        HURT,
        replace(SAMPLE, unsettled=(LEFT, replace(LEFT, hurt=()))),
    ],
)
def test_what_is_written_is_read(outcome: JobOutcome) -> None:
    """Every field, canonical, and only in this form."""
    data = encode_outcome(outcome)
    assert decode_outcome(data, "x") == outcome
    assert encode_outcome(decode_outcome(data, "x")) == data
    assert outcome.seconds == sum(outcome.phases.values())


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "other"},
        {"at": "yesterday"},
        {"clean": 1},
        {"generations": {"x": 1}},
        {"generations": {"1": -1}},
        {"generations": {"1": True}},
        {"phases_ms": {"load": "long"}},
        {"records": "7"},
        {"more": 1},
        {"v": 2},
        {"error": 5},
        {"scope": "some"},
        {"scope": 1},
        {"hurt": [-1]},
        {"hurt": ["7"]},
        {"hurt": 7},
        {"unsettled": [7]},
        {"unsettled": [{"at": "yesterday", "scope": "all", "what": "", "findings": 1, "hurt": []}]},
        {"unsettled": [{"at": "2023-11-14T22:13:20.000Z", "scope": None, "what": "", "findings": 1, "hurt": []}]},
        {"unsettled": [{"at": "2023-11-14T22:13:20.000Z", "scope": "x", "what": "", "findings": 1, "hurt": []}]},
        {"unsettled": [{"at": "2023-11-14T22:13:20.000Z", "scope": "all", "what": "", "findings": 1}]},
    ],
)
def test_what_is_not_exactly_so_is_damaged(change: dict[str, object]) -> None:
    """Unknown kinds, fields, versions, and values of another type."""
    document = json.loads(unpack(encode_outcome(DRILL), "x")) | change
    with pytest.raises(DamagedError, match=r"^here"):
        decode_outcome(json.dumps(document).encode(), "here")


def test_only_the_newest_are_kept_and_the_latest_is_found() -> None:
    """Each kind for itself; one that can't be read does not hide the one before it."""
    store = MemoryStore()
    assert outcomes.latest_outcome(store, "shop", JobKind.DRILL) is None
    verify = replace(DRILL, kind=JobKind.VERIFY, at=5)
    outcomes.put_outcome(store, verify)
    for number in range(outcomes.KEPT + 5):
        outcomes.put_outcome(store, replace(DRILL, at=number))
    kept = sorted(key for key in store.objects if "/drill-" in key)
    assert [int(key.split("-")[1]) for key in kept] == list(range(5, outcomes.KEPT + 5))
    assert outcomes.latest_outcome(store, "shop", JobKind.VERIFY) == verify
    assert outcomes.latest_outcome(store, "shop", JobKind.DRILL) == replace(DRILL, at=outcomes.KEPT + 4)
    store.objects[kept[-1]] = b"{}"
    assert outcomes.latest_outcome(store, "shop", JobKind.DRILL) == replace(DRILL, at=outcomes.KEPT + 3)
    found = outcomes.newest_first(store, "shop", JobKind.DRILL)
    assert [outcome.at for outcome in found] == list(range(outcomes.KEPT + 3, 4, -1))


def test_a_reader_reads_only_what_is_new() -> None:
    """One listing a look, each outcome once, and a run of another kind disturbs none; nothing at first."""
    store = MemoryStore()
    reader = outcomes.OutcomeReader(store, "shop")
    assert reader.refresh() == dict.fromkeys(JobKind)
    outcomes.put_outcome(store, DRILL)
    assert reader.refresh()[JobKind.DRILL] == DRILL
    store.log.clear()
    assert reader.refresh()[JobKind.DRILL] == DRILL
    assert store.log == [("list", "shop/results/")]
    newer = replace(DRILL, at=DRILL.at + 1, clean=False)
    swept = replace(DRILL, kind=JobKind.RETENTION)
    for outcome in (newer, swept):
        outcomes.put_outcome(store, outcome)
    found = reader.refresh()
    assert (found[JobKind.DRILL], found[JobKind.RETENTION], found[JobKind.VERIFY]) == (newer, swept, None)


def test_their_folder_is_no_instance() -> None:
    """Retention takes what lies beside known folders for an instance's data, and an instance may not be called so."""
    folder = layout.result_prefix("shop", "drill").split("/")[1]
    assert folder in layout.FOLDERS


def ran(*outcomes_: JobOutcome) -> JobOutcome:
    """Return what is kept last of runs, one after the other."""
    store = MemoryStore()
    for number, outcome in enumerate(outcomes_):
        outcomes.put_outcome(store, replace(outcome, at=outcome.at + 1000 * number))
    found = outcomes.latest_outcome(store, "shop", JobKind.VERIFY)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("found", "later"),
    [
        (HURT, SAMPLE),
        (HURT, replace(READ, scope=JobScope.PART, what="a sample of generation 7", generations={7: 42})),
        (HURT, replace(READ, scope=JobScope.GENERATION, what="generation 6", generations={6: 9})),
        (HURT, replace(READ, clean=False, findings=0)),
        (HURT, KEYS),
        (replace(HURT, hurt=()), replace(READ, scope=JobScope.GENERATION, what="generation 6", generations={6: 9})),
        (
            replace(HURT, hurt=(6, 7)),
            replace(READ, scope=JobScope.GENERATION, what="generation 7", generations={7: 42}),
        ),
        (replace(HURT, hurt=(3,)), replace(SAMPLE, generations=dict.fromkeys(range(7, 7 + GENERATIONS), 1))),
        (replace(HURT, scope=JobScope.PART, what="part"), replace(READ, scope=JobScope.PART, what="part")),
        (DIFFER, READ),
        (DIFFER, replace(KEYS, what="keys of one topic")),
    ],
)
def test_what_was_found_stays_found(found: JobOutcome, later: JobOutcome) -> None:
    """A run that has not read it again, or not all of it, says nothing of it."""
    last = ran(found, later, later)
    assert not last.good
    assert last.clean == later.clean
    (left,) = last.unsettled
    assert (left.at, left.scope, left.what) == (found.at, found.scope, found.what)
    assert (left.findings, left.hurt) == (found.findings, found.hurt)


@pytest.mark.parametrize(
    ("found", "later"),
    [
        (HURT, READ),
        (replace(HURT, hurt=()), READ),
        (HURT, replace(READ, scope=JobScope.GENERATION, what="generation 7", generations={7: 42})),
        (HURT, replace(SAMPLE, generations={8: 1})),
        (replace(HURT, scope=JobScope.ALL, what="all"), READ),
        (DIFFER, KEYS),
        (DIFFER, replace(READ, generations={8: 1})),
        (DIFFER, replace(SAMPLE, generations={8: 1})),
    ],
)
def test_what_was_read_again_or_is_gone_is_settled(found: JobOutcome, later: JobOutcome) -> None:
    """And so is what was found before that."""
    assert ran(found, later).good
    assert ran(found, SAMPLE, later, SAMPLE).good


def test_what_several_found_is_kept_once_each() -> None:
    """The newest date of each; what the last one found itself is not told twice; and there is a bound."""
    last = ran(DIFFER, HURT, HURT, DIFFER, SAMPLE)
    assert [(one.scope, one.at - READ.at) for one in last.unsettled] == [(JobScope.SAMPLE, 2000), (JobScope.KEYS, 3000)]
    assert [one.scope for one in ran(DIFFER, HURT, DIFFER).unsettled] == [JobScope.SAMPLE]
    assert len(ran(*(replace(HURT, hurt=(number,)) for number in range(7, 40))).unsettled) == 8


def test_it_outlives_the_outcome_that_told_it() -> None:
    """Only so many are kept; what the first one found is told all the same."""
    assert ran(HURT, *[SAMPLE] * (2 * outcomes.KEPT)).unsettled == (LEFT,)


FAILED = replace(DRILL, clean=False, findings=3, what="a", scope=JobScope.PART)


@pytest.mark.parametrize(
    ("later", "settled"),
    [
        (replace(DRILL, what="all topics", scope=JobScope.ALL), True),
        (replace(DRILL, what="a", scope=JobScope.PART), True),
        (replace(DRILL, what="b", scope=JobScope.PART), False),
        (replace(DRILL, what="a as of 2026-05-04T10:00:00Z", scope=JobScope.PART), False),
        (replace(DRILL, what="a", scope=JobScope.PART, clean=False, error="no broker"), False),
        (DRILL, True),
    ],
)
def test_what_a_drill_found_is_settled_by_one_that_restored_the_same(later: JobOutcome, settled: bool) -> None:
    """One of other topics, or one that failed, says nothing of it. Those of earlier releases tell no scope."""
    store = MemoryStore()
    outcomes.put_outcome(store, FAILED)
    outcomes.put_outcome(store, replace(later, at=FAILED.at + 1))
    last = outcomes.latest_outcome(store, "shop", JobKind.DRILL)
    assert last is not None
    left = (UnsettledFindings(at=FAILED.at, scope=JobScope.PART, what="a", findings=3),)
    assert last.unsettled == (() if settled else left)


def test_findings_in_words() -> None:
    """As many as there are, of what that kind of run finds."""
    assert [JobKind.VERIFY.findings(count) for count in (1, 7)] == ["1 mismatch", "7 mismatches"]
    assert JobKind.DRILL.findings(1200) == "1,200 mismatches"
    assert [JobKind.RETENTION.findings(count) for count in (1, 2)] == ["1 step failed", "2 steps failed"]
