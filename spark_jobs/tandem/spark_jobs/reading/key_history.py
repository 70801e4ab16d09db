"""The history of one key: every record of it that a state holds. Without Spark: threads fetch, little is decoded.

Which partition a key belongs to only its producer knows: the Java client's hash is one of several in use, and a topic
may have got more partitions. So all partitions of the topic are read. A block in which the encoded key does not occur
is decompressed and searched, but not decoded, which is what makes this bearable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tandem.backup_avro.documents.connector_layout import ConnectorReading
from tandem.backup_avro.errors import ConfigError
from tandem.backup_avro.record.current import BYTES, Record, decode_body
from tandem.backup_avro.record.varint import encode_long
from tandem.backup_avro.selection.newest_state import PartitionSelection, Selection
from tandem.sink.store import ObjectStore
from tandem.sink.store.chain.chain_reader import ChainReader
from tandem.spark_jobs.connector.connector_reader import ConnectorReader
from tandem.spark_jobs.datasource.plan import ReadTask, plan_tasks
from tandem.spark_jobs.reading.object_reader import Body, ObjectReader, StoreAddress, require_pair
from tandem.spark_jobs.state import find_state
from tandem.spark_jobs.state.wanted_state import FoundState, StateRequest

_THREADS: Final = 4
"""Each holds one object in memory, 64 MiB as they are cut, and one block."""

Tell = Callable[[int, int], None]
"""Told how many bytes were read, and of how many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRecord:
    """A record, and where it is stored."""

    record: Record
    generation: int
    item: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordsRequest:
    """Whose records are looked for: those of a key of a topic, in the state that is wished for.

    With a connector's files, `index` is where it is kept what they hold.
    """

    address: StoreAddress
    pair: str
    topic: str
    key: bytes
    state_request: StateRequest
    index: Path | None = None


def find_partitions(request: RecordsRequest, *, tell: Tell) -> tuple[FoundState, Selection]:
    """Return the state, and what of it has the topic, also one that was deleted. ConfigError if nothing has."""
    address = request.address
    reader: ChainReader | ConnectorReader
    if address.connector is None:
        require_pair(address, request.pair)
        reader = ChainReader(address.open(), request.pair)
    else:
        reader = ConnectorReader(address, wants=lambda name: name == request.topic, tell=tell, index=request.index)
    state = find_state.find_state(reader, request.state_request)
    selection = state.select(wanted=lambda found: found.name == request.topic, removed=True)
    if not selection.partitions:
        raise ConfigError(
            f"{selection.what} holds no complete partition of {request.topic}",
            remedy="`tandem status` shows what is backed up; --generation names another one",
        )
    return state, selection


def history(
    store: ObjectStore,
    partitions: Iterable[PartitionSelection],
    key: bytes,
    *,
    connector: ConnectorReading | None = None,
    tell: Tell | None = None,
) -> list[KeyRecord]:
    """Return all records of `key`, by partition and offset: within a partition that is the order of history.

    Reads everything that the partitions hold, and keeps what it found in memory. With a `connector` the objects are its
    files. Raises DamagedError and errors of the store; what was read by then is lost.
    """
    tasks = plan_tasks(partitions, min_tasks=1)
    total = sum(map(_bytes, tasks))
    done = 0
    found: list[KeyRecord] = []
    pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="records")
    try:
        work = {pool.submit(_search, store, connector, task, key): _bytes(task) for task in tasks}
        for ended in as_completed(work):
            found += ended.result()
            done += work[ended]
            if tell is not None:
                tell(done, total)
    finally:
        pool.shutdown(cancel_futures=True)
    return sorted(found, key=lambda item: (item.record.partition, item.record.offset))


def _bytes(task: ReadTask) -> int:
    if task.apart:
        return sum(piece.part.end - piece.part.start for piece in task.slices)
    return sum({piece.item.key: piece.item.bytes for piece in task.slices}.values())


def _search(store: ObjectStore, connector: ConnectorReading | None, task: ReadTask, key: bytes) -> Sequence[KeyRecord]:
    reader = ObjectReader(store, cache_bytes=0, apart=task.apart, connector=connector)
    return [
        KeyRecord(record=record, generation=piece.generation, item=piece.item.key)
        for piece in task.slices
        for body in reader.bodies(piece)
        for record in _matching(body, key)
    ]


def _matching(body: Body, key: bytes) -> Iterator[Record]:
    if BYTES + encode_long(len(key)) + key not in body.body:
        return
    for span in body.spans():
        if span[5] >= 0 and body.body[span[6] : span[7]] == key:
            yield from decode_body(body.body[span[1] : span[-1]], 1)
