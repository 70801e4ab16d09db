"""Two independent witnesses: a confluent-kafka consumer that reads topics, and a foreign Avro reader of the backup.

Neither shares code with the path from Kafka to the store: records come out of librdkafka on one side and out of
fastavro's generic reader on the other. Only which objects count is taken from the chain, as a restore does.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import fastavro
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

from tandem.backup_avro.chain.entries import StoredObject
from tandem.backup_avro.selection.restorable_state import Selection, select
from tandem.sink.store import ObjectStore
from tandem.sink.store.chain.chain_reader import ChainReader

_QUIET_S = 30.0
_KINDS = ("NONE", "CREATE_TIME", "LOG_APPEND_TIME")

Place = tuple[str, int]
AvroReader = Callable[[bytes], Iterable[Mapping[str, Any]]]


class Row(NamedTuple):
    """One record with all its fields, comparable."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    timestamp_type: str
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


class Log(NamedTuple):
    """What a consumer found: all records, and where each partition ends (markers and gaps included)."""

    rows: list[Row]
    ends: dict[Place, int]


def consume(bootstrap: str, topics: Iterable[str]) -> Log:
    """Read topics from start to end with a read_committed consumer."""
    consumer: Any = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "witness",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
            "auto.offset.reset": "error",
            "fetch.wait.max.ms": 100,
        }
    )
    rows: list[Row] = []
    try:
        places = [
            TopicPartition(topic, partition, OFFSET_BEGINNING)
            for topic in topics
            for partition in consumer.list_topics(topic, timeout=_QUIET_S).topics[topic].partitions
        ]
        consumer.assign(places)
        unread = {(place.topic, place.partition) for place in places}
        while unread:
            message = consumer.poll(_QUIET_S)
            assert message is not None, f"the broker sent nothing for {_QUIET_S:.0f} s before the end of {unread}"
            if message.error() is None:
                rows.append(_row(message))
            else:
                assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
                unread.discard((message.topic(), message.partition()))
        ends = {
            (place.topic, place.partition): consumer.get_watermark_offsets(place, timeout=_QUIET_S)[1]
            for place in places
        }
    finally:
        consumer.close()
    return Log(sorted(rows, key=place_of), ends)


def _row(message: Any) -> Row:
    kind, timestamp = message.timestamp()
    return Row(
        topic=message.topic(),
        partition=message.partition(),
        offset=message.offset(),
        timestamp=timestamp,
        # librdkafka names the kind of the batch even where the record has no time; without a time there is no kind.
        timestamp_type=_KINDS[kind] if timestamp != -1 else "NONE",
        key=message.key(),
        value=message.value(),
        headers=tuple((name, value) for name, value in message.headers() or ()),
    )


def place_of(row: Row) -> tuple[str, int, int]:
    """Topic, partition and offset: what must be unique."""
    return row.topic, row.partition, row.offset


def read_with_fastavro(data: bytes) -> Iterable[Mapping[str, Any]]:
    """Decode an object container file with the schema in its own header."""
    reader: Any = fastavro.reader(io.BytesIO(data))
    yield from reader


def stored(store: ObjectStore, pair: str, *, read: AvroReader = read_with_fastavro) -> list[Row]:
    """Return every record that a restore would read now, in its order; what is there twice comes twice."""
    return rows_of(store, select(ChainReader(store, pair).refresh()), read=read)


def rows_of(store: ObjectStore, selection: Selection, *, read: AvroReader = read_with_fastavro) -> list[Row]:
    """Return the records that a selection names, object by object as the foreign reader decodes them."""
    assert not selection.incomplete, selection.incomplete
    parts: dict[str, list[list[Row]]] = {}
    rows: list[Row] = []
    for partition in selection.partitions:
        assert partition.warning is None, partition.warning
        for piece in partition.slices:
            if piece.item.key not in parts:
                decoded = [_stored_row(row) for row in read(store.get(piece.item.key))]
                parts[piece.item.key] = _in_parts(piece.item, decoded)
            found = parts[piece.item.key][piece.item.parts.index(piece.part)]
            rows.extend(row for row in found if piece.low <= row.offset < piece.high)
    return sorted(rows, key=place_of)


def _in_parts(item: StoredObject, rows: list[Row]) -> list[list[Row]]:
    """Cut the records of an object into its parts, which follow each other; the chain knows how many are in each."""
    assert len(rows) == item.records, f"{item.key} holds {len(rows)} records, the chain says {item.records}"
    found, at = [], 0
    for part in item.parts:
        found.append(rows[at : at + part.records])
        at += part.records
    return found


def _stored_row(record: Mapping[str, Any]) -> Row:
    return Row(
        topic=record["topic"],
        partition=record["partition"],
        offset=record["offset"],
        timestamp=record["timestamp"],
        timestamp_type=record["timestampType"],
        key=record["key"],
        value=record["value"],
        headers=tuple((header["key"], header["value"]) for header in record["headers"]),
    )


def assert_same(found: list[Row], expected: list[Row]) -> None:
    """Every record once, nothing else, all fields equal; says at most a few differences."""
    assert expected, "nothing to compare with"
    places = [place_of(row) for row in found]
    twice = sorted({place for place in places if places.count(place) > 1})[:5] if len(set(places)) < len(places) else []
    assert not twice, f"stored twice: {twice}"
    have, want = {place_of(row): row for row in found}, {place_of(row): row for row in expected}
    assert not (want.keys() - have.keys()), f"not stored: {sorted(want.keys() - have.keys())[:5]}"
    assert not (have.keys() - want.keys()), f"not in the topic: {sorted(have.keys() - want.keys())[:5]}"
    different = [(have[place], want[place]) for place in sorted(want) if have[place] != want[place]]
    assert not different, f"{len(different)} differ, the first: stored {different[0][0]}, read {different[0][1]}"
