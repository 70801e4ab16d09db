"""Random histories in which keys are erased from one of two copies: it restores what the other does, without them.

The oracle knows nothing of objects: of each generation it leaves out the records of the key that the generation had
read when the key was erased. What it reads later is there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from hypothesis import strategies as st

from support.backups.build_backup import PAIR
from support.backups.sweeping import HISTORIES, KEYS, PARTITIONS, Copy, KilledError, Latest, Op, World, key_of
from tandem.backup_avro.chain.erasure import without_erased
from tandem.backup_avro.chain.generation import Generation
from tandem.backup_avro.record.current import Record, decode_body
from tandem.backup_avro.selection.restorable_state import Selection
from tandem.sink.encryption.key_ring import NO_KEYS, KeyRing
from tandem.sink.store.chain.pins import LIFETIME_MS
from tandem.spark_jobs.erasure.erase_object import ErasedObject, ErasureTask, SearchedKeys, erase_all
from tandem.spark_jobs.erasure.eraser import Eraser
from tandem.spark_jobs.reading.object_reader import ObjectReader


@dataclass
class ErasingWorld(World):
    """The history of a sweep's tests, with erasures. `erased`: generation number, partition and offset of records."""

    erased: set[tuple[int, int, int]] = field(default_factory=set)
    touched: set[bytes] = field(default_factory=set)
    erasures: int = 0
    killed: int = 0

    def erase(self, key: int, kill_at: int | None, meanwhile: Iterable[Op] = ()) -> None:
        """Somebody erases a key; the run is killed at one of its puts or deletes, or other things happen meanwhile."""
        store = self.swept.store
        self.touched.add(KEYS[key])

        def run(tasks: list[ErasureTask], write: bool) -> list[ErasedObject]:
            found = list(erase_all(store, wanted, tasks, write=write))
            if write:
                for op in rest:
                    self.do(op)
                rest.clear()
            return found

        wanted, rest = SearchedKeys(keys=frozenset({KEYS[key]})), list(meanwhile)
        before = {state.number: state.erased for state in self._states(self.swept)}
        left = [kill_at]

        def fault(operation: str, _key: str) -> Exception | None:
            if operation in {"put", "delete"} and left[0] is not None:
                left[0] -= 1
                if left[0] < 0:
                    return KilledError()
            return None

        eraser = Eraser(store, PAIR, "t", wanted, run)  # type: ignore[arg-type]  # lists are sequences
        plan = eraser.plan()
        store.before = fault
        try:
            outcome = eraser.carry_out(plan)
        except KilledError:
            self.killed += 1
            store.clock_ms += LIFETIME_MS + 1000  # the pin that it left behind ends
        else:
            # A generation that is done already may read the key meanwhile, which is told: then another run is due.
            assert outcome.clean or (meanwhile and replace(outcome, remains=0).clean), outcome
            self.erasures += 1
        finally:
            store.before = lambda *_: None
        if left[0] is None and not outcome.clean:
            self.erase(key, None)
        else:
            self._note(key, before, done=left[0] is None or left[0] >= 0)

    def _note(self, key: int, before: dict[int, dict[str, object]], *, done: bool) -> None:
        """Note what the oracle leaves out from now on."""
        states = {state.number: state for state in self._states(self.swept)}
        for number, state in states.items():
            if done or state.erased != before.get(number):
                self.erased |= {
                    (number, record.partition, record.offset)
                    for record in self.written
                    if record.key == KEYS[key]
                    and record.offset < self.plain.now(number - 1).positions[key_of(record.partition)].offset
                }
        self.cuts = [
            (number, without_erased(mine, states[number + 1]), other, cut) for number, mine, other, cut in self.cuts
        ]
        if done:
            self._search(KEYS[key])

    def _search(self, key: bytes) -> None:
        """Neither an object that a chain or a checkpoint names nor one that was replaced holds the key."""
        named = {name: state for state in self._states(self.swept) for name in (*state.objects, *state.replaced)}
        named |= {name: mine for _, mine, _, _ in self.cuts for name in mine.objects}
        items = {item.key: item for state in named.values() for item in state.objects.values()}
        reader = ObjectReader(self.swept.store)
        for name in named.keys() & self.swept.store.objects.keys():
            if len(key) > 8 and not self.swept.store.keys.encrypts:
                assert key not in self.swept.store.objects[name]
            elif name in items:
                assert encoded(key) not in bytes(reader.fetch(items[name]))

    def _restored(self, copy: Copy, states: list[Generation]) -> tuple[Latest, Latest]:
        """As for sweeps. Which of several generations a record is taken from depends on the sweeps.

        So of a key that only one of them still has, or has read again since, nothing is said where they are joined.
        """
        found = super()._restored(copy, states)
        if len(states) == 1:
            return found
        kept, after = ({place: value for place, value in one.items() if place[1] not in self.touched} for one in found)
        return kept, after

    def delete(self) -> None:
        """As for sweeps; what an erasure replaced needs no checkpoint."""
        kept = {key for _, state, _, _ in self.cuts for key in state.objects}
        for state in self._states(self.swept):
            self.swept.store.delete([key for key in state.replaced if key not in kept])

    def _rows(self, copy: Copy, selection: Selection) -> Iterator[Record]:
        reader = ObjectReader(copy.store)
        for partition in selection.partitions:
            for piece in partition.slices:
                for body in reader.bodies(piece):
                    for record in decode_body(body.body, body.records):
                        place = (piece.generation, record.partition, record.offset)
                        if copy is self.swept or place not in self.erased:
                            yield record


def encoded(key: bytes) -> bytes:
    """A key as a record has it, by hand: the branch of the union, the length, the bytes."""
    assert len(key) < 64
    return bytes([2, 2 * len(key)]) + key


_KEY = st.integers(0, len(KEYS) - 1)
_MEANWHILE = st.lists(
    st.one_of(
        st.tuples(st.just("merge"), st.integers(0, 2)),
        st.tuples(st.just("read"), st.integers(0, 2), st.just(0), st.booleans()),
        st.tuples(st.just("seal"), st.integers(0, 2)),
        st.tuples(st.just("clean"), st.integers(0, PARTITIONS - 1), st.booleans()),
    ),
    max_size=3,
).map(tuple)
_ERASE = st.one_of(
    st.tuples(st.just("erase"), _KEY, st.none(), _MEANWHILE),
    st.tuples(st.just("erase"), _KEY, st.integers(0, 12), st.just(())),
)

#: Histories of sweeps with erasures put in anywhere behind the first turn.
ERASING = st.builds(
    lambda ops, extra: [
        *ops[:2],
        *(op for number, op in enumerate(ops[2:]) for op in (*extra.get(number, ()), op)),
        *extra.get(-1, ()),
    ],
    HISTORIES,
    st.dictionaries(st.integers(-1, 40), st.lists(_ERASE, min_size=1, max_size=2), min_size=1, max_size=4),
)


def play_erasing(ops: Iterable[Op], keys: KeyRing = NO_KEYS) -> ErasingWorld:
    """Play a history, look at everything after each sweep and erasure, and at the end."""
    world = ErasingWorld()
    world.swept.store.keys = keys
    for op in ops:
        world.do(op)
        if op[0] in {"sweep", "delete", "tidy", "erase"}:
            world.check()
    world.check()
    return world
