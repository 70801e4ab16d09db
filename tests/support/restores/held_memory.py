"""What a task that merges all partitions of a topic holds in memory, measured in a process of its own.

`tracemalloc` counts what all threads of a process allocate, and a process that runs many tests has threads left.
"""

from __future__ import annotations

import gc
import json
import os
import random
import subprocess
import sys
import tracemalloc
from pathlib import Path

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

MIB = 1 << 20
_VALUE = 4000


def merging_task(root: Path, *, sources: int, size: int) -> LoadTask:
    """Merge partitions, each with an object of `size` bytes that does not compress, in blocks of 16 KiB."""
    chance = random.Random(1)
    root.mkdir(parents=True)
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


def held_by_merges(folder: Path, shapes: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return what `_held` returns for merges of (partitions, bytes of an object), in a new process."""
    command = [sys.executable, "-m", "support.restores.held_memory", str(folder), json.dumps(shapes)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    return [(held, most) for held, most in json.loads(done.stdout)]


if __name__ == "__main__":
    record_stream._UNIT_BYTES = 64 * 1024  # type: ignore[misc]
    load._SIDE_BY_SIDE = 512 * 1024  # type: ignore[misc]
    _found = [
        _held(merging_task(Path(sys.argv[1]) / str(at), sources=sources, size=size))
        for at, (sources, size) in enumerate(json.loads(sys.argv[2]))
    ]
    sys.stdout.write(json.dumps(_found))
