"""The judge of the chaos campaign finds each thing that can be wrong with a restore, and nothing where nothing is."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from chaos.facts import Facts, Place, Seen, digest_of
from chaos.faults import FAMILIES, Scale, schedule
from chaos.judge import Fault, Restored, judge
from chaos.restoring import Copies, placed

P: Place = ("orders", 0)
SCALE = Scale(spread=4, shortest=1, longest=6, timeout=8)


def record(offset: int, key: bytes, value: bytes | None) -> Seen:
    """A record whose content its offset tells."""
    return Seen(P, offset, key, digest_of(key, value, (("id", b"%d" % offset),), 1_000 + offset), value is None)


OLD, NEW = record(0, b"k1", b"old"), record(1, b"k1", b"new")
VALUE, TOMBSTONE = record(2, b"k2", b"value"), record(3, b"k2", None)
ABORTED = record(4, b"k3", b"aborted")
LAST = record(6, b"k4", b"")
LOG = (OLD, NEW, VALUE, TOMBSTONE, LAST)
END = 7


@pytest.fixture
def facts() -> Facts:
    """What was written: one key twice, one deleted, one aborted."""
    facts = Facts([P])
    for seen in LOG:
        facts.acknowledge(seen)
        facts.follow(seen)
    facts.abort(ABORTED)
    facts.reach(P, END)
    return facts


def back(rows: Iterable[Seen], *, end: int = END, start: int = 0) -> Restored:
    """A restore of these."""
    return Restored(generation=1, rows=tuple(rows), ends={P: end}, log_starts={P: start})


def faults_of(restored: Restored, facts: Facts, *, live: Iterable[Seen] = LOG, confirmed: int = 0) -> list[Fault]:
    """What the judge says."""
    return [finding.fault for finding in judge(restored, facts, confirmed={P: confirmed}, live={P: live})]


@pytest.mark.parametrize("rows", [LOG, (NEW, TOMBSTONE, LAST)])
def test_nothing_is_wrong(facts: Facts, rows: tuple[Seen, ...]) -> None:
    """The whole log, and what compaction leaves of it, are both right; a deleted key may be gone with its tombstone."""
    assert faults_of(back(rows), facts, live=rows, confirmed=END) == []
    assert faults_of(back((NEW, LAST)), facts, live=(NEW, LAST)) == []


def test_lost_value(facts: Facts) -> None:
    """Without the latest value of a key, or with an older one in its place, something is lost."""
    assert faults_of(back((TOMBSTONE, LAST)), facts, live=(LAST,)) == [Fault.LOST]
    assert faults_of(back((OLD, TOMBSTONE, LAST)), facts, live=(NEW, LAST)) == [Fault.LOST, Fault.LOST]


def test_lost_record_that_the_topic_has(facts: Facts) -> None:
    """A superseded record that the live topic still has was there when the backup read it."""
    assert faults_of(back((NEW, TOMBSTONE, LAST)), facts, live=(OLD, NEW, TOMBSTONE, LAST)) == [Fault.LOST]


def test_behind_what_was_confirmed(facts: Facts) -> None:
    """A restore never ends below what was in the backup before."""
    assert faults_of(back((NEW, TOMBSTONE), end=4), facts, confirmed=5, live=(NEW,)) == [Fault.LOST]


def test_below_the_start_of_the_log_nothing_is_asked_for(facts: Facts) -> None:
    """What retention took from the topic need not come back."""
    assert faults_of(back((LAST,), start=2), facts, live=(LAST,)) == []


def test_resurrected(facts: Facts) -> None:
    """The value of a deleted key without its tombstone came back to life."""
    assert faults_of(back((NEW, VALUE, LAST)), facts, live=(NEW, LAST)) == [Fault.RESURRECTED]


def test_resurrected_against_the_live_topic(facts: Facts) -> None:
    """What the live topic has dropped, and nobody wrote again, must not come back."""
    assert faults_of(back(LOG), facts, live=(NEW, TOMBSTONE)) == [Fault.RESURRECTED]


def test_twice(facts: Facts) -> None:
    """One offset comes once."""
    assert faults_of(back((*LOG, NEW)), facts) == [Fault.TWICE]


def test_aborted(facts: Facts) -> None:
    """A record of an aborted transaction never comes back."""
    assert Fault.ABORTED in faults_of(back((*LOG, ABORTED)), facts)


@pytest.mark.parametrize("row", [record(5, b"k9", b"?"), NEW._replace(digest=NEW.digest ^ 1), record(9, b"k9", b"?")])
def test_foreign(facts: Facts, row: Seen) -> None:
    """A record nobody wrote, one with another content, one above the cut."""
    rows = [seen for seen in LOG if seen.offset != row.offset]
    assert Fault.FOREIGN in faults_of(back((*rows, row)), facts)


def test_every_field_counts() -> None:
    """Two records that differ in one field, or in null against empty, have different digests."""
    fields = [
        (b"k", b"v", (), 1),
        (b"k", b"v", (), 2),
        (b"k", b"", (), 1),
        (b"k", None, (), 1),
        (b"", b"v", (), 1),
        (None, b"v", (), 1),
        (b"k", b"v", (("h", b""),), 1),
        (b"k", b"v", (("h", None),), 1),
        (b"k", b"v", (("h", b"1"), ("g", b"2")), 1),
        (b"k", b"v", (("g", b"2"), ("h", b"1")), 1),
    ]
    assert len({digest_of(*each) for each in fields}) == len(fields)


def test_witnesses_that_disagree(facts: Facts) -> None:
    """A consumer that reads another record than the writer was told of, or an aborted one, is noticed."""
    facts.follow(NEW._replace(digest=NEW.digest ^ 1))
    facts.follow(ABORTED)
    assert len(facts.contradictions) == 2


def test_forgetting_keeps_the_state(facts: Facts) -> None:
    """What was superseded below a cut goes; the state at the cut and later ones stay."""
    before = {end: facts.latest(P, end) for end in range(4, END + 1)}
    facts.forget({P: 4})
    assert {end: facts.latest(P, end) for end in range(4, END + 1)} == before
    assert b"k2" not in facts.latest(P, 3), "the value that the tombstone superseded is forgotten"


def test_copies_are_led_back_to_their_places(facts: Facts) -> None:
    """A copy with other offsets is judged by content; what came twice and what nobody wrote shows."""
    rows = [seen._replace(offset=number) for number, seen in enumerate(LOG)]
    copies = Copies(generation=1, ends={P: END}, rows={P: rows})
    assert placed(copies, facts, log_starts={P: 0}) == back(LOG)
    strange = Copies(generation=1, ends={P: END}, rows={P: [*rows, rows[1], record(99, b"k9", b"?")]})
    found = [finding.fault for finding in judge(placed(strange, facts, log_starts={}), facts, confirmed={})]
    assert sorted(found) == [Fault.FOREIGN, Fault.TWICE]


def test_a_seed_is_a_schedule() -> None:
    """The same seed and round give the same faults, in order, each victim struck once; all kinds come up."""
    seen = set()
    for number in range(1, 300):
        faults = schedule(7, number, SCALE)
        assert faults == schedule(7, number, SCALE)
        assert [fault.at for fault in faults] == sorted(fault.at for fault in faults)
        assert len({fault.victim for fault in faults}) == len(faults) > 0
        seen |= {fault.blow for fault in faults}
    assert len(seen) == 12
    assert schedule(8, 1, SCALE) != schedule(7, 1, SCALE)
    assert len(FAMILIES) == 7
