"""How the partitions of a restored topic end, and whether applications that read to the end come to it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer, TopicPartition
from support.backups.build_backup import Backup, TopicSpec, records
from support.restores.cases import Case, Do, ends_of, last_offset, read_all, rows_of

from tandem.backup_avro.record.current import Record
from tandem.spark_jobs.restore.plan.options import RestoreOptions
from tandem.spark_jobs.restore.plan.plan import TopicNaming
from tandem.spark_jobs.restore.progress.batch_producer import BatchProducer

if TYPE_CHECKING:
    from confluent_kafka import Message

pytestmark = [pytest.mark.integration, pytest.mark.spark]

#: More than a batch of the load holds.
_LARGE = b"v" * 1_500_000

#: An application has come to the end: by the last record that it got, by the end that it asked for, by its position.
_IDIOMS: dict[str, Callable[[Message | None, int, Consumer, TopicPartition], bool]] = {
    "last offset + 1 == high watermark": lambda last, end, *_: last is not None and (last.offset() or 0) + 1 == end,
    "offset >= end - 1": lambda last, end, *_: last is not None and (last.offset() or 0) >= end - 1,
    "position >= end": lambda _, end, consumer, place: consumer.position([place])[0].offset >= end,
}


def _backup(case: Case, topic: str) -> list[list[Record]]:
    """Partitions of 300 records, of one, of none, one that ends in a tombstone, one that ends in a large record."""
    backup = Backup.claim(case.store, topics=[TopicSpec(topic, partitions=5)], block_records=50)
    parts = [
        records(topic, 0, range(300)),
        records(topic, 1, [7]),
        [],
        records(topic, 3, range(0, 90, 3), tombstones=[87]),
        [*records(topic, 4, range(20)), *(replace(item, value=_LARGE) for item in records(topic, 4, [20]))],
    ]
    for items in parts:
        if items:
            backup.commit(items)
    backup.complete()
    return parts


def test_readers_to_the_end_come_to_it(case: Case, topic_name: str) -> None:
    """Each partition ends in its last record, and each idiom ends."""
    parts = _backup(case, topic_name)
    target = f"{topic_name}.restored"
    report = case.restore(RestoreOptions(naming=TopicNaming(only=target)))
    assert report.mismatches == ()
    bootstrap = case.kafka.bootstrap
    ends = ends_of(bootstrap, target)
    assert ends[2] == 0
    for number, items in enumerate(parts):
        assert read_all(bootstrap, target, number) == rows_of(items)
        if items:
            assert last_offset(bootstrap, target, number) == ends[number] - 1
            for idiom in _IDIOMS:
                _read_to_the_end(bootstrap, target, number, idiom)
    [topic] = report.topics
    assert not any("marker" in note for note in topic.notes)
    # A group that had read all: it goes on behind the last record, where nothing lies.
    for item in topic.partitions:
        assert {number: strand.last + 1 for number, strand in item.strands.items()} == {
            number: ends[number] for number in item.strands
        }


def _read_to_the_end(bootstrap: str, topic: str, number: int, idiom: str) -> None:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "reader",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",  # the log begins above 0
        }
    )
    place = TopicPartition(topic, number, 0)
    consumer.assign([place])
    deadline = time.monotonic() + 30
    last = None
    try:
        while True:
            end = consumer.get_watermark_offsets(place, timeout=20)[1]
            if _IDIOMS[idiom](last, end, consumer, place):
                return
            assert time.monotonic() < deadline, f"{topic}-{number}: waits for ever: {idiom}"
            for message in consumer.consume(500, timeout=0.5):
                assert message.error() is None
                last = message
    finally:
        consumer.close()


def test_a_marker_at_the_end_is_refused(case: Case, topic_name: str) -> None:
    """Whoever wrote it: the target keeps its loading config, and the report names the partition."""
    _backup(case, topic_name)
    target = f"{topic_name}.restored"

    def mark() -> None:
        producer = BatchProducer(case.props, f"somebody-{topic_name}")
        producer.init_transactions()
        producer.know(target)
        producer.mark(target, 1)
        deadline = time.monotonic() + 30
        while ends_of(case.kafka.bootstrap, target)[1] < 9:
            assert time.monotonic() < deadline
        producer.discard()

    report = case.restore(RestoreOptions(naming=TopicNaming(only=target)), Do("verifying", mark))
    assert [(item.partition, item.marker_last, item.records) for item in report.mismatches] == [(1, True, 1)]
    assert not report.ended
    [topic] = report.topics
    assert any("partition 1 ends in the marker of a transaction at offset 8" in note for note in topic.notes)
