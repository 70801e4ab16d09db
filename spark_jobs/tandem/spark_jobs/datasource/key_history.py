"""Find every record of one key in a state. Runs without Spark: threads fetch, and few blocks are decoded.

Only the producer determines a key's partition: the Java client's hash is one of several in use, and a topic may have
got more partitions. So all partitions of the topic are read. A block is decompressed and searched for the encoded key,
and decoded only if the key occurs in it; without this the search would take too long.
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
from tandem.backup_avro.selection.restorable_state import PartitionSelection, Selection
from tandem.sink.store import ObjectStore
from tandem.sink.store.chain.chain_reader import ChainReader
from tandem.spark_jobs.connector.connector_reader import ConnectorReader
from tandem.spark_jobs.datasource.plan import ReadTask, plan_tasks
from tandem.spark_jobs.reading.object_reader import Body, ObjectReader, StoreAddress, require_pair
from tandem.spark_jobs.reading.wanted_state import FoundState, StateRequest
from tandem.spark_jobs.state import find_state

_THREADS: Final = 4
"""Each thread holds one object in memory (64 MiB, as objects are cut), and one block."""

Tell = Callable[[int, int], None]
"""Called with the bytes read so far and the bytes in total."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRecord:
    """A record, with the generation and the object that store it."""

    record: Record
    generation: int
    item: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordsRequest:
    """The records to find: those of one key of a topic, in the requested state.

    With a connector's files, `index` is the path of their index.
    """

    address: StoreAddress
    pair: str
    topic: str
    key: bytes
    state_request: StateRequest
    index: Path | None = None


def find_partitions(request: RecordsRequest, *, tell: Tell) -> tuple[FoundState, Selection]:
    """Return the state and its partitions of the topic, which may be one that was deleted.

    Raises ConfigError if no complete partition is found.
    """
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
            f"{selection.source_text} holds no complete partition of {request.topic}",
            code="TDM-P053",
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
    """Return all records of `key`, sorted by partition and offset, which is the order of writing within a partition.

    Reads all objects of the partitions, and keeps the matching records in memory. With a `connector` the objects are
    its files. Raises DamagedError and errors of the store; the records found before an error are lost.
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
