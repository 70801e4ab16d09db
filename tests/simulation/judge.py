"""The judge: after every change in the store, a restore decided and read from the store alone, held against the truth.

What is demanded once a generation is COMPLETE (docs/protocol.md has the argument):

* every partition that was ever confirmed can be restored up to where it was confirmed, from objects that are there;
* what is restored is exactly what the log held: for each key the newest record below the end of the restore, nothing
  lost, nothing stale, nothing that was aborted, nothing of two histories mixed, nothing twice;
* what the cluster no longer has (deleted or recreated topics, records that an unclean election cut off) stays in some
  complete generation.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

from backup_avro.chain import Part, PartitionKey, StoredObject
from backup_avro.errors import DamagedError, RefusedError
from backup_avro.fold import Generation
from backup_avro.selection import PartitionSelection, Selection, select
from backup_avro.varint import decode_long
from simulation.kafka import decode
from simulation.log import Cluster, Partition, Record
from simulation.store import Bucket, Store
from sink.chain.reader import ChainReader

_SYNC = 16


class ViolationError(AssertionError):
    """The promise is broken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Restored:
    """What a restore gives of one partition: all records, the newest below `upto` of each key, the log start."""

    records: list[Record]
    newest: dict[int, Record]
    upto: int
    log_start: int


def _compare(partition: Partition, lineage: list[Record], restored: _Restored) -> str | None:
    known = {r.offset: r for r in lineage}
    for record in restored.records:
        if record.offset >= restored.upto:
            break
        there = known.get(record.offset)
        if there is None or there._replace(txn=0) != record:
            return f"{record} is not what the log held: {there}"
        if there.txn in partition.aborted or there.control:
            return f"{record} was aborted"
    truth = partition.state(restored.upto, lineage)
    later = partition.state(1 << 62, lineage)
    for key, expected in truth.items():
        got = restored.newest.get(key)
        if got is not None and got.offset == expected.offset:
            continue
        if expected.offset < max(partition.start, restored.log_start):
            continue
        if got is None and expected.value is None:
            continue
        if later[key].offset >= restored.upto:
            continue  # compacted away before it was read: what superseded it lies above the end
        if got is None:
            return f"key {key} is lost: the log had {expected}"
        return f"key {key} is stale: {got}, the log had {expected}"
    extra = restored.newest.keys() - truth.keys()
    return f"keys {extra} are not in the log" if extra else None


@dataclass(slots=True)
class Judge:
    """Keeps what was ever confirmed, and checks."""

    cluster: Cluster
    bucket: Bucket
    pair: str
    reader: ChainReader = field(init=False)
    confirmed: dict[PartitionKey, int] = field(default_factory=dict)
    cut_off: dict[PartitionKey, dict[Record, bool]] = field(default_factory=dict)
    checks: int = 0
    restored_records: int = 0
    completes: set[int] = field(default_factory=set)
    _decoded: dict[tuple[str, int], list[Record]] = field(default_factory=dict)
    _judged: dict[PartitionKey, object] = field(default_factory=dict)
    _confirmed_at: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Read without a network."""
        self.reader = ChainReader(Store(self.bucket, None), self.pair)

    def states(self) -> list[Generation]:
        """All chains as they are now, wholly cleared ones too."""
        try:
            self.reader.refresh()
        except DamagedError as error:
            raise ViolationError(f"a chain breaks its rules: {error}") from error
        return self.reader.history()

    def cut(self, partition: Partition, lost: list[Record]) -> None:
        """An unclean election took `lost` from a log: what was confirmed of it must stay somewhere."""
        key = PartitionKey(partition.topic_id, partition.number)
        if lost and lost[0].offset < self.confirmed.get(key, 0):
            self.confirmed[key] = lost[0].offset
        watched = self.cut_off.setdefault(key, {})
        for record in lost:
            if not record.control and record.txn not in partition.aborted:
                watched[record._replace(txn=0)] = False
        self._judged.pop(key, None)

    def check(self) -> None:
        """Judge the store as it is."""
        states = self.states()
        complete = [state for state in states if state.complete]
        if not complete:
            return
        self.checks += 1
        self.completes |= {state.number for state in complete}
        live = [state for state in complete if not state.gone]
        self._confirm(live)
        try:
            selection = select(live, removed=True)
        except RefusedError as error:
            raise ViolationError(f"nothing can be restored: {error}") from error
        chosen = {piece.key: piece for piece in selection.partitions}
        for key, offset in self.confirmed.items():
            self._partition(key, offset, chosen.get(key), selection, live)
        self._kept_what_was_cut(live)

    def _confirm(self, live: list[Generation]) -> None:
        for state in live:
            if self._confirmed_at.get(state.number) == state.seq:
                continue
            self._confirmed_at[state.number] = state.seq
            for key, position in state.positions.items():
                if state.usable(key):
                    offset = min(state.sound_offset(key), self._reach_of(key, state, position.epoch))
                    self.confirmed[key] = max(self.confirmed.get(key, 0), offset)
            for key, watched in self.cut_off.items():
                if state.usable(key) and not all(watched.values()):
                    for record in self._held(state, key):
                        if record in watched:
                            watched[record] = True

    def _reach_of(self, key: PartitionKey, state: Generation, epoch: int) -> int:
        """Up to where what a generation holds is of the present history: cut-off records are watched one by one."""
        partition = self.cluster.partitions[key.topic_id, key.partition]
        if len(partition.lineages) == 1:
            return 1 << 62
        _, end = partition.end_of_epoch(epoch)
        return min(state.positions[key].offset, end)

    def _partition(
        self,
        key: PartitionKey,
        offset: int,
        piece: PartitionSelection | None,
        selection: Selection,
        live: list[Generation],
    ) -> None:
        partition = self.cluster.partitions[key.topic_id, key.partition]
        name = f"{key.topic_id[-2:]}-{key.partition}"
        if piece is None:
            holders = [s for s in live if key in s.positions and s.usable(key) and s.sound_offset(key) >= offset]
            if not holders:
                raise ViolationError(f"{name} was confirmed up to {offset} and is in no complete generation any more")
            if not self._may_lack(key, selection, live):
                raise ViolationError(f"{name} was confirmed up to {offset} and is not restored: {selection.incomplete}")
            for state in holders:
                self._read(state, key)
            return
        if piece.sound < offset:
            raise ViolationError(f"{name} was confirmed up to {offset}, the restore is in doubt from {piece.sound} on")
        mark = (
            piece.end,
            piece.generations,
            piece.warning,
            tuple(s.part.scan for s in piece.slices),
            len(partition.lineages),
        )
        for piece_slice in piece.slices:
            if piece_slice.item.key not in self.bucket.objects:
                raise ViolationError(f"{name}: {piece_slice.item.key} is selected, but deleted")
        if self._judged.get(key) == (mark, partition.start):
            return
        self._judged[key] = (mark, partition.start)
        self._content(name, partition, piece)

    def _may_lack(self, key: PartitionKey, selection: Selection, live: list[Generation]) -> bool:
        """Whether another life of the topic has its name, so that only one of the two can be restored."""
        names = {piece.topic.name for piece in selection.partitions}
        return any(key.topic_id in s.topics and s.topics[key.topic_id].name in names for s in live)

    def _content(self, name: str, partition: Partition, piece: PartitionSelection) -> None:
        records: list[Record] = []
        for piece_slice in piece.slices:
            records += [
                r
                for r in self._decode(piece_slice.item, piece_slice.part)
                if piece_slice.low <= r.offset < piece_slice.high
            ]
        self.restored_records += len(records)
        offsets = [r.offset for r in records]
        if any(later <= earlier for earlier, later in itertools.pairwise(offsets)):
            raise ViolationError(f"{name}: offsets come twice or out of order: {offsets}")
        upto = piece.sound
        mine: dict[int, Record] = {}
        for record in records:
            if record.offset < upto:
                mine[record.key] = record
        restored = _Restored(records=records, newest=mine, upto=upto, log_start=piece.log_start)
        problems = [_compare(partition, lineage, restored) for lineage in partition.lineages]
        if all(problems):
            raise ViolationError(f"{name} restored up to {upto} from generations {piece.generations}: {problems[-1]}")

    def _kept_what_was_cut(self, live: list[Generation]) -> None:
        for key, watched in self.cut_off.items():
            if not any(watched.values()):
                continue
            newest: dict[int, Record] = {}
            for record, confirmed in watched.items():
                if confirmed and (record.key not in newest or newest[record.key].offset < record.offset):
                    newest[record.key] = record
            held: set[Record] = set()
            for state in live:
                if key in state.positions and state.usable(key):
                    held.update(self._held(state, key))
            missing = set(newest.values()) - held
            if missing:
                raise ViolationError(f"confirmed records that were cut off are in no generation any more: {missing}")

    def _held(self, state: Generation, key: PartitionKey) -> list[Record]:
        return [record for item, part in state.live_parts() if part.key == key for record in self._decode(item, part)]

    def _read(self, state: Generation, key: PartitionKey) -> None:
        for item, part in state.live_parts():
            if part.key == key and item.key not in self.bucket.objects:
                raise ViolationError(f"{item.key} holds the last of {key} and is deleted")

    def _decode(self, item: StoredObject, part: Part) -> list[Record]:
        found = self._decoded.get((item.key, part.start))
        if found is None:
            body = self.bucket.objects.get(item.key)
            if body is None:
                raise ViolationError(f"{item.key} is in the chain, but deleted")
            found, at = [], part.start
            while at < part.end:
                count, at = decode_long(body, at)
                size, at = decode_long(body, at)
                block = decode(body[at : at + size])
                if len(block) != count:
                    raise ViolationError(f"{item.key}: a block of {len(block)} records says {count}")
                found += block
                at += size + _SYNC
            if len(found) != part.records:
                raise ViolationError(f"{item.key}: {len(found)} records, the chain says {part.records}")
            self._decoded[item.key, part.start] = found
        return found
