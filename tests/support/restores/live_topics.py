"""A live topic with a config of its own, a backup of two partitions to be added to it, and a producer of records."""

from __future__ import annotations

from collections.abc import Iterable

from confluent_kafka import Producer

from support.backups.build_backup import Backup, TopicSpec, records
from support.restores.cases import Case
from tandem.backup_avro.record.current import Record
from tandem.spark_jobs.restore.progress.task_progress import PlanState

OWN_CONFIG = {"retention.ms": "86400000", "max.compaction.lag.ms": "1000", "max.message.bytes": "500000"}


def write_theirs(case: Case, topic: str, numbers: range) -> None:
    producer = Producer({"bootstrap.servers": case.kafka.bootstrap})
    for number in numbers:
        producer.produce(topic, key=b"other-%d" % number, value=b"theirs", partition=number % 2)
    assert producer.flush(30) == 0


def backup_of_two(case: Case, topic: str) -> list[Record]:
    items = [item for number in (0, 1) for item in records(topic, number, range(300))]
    Backup.completed(case.store, items, topics=[TopicSpec(topic, partitions=2)], block_records=50)
    return items


def unfinished(case: Case, topic: str) -> PlanState:
    [state] = [state for state in case.states() if topic in state.targets and state.unfinished]
    return state


def write_records(bootstrap: str, batch: Iterable[Record], *, transaction: str | None = None) -> None:
    """Write records as they are; with a transaction, its marker takes one more offset in each partition."""
    settings: dict[str, str | int | bool] = {"bootstrap.servers": bootstrap, "linger.ms": 5, "enable.idempotence": True}
    producer = Producer(settings | ({"transactional.id": transaction} if transaction else {}))
    if transaction:
        producer.init_transactions(30)
        producer.begin_transaction()
    for item in batch:
        producer.produce(
            item.topic,
            partition=item.partition,
            key=item.key,
            value=item.value,
            timestamp=item.timestamp,
            headers=list(item.headers),
        )
    if transaction:
        producer.commit_transaction(30)
    producer.flush(30)
