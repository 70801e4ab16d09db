"""A task that merges all partitions of a topic, as far as it reads: what it holds of them, and what comes of it."""

from __future__ import annotations

import gc
import random
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from support.backups.build_backup import PAIR, Backup, TopicSpec
from support.restores.records import load_task

from tandem.backup_avro.record.current import Record
from tandem.backup_avro.selection.restorable_state import Slice
from tandem.sink.store import StoreAccess, open_store
from tandem.sink.store.chain.chain_reader import ChainReader
from tandem.spark_jobs.reading.object_reader import StoreAddress
from tandem.spark_jobs.restore.load import load, record_stream
from tandem.spark_jobs.restore.load.load import _Attempt, nothing_yet
from tandem.spark_jobs.restore.load.load_task import LoadTask, SourcePartition
from tandem.spark_jobs.restore.plan.partitioner import Partitioner
from tandem.spark_jobs.restore.plan.record_changes import RecordChanges

_MIB = 1 << 20
_VALUE = 4000


def _task(root: Path, *, sources: int, size: int) -> LoadTask:
    """Merge partitions, each with an object of `size` bytes that does not compress, in blocks of 16 KiB."""
    chance = random.Random(1)
    root.mkdir()
    store = open_store(root.as_uri())
    backup = Backup.claim(store, topics=[TopicSpec("t", sources)], block_records=4)
    for number in range(sources):
        items = [
            Record(topic="t", partition=number, offset=at, timestamp=at, key=b"%d" % at, value=chance.randbytes(_VALUE))
            for at in range(size // _VALUE)
        ]
        backup.commit(items)
    state = ChainReader(store, PAIR).load(1)
    slices = {
        part.key.partition: Slice(
            generation=1, opening=state.opening, item=item, part=part, low=part.first, high=part.last + 1
        )
        for item, part in state.live_parts()
    }
    return load_task(
        sources=tuple(SourcePartition(partition=number, slices=(slices[number],)) for number in range(sources)),
        store=StoreAddress(root=root.as_uri(), settings=StoreAccess()),
        shape=RecordChanges(partitioner=Partitioner.MURMUR2),
        count=sources + 1,
    )


def _held(task: LoadTask) -> tuple[int, int]:
    """Return the bytes that are held after the first unit, and the most on the way through all others."""
    gc.collect()
    tracemalloc.start()
    try:
        units = _Attempt(task, load._reader_of(task))._units(nothing_yet(task))
        reached = dict(next(units).next_offsets)
        held, _ = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        for unit in units:
            reached |= unit.next_offsets
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert reached == {source.partition: source.slices[0].high for source in task.sources}, "all was read"
    return held, most


def test_what_is_held_does_not_grow_with_objects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However large they are, and however many: a share of what all may take, or a block, and what is decompressed."""
    monkeypatch.setattr(record_stream, "_UNIT_BYTES", 64 * 1024)
    monkeypatch.setattr(load, "_SIDE_BY_SIDE", 512 * 1024)
    small, small_most = _held(_task(tmp_path / "small", sources=8, size=_MIB // 4))
    large, large_most = _held(_task(tmp_path / "large", sources=8, size=_MIB))
    many, many_most = _held(_task(tmp_path / "many", sources=24, size=_MIB))
    assert large - small < _MIB, "the last object that was fetched is kept"
    assert large_most - small_most < 2 * _MIB
    assert many - large < 16 * 100_000, "less than 100 kB of a source, with blocks of 16 KiB"
    assert many_most - large_most < 16 * 100_000


def test_objects_that_fit_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of few and small ones everything is held: nothing is read a second time."""
    task = _task(tmp_path / "store", sources=4, size=_MIB // 8)
    store, asked = type(task.store.open()), []
    get = store.get

    def counted(*args: Any, **how: Any) -> bytes:
        asked.append(args)
        return get(*args, **how)

    monkeypatch.setattr(store, "get", counted)
    assert list(_Attempt(task, load._reader_of(task))._units(nothing_yet(task)))
    assert len(asked) == 4
