"""What confluent-kafka reports becomes an error that names the place and what to do."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError

from tandem.backup_avro.errors import TandemError
from tandem.sink.kafka.cluster.admin_errors import explain, is_about_no_group
from tandem.sink.kafka.errors.cluster_errors import (
    ClusterAuthenticationError,
    ClusterDeniedError,
    ClusterUnreachableError,
)

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


@pytest.mark.parametrize(
    ("code", "operation", "right"),
    [
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, "describe the config of", "DescribeConfigs"),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, "write to", "Write"),
        (KafkaError.GROUP_AUTHORIZATION_FAILED, "read the offsets of", "Describe"),
        (KafkaError.CLUSTER_AUTHORIZATION_FAILED, "ask for the id of", "the right to ask for the id of"),
    ],
)
def test_a_refusal_names_the_right_that_is_missing(code: int, operation: str, right: str) -> None:
    """As ACLs call it, with the resource, and the command that prints what is needed."""
    error = explain(KafkaError(code), operation=operation, resource="topic x", servers="broker:9093")
    assert isinstance(error, ClusterDeniedError)
    assert f"grant the principal {right} on topic x; `tandem policy kafka`" in str(error)


def test_what_is_about_a_group_that_nobody_joins() -> None:
    """Only the look-up of its coordinator; a topic that may not be read is another matter."""
    assert is_about_no_group(KafkaError(KafkaError.GROUP_AUTHORIZATION_FAILED))
    assert not is_about_no_group(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED))
