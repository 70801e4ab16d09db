"""Two copies of one random history: one is swept, the other is not. What can be restored must be the same of both."""

from __future__ import annotations

import itertools
import secrets
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

from support.backups.build_backup import PAIR, Backup, TopicSpec
from support.backups.requests import cut_request
from support.pipeline.doubles import MemoryStore
from tandem.backup_avro.chain import layout
from tandem.backup_avro.chain.entries import Entry, EntryKind, PartitionKey
from tandem.backup_avro.chain.generation import Generation
from tandem.backup_avro.documents.checkpoint import (
    CheckpointOutcome,
    CheckpointRequest,
    CutStanding,
    checkpoint_entry,
    judge_cut,
    takes_part,
)
from tandem.backup_avro.record.container import Codec
from tandem.backup_avro.record.current import Record, TimestampType, decode_body
from tandem.backup_avro.selection.moments import with_objects_of
from tandem.backup_avro.selection.restorable_state import Selection, select, select_cut
from tandem.sink.encryption.key_ring import NO_KEYS, KeyRing
from tandem.sink.store import ObjectStore
from tandem.sink.store.chain import checkpoints
from tandem.sink.store.chain.chain_reader import ChainReader
from tandem.sink.store.chain.chain_writer import ChainWriter
from tandem.sink.write.merge import Merger
from tandem.sink.write.merge_plan import MergeRules
from tandem.spark_jobs.compaction.keyed_rows import KeyedLimits
from tandem.spark_jobs.reading.object_reader import ObjectReader
from tandem.spark_jobs.retention.sweep import Sweeper, SweepOutcome, sweep_all, sweep_batch
from tandem.spark_jobs.retention.sweep_by_key import sweep_by_key
from tandem.spark_jobs.retention.sweep_partition import Swept
from tandem.spark_jobs.retention.sweep_plan import SweepRules, SweepTask
from tandem.spark_jobs.spark.shuffle import shuffle_here
from tandem.spark_jobs.verify.verify_plan import check_object, check_state, plan_objects

TOPIC = "t"
PARTITIONS = 2
SPEC = TopicSpec(TOPIC, PARTITIONS)
KEYS = (b"a", b"b", b"a key that is longer than sixteen bytes")
MERGES = MergeRules(fan_in=2, smallest=64, own_bytes=300, limit=2000, most_runs=9)

Op = tuple[Any, ...]
Latest = dict[tuple[int, bytes], bytes]


class KilledError(Exception):
    """The janitor was killed after it had stored what it wanted to commit."""


@dataclass(frozen=True)
class Opened:
    """The address of a store that is open."""

    store: ObjectStore

    def open(self) -> ObjectStore:
        return self.store


def sweep_here(store: ObjectStore, tasks: Sequence[SweepTask], *, write: bool, hash_bits: int = 8) -> list[Swept]:
    """Sweep without Spark, by both strategies; of the hashes so few bits are left that most keys collide."""
    return sweep_batch(
        tasks,
        max((task.rules.most_in_memory for task in tasks), default=0),
        in_memory=lambda some: sweep_all(store, some, write=write),
        by_key=lambda some: sweep_by_key(
            Opened(store),
            some,
            write=write,
            shuffle=shuffle_here,
            parallelism=3,
            limits=KeyedLimits(range_bytes=300, folded_keys=2, bucket_keys=10, hash_bits=hash_bits),
        ),
    )


def key_of(partition: int) -> PartitionKey:
    """The partition as chains name it."""
    return PartitionKey(SPEC.topic().topic_id, partition)


@dataclass
class AtOnce:
    """Appends in the caller's thread."""

    backup: Backup
    error: Exception | None = None

    def request(self, task: Callable[[Any], None]) -> None:
        task(self.backup.writer)


@dataclass
class Copy:
    """One of the two: a store, its generations, and each chain as of each of its moments."""

    store: MemoryStore = field(default_factory=lambda: MemoryStore(clock_ms=1_000_000, step_ms=1))
    backups: list[Backup] = field(default_factory=list)
    pasts: list[list[Generation]] = field(default_factory=list)

    def now(self, number: int) -> Generation:
        """A generation as it is now, whoever wrote to it last."""
        backup = self.backups[number]
        _follow(self.store, backup)
        return backup.writer.state

    def remember(self, number: int) -> None:
        """Keep the chain as of a moment."""
        self.pasts[number].append(self.now(number).frozen_copy())


def _follow(store: ObjectStore, backup: Backup) -> None:
    ChainReader(store, PAIR).follow(backup.writer.state)


@dataclass
class World:
    """A log of two partitions, generations that read it, and two copies of what they stored."""

    swept: Copy = field(default_factory=Copy)
    plain: Copy = field(default_factory=Copy)
    logs: list[list[Record]] = field(default_factory=lambda: [[] for _ in range(PARTITIONS)])
    ends: list[int] = field(default_factory=lambda: [0] * PARTITIONS)
    written: list[Record] = field(default_factory=list)
    committed: dict[tuple[str, int], int] = field(default_factory=dict)
    recorded: set[tuple[str, int]] = field(default_factory=set)
    request: CheckpointRequest | None = None
    cuts: list[tuple[int, Generation, Generation, dict[PartitionKey, int]]] = field(default_factory=list)
    sweeps: int = 0
    gone: int = 0
    late: list[Callable[[], None]] = field(default_factory=list)

    # --- what happens

    def do(self, op: Op) -> None:
        """One step of a history. What makes no sense now is left out."""
        for copy in self._both():  # far more than a plan's looks move it
            copy.store.clock_ms += 1000
        getattr(self, op[0])(*op[1:])

    def burst(self, partition: int, what: Iterable[tuple[int, bool]]) -> None:
        """A producer writes some records."""
        for key, tombstone in what:
            self._write(partition, key, tombstone=tombstone)

    def _write(self, partition: int, key: int, *, tombstone: bool) -> None:
        offset = self.ends[partition]
        value = None if tombstone else b"value-%d" % offset
        record = Record(
            topic=TOPIC,
            partition=partition,
            offset=offset,
            timestamp=offset,
            timestamp_type=TimestampType.CREATE_TIME,
            key=KEYS[key],
            value=value,
        )
        self.logs[partition].append(record)
        self.written.append(record)
        self.ends[partition] += 1

    def consume(self, partition: int, lag: int) -> None:
        """A consumer group reads on, up to so many records before the end, and commits; the next entry records it."""
        place = (TOPIC, partition)
        self.committed[place] = max(self.committed.get(place, 0), self.ends[partition] - lag)

    def _groups(self) -> dict[str, dict[tuple[str, int], int]]:
        """What an entry records: a group that no sweep could know counts from where it is past what was swept."""
        for place, offset in self.committed.items():
            key = key_of(place[1])
            if all(offset >= state.horizons.get(key, 0) for state in self._states(self.swept)):
                self.recorded.add(place)
        found = {place: offset for place, offset in self.committed.items() if place in self.recorded}
        return {"g": found} if found else {}

    def clean(self, partition: int, tombstones: bool) -> None:
        """The broker's cleaner passes."""
        log = self.logs[partition]
        newest = {record.key: record.offset for record in log}
        kept = [record for record in log if newest[record.key] == record.offset]
        self.logs[partition] = [record for record in kept if record.value is not None or not tombstones]

    def read(self, number: int, lag: int, journal: bool = False) -> None:
        """A generation reads on, up to so many records before the end, and commits."""
        for copy in self._both():
            if not self._takes_records(copy, number):
                return
            backup = copy.backups[number]
            batch, ends = [], {}
            for partition in range(PARTITIONS):
                position = backup.positions[key_of(partition)].offset
                end = max(position, self.ends[partition] - lag)
                ends[TOPIC, partition] = end
                batch += [record for record in self.logs[partition] if position <= record.offset < end]
            backup.commit(batch, ends=ends, journal=journal, groups=self._groups())
            copy.remember(number)

    def turn(self) -> None:
        """Another generation is claimed, reads what there is, and is complete."""
        if len(self.swept.backups) >= 3:
            return
        number = len(self.swept.backups)
        for copy in self._both():
            backup = Backup.claim(
                copy.store, topics=[SPEC], number=number + 1, instance="ab"[number % 2], codec=Codec.NULL
            )
            copy.backups.append(backup)
            copy.pasts.append([])
            ends = {(TOPIC, partition): end for partition, end in enumerate(self.ends)}
            backup.commit(
                [record for log in self.logs for record in log], base_end=ends, ends=ends, groups=self._groups()
            )
            backup.complete()
            copy.remember(number)

    def seal(self, number: int) -> None:
        """A generation that a newer one covers is sealed."""
        if number + 1 >= len(self.swept.backups) or not self._takes_records(self.swept, number):
            return
        newer, older = self.swept.now(number + 1), self.swept.now(number)
        if newer.taints or any(newer.positions[key].offset < older.positions[key].offset for key in older.positions):
            return
        for copy in self._both():
            copy.backups[number].seal()

    def taint(self, number: int, partition: int) -> None:
        """A gap was too long."""
        for copy in self._both():
            if not self._takes_records(copy, number):
                return
            backup = copy.backups[number]
            backup.taint(TOPIC, partition, backup.positions[key_of(partition)].offset)

    def merge(self, number: int) -> None:
        """The instance merges small objects, in one copy only: what is restored does not depend on it."""
        if self._takes_records(self.swept, number):
            committer = AtOnce(self.swept.backups[number])
            Merger(
                writer=committer.backup.writer,
                store=self.swept.store,
                committer=committer,
                rules=MERGES,
                name="merge",
            ).step()

    def ask(self) -> None:
        """Somebody asks for a checkpoint of what is in the log."""
        if self.request is not None or not self.swept.backups:
            return
        nonce = secrets.token_hex(16)
        asked = cut_request(
            id=f"c-{nonce}",
            nonce=nonce,
            deadline=10**12,
            by="me",
            topics={SPEC.topic().topic_id: TOPIC},
            cut={key_of(partition): end for partition, end in enumerate(self.ends)},
            witnesses=tuple(g.number for g in self._states(self.swept) if takes_part(g) and not g.taints),
        )
        self.request = checkpoints.put_request(self.swept.store, asked).request

    def reach(self, number: int) -> None:
        """An instance completes the checkpoint if its generation holds it."""
        if self.request is None or number >= len(self.swept.backups) or not self._takes_records(self.swept, number):
            return
        standing = judge_cut(self.request, self.plain.now(number), None).standing
        assert judge_cut(self.request, self.swept.now(number), None).standing is standing, "a sweep passed an open cut"
        if standing is not CutStanding.REACHED:
            return
        checkpoints.pin_generation(self.swept.store, self.request, number + 1)
        seqs = [copy.backups[number].writer.append(checkpoint_entry(self.request)).seq for copy in self._both()]
        for copy in self._both():
            copy.remember(number)
        checkpoints.settle_request(
            self.swept.store,
            self.request,
            CheckpointOutcome(
                id=self.request.id, nonce=self.request.nonce, at=0, by="me", generation=number + 1, seq=seqs[0]
            ),
        )
        states = [copy.now(number).frozen_copy() for copy in self._both()]
        self.cuts.append((number, states[0], states[1], self.request.cut))
        self.request = None

    def sweep(self, back: int, gain: float, in_memory: int, killed: bool, meanwhile: Iterable[Op] = ()) -> None:
        """A janitor sweeps up to a moment so many moments ago; it may be killed before it commits.

        Between its storing and its commit other things happen. Partitions with more than `in_memory` records are swept
        by a shuffle.
        """
        moments = sorted(moment.at for g in self._states(self.swept) for moment in g.moments)
        if not moments:
            return
        now = self.swept.store.clock_ms
        rules = SweepRules(
            horizon=now - moments[-1 - min(back, len(moments) - 1)],
            min_gain=gain,
            object_size=400,
            block_size=120,
            most_in_memory=in_memory,
        )

        def run(tasks: Sequence[SweepTask], write: bool) -> Iterable[Swept]:
            found = list(sweep_here(self.swept.store, tasks, write=write))
            for op in meanwhile:
                self.do(op)
            if killed:
                raise KilledError
            return found

        sweeper = Sweeper(self.swept.store, PAIR, rules, run)
        plan = sweeper.plan()
        try:
            outcomes: list[SweepOutcome] = sweeper.carry_out(plan, write=True)
        except KilledError:
            return
        # What was deleted while it was read is told, and read no more.
        assert all("not in the store" in (outcome.note or "") for outcome in outcomes if outcome.failed)
        self.sweeps += 1
        self.gone += sum(outcome.swept.records for outcome in outcomes if outcome.note is None)

    def delete(self) -> None:
        """The grace time is over: what was replaced goes, but for what a checkpoint keeps."""
        kept = {key for _, state, _, _ in self.cuts for key in state.objects}
        for state in self._states(self.swept):
            self.swept.store.delete([key for key in state.replaced if key not in kept])

    def tidy(self) -> None:
        """Another janitor takes for orphans what was swept and is in no chain, and deletes it after a fence."""
        for state in self._states(self.swept):
            folder = layout.data_prefix(PAIR, state.instance, state.number)
            listed = [info.key for info in self.swept.store.list(folder) if layout.by_janitor(info.key)]
            if all(key in state.objects or key in state.replaced for key in listed):
                continue
            state = ChainReader(self.swept.store, PAIR).load(state.number)  # noqa: PLW2901 - as it is now
            fence = Entry(kind=EntryKind.REWRITE, seq=0, prev_sha256="", incarnation="", at=0, fence=True)
            ChainWriter(self.swept.store, state, "janitor-2", stop=threading.Event()).append(fence)
            self.swept.store.delete([key for key in listed if key not in state.objects and key not in state.replaced])

    def _both(self) -> tuple[Copy, Copy]:
        return self.swept, self.plain

    def _states(self, copy: Copy) -> list[Generation]:
        return [copy.now(number) for number in range(len(copy.backups))]

    def _takes_records(self, copy: Copy, number: int) -> bool:
        return number < len(copy.backups) and not copy.now(number).sealed

    # --- what must hold

    def check(self) -> None:
        """Everything that may still be restored is as it would be without sweeps."""
        swept, plain = self._states(self.swept), self._states(self.plain)
        for number in range(len(swept)):
            for mine, other in zip(self.swept.pasts[number], self.plain.pasts[number], strict=True):
                if mine.seq >= swept[number].horizon_seq:
                    found = self._restored(self.swept, [with_objects_of(mine, swept[number])])
                    wanted = self._restored(self.plain, [with_objects_of(other, plain[number])])
                    assert found == wanted, f"generation {number + 1} as of entry {mine.seq}"
        for size in range(1, len(swept) + 1):
            for some in itertools.combinations(range(len(swept)), size):
                found = self._restored(self.swept, [swept[number] for number in some])
                wanted = self._restored(self.plain, [plain[number] for number in some])
                assert found == wanted, f"generations {[number + 1 for number in some]} together"
        for number, mine, other, cut in self.cuts:
            found = _latest_of(self._rows(self.swept, select_cut(mine, cut)))
            assert found == _latest_of(self._rows(self.plain, select_cut(other, cut))), f"cut of {number + 1}"
        for mine, other in zip(swept, plain, strict=True):
            self._check_objects(mine, other)

    def _check_objects(self, swept: Generation, plain: Generation) -> None:
        """Nothing is gone beyond the horizon, and `tandem verify` finds nothing."""
        rows = [
            {
                (row.partition, row.offset, row.key, row.value)
                for row in self._rows(copy, select([state], number=state.number))
                if row.offset >= swept.horizons.get(key_of(row.partition), 0)
            }
            for copy, state in ((self.swept, swept), (self.plain, plain))
        ]
        assert rows[0] == rows[1]
        checks = plan_objects([swept])
        store = self.swept.store
        found = [it for check in checks for it in check_object(check, store.get(check.item.key), store.keys).findings]
        assert [*found, *check_state(swept)] == []

    def _restored(self, copy: Copy, states: list[Generation]) -> tuple[Latest, Latest]:
        """Return the latest record of each key, and what the group comes to that goes on where it was recorded."""
        rows = list(self._rows(copy, select(states)))
        seen = max(states, key=lambda state: (state.moments[-1].at, state.number)).groups.get("g", {})
        committed = {key.partition: item.offset for key, item in seen.items()}
        before = [row for row in self.written if row.offset < committed.get(row.partition, 0)]
        after = [row for row in rows if row.offset >= committed.get(row.partition, 0)]
        return _latest_of(rows), _latest_of([*before, *after])

    def _rows(self, copy: Copy, selection: Selection) -> Iterator[Record]:
        reader = ObjectReader(copy.store)
        for partition in selection.partitions:
            last = -1
            for piece in partition.slices:
                for body in reader.bodies(piece):
                    for record in decode_body(body.body, body.records):
                        assert record.offset > last
                        last = record.offset
                        yield record


def _latest_of(rows: Iterable[Record]) -> Latest:
    found: Latest = {}
    for row in rows:
        assert row.key is not None
        if row.value is None:
            found.pop((row.partition, row.key), None)
        else:
            found[row.partition, row.key] = row.value
    return found


_NUMBER = st.integers(0, 2)
_PARTITION = st.integers(0, PARTITIONS - 1)
_KEY = st.integers(0, len(KEYS) - 1)
_BURST = st.tuples(
    st.just("burst"), _PARTITION, st.lists(st.tuples(_KEY, st.booleans()), min_size=1, max_size=6).map(tuple)
)
_READ = st.tuples(st.just("read"), _NUMBER, st.sampled_from([0, 0, 0, 1, 3]), st.sampled_from([False, False, True]))
_OTHER = st.one_of(
    st.tuples(st.just("consume"), _PARTITION, st.sampled_from([0, 0, 1, 3])),
    st.tuples(st.just("clean"), _PARTITION, st.booleans()),
    st.just(("turn",)),
    st.just(("turn",)),
    st.tuples(st.just("seal"), _NUMBER),
    st.tuples(st.just("taint"), _NUMBER, _PARTITION),
    st.tuples(st.just("merge"), _NUMBER),
    st.just(("ask",)),
    st.tuples(st.just("reach"), _NUMBER),
    st.just(("delete",)),
    st.just(("tidy",)),
)
#: Producers write, and the first generation, or another one, reads on.
_BUSY = st.tuples(_BURST, st.one_of(st.just(("read", 0, 0)), _READ))


def _sweeps(meanwhile: st.SearchStrategy[tuple[Op, ...]]) -> st.SearchStrategy[Op]:
    return st.tuples(
        st.just("sweep"),
        st.integers(0, 4),
        st.sampled_from([0.0, 0.0, 0.3, 0.6]),
        st.sampled_from([1000, 0]),
        st.sampled_from([False, False, False, True]),
        meanwhile,
    )


_ONE = st.one_of(_OTHER, _OTHER, _READ, _sweeps(st.just(())))
_SWEEP = _sweeps(st.one_of(st.just(()), st.lists(_ONE, max_size=3).map(tuple)))
_STEPS = st.one_of(_BUSY, _BUSY, _SWEEP.map(lambda op: (op,)), _OTHER.map(lambda op: (op,)))

#: Histories: producers write, the cleaner passes, generations read, turns come, janitors sweep.
HISTORIES = st.lists(_STEPS, min_size=6, max_size=24).map(
    lambda steps: [("burst", 0, ((0, False),)), ("turn",), *(op for step in steps for op in step)]
)


def play(ops: Iterable[Op], keys: KeyRing = NO_KEYS) -> World:
    """Play a history, look at everything after each sweep and at the end. What is swept is encrypted with `keys`."""
    world = World()
    world.swept.store.keys = keys
    for op in ops:
        world.do(op)
        if op[0] in {"sweep", "delete", "tidy"}:
            world.check()
    world.check()
    return world
