"""No batch of a transaction is sent before its coordinator knows the partition, whatever was sent outside before."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest
from kafka.producer.record_accumulator import RecordAccumulator
from kafka.producer.transaction_manager import ProducerIdAndEpoch, TransactionManager, TransactionState
from kafka.structs import TopicPartition

from tandem.spark_jobs.restore.progress import batch_producer
from tandem.spark_jobs.restore.progress.batch_producer import BatchProducer

PLACE = TopicPartition("t", 0)


class Inner:
    """kafka-python's producer without its connections; nothing is sent, as no thread runs."""

    def __init__(self, **_: object) -> None:
        self._metadata = SimpleNamespace(config={})
        self._transaction_manager = TransactionManager(transactional_id="x", transaction_timeout_ms=1000)
        self._transaction_manager.set_producer_id_and_epoch(ProducerIdAndEpoch(7, 1))
        self._transaction_manager._current_state = TransactionState.READY
        self._accumulator = RecordAccumulator(transaction_manager=self._transaction_manager)
        self._sender = SimpleNamespace(wakeup=lambda: None)

    def begin_transaction(self) -> None:
        """Begin a transaction."""
        self._transaction_manager.begin_transaction()


def _append(producer: BatchProducer) -> None:
    producer.begin()
    producer.append(PLACE.topic, PLACE.partition, bytes(100), 1)


def _mark(producer: BatchProducer) -> None:
    producer.mark(PLACE.topic, PLACE.partition)


@pytest.mark.parametrize("write", [_append, _mark])
def test_a_partition_that_was_written_outside_waits_for_the_coordinator_again(
    write: Callable[[BatchProducer], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a broker could get records of a transaction that never gets a marker there."""
    monkeypatch.setattr(batch_producer, "KafkaProducer", Inner)
    monkeypatch.setattr(BatchProducer, "commit", lambda _: None)
    producer = BatchProducer({"bootstrap.servers": "localhost:1"}, "x")
    allowed = producer._transactions.is_send_to_partition_allowed
    assert not allowed(PLACE)
    producer.append_outside(PLACE.topic, PLACE.partition, bytes(100), 1)
    assert allowed(PLACE)
    write(producer)
    assert not allowed(PLACE)
