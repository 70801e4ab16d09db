"""What confluent-kafka reports becomes an error that names the place and what to do."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError

from backup_avro.errors import TandemError
from sink.source.admin_errors import explain
from sink.source.errors import ClusterAuthenticationError, ClusterUnreachableError

TIMED_OUT = KafkaError(KafkaError._TIMED_OUT, "Failed to get metadata")


def explained(last_seen: KafkaError | None) -> TandemError:
    """A call that timed out, and what the client had said of its connections."""
    return explain(
        TIMED_OUT, operation="list the topics of", resource="the cluster", servers="broker:9093", last_seen=last_seen
    )


@pytest.mark.parametrize(
    "last_seen",
    [
        KafkaError(KafkaError._SSL, "handshake failed"),
        KafkaError(KafkaError._TRANSPORT, "error:0A000086:SSL routines::certificate verify failed"),
        KafkaError(KafkaError.SASL_AUTHENTICATION_FAILED, "wrong password"),
    ],
)
def test_a_refused_connection_is_told_from_one_that_fails(last_seen: KafkaError) -> None:
    """However early in the handshake it was refused."""
    error = explained(last_seen)
    assert isinstance(error, ClusterAuthenticationError)
    assert last_seen.str() in str(error)
    assert "ssl.ca.location" in str(error)


@pytest.mark.parametrize("last_seen", [None, KafkaError(KafkaError._TRANSPORT, "connection refused")])
def test_nobody_there(last_seen: KafkaError | None) -> None:
    """What the client said last is passed on."""
    error = explained(last_seen)
    assert isinstance(error, ClusterUnreachableError)
    assert "bootstrap.servers" in str(error)
    assert last_seen is None or last_seen.str() in str(error)
