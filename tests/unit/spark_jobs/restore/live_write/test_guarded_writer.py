"""Rewinds of random damage while others go on writing, with kills and repeats, against plain dictionaries."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from tandem.backup_avro.record.current import Record, decode_body, encode
from tandem.spark_jobs.restore.live_write import guarded_writer
from tandem.spark_jobs.restore.live_write.guarded_writer import GuardedWriter, PlannedRecord
from tandem.spark_jobs.restore.live_write.offset_ranges import OffsetRange, in_ranges
from tandem.spark_jobs.rewind.key_changes import ChangeKind, KeyChoice, KeyStates, SeenKey, hash_key

Value = bytes | None


class KilledError(Exception):
    """The process ends here."""


@dataclass
class Entry:
    """One record of the log; `status` is that of its transaction."""

    key: bytes
    value: Value
    by: str
    status: str = "committed"


@dataclass
class Broker:
    """A log of one partition, in which transactions are open, committed or aborted, and others write at any moment."""

    chance: random.Random
    log: list[Entry] = field(default_factory=list)
    busy: bool = False

    def append(self, key: bytes, value: Value, *, by: str, status: str = "committed") -> int:
        self.log.append(Entry(key, value, by, status))
        return len(self.log) - 1

    def meanwhile(self) -> None:
        """Others write something, or don't: committed, in a transaction that stays open, or that is aborted."""
        while self.busy and self.chance.random() < 0.4:
            status = self.chance.choice(["committed", "committed", "open", "aborted"])
            key = b"key-%d" % self.chance.randrange(30)
            self.append(key, self.chance.choice([None, b"theirs-%d" % len(self.log)]), by="others", status=status)

    def stable_end(self) -> int:
        return next((at for at, one in enumerate(self.log) if one.status == "open"), len(self.log))

    def state(self, end: int | None = None) -> dict[bytes, bytes]:
        """What readers of committed records see."""
        found: dict[bytes, bytes] = {}
        for one in self.log[:end]:
            if one.status == "committed":
                found.pop(one.key, None)
                if one.value is not None:
                    found[one.key] = one.value
        return found

    def seen(self, end: int) -> list[SeenKey]:
        """The committed records below `end`, as a comparison reads them."""
        return [
            SeenKey(hash_key(one.key), at, 0, False, bytes(16) if one.value is None else one.value.ljust(16, b"."))
            for at, one in enumerate(self.log[:end])
            if one.status == "committed"
        ]


@dataclass
class Log:
    """What a rewind watches: the log from `head` on."""

    broker: Broker
    head: int
    own: set[int] = field(default_factory=set)

    def written_since(self, own: Sequence[OffsetRange], *, until: int | None = None) -> set[int]:
        self.broker.meanwhile()
        stable = self.broker.stable_end()
        found = set()
        for at in range(self.head, len(self.broker.log) if until is None else max(until, stable)):
            one = self.broker.log[at]
            if one.status == "aborted" and at < stable:
                continue
            if not in_ranges(at, own):
                found.add(hash_key(one.key))
            elif at < stable:
                self.own.add(hash_key(one.key))
        return found

    def committed_at(self, own: Sequence[OffsetRange]) -> set[int]:
        assert own or not self.own
        return self.own


@dataclass
class Transaction:
    """One that a later one aborts if it was left open."""

    broker: Broker
    kills: list[str]
    sent: list[int] = field(default_factory=list)

    def send(self, bodies: Sequence[bytes]) -> list[OffsetRange]:
        ranges = []
        for [one] in (decode_body(body, 1) for body in bodies):
            self.broker.meanwhile()
            assert one.key is not None
            at = self.broker.append(one.key, one.value, by="rewind", status="open")
            self.sent.append(at)
            ranges.append((at, at))
        if "sent" in self.kills:
            raise KilledError
        return ranges

    def commit(self) -> None:
        if "noted" in self.kills:
            raise KilledError
        for at in self.sent:
            self.broker.log[at].status = "committed"
        if "committed" in self.kills:
            raise KilledError

    def abandon(self) -> None:
        self.sent.clear()


@dataclass
class Rewind:
    """A rewind of the partition to the state below `moment`; `notes` are in the store."""

    broker: Broker
    moment: int
    head: int
    choice: KeyChoice = field(default_factory=KeyChoice)
    notes: list[OffsetRange] = field(default_factory=list)
    left_alone: set[int] = field(default_factory=set)
    written: int = 0

    def planned(self, former: dict[bytes, bytes]) -> list[PlannedRecord[int]]:
        """The changes of the comparison up to the head."""
        states = KeyStates()
        states.merge(self.broker.seen(self.moment), self.broker.seen(self.head))
        names = {hash_key(one.key): one.key for one in self.broker.log}
        return [
            PlannedRecord(
                change.key,
                encode(
                    Record(
                        topic="orders",
                        partition=0,
                        offset=0,
                        key=names[change.key],
                        value=None if change.kind is ChangeKind.CREATED else former[names[change.key]],
                    )
                ),
            )
            for change in states.changes()
            if self.choice.includes(0, change)
        ]

    def attempt(self, former: dict[bytes, bytes], kills: list[str]) -> None:
        """Write, after what an earlier attempt has left open was aborted."""
        for one in self.broker.log:
            if one.by == "rewind" and one.status == "open":
                one.status = "aborted"

        def begin() -> Transaction:
            for one in self.broker.log:
                if one.by == "rewind" and one.status == "open":
                    one.status = "aborted"
            return Transaction(self.broker, kills)

        writer = GuardedWriter(
            log=Log(self.broker, self.head), begin=begin, note=self.notes.extend, own=sorted(self.notes)
        )
        writer.write(self.planned(former))
        self.left_alone, self.written = writer.left_alone, writer.written


def damaged(chance: random.Random) -> tuple[Broker, int]:
    """A log with a moment in it, and what bad and good writers did since; some of it aborted."""
    broker = Broker(chance)
    for _ in range(chance.randrange(60)):
        broker.append(b"key-%d" % chance.randrange(20), chance.choice([None, b"a", b"b", b"c"]), by="good")
    moment = len(broker.log)
    for _ in range(chance.randrange(60)):
        by, status = chance.choice(["good", "bad"]), chance.choice(["committed", "committed", "aborted"])
        value = chance.choice([None, b"a", f"{by}-{len(broker.log)}".encode()])
        broker.append(b"key-%d" % chance.randrange(30), value, by=by, status=status)
    return broker, moment


def newest(broker: Broker, end: int | None = None) -> dict[bytes, int]:
    """The offset of each key's newest committed record."""
    return {one.key: at for at, one in enumerate(broker.log[:end]) if one.status == "committed"}


def attempts(rewind: Rewind, former: dict[bytes, bytes], chance: random.Random) -> int:
    """Attempts that are killed at any step, then one that is not; returns how many were killed."""
    killed = 0
    for _ in range(chance.randrange(3)):
        try:
            rewind.attempt(former, [chance.choice(["sent", "noted", "committed"])])
        except KilledError:
            killed += 1
            continue
        return killed
    rewind.attempt(former, [])
    return killed


@pytest.mark.parametrize("seed", range(20))
def test_all_comes_back_if_nobody_else_writes(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each planned key once, in one transaction after the other, and none of them twice."""
    chance = random.Random(seed)
    monkeypatch.setattr(guarded_writer, "MOST_RECORDS", chance.choice([1, 3, 1000]))
    broker, moment = damaged(chance)
    former, head = broker.state(moment), len(broker.log)
    rewind = Rewind(broker, moment, head)
    wanted = [one.key for one in rewind.planned(former)]
    rewind.attempt(former, [])
    assert (rewind.left_alone, rewind.written) == (set(), len(wanted))
    assert [hash_key(one.key) for one in broker.log[head:]] == wanted
    assert broker.state() == former


@pytest.mark.parametrize("seed", range(300))
def test_what_differs_comes_back_and_what_others_write_stands(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With kills at any step, and repeats of the task and of the command; then the rewind is rewound."""
    chance = random.Random(seed)
    monkeypatch.setattr(guarded_writer, "MOST_RECORDS", chance.choice([1, 3, 1000]))
    broker, moment = damaged(chance)
    former, before, head = broker.state(moment), broker.state(), len(broker.log)
    choice = chance.choice([KeyChoice(), KeyChoice(since={0: chance.randrange(head + 1)})])
    rewind = Rewind(broker, moment, head, choice)
    broker.busy = chance.random() < 0.7
    wanted = {one.key for one in rewind.planned(former)}
    killed = attempts(rewind, former, chance)
    broker.busy = False
    held_back = broker.stable_end() < len(broker.log)
    for one in broker.log:
        if one.status == "open":
            one.status = chance.choice(["committed", "aborted"]) if one.by == "others" else "aborted"
    after, ends = broker.state(), newest(broker)
    # Whoever of the others has written a key last keeps it; the keys of the plan have the former value; the rest stays.
    for key, at in ends.items():
        if broker.log[at].by == "others":
            assert broker.log[at].value == after.get(key)
        elif broker.log[at].by == "rewind":
            assert after.get(key) == former.get(key)
        else:
            assert after.get(key) == before.get(key)
            assert hash_key(key) not in wanted - rewind.left_alone
    ours = written_by_rewind(broker, head)
    assert {hash_key(key) for key in ours} | rewind.left_alone == wanted
    if not (killed and held_back):  # else an attempt can't know what the one before has committed, or only sent
        assert rewind.written == len(ours)
        assert not {hash_key(key) for key in ours} & rewind.left_alone
    # The same command again finds nothing but what was left alone or written by others since.
    theirs = {hash_key(key) for key, at in ends.items() if broker.log[at].by == "others"}
    again = Rewind(broker, moment, len(broker.log), choice)
    assert {one.key for one in again.planned(former)} <= theirs | rewind.left_alone
    # Each key whose newest record is the rewind's gets the value from before it.
    undo = Rewind(broker, head, len(broker.log), KeyChoice(within={0: sorted(rewind.notes)}))
    undo.attempt(before, [])
    final = broker.state()
    for key, at in ends.items():
        assert final.get(key) == (before if broker.log[at].by == "rewind" else after).get(key), (key, broker.log[at])


@pytest.mark.parametrize("lost", [False, True])
def test_own_aborted_records_are_not_others_writes_below_an_open_transaction(lost: bool) -> None:
    """Another producer's transaction hides that they were aborted: only the key that it collides with is left alone.

    Also if the attempt is lost after that, and another one begins.
    """
    broker = Broker(random.Random(0))
    broker.append(b"other", b"theirs", by="others", status="open")
    collides, kills = [b"key-0"], ["noted"] if lost else []
    notes: list[OffsetRange] = []

    def begin() -> Transaction:
        for one in broker.log:
            if one.by == "rewind" and one.status == "open":
                one.status = "aborted"
        if collides:
            broker.append(collides.pop(), b"theirs", by="others")
        return Transaction(broker, kills)

    keys = [b"key-%d" % number for number in range(5)]
    for attempt in range(1 + lost):
        writer = GuardedWriter(log=Log(broker, 0), begin=begin, note=notes.extend, own=sorted(notes))
        records = [
            PlannedRecord(hash_key(key), encode(Record(topic="orders", partition=0, offset=0, key=key))) for key in keys
        ]
        if attempt < lost:
            with pytest.raises(KilledError):
                writer.write(records)
            kills.clear()
        else:
            writer.write(records)
    assert (writer.left_alone, writer.written) == ({hash_key(b"key-0")}, 4)
    assert written_by_rewind(broker, 0) == set(keys[1:])


def written_by_rewind(broker: Broker, head: int) -> set[bytes]:
    """The keys that it has committed; never behind a committed record that others wrote after the comparison."""
    theirs: set[bytes] = set()
    ours: set[bytes] = set()
    for one in broker.log[head:]:
        if one.status == "committed" and one.by == "others":
            theirs.add(one.key)
        elif one.status == "committed":
            assert one.key not in theirs
            ours.add(one.key)
    return ours


def test_ranges_of_offsets() -> None:
    """Both ends are inside."""
    ranges = [(2, 4), (7, 7)]
    assert [at for at in range(10) if in_ranges(at, ranges)] == [2, 3, 4, 7]
    assert not in_ranges(3, [])
