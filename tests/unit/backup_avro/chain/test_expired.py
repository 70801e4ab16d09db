"""What retention let go of by age or size: chains keep how far, and a restore of a moment before that says so."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest
from support.backups.build_backup import PAIR, Backup, TopicSpec, records
from support.backups.chains import Chain, key, part, position
from support.pipeline.doubles import MemoryStore

from tandem.backup_avro.chain.entries import Base, Entry, EntryKind, Expired, Horizon, PartitionKey, iso, sha256_hex
from tandem.backup_avro.chain.generation import ChainError
from tandem.backup_avro.chain.json_codec import encode_entry
from tandem.backup_avro.chain.snapshot import dump_state
from tandem.backup_avro.errors import DamagedError
from tandem.sink.store.chain.chain_reader import ChainReader
from tandem.sink.store.chain.chain_writer import ChainWriter
from tandem.spark_jobs.restore.plan.options import RestoreOptions, plan_of
from tandem.spark_jobs.restore.plan.plan import RestorePlan
from tandem.spark_jobs.restore.plan.plan_document import describe_topic

K, U = key(), key("u")
MINUTE = 60_000
SPEC = TopicSpec("t", config={"cleanup.policy": "delete", "retention.ms": "60000"})


# --- what a chain says ------------------------------------------------------------------------------------------------


def _chain() -> Chain:
    """Two partitions, objects of [0, 5), [5, 10) and [10, 15) of the first one, [0, 5) of the other."""
    chain = Chain().open()
    chain.commit({K: position(5)}, part(0, 4)).commit({U: position(5)}, part(0, 4, of=U))
    chain.commit({K: position(10)}, part(5, 9)).commit({K: position(15)}, part(10, 14))
    return chain.complete()


def _names(chain: Chain, of: PartitionKey = K) -> list[str]:
    return [item.key for item in chain.state.objects.values() if item.parts[0].key == of]


def test_how_far_something_has_expired() -> None:
    """The highest offset and the last entry count, in whatever order objects go."""
    chain = _chain()
    first, second, _ = _names(chain)
    chain.append(EntryKind.REWRITE, replaced=(second,))
    assert chain.state.expired == {K: Expired(10, chain.state.seq)}
    chain.append(EntryKind.REWRITE, replaced=(first,))
    assert chain.state.expired == {K: Expired(10, chain.state.seq)}


def test_what_was_put_in_another_place_or_swept_has_not_expired() -> None:
    """Nor has what never counted."""
    chain = _chain()
    first, second, third = _names(chain)
    chain.append(EntryKind.REWRITE, objects=(chain.object(part(0, 9), name="merged"),), replaced=(first, second))
    swept = Horizon(seq=chain.state.completed_seq or 0, offsets={K: 15})
    chain.append(EntryKind.REWRITE, horizon=swept, replaced=(third,))
    base = Base(start=0, end=10, leader=1, attempts=2, open=((0, 10, 2),), void=(1,))
    void = Chain().open()
    void.commit({K: position(10, base=base)}, part(0, 4, scan=2))
    void.commit({K: position(10, base=replace(base, attempts=3, open=((0, 10, 3),), void=(1, 2)))})
    void.append(EntryKind.REWRITE, replaced=tuple(_names(void)))
    assert (chain.state.expired, void.state.expired) == ({}, {})


def test_who_begins_with_a_snapshot_knows_it() -> None:
    """It is part of the state; one that says something else breaks the chain."""
    chain = _chain()
    chain.append(EntryKind.REWRITE, replaced=tuple(_names(chain)[:2]))
    entry = chain.snapshot()
    folded = entry.folded or {}
    lies = {**folded, "expired": {"offsets": {K.topic_id: {"0": 9}}, "seqs": {K.topic_id: {"0": chain.state.seq}}}}
    for wrong in (lies, {**folded, "expired": {}}):
        with pytest.raises(ChainError, match="add up to"):
            chain.put(replace(entry, folded=wrong))
    chain.put(entry)
    assert chain.begun(entry) == chain.state
    assert chain.state.expired == {K: Expired(10, entry.seq - 1)}
    halves = {**folded, "expired": {"offsets": {K.topic_id: {"0": 10}}, "seqs": {}}}
    with pytest.raises(DamagedError, match="TDM-A040"):
        chain.begun(replace(entry, folded=halves))
    negative, wordy = {K.topic_id: {"0": -1}}, {K.topic_id: {"0": "ten"}}
    for wrong, said in (
        ({"offsets": {}}, "x: expired: field seqs is missing"),
        ({"offsets": negative, "seqs": {}}, "^x: "),
        ({"offsets": {}, "seqs": negative}, "^x: "),
        ({"offsets": wordy, "seqs": {}}, "^x: a list of whole numbers was expected"),
        ({"offsets": {}, "seqs": wordy}, "^x: a list of whole numbers was expected"),
    ):
        with pytest.raises(DamagedError, match=said):
            chain.begun(replace(entry, folded={**folded, "expired": wrong}))


def test_a_snapshot_of_the_first_releases() -> None:
    """They kept nothing of it: it is taken, and from there on all readers know the same."""
    chain = _chain()
    first, second, _ = _names(chain)
    chain.append(EntryKind.REWRITE, replaced=(first,))
    old = {name: value for name, value in dump_state(chain.state).items() if name != "expired"}
    entry = chain.snapshot(folded=old)
    chain.put(entry)
    late = chain.begun(entry)
    assert late == chain.state
    assert chain.state.expired == {}
    following = chain.entry(EntryKind.REWRITE, replaced=(second,), snapshot=entry.seq)
    chain.put(following)
    late.apply(following, sha256_hex(encode_entry(following)))
    assert late.expired == chain.state.expired == {K: Expired(10, following.seq)}


def test_a_copy_is_not_changed() -> None:
    """What expires later is no part of a copy made before."""
    chain = _chain()
    copy = chain.state.frozen_copy()
    chain.append(EntryKind.REWRITE, replaced=tuple(_names(chain)[:1]))
    assert copy.expired == {}


# --- what a restore says ----------------------------------------------------------------------------------------------


@pytest.fixture
def store() -> MemoryStore:
    """A store whose clock goes on when it is told."""
    return MemoryStore(clock_ms=1_700_000_000_000, step_ms=0)


def _backup(store: MemoryStore) -> tuple[Backup, list[int]]:
    """A minute apart, ten records each in two partitions; and the time after each."""
    backup = Backup.claim(store, topics=[replace(SPEC, partitions=2)])
    times = []
    for first in (0, 10, 20):
        backup.commit([item for number in (0, 1) for item in records("t", number, range(first, first + 10))])
        if first == 0:
            store.clock_ms += 10
            backup.complete()
        times.append(store.clock_ms)
        store.clock_ms += MINUTE
    return backup, times


def _expire(backup: Backup, last: int, *, partition: int = 0) -> None:
    """Let go of what ends at or below an offset, as `tandem retention` does."""
    state = ChainReader(backup.store, PAIR).load(1)
    old = [item.key for item in state.objects.values() if item.parts[0].last <= last]
    going = tuple(name for name in old if state.objects[name].parts[0].key.partition == partition)
    writer = ChainWriter(backup.store, state, "janitor-x", stop=threading.Event())
    writer.append(replace(Entry(kind=EntryKind.REWRITE, seq=0, prev_sha256="", incarnation="", at=0), replaced=going))


def _plan(store: MemoryStore, **chosen: object) -> RestorePlan:
    return plan_of(ChainReader(store, PAIR), RestoreOptions(**chosen))  # type: ignore[arg-type]  # the caller names options


def _expired(made: RestorePlan) -> list[int | None]:
    topics = [describe_topic(topic, None, now=0, compression=None) for topic in made.topics]
    return [item.expired_below for topic in topics for item in topic.partitions]


def _told(made: RestorePlan) -> list[str]:
    return [text for text in made.warnings() if "tandem retention" in text]


def test_a_moment_before_something_expired_says_so(store: MemoryStore) -> None:
    """Named as of a time, a commit, a mark; not as of a time after it, and not for the newest state."""
    backup, times = _backup(store)
    assert _told(_plan(store, at=times[1])) == []
    _expire(backup, 9)
    store.clock_ms += MINUTE
    early = _plan(store, at=times[1])
    assert early.records == 30, "of forty"
    assert _expired(early) == [10, None]
    [told] = _told(early)
    assert told == (
        "t: `tandem retention` has let go of records since that this state may have held (of partition 0 below offset "
        "10): it is not all that was there then"
    )
    assert _told(_plan(store, at=times[1], merge=False)) == _told(early)
    [moment] = [one for one in ChainReader(store, PAIR).load(1).moments if one.at <= times[1]][-1:]
    assert _expired(_plan(store, generation=1, commit=moment.seq)) == [10, None]
    assert _expired(_plan(store)) == [None, None]
    assert _expired(_plan(store, at=store.clock_ms)) == [10, None], "the last moment lies before"
    backup.restart()
    backup.commit(records("t", 0, range(30, 40)))
    later = _plan(store, at=store.clock_ms)
    assert (_expired(later), _told(later)) == ([None, None], [])


def test_a_mark_before_something_expired_says_so(store: MemoryStore) -> None:
    """Also where it expired before the commit that has the mark."""
    backup, times = _backup(store)
    marked_at = store.clock_ms
    _expire(backup, 9)
    store.clock_ms += MINUTE
    backup.restart()
    backup.commit(records("t", 0, range(30, 40)), marks=[(marked_at, {("t", 0): 35})])
    made = _plan(store, at=marked_at)
    assert made.as_of == iso(marked_at)
    assert _expired(made) == [10, None]
    assert times[-1] < marked_at


def test_a_state_that_lies_above_or_below(store: MemoryStore) -> None:
    """What had been deleted from the log by then is not missed; no more is missed than there was."""
    backup, times = _backup(store)
    _expire(backup, 19)
    assert _expired(_plan(store, at=times[0])) == [10, None]
    assert _expired(_plan(store, at=times[2])) == [20, None]
    assert _expired(_plan(store, until={("t", 0): 15})) == [15, None]
    assert _expired(_plan(store, until={("t", 0): 25, ("t", 1): 30})) == [20, None]
    assert _expired(_plan(store, until={("t", 0): 30})) == [None, None], "all there is"
    _expire(backup, 19, partition=1)
    [told] = _told(_plan(store, at=times[2]))
    assert "of partition 0 below offset 20 and of 1 more partitions" in told


def test_what_the_log_had_deleted_is_not_missed(store: MemoryStore) -> None:
    """The log began above it as of the moment."""
    backup = Backup.begun(store, records("t", 0, range(10)), topics=[SPEC])
    store.clock_ms += 10
    backup.complete()
    backup.commit(records("t", 0, range(10, 30)), log_start=10)
    at = store.clock_ms
    store.clock_ms += MINUTE
    _expire(backup, 9)
    assert _expired(_plan(store, at=at)) == [None]
