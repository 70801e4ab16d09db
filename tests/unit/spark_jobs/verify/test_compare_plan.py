"""What two copies of a partition come to, key by key: by example, and against logs that a cleaner has been at."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from support.backups.build_backup import records

from tandem.backup_avro.record.current import Record, encode
from tandem.backup_avro.record.record_spans import spans
from tandem.spark_jobs.verify.compare_plan import (
    CompareFacts,
    CompareVerdict,
    Comparison,
    KeyFault,
    LatestRecord,
    SeenRecord,
    Suspect,
    iter_seen_records,
    judge_suspects,
    shown,
    with_key,
)

FACTS = CompareFacts(topic="orders", partition=0, names=("backup", "topic"), starts=(0, 0))
BASE = Record(topic="orders", partition=0, offset=7, timestamp=5, key=b"k", value=b"v")


def made(found: list[Record]) -> list[SeenRecord]:
    """What a body of these records is."""
    body = b"".join(map(encode, found))
    return list(iter_seen_records(body, spans(body, len(found))))


def of(*items: tuple[int, str, str | None]) -> list[SeenRecord]:
    """Records as (offset, key, value)."""
    found = [replace(BASE, offset=o, key=k.encode(), value=v if v is None else v.encode()) for o, k, v in items]
    return made(found)


def compare(
    first: list[SeenRecord], second: list[SeenRecord], *, newer: list[SeenRecord] | None = None, **facts: object
) -> CompareVerdict:
    """Compare up to the end of both; `newer` is what the second side has beyond."""
    comparison = Comparison()
    comparison.merge(first, second)
    beyond = {one.key for one in newer or []}
    return judge_suspects(comparison.suspects(), comparison.different, (set(), beyond), replace(FACTS, **facts))  # type: ignore[arg-type]  # named


V1, V2, DEAD = (3, "k", "one"), (5, "k", "two"), (5, "k", None)


@pytest.mark.parametrize(
    ("first", "second", "kind"),
    [
        ([V1], [V1], None),
        ([V1, V2], [V2], None),
        ([V2], [V1, V2], None),
        ([V1, V2], [V1, V2], None),
        ([V1, DEAD], [], None),
        ([], [V1, DEAD], None),
        ([DEAD], [(9, "k", None)], None),
        ([], [V1], KeyFault.MISSING),
        ([V1], [V2], KeyFault.STALE),
        ([V1], [V1, V2], KeyFault.STALE),
        ([(2, "k", None)], [V2], KeyFault.STALE),
        ([V1], [], KeyFault.GONE),
        ([V1], [DEAD], KeyFault.GONE),
        ([V1], [V1, DEAD], KeyFault.GONE),
        ([V1, V2], [V1], KeyFault.GONE),
        ([V1, DEAD], [V1], KeyFault.RETURNED),
        ([DEAD], [V1], KeyFault.RETURNED),
        ([V1], [(3, "k", "other")], KeyFault.DIFFERENT),
        ([V1], [(3, "k", None)], KeyFault.DIFFERENT),
        ([V1], [(3, "l", "one")], KeyFault.DIFFERENT),
    ],
)
def test_what_a_key_comes_to(
    first: list[tuple[int, str, str | None]], second: list[tuple[int, str, str | None]], kind: KeyFault | None
) -> None:
    """One key, every way in which two sides can have it."""
    found = compare(of(*first), of(*second))
    assert set(found.counts) >= ({kind} if kind is not None else set())
    assert bool(found.counts) is (kind is not None)


def test_another_key_at_the_same_offset_hides_nothing() -> None:
    """The first side's older record of that key is still the latest one that it has."""
    found = compare(of((1, "l", "old"), V1), of((3, "l", "one")))
    assert found.counts == {KeyFault.STALE: 1, KeyFault.DIFFERENT: 1}


def test_a_newer_record_beyond_the_cut_explains() -> None:
    """What the topic lacks may have been compacted away because of it; what the backup lacks may not."""
    newer = of((40, "k", "x"))
    for first, second in (([V1], []), ([V1, V2], [V1]), ([DEAD], [V1])):
        found = compare(of(*first), of(*second), newer=newer)
        assert (found.findings, found.explained) == ({}, 1)
    assert compare(of(V1), of(V2), newer=newer).counts == {KeyFault.STALE: 1}
    assert compare([], of(V2), newer=newer).counts == {KeyFault.MISSING: 1}


def test_what_can_not_be_judged_is_counted() -> None:
    """Below the log start, without a key where a cleaner works, after tombstones may have expired."""
    assert compare(of(V1), [], starts=(0, 4)).not_judged == {"deleted below the log start of the topic": 1}
    assert compare(of(V1, V2), [], starts=(0, 4)).counts == {KeyFault.GONE: 1}
    assert compare(of(V1), [], starts=(0, 4), only_compacts=True).counts == {KeyFault.GONE: 1}
    assert compare(of(V1), [], starts=(0, 4), only_compacts=True, expired="too old").not_judged == {"too old": 1}
    why = "past the time or size that `tandem retention` keeps in the {}"
    assert compare([], of(V1), let_go=(4, 0)).not_judged == {why.format("backup"): 1}
    assert compare(of(V1), [], let_go=(0, 4)).not_judged == {why.format("topic"): 1}
    assert compare([], of(V1), let_go=(3, 9)).counts == {KeyFault.MISSING: 1}
    assert compare(of(V1), [], let_go=(9, 3)).counts == {KeyFault.GONE: 1}
    keyless = made([replace(BASE, key=None)])
    assert compare(keyless, []).not_judged == {"without a key, which a cleaner drops": 1}
    assert compare(keyless, [], compacted=False).counts == {KeyFault.GONE: 1}
    assert compare(of(V1), [], expired="too old").not_judged == {"too old": 1}
    assert compare(of(V1), of(DEAD), expired="too old").counts == {KeyFault.GONE: 1}
    assert compare(of(V1, V2), of(V1), behind="too fast").not_judged == {"too fast": 1}
    assert compare(of(V1), of(V2), behind="too fast").counts == {KeyFault.STALE: 1}
    assert compare(of(DEAD), of(V1), slow="too slow").not_judged == {"too slow": 1}


@pytest.mark.parametrize(
    "other",
    [
        replace(BASE, timestamp=6),
        replace(BASE, key=None),
        replace(BASE, key=b""),
        replace(BASE, value=None),
        replace(BASE, value=b""),
        replace(BASE, headers=(("a", None),)),
        replace(BASE, value=b"v\x00"),
    ],
)
def test_every_field_counts(other: Record) -> None:
    """Two records of one offset that differ in any field are different."""
    first, second = (made([record]) for record in (BASE, other))
    assert compare(first, second, compacted=False).counts.get(KeyFault.DIFFERENT) == 1


def test_records_without_a_key_stand_for_themselves() -> None:
    """In a topic that is not compacted each must be there."""
    items = [replace(BASE, offset=offset, key=None) for offset in range(4)]
    both = [made(part) for part in (items, items[:2])]
    assert compare(*both, compacted=False).counts == {KeyFault.GONE: 2}
    assert compare(both[1], both[0], compacted=False).counts == {KeyFault.MISSING: 2}


def test_keys_are_shown_safely() -> None:
    """Text as it is, other bytes as base64, long ones cut, none as none."""
    assert shown(b"customer-1") == ("customer-1", "utf8")
    assert shown(b"\xff\x00") == ("/wA=", "base64")
    assert shown(None) == ("", "none")
    assert shown(b"") == ("", "utf8")
    for key in (b"x" * 5000, b"\xff" * 5000):
        assert len(shown(key)[0]) == 120


def test_the_cause_names_what_is_known() -> None:
    """A cut log and a taint come before what is merely likely."""
    one = Suspect(KeyFault.GONE, LatestRecord(9, tombstone=False), None, 1)
    assert "expired" in with_key(one, b"k", FACTS).cause
    assert with_key(one, b"k", replace(FACTS, doubt="tainted", sound=9)).cause == "tainted"
    assert with_key(one, b"k", replace(FACTS, doubt="tainted", sound=10)).cause != "tainted"
    assert with_key(one, b"k", replace(FACTS, doubt="tainted", short="cut off")).cause == "cut off"
    moved = with_key(one, b"k", replace(FACTS, starts=(0, 10), only_compacts=True)).cause
    assert moved.startswith("the log start of the topic is 10 though the policy is compact alone: disks were lost")
    assert with_key(one, b"k", replace(FACTS, starts=(0, 9))).cause == with_key(one, b"k", FACTS).cause
    causes = {
        with_key(Suspect(kind, LatestRecord(3, tombstone=False), second, 1), b"k", FACTS).cause
        for kind in KeyFault
        for second in (LatestRecord(5, tombstone=True), LatestRecord(1, tombstone=False))
    }
    assert len(causes) == 5
    unknown = with_key(one, None, FACTS, known=False)
    assert (unknown.key, unknown.encoding, unknown.first_offset, unknown.second_offset) == ("", "unknown", 9, None)


def cleaned(log: list[Record], upto: int, rng: random.Random, *, expire: bool) -> list[Record]:
    """What a cleaner leaves of a log whose records below `upto` it has looked at; some old tombstones go too."""
    latest = {record.key: record.offset for record in log if record.offset < upto}
    kept = [record for record in log if record.offset >= latest.get(record.key, 0)]
    if not expire:
        return kept
    return [r for r in kept if r.value is not None or r.offset >= upto or rng.random() < 0.5]


@pytest.mark.parametrize("seed", range(300))
def test_compaction_is_no_difference_and_a_planted_one_is_found(seed: int) -> None:
    """A log, two copies of it that were read after different cleanings: nothing. One record changed: found."""
    rng = random.Random(seed)
    size, cut = 60, 45
    log = records("orders", 0, range(size), tombstones=rng.sample(range(size), 15), keys=rng.choice((3, 7, 20)))
    rng.shuffle(log)
    log = [replace(record, offset=offset) for offset, record in enumerate(log)]
    backup = [r for r in cleaned(log, rng.randint(0, cut), rng, expire=True) if r.offset < cut]
    live = cleaned(log, rng.randint(cut, size), rng, expire=False)

    def judge(first: list[Record], second: list[Record]) -> CompareVerdict:
        """Compare below the cut, and look beyond it."""
        return compare(
            made(first),
            [one for one in made(second) if one.offset < cut],
            newer=[one for one in made(second) if one.offset >= cut],
        )

    assert judge(backup, live).counts == {}
    last = {record.key: record for record in log if record.offset < cut}
    both = [record for record in backup if record in live and record.value is not None and last[record.key] == record]
    if not both:
        return
    victim = rng.choice(both)
    assert judge([record for record in backup if record is not victim], live).findings
    changed = replace(victim, value=b"another")
    assert judge([changed if record is victim else record for record in backup], live).counts[KeyFault.DIFFERENT] == 1
    if all(record.key != victim.key for record in live if record.offset >= cut):
        assert judge(backup, [record for record in live if record != victim]).counts == {KeyFault.GONE: 1}
