"""Signs that topics lost records: each accident gives its own sign and no other, and everyday life gives none."""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Callable
from dataclasses import replace

import pytest
from support.backups.build_backup import PAIR, Backup, TopicSpec, records
from support.pairs.sights import listening, message, sight
from support.pipeline.doubles import MemoryStore

from tandem.backup_avro.chain.entries import EntryKind
from tandem.backup_avro.chain.generation import Generation
from tandem.backup_avro.selection.moments import parse_moment
from tandem.controller.coordination.heartbeat import Heartbeat, message_fields
from tandem.controller.decision.loss_detector import LossDetector, merged
from tandem.controller.decision.loss_sign_format import LossKind, LossSign, signs_in, text_of
from tandem.controller.status.check import CheckLimits, Severity, check_pair
from tandem.controller.status.overview import overview
from tandem.controller.watch.store_watch import StoreWatch
from tandem.sink.store.chain.chain_reader import ChainReader

START = 1_700_000_000_000
MINUTE, HOUR = 60_000, 3_600_000
COMPACT = {"cleanup.policy": "compact"}
BOTH = {"cleanup.policy": "compact,delete"}
STATE, OFFSETS, EVENTS = TopicSpec("state"), TopicSpec("offsets", 2), TopicSpec("events", config=BOTH)


class Life:
    """A pair that reads three topics, and what is noticed. Times are those of the store."""

    def __init__(self) -> None:
        self.store = MemoryStore(clock_ms=START, step_ms=0)
        self.watch = LossDetector()
        self.backups: list[Backup] = []
        self.before: dict[int, Generation] = {}
        self.ends = dict.fromkeys([("state", 0), ("offsets", 0), ("offsets", 1), ("events", 0)], 0)
        self.signs: tuple[LossSign, ...] = ()

    @property
    def active(self) -> Backup:
        return self.backups[-1]

    def look(self) -> tuple[LossSign, ...]:
        states = [backup.writer.state.frozen_copy() for backup in self.backups]
        self.signs = self.watch.note_states(self.before, states)
        self.before = {state.number: state for state in states}
        return self.signs

    def passes(self, ms: int) -> None:
        self.store.clock_ms += ms

    def turn(self, kept: int, *, log_start: int = 0) -> None:
        """Another generation: its first reading finds the last `kept` records of each log; the one before is sealed."""
        first = [
            record
            for (topic, partition), end in self.ends.items()
            for record in records(topic, partition, range(max(log_start, end - kept), end))
        ]
        self.backups.append(Backup.claim(self.store, topics=[STATE, OFFSETS, EVENTS], number=len(self.backups) + 1))
        self.passes(MINUTE)
        self.active.commit(first, base_end=self.ends, log_start=log_start)
        self.look()
        self.passes(MINUTE)
        self.active.complete()
        self.look()
        if len(self.backups) > 1:
            self.backups[-2].seal()
        self.look()

    def write(self, topic: str, count: int, *, partition: int = 0, tombstones: int = 0, **how: object) -> None:
        """Records of one partition in a commit of their own."""
        end = self.ends[topic, partition]
        self.ends[topic, partition] = end + count
        batch = records(topic, partition, range(end, end + count), tombstones=range(end, end + tombstones))
        self.active.commit(batch, **how)  # type: ignore[arg-type]  # the caller names what a commit takes
        self.look()

    def idle(self, hours: int) -> None:
        """Confirmations every fifteen minutes."""
        for _ in range(4 * hours):
            self.passes(15 * MINUTE)
            self.active.append(EntryKind.CONFIRM, head_at=self.store.clock_ms)
            self.look()


def begun(count: int = 1500) -> Life:
    """After the first generation is complete, with so many records in each log."""
    life = Life()
    life.ends = dict.fromkeys(life.ends, count)
    life.turn(count)
    assert life.signs == ()
    return life


def commit_without_records(life: Life, **how: object) -> None:
    life.active.commit([], ends={("state", 0): life.ends["state", 0]}, **how)  # type: ignore[arg-type]  # as above
    life.look()


def everything_is_deleted(life: Life) -> None:
    life.write("state", 1500, tombstones=1500)


def half_of_a_flush_are_tombstones(life: Life) -> None:
    life.write("state", 2000, tombstones=1000)


def the_log_start_moves(life: Life) -> None:
    commit_without_records(life, log_start=700)


def the_policy_is_flipped(life: Life) -> None:
    life.active.commit([], ends={("state", 0): life.ends["state", 0]}, config={"state": BOTH})
    life.look()


def partitions_are_added(life: Life) -> None:
    life.active.topics["state"] = replace(life.active.topics["state"], partitions=3)
    life.active.append(EntryKind.COMMIT, topics=(life.active.topics["state"],), head_at=life.store.clock_ms)
    life.look()


def half_is_gone_at_the_next_turn(life: Life) -> None:
    life.turn(700)


def the_next_turn_begins_higher(life: Life) -> None:
    life.turn(1500, log_start=10)


Accident = Callable[[Life], None]


@pytest.mark.parametrize(
    ("accident", "kind", "topics", "what"),
    [
        (everything_is_deleted, LossKind.TOMBSTONES, ["state"], "1,500 of 1,500 records that were stored together"),
        (half_of_a_flush_are_tombstones, LossKind.TOMBSTONES, ["state"], "1,000 of 2,000 records"),
        (the_log_start_moves, LossKind.LOG_START, ["state"], "its log starts moved by 700 offsets"),
        (the_policy_is_flipped, LossKind.POLICY, ["state"], "from compact to compact,delete"),
        (partitions_are_added, LossKind.PARTITIONS, ["state"], "it has 3 partitions, and had 1"),
        (half_is_gone_at_the_next_turn, LossKind.FEWER_RECORDS, ["offsets", "state"], "generation 2 found"),
        (the_next_turn_begins_higher, LossKind.LOG_START, ["offsets", "state"], "its log starts moved by"),
    ],
)
def test_each_accident_has_its_sign(accident: Accident, kind: LossKind, topics: list[str], what: str) -> None:
    """At once, with the last moment before it, for a day; the topic whose policy deletes has none."""
    life = begun()
    life.passes(MINUTE)
    life.active.append(EntryKind.CONFIRM, head_at=life.store.clock_ms)
    good = life.store.clock_ms
    life.look()
    life.passes(MINUTE)
    accident(life)
    assert sorted((sign.kind, sign.topic) for sign in life.signs) == [(kind, topic) for topic in topics]
    assert all(what in sign.what for sign in life.signs)
    assert {sign.last_good for sign in life.signs} == {good}
    rewind, restore = life.signs[0].commands
    moment = rewind.split()[4]
    assert parse_moment("--to", moment) == good
    assert restore == f"tandem restore {life.signs[0].topic} --at {moment} --suffix .before --dry-run"
    life.idle(23)
    assert life.signs
    life.idle(1)
    assert life.signs == ()


def test_a_series_keeps_the_moment_before_it_began() -> None:
    """Tombstones for an hour: the last good moment is before the first of them, and a day counts from the last."""
    life = begun()
    good = life.active.writer.state.moments[-1].at
    for _ in range(12):
        life.passes(5 * MINUTE)
        life.write("state", 1200, tombstones=1200)
    [sign] = life.signs
    assert (sign.last_good, sign.at) == (good, life.store.clock_ms)


def test_a_topic_falls_silent_that_never_was() -> None:
    """Three hours after a day of records in every hour; not one that pauses at night, nor where nobody looked."""
    life = begun()
    for hour in range(30):
        life.passes(HOUR)
        life.write("state", 3)
        if hour % 5:
            life.write("offsets", 3)
    good = life.store.clock_ms
    life.idle(3)
    assert life.signs == ()
    life.idle(1)
    assert [(sign.kind, sign.topic, sign.last_good) for sign in life.signs] == [(LossKind.SILENT, "state", good)]
    life.write("state", 1)
    assert life.signs == ()
    for _ in range(30):
        life.passes(HOUR)
        life.write("state", 3)
    life.passes(5 * HOUR)  # the pair was away: what came before counts no more
    life.idle(4)
    assert life.signs == ()


def test_what_merging_writes_again_is_no_flush() -> None:
    """Tombstones that were stored a few at a time, in one object now."""
    life = begun()
    for _ in range(3):
        life.passes(MINUTE)
        life.write("state", 999, tombstones=999)
    parts = [(key, item) for key, item in life.active.writer.state.objects.items() if item.parts[0].first >= 1500]
    state = [item for _, item in parts if item.parts[0].key == life.active.key("state", 0)]
    batch = records("state", 0, range(1500, life.ends["state", 0]), tombstones=range(1500, life.ends["state", 0]))
    item = life.active.put_object([(("state", 0), batch, None)], journal=False)
    life.active.append(EntryKind.REWRITE, objects=(item,), replaced=tuple(one.key for one in state))
    assert life.look() == ()


@pytest.mark.parametrize("seed", range(30))
def test_everyday_life_has_no_sign(seed: int) -> None:
    """Writes and deletes, retention where the policy deletes, merged objects, turns whose first reading finds less."""
    chance = random.Random(seed)
    life = begun(chance.choice([10, 1500]))
    for _ in range(chance.randint(10, 30)):
        life.passes(chance.choice([MINUTE, HOUR]))
        match chance.randint(0, 5):
            case 0 | 1:
                topic, partition = chance.choice(sorted(life.ends))
                count = chance.choice([1, 50, 2500])
                life.write(topic, count, partition=partition, tombstones=min(999, int(count * chance.random() * 0.49)))
            case 2:
                life.idle(chance.randint(1, 6))
            case 3:
                end = life.ends["events", 0]
                life.active.commit([], ends={("events", 0): end}, log_start=chance.randint(0, end))
                life.look()
            case 4:
                life.write("state", 900, tombstones=900)
            case 5:
                life.turn(max(800, round(min(life.ends.values()) * 0.6)))
        assert life.signs == ()


def test_what_an_instance_notices_reaches_the_commands() -> None:
    """From the chains over the heartbeat into the status, its notes, and the findings of a check."""
    life = begun()
    watch = StoreWatch(ChainReader(life.store, PAIR), interval_s=0.01, wake=threading.Event())
    watch._read()
    the_policy_is_flipped(life)
    watch._read()
    assert watch.view is not None
    [sign] = watch.view.loss_signs
    heard = [
        message(instance=name, at=life.store.clock_ms, **message_fields(Heartbeat(role="Active", loss_signs=(sign,))))
        for name in ("a", "b")
    ]
    found = overview(sight(life.store, listener=listening(*heard), topics=[STATE, OFFSETS, EVENTS]))
    [shown] = found.loss_signs
    assert (shown.kind, shown.topic, shown.commands) == (LossKind.POLICY, "state", sign.commands)
    assert shown.text in found.notes
    assert found.healthy, "a person may have done it on purpose"
    report = check_pair(found, {}, CheckLimits())
    [finding] = [one for one in report.findings if "may have lost records" in one.message]
    assert (finding.severity, report.severity) == (Severity.WARNING, Severity.WARNING)
    assert all(command in finding.remedy for command in sign.commands)
    later = overview(sight(life.store, listener=listening(*heard), topics=[STATE], later_s=3600))
    assert later.loss_signs == (), "nobody lives who says so"


def test_two_instances_tell_one_sign() -> None:
    """As of the earlier moment, and noticed last by the later one."""
    one = LossSign(kind=LossKind.POLICY, topic="t", at=9000, last_good=5000, what="so")
    other = replace(one, at=8000, last_good=4000)
    another = replace(one, topic="u")
    assert list(merged([one, other, another])) == [replace(other, at=9000), another]
    assert list(merged([other, one])) == [replace(other, at=8000)]


SIGN = LossSign(kind=LossKind.SILENT, topic="a.b-c_1", at=START, last_good=START - 1, what="no record for 3 hours")


def test_signs_as_text_fit_and_come_back() -> None:
    """As many as fit; without any there is no text."""
    signs = [replace(SIGN, topic=f"topic-{n}") for n in range(100)]
    text = text_of(signs, most=4000)
    found = signs_in(text)
    assert len(text) <= 4000
    assert 30 < len(found) < 100
    assert found == tuple(signs[: len(found)])
    assert text_of([], most=4000) == ""
    assert signs_in("") == ()


@pytest.mark.parametrize(
    "item",
    [
        None,
        [],
        ["silent", "t", 1, 2],
        ["other", "t", 1, 2, "what"],
        ["silent", "t; rm -rf /", 1, 2, "what"],
        ["silent", "", 1, 2, "what"],
        ["silent", "t", "1", 2, "what"],
        ["silent", "t", 2**70, 2, "what"],
        ["silent", "t", 1, True, "what"],
        ["silent", "t", 1, 2, "w" * 201],
        ["silent", 7, 1, 2, "what"],
    ],
)
def test_what_is_no_sign_is_left_out(item: object) -> None:
    """Anybody may write to the coordination topic, and a command is shown to be copied."""
    good = json.loads(text_of([SIGN], most=4000))
    assert signs_in(json.dumps([item, *good])) == (SIGN,)
    assert signs_in(json.dumps(item)) == ()
    for text in ("[", "[" * 5000, "x" * 20_000, '{"a": 1}'):
        assert signs_in(text) == ()


def test_ten_thousand_partitions_cost_little() -> None:
    """A commit that names every partition, as a snapshot does, takes a few hundredths of a second."""
    life = Life()
    wide = TopicSpec("wide", partitions=10_000)
    life.ends = {("wide", n): 0 for n in range(10_000)}
    life.backups.append(Backup.claim(life.store, topics=[wide]))
    life.active.commit([])
    life.active.complete()
    life.look()
    life.active.commit(records("wide", 3, range(10)), ends=dict.fromkeys(life.ends, 10))
    states = [life.active.writer.state.frozen_copy()]
    began = time.process_time()
    assert life.watch.note_states(life.before, states) == ()
    assert time.process_time() - began < 0.2
