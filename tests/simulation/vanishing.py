"""The judge of keys that vanished: what an accident took from a log stays in some copy until a person releases it.

An accident takes records from a log that only compacts, without tombstones, or from the middle of one whose policy
deletes as well. Of each key whose newest record it took, and that a complete generation has, some kept generation has
that record until

* the key is written or deleted again, and a complete generation has read the log beyond that;
* a release names the copies that have it;
* it would have expired: the log begins above it, and no generation has told of another policy than one that deletes;
* nothing proves the loss (docs/decisions/0119, 0122, 0149): each copy that has the record is in doubt or was never
  read to the end, or the policy came to be compact alone only after the record lay below the log's start, or after the
  copy was made, or each newer one was scanned so late that a tombstone might have come and gone in between.

And no generation is kept for keys that never vanished, nor tells of a log start above that of the log.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from simulation.comparing import ViolationError
from simulation.log import Cluster, Partition, Record
from tandem.backup_avro.chain.entries import PartitionKey
from tandem.backup_avro.chain.generation import Generation
from tandem.backup_avro.selection.losses import kept_losses

_SHARE = 0.8
"""The share of a tombstone's life within which a scan must end that is to have seen it."""


@dataclass(slots=True)
class Vanishing:
    """Watches lost records. `held` gives the records that a generation has of a partition."""

    cluster: Cluster
    held: Callable[[Generation, PartitionKey], list[Record]]
    counts: dict[str, int] = field(default_factory=dict)
    _watched: dict[PartitionKey, dict[Record, set[int]]] = field(default_factory=dict)
    """Of each lost record the complete generations that have it, and that no release names."""
    _taken: dict[PartitionKey, set[int]] = field(default_factory=dict)
    """All keys of which an accident took a record."""
    _seen: dict[tuple[int, PartitionKey], int] = field(default_factory=dict)
    _compacts: dict[tuple[int, PartitionKey], int] = field(default_factory=dict)
    """Of each generation and partition the log start when the generation first told of no policy but `compact`."""
    _deletes: set[tuple[int, PartitionKey]] = field(default_factory=set)
    """Where a generation has told of a policy that deletes."""

    def taken(self, key: PartitionKey) -> Collection[int]:
        """Return the keys of a partition of which an accident took the newest record."""
        return self._taken.get(key, ())

    def lost(self, partition: Partition, newest: Collection[Record]) -> None:
        """An accident takes these newest records of their keys."""
        key = PartitionKey(partition.topic_id, partition.number)
        self._taken.setdefault(key, set()).update(record.key for record in newest)
        watched = self._watched.setdefault(key, {})
        for record in newest:
            if record.value is not None:
                watched[record._replace(txn=0)] = set()
        self._seen = {(number, of): seq for (number, of), seq in self._seen.items() if of != key}

    def released(self, key: PartitionKey, held: Collection[Record]) -> None:
        """A release names a partition; generations that it does not name hold `held`."""
        for record in [one for one, had in self._watched.get(key, {}).items() if had and one not in held]:
            self._settle(key, record, "released key")

    def check(self, states: Collection[Generation], let_go: Callable[[PartitionKey], int]) -> None:
        """Judge all generations as they are. `let_go`: up to which one a release names a partition."""
        for state in states:
            self._policies(state)
            for loss in () if state.gone else kept_losses(state):
                log = self.cluster.partitions[loss.key.topic_id, loss.key.partition]
                # A tail that had not read an erased key's tombstone yet may read its last value after the erasure.
                taken = {*self._taken.get(loss.key, ()), *log.erased}
                if loss.keys is None or len(log.lineages) > 1:
                    continue
                if loss.keys > len(taken) or not taken.issuperset(_named_keys(loss.reason, log)):
                    raise ViolationError(f"generation {state.number} is kept for keys that never vanished: {loss.key}")
        for key in list(self._watched):
            if len(self.cluster.partitions[key.topic_id, key.partition].lineages) > 1:
                del self._watched[key]  # what elections and snapshots cut off is watched in another way
            elif self._watched[key]:
                self._partition(key, states, let_go(key))

    def _policies(self, state: Generation) -> None:
        for key, position in state.positions.items():
            if position.log_start > self.cluster.partitions[key.topic_id, key.partition].start:
                raise ViolationError(f"generation {state.number} leaves out what is still in the log: {key}")
            topic = state.topics.get(key.topic_id)
            if topic is not None and topic.config["cleanup.policy"] == "compact":
                self._compacts.setdefault((state.number, key), max(position.log_start, 0))
            elif topic is not None:
                self._deletes.add((state.number, key))

    def _partition(self, key: PartitionKey, states: Collection[Generation], released: int) -> None:
        live = [state for state in states if state.usable(key)]
        watched = self._watched[key]
        for state in live:
            if state.number > released and self._seen.get((state.number, key)) != state.seq:
                self._seen[state.number, key] = state.seq
                for record in self.held(state, key):
                    if record in watched:
                        self._count("vanished key", not watched[record])
                        watched[record].add(state.number)
        numbers = {state.number for state in live}
        for record, had in list(watched.items()):
            if record.key in self.cluster.partitions[key.topic_id, key.partition].erased:
                self._settle(key, record, "erased key")
            elif self._written_again(key, record, live):
                self._settle(key, record, "written again")
            elif self._expired(key, record):
                self._settle(key, record, "expired key")
            elif had and not had & numbers:
                owners = [state for state in states if state.number in had]
                if any(self._provable(key, record, owner, newer, released) for owner in owners for newer in states):
                    raise ViolationError(f"{record} of {key} vanished without a tombstone, and no generation keeps it")
                self._settle(key, record, "unprovable key")
            else:
                # A copy is judged when it is let go of: what is known later may prove what was not proven then.
                had.intersection_update(numbers)

    def _written_again(self, key: PartitionKey, record: Record, live: Collection[Generation]) -> bool:
        """Whether a complete generation has read beyond a newer record of the key."""
        log = self.cluster.partitions[key.topic_id, key.partition]
        later = (
            r.offset
            for r in log.lineages[-1][record.offset + 1 : log.stable]
            if r.key == record.key and not r.control and r.txn not in log.aborted
        )
        first = next(later, None)
        return first is not None and any(state.sound_offset(key) > first for state in live)

    def _provable(self, key: PartitionKey, record: Record, owner: Generation, newer: Generation, released: int) -> bool:
        """Whether nobody can have deleted a key between what `owner` and `newer` have read, unseen by both."""
        if (
            newer.number <= owner.number
            or not newer.usable(key)
            or newer.sound_offset(key) < owner.positions[key].offset
        ):
            return False
        topics = [state.topics[key.topic_id].config for state in (owner, newer)]
        always = self._always_deletes(key, newer.number)
        if not always and record.offset < self._compacted_from(owner, key, released):
            return False
        if key in owner.taints or not owner.read_through(key):
            return False
        base = newer.positions[key].base
        lives_ms = min(int(config["delete.retention.ms"]) for config in topics)
        in_time = base.done_at is not None and base.done_at - owner.head_at(key) < _SHARE * lives_ms
        if base.end <= owner.positions[key].offset:
            return True
        # Of a log that has always expired, tombstones that nobody read lie below its start, as all before them does.
        deletes = not always and any((state.number, key) in self._deletes for state in (owner, newer))
        return in_time and not (deletes and newer.positions[key].log_start > owner.positions[key].offset)

    def _always_deletes(self, key: PartitionKey, upto: int) -> bool:
        """Whether no generation up to this number has told of a policy that is compact alone, and some of another.

        What the log lost above its start, wherever copies think that it began, was to be removed by nothing but
        compaction. The log's start only rises: a record that lies above it now did so at each scan.
        """
        numbers = range(1, upto + 1)
        return any((number, key) in self._deletes for number in numbers) and not any(
            (number, key) in self._compacts for number in numbers
        )

    def _expired(self, key: PartitionKey, record: Record) -> bool:
        newest = max((number for number, of in (*self._deletes, *self._compacts) if of == key), default=0)
        below = record.offset < self.cluster.partitions[key.topic_id, key.partition].start
        return below and self._always_deletes(key, newest)

    def _compacted_from(self, owner: Generation, key: PartitionKey, released: int) -> float:
        """The log start when the policy was first compact alone, as the owner told, or else the last one before it.

        A release of that one's records says that the policy which followed was meant.
        """
        for number in range(owner.number, 0, -1):
            if (number, key) in self._compacts:
                return self._compacts[number, key] if number == owner.number or number > released else math.inf
        return math.inf

    def _settle(self, key: PartitionKey, record: Record, how: str) -> None:
        had = self._watched[key].pop(record)
        self._count(how, bool(had))

    def _count(self, what: str, times: int) -> None:
        self.counts[what] = self.counts.get(what, 0) + times

    def end(self) -> None:
        """Count what is kept at the end."""
        self._count("kept key", sum(bool(had) for watched in self._watched.values() for had in watched.values()))


def _named_keys(reason: str, log: Partition) -> set[int]:
    """Return the keys of the lost records whose offsets a reason tells."""
    _, _, told = reason.partition(" at offsets ")
    offsets = {int(one) for one in re.findall(r"\d+", told.partition(";")[0])}
    return {record.key for record in log.lineages[-1] if record.offset in offsets}
