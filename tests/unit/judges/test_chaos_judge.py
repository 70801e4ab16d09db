"""The judge of the chaos campaign finds each thing that can be wrong with a restore, and nothing where nothing is."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from chaos import writers
from chaos.broker_log import skipped_markers
from chaos.campaign import Campaign
from chaos.campaign import Plan as ChaosPlan
from chaos.crew import UnhealthyError
from chaos.facts import Facts, Place, Seen, digest_of
from chaos.faults import FAMILIES, Scale, schedule
from chaos.judge import Fault, Restored, judge
from chaos.restoring import Copies, placed
from chaos.writers import Kind, Order, Writer
from soak.campaign import Plan as SoakPlan
from soak.campaign import Soak
from structlog.testing import capture_logs
from support.backups.build_backup import PAIR, Backup, TopicSpec, records
from support.pipeline.doubles import MemoryStore

from tandem.backup_avro.chain.entries import EntryKind, PartitionKey
from tandem.sink.store.chain.chain_reader import ChainReader
from tandem.sink.write.vanished_keys_check import VanishedKeysCheck

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


def test_a_record_that_the_broker_confirmed_and_lost(facts: Facts) -> None:
    """Where the broker skipped the markers of a transaction, its records need not come back; what a consumer read must.

    The record before it of that key must then come back again.
    """
    lost = record(7, b"k1", b"newest")
    facts.acknowledge(lost)
    facts.reach(P, 9)
    assert faults_of(back(LOG, end=9), facts) == [Fault.LOST]
    for seen in (lost, NEW):
        facts.doubt(seen)
    assert faults_of(back(LOG, end=9), facts) == []
    assert faults_of(back((*LOG, lost), end=9), facts) == [], "its writer's next transaction took it along"
    assert faults_of(back((OLD, TOMBSTONE, LAST), end=9), facts, live=(LAST,)) == [Fault.LOST], "a consumer read it"


def test_what_the_broker_says_of_skipped_markers(tmp_path: Path) -> None:
    """Which transaction it was, in which partitions, and when."""
    line = (
        "2026-12-01 02:31:13.273 INFO [data-plane-kafka-request-handler-2] TransactionMarkerChannelManager: "
        "[Manager 1]: Couldn't find leader endpoint for partitions HashSet(stamped-1, a-b-0) "
        "while trying to send transaction markers for chaos-transactional, these partitions are likely deleted already "
        "and hence can be skipped\n"
    )
    log = tmp_path / "kafka.log"
    assert skipped_markers(log) == []
    log.write_text("another line\n")
    log.with_name("kafka.log.1").write_text(line)
    (found,) = skipped_markers(log)
    assert found.places == {("stamped", 1), ("a-b", 0)}
    assert found.transactional_id == "chaos-transactional"
    assert f"{datetime.fromtimestamp(found.at, UTC).astimezone():%F %T.%f}" == "2026-12-01 02:31:13.273000"


@pytest.mark.parametrize(("at", "doubted"), [(0.5, ()), (1.5, (OLD,)), (2.5, ()), (9.0, (LAST,))])
def test_which_transaction_was_being_ended(
    monkeypatch: pytest.MonkeyPatch, at: float, doubted: tuple[Seen, ...]
) -> None:
    """The last one that was begun to be ended by then; one that was taken back anyway has nothing to lose."""
    order = Order(name="t", kind=Kind.TRANSACTIONAL, places=(P,), rate=1, keys=1)
    writer = Writer("127.0.0.1:1", order, Facts([P]), seed="s")
    client = SimpleNamespace(commit_transaction=lambda _: None, abort_transaction=lambda _: None)
    monkeypatch.setattr(writer, "_producer", client)
    for begun, committed, seen in ((1.0, True, OLD), (2.0, False, NEW), (3.0, True, LAST)):
        monkeypatch.setattr(writers, "time", SimpleNamespace(time=lambda begun=begun: begun))
        monkeypatch.setattr(writer, "_pending", [seen])
        writer._end(committed=committed)
    assert tuple(writer.records_of(at)) == doubted


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


@dataclass
class Turn:
    """Generation 2 of `a` and `b` covers generation 1; the guard has compared them, if `guard`, and 1 is cleared.

    `lost` are offsets of the first of two partitions that generation 2 lacks. `log` is what the instance said of it.
    """

    lost: tuple[int, ...] = ()
    guard: bool = True
    cleared: bool = True

    def __post_init__(self) -> None:
        """Make the turn."""
        store, spec = MemoryStore(), TopicSpec("t", partitions=2)
        both = [*records("t", 0, range(9)), *records("t", 1, range(9))]
        one, two = Backup.completed(store, both, topics=[spec]), Backup.claim(store, topics=[spec], number=2)
        left = [one for one in both if one.partition or one.offset not in self.lost]
        ends = {("t", 0): 9, ("t", 1): 9}
        two.commit(left, ends=ends, base_end=ends)
        two.complete()
        one.seal()
        self.key = PartitionKey(spec.topic().topic_id, 0)
        stays: dict[PartitionKey, str] = {}
        with capture_logs() as lines:
            if self.guard:
                guard = VanishedKeysCheck(store, stop=threading.Event())
                states = [one.writer.state, two.writer.state]
                stays |= guard.vanished(states[0], states, one.positions)
        self.log = "".join(f"{json.dumps(line)}\n" for line in lines)
        if self.cleared:
            one.append(EntryKind.CLEARED, clearing=one.clearing(stays))
        self.reader = ChainReader(store, PAIR, ended=True)
        self.reader.refresh()

    def seen_by(self, judge: Any) -> Any:
        """Let a campaign or a soak look at this turn instead of one of its own."""
        instances = [SimpleNamespace(text=lambda: self.log)]
        judge._reader, judge._pair = self.reader, SimpleNamespace(instances=instances)
        judge._stage = SimpleNamespace(pair=judge._pair, settled=True)
        return judge


@pytest.fixture(params=["chaos", "soak"])
def judging(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """A campaign and a soak that have not begun."""
    if request.param == "chaos":
        return Campaign(ChaosPlan(rounds=1, seed=1), tmp_path, say=lambda _: None)
    return Soak(SoakPlan(seconds=1), tmp_path, say=lambda _: None)


def findings_of(judging: Any) -> list[str]:
    """What comes of the guard, be it raised or returned."""
    try:
        found = judging._judge_guard() or ()
    except UnhealthyError:
        found = judging.tally.findings
        if not found:
            raise
    return [f"{finding.fault.value} {finding.place}" for finding in found]


def test_a_turn_that_the_guard_let_pass(judging: Any) -> None:
    """Nothing is found, and the summary says that it was guarded."""
    assert findings_of(Turn().seen_by(judging)) == []
    assert "1 turns guarded (2 partitions compared)" in str(judging.tally)


@pytest.mark.parametrize("told_by", ["chain", "log", "both"])
def test_a_generation_that_the_guard_holds_is_a_false_alarm(judging: Any, told_by: str) -> None:
    """By what the chain keeps, or what an instance said before it was killed."""
    turn = Turn(lost=(3,), cleared=told_by != "log")
    if told_by == "chain":
        turn.log = "\n".join(line for line in turn.log.splitlines() if "vanished" not in line)
    assert findings_of(turn.seen_by(judging)) == ["held ('t', 0)"] * (1 + (told_by == "both"))


@pytest.mark.parametrize("cleared", [True, False])
def test_a_guard_that_never_ran(judging: Any, *, cleared: bool) -> None:
    """Is no proof if something was cleared."""
    turn = Turn(guard=False, cleared=cleared).seen_by(judging)
    if not cleared:
        assert findings_of(turn) == []
        assert "0 turns guarded" in str(judging.tally)
        return
    with pytest.raises(UnhealthyError, match=r"never looked at their keys: generations \[1\]"):
        turn._judge_guard()


def test_a_guard_that_compared_nothing(judging: Any) -> None:
    """All partitions were not comparable in each turn."""
    turn = Turn()
    turn.log = turn.log.replace('"partitions": 2', '"partitions": 0')
    with pytest.raises(UnhealthyError, match="compared no partition"):
        turn.seen_by(judging)._judge_guard()


def test_a_campaign_waits_until_all_that_is_superseded_is_cleared(tmp_path: Path) -> None:
    """Neither a copy that nobody clears nor one that stays in part passes, the latter at once."""

    def waits(turn: Turn) -> bool:
        campaign = turn.seen_by(Campaign(ChaosPlan(rounds=1, seed=1), tmp_path, say=lambda _: None))
        return not campaign._cleared_before(2)

    assert not waits(Turn())
    assert waits(Turn(cleared=False))
    with pytest.raises(UnhealthyError, match="held: t-0"):
        waits(Turn(lost=(3,)))


@pytest.mark.parametrize(("turn", "late"), [(Turn(), []), (Turn(cleared=False), [1]), (Turn(lost=(3,)), [1])])
def test_a_soak_knows_what_is_overdue(tmp_path: Path, turn: Turn, late: list[int]) -> None:
    """At its end nothing superseded may be left, whether the guard or something else keeps it."""
    soak: Soak = turn.seen_by(Soak(SoakPlan(seconds=1), tmp_path, say=lambda _: None))
    assert soak._superseded(soak._newest()) == late


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
