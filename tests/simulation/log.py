"""A simulated Kafka cluster: topics with ids, compacted logs on two replicas each, transactions, everything that moves.

A record is a tuple-like value with a unique id. Brokers keep replicas that are cleaned independently: a pass removes
what a newer record below its end supersedes, and, a delete.retention.ms after a pass first saw it, a tombstone. Passes
go from low to high and may stand still half-way. Beside what brokers still have, the log remembers all that was ever
written, in each history ("lineage") that elections made of it: that is what a restore is measured against.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from tandem.backup_avro.chain.entries import Topic


class Record(NamedTuple):
    """One record; `value` None is a tombstone. `control` is a transaction's marker. `txn` 0: none."""

    offset: int
    epoch: int
    key: int
    value: int | None
    txn: int = 0
    control: bool = False


@dataclass(slots=True)
class Pass:
    """A cleaner's way through a log: the offsets that it still has to remove, and when what it meets first may go."""

    doomed: list[int]
    horizons: dict[int, float]


@dataclass(slots=True)
class Replica:
    """What one broker has: the records by offset, when tombstones may go, and how far a pass has come.

    `cleaned` is the end of what passes looked at.
    """

    records: dict[int, Record] = field(default_factory=dict)
    horizons: dict[int, float] = field(default_factory=dict)
    passing: Pass | None = None
    cleaned: int = 0

    def copied(self) -> Replica:
        """Return what another broker gets that copies all at once: the log as it is, and not the rest of a pass."""
        return Replica(records=dict(self.records), horizons=dict(self.horizons), cleaned=self.cleaned)


@dataclass(slots=True)
class Partition:
    """One log. `lineages` holds, newest last, everything ever written as each history has it.

    `known` is how far a new leader knows that others have the log too (its high watermark), None once it knows all.
    While it is `leaderless`, nobody writes to it, and no broker says anything about it. Records at offsets in `bad`
    can't be decoded. Those in `let_go` a cleaner has removed from a replica.
    """

    topic_id: str
    number: int
    retention_s: float
    epoch: int = 1
    leader: int = 1
    leaderless: bool = False
    start: int = 0
    end: int = 0
    replicas: dict[int, Replica] = field(default_factory=lambda: {1: Replica(), 2: Replica()})
    lineages: list[list[Record]] = field(default_factory=lambda: [[]])
    epochs: list[tuple[int, int]] = field(default_factory=lambda: [(1, 0)])
    open_txns: dict[int, int] = field(default_factory=dict)
    aborted: set[int] = field(default_factory=set)
    waiters: list[Callable[[], None]] = field(default_factory=list)
    known: int | None = None
    bad: set[int] = field(default_factory=set)
    let_go: set[int] = field(default_factory=set)
    starts: int = 0
    """How often its brokers were started with other volumes. A reader sees no more of it than an ended connection."""
    set_back_to: list[int] = field(default_factory=list)
    """Where the log ended on the volumes that were put back, newest last."""
    vanished: set[Record] = field(default_factory=set)
    """What accidents took from all replicas, each record as its history has it; no newer record had superseded it."""
    erased: set[int] = field(default_factory=set)
    """Keys that were erased from the backup, or are being."""
    former_end: int = 0
    """Below this, records have taken the offsets of others. They are told apart by values: there are no timestamps."""

    @property
    def told(self) -> int:
        """The end that the leader names."""
        return self.stable if self.known is None else min(self.stable, self.known)

    @property
    def stable(self) -> int:
        """The last stable offset."""
        return min(self.open_txns.values()) if self.open_txns else self.end

    def append(self, key: int, value: int | None, *, txn: int = 0, control: bool = False) -> Record:
        """Write to both replicas."""
        record = Record(self.end, self.epoch, key, value, txn, control)
        if txn and not control:
            self.open_txns.setdefault(txn, record.offset)
        self.end += 1
        for replica in self.replicas.values():
            replica.records[record.offset] = record
        self.lineages[-1].append(record)
        self.wake()
        return record

    def finish(self, txn: int, *, commit: bool) -> None:
        """End a transaction with its marker."""
        if not commit:
            self.aborted.add(txn)
        self.append(0, None, txn=txn, control=True)
        self.open_txns.pop(txn, None)
        self.wake()

    def wake(self) -> None:
        """Tell long polls that something is new."""
        waiters, self.waiters = self.waiters, []
        for waiter in waiters:
            waiter()

    def readable(self, replica: int, low: int, count: int) -> list[Record]:
        """Return at most `count` records that a broker hands out from `low` on, below the end that it names."""
        stable = self.told
        records = self.replicas[replica].records
        found = []
        for offset in range(max(low, self.start), stable):
            record = records.get(offset)
            if record is not None:
                found.append(record)
                if len(found) == count:
                    break
        return found

    def last_readable(self) -> int:
        """Return the offset of the last record that the leader hands out, -1 if there is none."""
        records = self.replicas[self.leader].records
        return max((offset for offset in records if self.start <= offset < self.told), default=-1)

    def clean(self, number: int, now: float, rng: random.Random) -> None:
        """Do a part of a cleaning pass of one replica: begin one, or go on with one."""
        replica = self.replicas[number]
        if replica.passing is None:
            # Nothing is cleaned in the segment that is written to: what volumes were put back to begins one.
            upto = min([rng.randint(self.start, self.told), *self.set_back_to])
            newest: dict[int, int] = {}
            for offset, record in replica.records.items():
                if offset < upto and not record.control and record.txn not in self.aborted:
                    newest[record.key] = max(offset, newest.get(record.key, -1))
            doomed = []
            met = {}
            for offset, record in sorted(replica.records.items()):
                if offset >= upto:
                    break
                if record.control or record.txn in self.aborted or newest[record.key] > offset:
                    doomed.append(offset)
                elif record.value is None and offset not in replica.horizons:
                    met[offset] = now + self.retention_s
                elif now > replica.horizons.get(offset, now):
                    doomed.append(offset)
            replica.passing = Pass(doomed, met)
            replica.cleaned = max(replica.cleaned, upto)
        doomed = replica.passing.doomed
        take = len(doomed) if rng.random() < 0.5 else rng.randint(0, len(doomed))
        for offset in doomed[:take]:
            replica.records.pop(offset, None)
        self.let_go.update(doomed[:take])
        del doomed[:take]
        # The pass notes a tombstone's time where it has come to: what that supersedes is gone by then.
        replica.horizons |= {o: until for o, until in replica.passing.horizons.items() if not doomed or o < doomed[0]}
        if not doomed:
            replica.passing = None

    def move(self, *, behind: int = 0) -> None:
        """The other replica leads; nothing is lost, but of the last records it does not know yet that they count."""
        self.known = max(self.shortest(), self.stable - behind) if behind else None
        self._lead(3 - self.leader)

    def _lead(self, leader: int) -> None:
        self.leader, self.leaderless = leader, False
        self.epoch += 1
        self.epochs.append((self.epoch, self.end))
        self.wake()

    def come_back(self) -> None:
        """Another replica leads for a moment, from which the leader, whose disk was replaced, copies all."""
        there = self.replicas[3 - self.leader]
        self.move()
        self.replicas[3 - self.leader] = there.copied()
        self.move()

    def learn(self) -> None:
        """The leader knows all."""
        self.known = None
        self.wake()

    def elect(self, leader: int) -> None:
        """A replica that was away, and has all, leads again."""
        if self.leaderless:
            if leader != self.leader:
                self.move()
            else:
                self._lead(leader)

    def shortest(self) -> int:
        """Return the lowest end that the log may be cut to.

        A replica that ends there never had what a pass above it let go of older records for.
        """
        return max(self.start, *(replica.cleaned for replica in self.replicas.values()))

    def cut(self, at: int) -> list[Record]:
        """An unclean election: the other replica, which ends at `at` or later, leads. Return the records that are lost.

        A replica never cleaned by what it never had, so nothing is cut below its last pass; the former leader, which
        may have, copies what the new one has.
        """
        follower = self.replicas[3 - self.leader]
        at = max(at, follower.cleaned)
        lost = [record for record in self.lineages[-1] if record.offset >= at]
        if not lost:
            return []
        self.lineages.append([record for record in self.lineages[-1] if record.offset < at])
        self.end, self.known = at, None
        self.let_go = {offset for offset in self.let_go if offset < at}
        follower.records = {o: r for o, r in follower.records.items() if o < at}
        follower.horizons = {o: h for o, h in follower.horizons.items() if o < at}
        follower.passing = None
        self.replicas[self.leader] = follower.copied()
        self.epochs = [(epoch, start) for epoch, start in self.epochs if start < at] or self.epochs[:1]
        self.leaderless = False
        self.leader = 3 - self.leader
        self.epoch += 1
        self.epochs.append((self.epoch, at))
        # Transactions that began below the cut go on (their coordinator will end them); the others never were.
        self.open_txns = {txn: first for txn, first in self.open_txns.items() if first < at}
        self.wake()
        return lost

    def set_back(self, at: int) -> list[Record]:
        """The volumes of all brokers are put back to when the log ended at `at`. Return the records that are lost.

        Offsets are used again, and so is the epoch that the log had then.
        """
        at = max(at, self.shortest())
        lost = [record for record in self.lineages[-1] if record.offset >= at]
        if not lost:
            return []
        self.lineages.append([record for record in self.lineages[-1] if record.offset < at])
        self.former_end = max(self.former_end, self.end)
        self.end, self.known = at, None
        self.let_go = {offset for offset in self.let_go if offset < at}
        for replica in self.replicas.values():
            replica.records = {o: r for o, r in replica.records.items() if o < at}
            replica.horizons = {o: h for o, h in replica.horizons.items() if o < at}
            replica.passing = None
        self.epochs = [(epoch, start) for epoch, start in self.epochs if start < at] or self.epochs[:1]
        self.epoch = self.epochs[-1][0]
        self.open_txns = {txn: first for txn, first in self.open_txns.items() if first < at}
        self.starts += 1
        self.set_back_to.append(at)
        self.wake()
        return lost

    def end_of_epoch(self, epoch: int) -> tuple[int, int]:
        """Return (largest epoch not above `epoch`, its end offset), as OffsetForLeaderEpoch answers (KIP-320)."""
        found = -1
        for index, (known, _) in enumerate(self.epochs):
            if known <= epoch:
                found = index
        if found < 0:
            return (epoch, self.epochs[0][1])
        end = self.epochs[found + 1][1] if found + 1 < len(self.epochs) else self.end
        return (self.epochs[found][0], end)

    def epoch_before(self, offset: int) -> int:
        """Return the epoch of the record before `offset`, whether or not it is there still; 0 if there was none."""
        return max((epoch for epoch, start in self.epochs if start < offset), default=0)

    def delete_below(self, offset: int) -> None:
        """DeleteRecords, or retention on a topic that compacts and deletes."""
        self.start = max(self.start, min(offset, self.told))
        for replica in self.replicas.values():
            replica.records = {o: r for o, r in replica.records.items() if o >= self.start}

    def there(self) -> list[Record]:
        """Return what a consumer may be given by some replica, ascending: no open transaction, nothing aborted."""
        found = {offset: r for replica in self.replicas.values() for offset, r in replica.records.items()}
        return [
            record
            for offset, record in sorted(found.items())
            if self.start <= offset < self.told and not record.control and record.txn not in self.aborted
        ]

    def lose(self, lost: list[Record], *, start: int = 0) -> None:
        """An accident takes records from all replicas, and the log begins at `start` if that is higher than before."""
        self.vanished.update(lost)
        gone = {record.offset for record in lost}
        self.start = max(self.start, min(start, self.told))
        for replica in self.replicas.values():
            replica.records = {o: r for o, r in replica.records.items() if o >= self.start and o not in gone}

    def lacks(self, record: Record) -> bool:
        """Whether a broker has let go of a record, or never had it in the present history."""
        return any(record.offset not in replica.records for replica in self.replicas.values())

    def passed_over(self, record: Record, tail_from: int) -> bool:
        """Whether who has read this log may lack a record that was superseded before it was read.

        From `tail_from` on it was read in order, by a tail: of what a cleaner had taken by then it was given nothing,
        also if the broker's disk was replaced afterwards and has it again. What lies below was scanned, and counts only
        once all that was written meanwhile was read too.
        """
        return self.lacks(record) or (record.offset >= tail_from and record.offset in self.let_go)

    def ever_held(self, record: Record) -> bool:
        """Whether a consumer was right to be given this record in any history."""
        return any(
            there._replace(txn=0) == record and there.txn not in self.aborted and not there.control
            for lineage in self.lineages
            for there in lineage
            if there.offset == record.offset
        )

    def state(self, upto: int, lineage: list[Record]) -> dict[int, Record]:
        """Return the newest record of each key below `upto`, aborted ones aside."""
        found: dict[int, Record] = {}
        for record in lineage:
            if record.offset < upto and not record.control and record.txn not in self.aborted:
                found[record.key] = record
        return found


@dataclass(slots=True)
class Cluster:
    """Topics by name, and every partition that ever was by (topic id, number)."""

    topics: dict[str, Topic] = field(default_factory=dict)
    partitions: dict[tuple[str, int], Partition] = field(default_factory=dict)
    made: int = 0
    denied: set[str] = field(default_factory=set)
    """Topics that may be described, and not read."""

    def create(self, name: str, *, partitions: int, retention_s: float, policy: str = "compact") -> Topic:
        """Create a topic with a new id."""
        self.made += 1
        topic = Topic(
            name=name,
            topic_id=f"AAAAAAAAAAAAAAAAAAAA{self.made:02d}",
            partitions=partitions,
            replication_factor=2,
            config={"cleanup.policy": policy, "delete.retention.ms": str(round(retention_s * 1000))},
        )
        self.topics[name] = topic
        for number in range(partitions):
            self.partitions[topic.topic_id, number] = Partition(topic.topic_id, number, retention_s)
        return topic

    def grow(self, name: str) -> None:
        before = self.topics[name]
        after = Topic(
            name=name,
            topic_id=before.topic_id,
            partitions=before.partitions + 1,
            replication_factor=before.replication_factor,
            config=before.config,
        )
        self.topics[name] = after
        retention_s = self.partitions[before.topic_id, 0].retention_s
        self.partitions[before.topic_id, before.partitions] = Partition(before.topic_id, before.partitions, retention_s)

    def guarantee(self, name: str, retention_s: float) -> None:
        """Set `delete.retention.ms`. What a pass has seen already keeps the time that it was given."""
        topic = self.topics[name]
        self.topics[name] = replace(
            topic, config={**topic.config, "delete.retention.ms": str(round(retention_s * 1000))}
        )
        for number in range(topic.partitions):
            self.partitions[topic.topic_id, number].retention_s = retention_s

    def set_policy(self, name: str, policy: str) -> None:
        """Set `cleanup.policy` of a topic, if there is one."""
        topic = self.topics.get(name)
        if topic is not None:
            self.topics[name] = replace(topic, config={**topic.config, "cleanup.policy": policy})

    def delete(self, name: str) -> None:
        topic = self.topics.pop(name)
        for number in range(topic.partitions):
            self.partitions[topic.topic_id, number].wake()

    def present(self, name: str, number: int) -> Partition | None:
        """Return a partition that exists now."""
        topic = self.topics.get(name)
        return None if topic is None or number >= topic.partitions else self.partitions[topic.topic_id, number]

    def exists(self, topic_id: str) -> bool:
        """Whether a life of a topic goes on."""
        return any(topic.topic_id == topic_id for topic in self.topics.values())
