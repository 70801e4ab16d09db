"""Turns confluent-kafka's errors into Tandem's, with the place and a remedy."""

from __future__ import annotations

import re

from confluent_kafka import KafkaError, KafkaException

from backup_avro.errors import ConfigError, TandemError
from sink.source import client_config
from sink.source.errors import (
    ClusterAuthenticationError,
    ClusterDeniedError,
    ClusterRequestError,
    ClusterTransientError,
    ClusterUnreachableError,
    TopicExistsError,
    UnknownTopicError,
)

_UNREACHABLE = {
    KafkaError._TRANSPORT,  # noqa: SLF001 - public, see confluent-kafka's documentation
    KafkaError._ALL_BROKERS_DOWN,  # noqa: SLF001 - as above
    KafkaError._TIMED_OUT,  # noqa: SLF001 - as above
    KafkaError._RESOLVE,  # noqa: SLF001 - as above
    KafkaError._WAIT_COORD,  # noqa: SLF001 - as above
}
_AUTHENTICATION = {
    KafkaError._AUTHENTICATION,  # noqa: SLF001 - as above
    KafkaError._SSL,  # noqa: SLF001 - as above
    KafkaError.SASL_AUTHENTICATION_FAILED,
    KafkaError.UNSUPPORTED_SASL_MECHANISM,
    KafkaError.ILLEGAL_SASL_STATE,
}
_DENIED = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}
# The operations of ACLs, by what callers say they do.
_RIGHTS = {
    "describe": "Describe",
    "describe the config of": "DescribeConfigs",
    "list offsets of": "Describe",
    "read the offsets of": "Describe",
    "create": "Create",
    "delete": "Delete",
    "change the config of": "AlterConfigs",
    "read": "Read",
    "write to": "Write",
}
UNKNOWN_TOPIC = {
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError.UNKNOWN_TOPIC_ID,
    KafkaError._UNKNOWN_TOPIC,  # noqa: SLF001 - as above
    KafkaError._UNKNOWN_PARTITION,  # noqa: SLF001 - as above
}
_TRANSIENT = {
    KafkaError._NOENT,  # noqa: SLF001 - as above; "no leaders found", of whatever partitions
    KafkaError.REQUEST_TIMED_OUT,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.BROKER_NOT_AVAILABLE,
    KafkaError.NETWORK_EXCEPTION,
    KafkaError.NOT_CONTROLLER,
    KafkaError.NOT_ENOUGH_REPLICAS,
    KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    KafkaError.KAFKA_STORAGE_ERROR,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.NOT_COORDINATOR,
    KafkaError.OFFSET_NOT_AVAILABLE,
    KafkaError.UNSTABLE_OFFSET_COMMIT,
    KafkaError.THROTTLING_QUOTA_EXCEEDED,
    KafkaError.FENCED_LEADER_EPOCH,
    KafkaError.UNKNOWN_LEADER_EPOCH,
}


_CERTIFICATE = re.compile(r"certificate verify failed|alert .*(certificate|unknown ca)")
# What an OpenID provider answered, which librdkafka repeats: nobody knows what is in it.
_ANSWER = re.compile(r"\{.*\}", re.DOTALL)


def error_of(raised: KafkaException | KafkaError) -> KafkaError:
    """Return the KafkaError in what confluent-kafka raised."""
    if isinstance(raised, KafkaError):
        return raised
    error: KafkaError = raised.args[0]
    return error


def is_about_no_group(error: KafkaError) -> bool:
    """Whether only the look-up of a group's coordinator was refused.

    librdkafka makes it for every consumer that has a `group.id`, and it wants one; who joins no group and commits
    nothing needs no answer.
    """
    return bool(error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED)


def explain(
    error: KafkaError, *, operation: str, resource: str, servers: str, last_seen: KafkaError | None = None
) -> TandemError:
    """Return the typed error for `operation` ("describe the config of") on `resource` ("topic x").

    `last_seen` is what the client last reported about its connections: it tells why a call timed out.
    """
    code = error.code()
    what = f"Could not {operation} {resource}"
    why = error.str()
    if code in _UNREACHABLE and last_seen is not None and _refuses(last_seen):
        code, why = KafkaError._AUTHENTICATION, _ANSWER.sub("", last_seen.str())  # noqa: SLF001 - as above
    if code in _AUTHENTICATION:
        return ClusterAuthenticationError(
            f"{what}: the Kafka brokers at {servers} refuse the connection: {why}",
            remedy="check security.protocol, sasl.mechanism, sasl.username, sasl.password or "
            "sasl.oauthbearer.*, ssl.ca.location and ssl.certificate.location; docs/connections.md",
        )
    if code in _UNREACHABLE:
        more = f" ({last_seen.str()})" if last_seen is not None else ""
        return ClusterUnreachableError(
            f"{what}: no Kafka broker answers at {servers}: {why}{more}",
            remedy="check bootstrap.servers and the network, that the brokers run, and security.protocol",
        )
    if code in _DENIED:
        right = _RIGHTS.get(operation, f"the right to {operation}")
        return ClusterDeniedError(
            f"{what}: not allowed: {why}",
            remedy=f"grant the principal {right} on {resource}; `tandem policy kafka` prints what each role needs",
        )
    if code in UNKNOWN_TOPIC:
        return UnknownTopicError(f"{what}: it does not exist", remedy="check the name, or create it")
    if code == KafkaError.TOPIC_ALREADY_EXISTS:
        return TopicExistsError(
            f"{what}: it exists already", remedy="choose another name, or use the one that is there"
        )
    if code in _TRANSIENT or error.retriable():
        return ClusterTransientError(f"{what} at {servers}: {why}", remedy="it may work when tried again")
    return ClusterRequestError(f"{what} at {servers}: {why} ({error.name()})", remedy="see the broker's log")


def _refuses(error: KafkaError) -> bool:
    # librdkafka calls a handshake that fails in its very first step a transport error.
    return error.code() in _AUTHENTICATION or _CERTIFICATE.search(error.str()) is not None


_NO_SUCH = re.compile(r'No such configuration property: "([^"]+)"')


def refused_config(raised: KafkaException | ValueError | TypeError) -> TandemError:
    """Return the error for a configuration that librdkafka refuses to start with; secrets are not in its texts."""
    text = error_of(raised).str() if isinstance(raised, KafkaException) else str(raised)
    found = _NO_SUCH.search(text)
    if found:
        return client_config.unknown_property(found.group(1))
    return ConfigError(f"kafka: librdkafka refuses the configuration: {text}")
