"""A real backup in a folder, and what a sound restore of it hands to Kafka."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import TypeAlias

from support.backups.build_backup import PAIR, Backup, TopicSpec, records

from damage import documents
from tandem.backup_avro.chain.entries import EntryKind, Topic
from tandem.backup_avro.record.container import Codec
from tandem.backup_avro.record.current import Record, decode_body
from tandem.sink.store import ObjectStore, StoreAccess, open_store
from tandem.sink.store.chain.chain_reader import ChainReader
from tandem.sink.transcode.avro_to_batch import build_batches
from tandem.sink.transcode.batch import Compression
from tandem.sink.transcode.implementation_choice import best_transcoder
from tandem.spark_jobs.reading.object_reader import ObjectReader
from tandem.spark_jobs.restore.plan.options import RestoreOptions, plan_of
from tandem.spark_jobs.restore.plan.plan import RestorePlan

Row: TypeAlias = tuple[int, bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]
Place: TypeAlias = tuple[str, int]

TOPICS = (TopicSpec("orders", 2), TopicSpec("users"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """A backup: its folder, all records that were ever stored, and the rows of a sound restore by partition.

    `said` is what readers make of its small documents.
    """

    folder: Path
    originals: dict[Place, dict[int, Row]]
    sound: dict[Place, list[Row]]
    settings: StoreAccess
    said: dict[str, object]

    @property
    def store(self) -> ObjectStore:
        """The store, opened afresh."""
        return open_store(self.folder.as_uri(), self.settings)

    def files(self, kind: str) -> list[Path]:
        """Return the files of `objects`, `entries`, `claims` or `documents`, in order of their names."""
        chains = self.folder / PAIR / "generations"
        match kind:
            case "objects":
                found = self.folder.glob(f"{PAIR}/[ab]/**/*.avro")
            case "entries":
                found = chains.glob("*/*.json")
            case "documents":
                pair = self.folder / PAIR
                found = chain(
                    *(pair.glob(f"{name}/**/*.json") for name in documents.FOLDERS), pair.glob("*/*/offers/*")
                )
            case _:
                found = chains.glob("*.json")
        return sorted(found)


def build(folder: Path, seed: int, settings: StoreAccess | None = None, *, pair: str = PAIR) -> Scene:
    """Make a backup of three generations: sealed, complete, and one that is being built."""
    rng = random.Random(seed)
    codec = list(Codec)[seed % len(Codec)]
    settings = settings or StoreAccess()
    store = open_store(folder.as_uri(), settings)
    first = Backup.claim(store, topics=TOPICS, codec=codec, pair=pair)
    written: list[Record] = []

    def batch(topic: str, partition: int, low: int, high: int) -> list[Record]:
        found = records(topic, partition, range(low, high), tombstones=rng.sample(range(low, high), 2), keys=17)
        written.extend(found)
        return found

    first.commit([*batch("orders", 0, 0, 40), *batch("users", 0, 3, 9)], base_end={("orders", 0): 25})
    first.commit([*batch("orders", 1, 0, 12), *batch("users", 0, 10, 19)], journal=True)
    first.complete()
    first.commit(batch("orders", 0, 40, 50))
    second = Backup.claim(store, topics=TOPICS, number=2, instance="b", codec=codec, pair=pair)
    both = [record for record in written if record.offset % 3 or record.offset > 30]
    second.commit(both)
    second.commit([*batch("orders", 1, 12, 20), *batch("users", 0, 19, 30)], journal=True)
    second.complete()
    if seed % 2:
        second.append(EntryKind.SNAPSHOT)
    second.commit([*batch("orders", 0, 50, 70), *batch("orders", 1, 20, 25)], journal=bool(seed % 3))
    first.seal()
    if seed % 3 == 1:  # a large entry at the end is gzip
        config = {"cleanup.policy": "compact", "x": rng.randbytes(6000).hex()}
        second.commit(batch("users", 0, 30, 33), config={"users": config})
    third = Backup.claim(store, topics=TOPICS, number=3, codec=codec, pair=pair)
    again = [record for record in written if record.topic == "orders" and not record.partition and record.offset >= 60]
    third.commit([*again, *batch("orders", 0, 70, 75)])
    documents.put_all(store, second, third, pair)
    originals: dict[Place, dict[int, Row]] = {}
    for record in written:
        originals.setdefault((record.topic, record.partition), {})[record.offset] = row_of(record)
    handed: dict[Place, list[Row]] = {}
    for place, row in rows(store, plan_of(ChainReader(store, pair), RestoreOptions())):
        handed.setdefault(place, []).append(row)
    scene = Scene(folder=folder, originals=originals, sound=handed, settings=settings, said={})
    keys = frozenset(str(path.relative_to(folder)) for path in scene.files("documents"))
    return replace(scene, said=documents.read_all(store, keys) if pair == PAIR else {})


def row_of(record: Record) -> Row:
    """Return what of a record a topic gets."""
    return record.timestamp, record.key, record.value, record.headers


def rows(store: ObjectStore, plan: RestorePlan) -> Iterator[tuple[Place, Row]]:
    """Yield what a restore hands to Kafka, read back from the very record batches.

    The way is that of the workers: checked bytes, blocks, batches.
    """
    reader = ObjectReader(store, apart=True)
    for topic in plan.topics:
        for item in topic.partitions:
            for piece in item.slices:
                for body in reader.bodies(piece):
                    for batch in build_batches(
                        body.body,
                        body.records,
                        max_batch_bytes=900_000,
                        max_batch_records=20_000,
                        compression=Compression.NONE,
                    ):
                        for row in _unpacked(topic.source, item.key.partition, batch.data):
                            yield (topic.source.name, item.key.partition), row


def _unpacked(topic: Topic, partition: int, data: bytes) -> Iterator[Row]:
    found = best_transcoder().transcode(
        bytes(data), topic=topic.name, partition=partition, start=0, until=None, aborted=(), read_committed=False
    )
    for segment in found.segments:
        yield from map(row_of, decode_body(segment.body, segment.records))
