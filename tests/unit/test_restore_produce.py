"""What becomes of the producer's errors."""

from __future__ import annotations

import kafka.errors as kafka_errors
import pytest

from backup_avro.errors import TandemError
from sink.source.errors import ClusterAuthenticationError, ClusterDeniedError
from spark_jobs.produce import FencedError, ProduceError, RejectedError, wrapped


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
