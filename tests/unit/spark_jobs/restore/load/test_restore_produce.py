"""What becomes of the producer's errors."""

from __future__ import annotations

import kafka.errors as kafka_errors
import pytest

from tandem.backup_avro.errors import TandemError, TransientError
from tandem.sink.kafka.errors.cluster_errors import ClusterAuthenticationError, ClusterDeniedError
from tandem.sink.process import clock
from tandem.spark_jobs.restore.progress.batch_producer import (
    TRANSACTION_TIMEOUT_MS,
    BatchProducer,
    FencedError,
    ProduceError,
    RejectedError,
    TransactionTimedOutError,
    wrapped,
)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (kafka_errors.ProducerFencedError(), FencedError),
        (kafka_errors.InvalidProducerEpochError(), FencedError),
        (kafka_errors.TopicAuthorizationFailedError("t"), ClusterDeniedError),
        (kafka_errors.TransactionalIdAuthorizationFailedError(), ClusterDeniedError),
        (kafka_errors.SaslAuthenticationFailedError(), ClusterAuthenticationError),
        (kafka_errors.MessageSizeTooLargeError(), RejectedError),
        (kafka_errors.InvalidTimestampError(), RejectedError),
        (kafka_errors.OutOfOrderSequenceNumberError(), ProduceError),
        (kafka_errors.InvalidTxnStateError(), ProduceError),
        (kafka_errors.InvalidProducerIdMappingError(), ProduceError),
        (kafka_errors.KafkaError("Unexpected error: [Error 48] InvalidTxnStateError"), ProduceError),
        (kafka_errors.InvalidTransactionTimeoutError(), RejectedError),
        (kafka_errors.KafkaError("Unexpected error: [Error 50] InvalidTransactionTimeoutError"), RejectedError),
        (kafka_errors.UnsupportedVersionError("old"), RejectedError),
        (kafka_errors.PolicyViolationError(), RejectedError),
        (kafka_errors.KafkaTimeoutError("late"), ProduceError),
        (kafka_errors.NotEnoughReplicasError(), ProduceError),
        (None, ProduceError),
    ],
)
def test_errors_are_told_apart(error: BaseException | None, kind: type[TandemError]) -> None:
    """Fenced, refused for good, not allowed, and all else that may work after a new start."""
    found = wrapped(error, "sending")
    assert type(found) is kind
    assert "sending" in str(found)
    assert "the target" not in str(found) or kind is ClusterDeniedError, "it may be another topic"


@pytest.mark.parametrize("error", [kafka_errors.ProducerFencedError(), kafka_errors.InvalidProducerEpochError()])
def test_a_transaction_that_was_open_for_too_long_is_no_takeover(error: BaseException) -> None:
    """The broker aborts it and answers as it answers one that was fenced. It is resumed; a younger one is not."""
    late = wrapped(error, "committing", open_s=TRANSACTION_TIMEOUT_MS / 1000)
    assert isinstance(late, TransientError)
    assert "open for 180 s" in str(late)
    assert "taken over" not in str(late)
    assert isinstance(wrapped(error, "committing", open_s=TRANSACTION_TIMEOUT_MS / 1000 - 1), FencedError)


def test_a_time_limit_that_the_brokers_do_not_take_is_named() -> None:
    """With the setting that has to be changed, whatever kafka-python makes of the answer."""
    error = kafka_errors.KafkaError("Unexpected error: [Error 50] InvalidTransactionTimeoutError")
    assert "transaction.max.timeout.ms" in str(wrapped(error, "opening the transactional id"))


class _Transactions:
    """The part of kafka-python's transaction manager that is asked after an error."""

    last_error = kafka_errors.ProducerFencedError()


class _Producer:
    """A producer whose commit finds that its transaction was aborted."""

    def begin_transaction(self) -> None:
        pass


def test_a_producer_knows_for_how_long_its_transaction_is_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """From its beginning on, time asleep included."""
    now = [1000.0]
    monkeypatch.setattr(clock, "now", lambda: now[0])
    producer = BatchProducer.__new__(BatchProducer)
    producer._begun, producer._producer, producer._transactions = None, _Producer(), _Transactions()
    assert isinstance(producer._wrapped(ValueError(), "opening"), FencedError)
    producer.begin()
    now[0] += 179.0
    assert isinstance(producer._wrapped(ValueError(), "committing"), FencedError)
    now[0] += 1.0
    assert isinstance(producer._wrapped(ValueError(), "committing"), TransactionTimedOutError)
    producer.begin()
    assert isinstance(producer._wrapped(ValueError(), "committing"), FencedError)
