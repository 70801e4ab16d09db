"""Turns confluent-kafka's errors into Tandem's, with the place and a remedy."""

from __future__ import annotations

import re

from confluent_kafka import KafkaError, KafkaException

from tandem.backup_avro.errors import ConfigError, TandemError
from tandem.sink.kafka.auth import client_config
from tandem.sink.kafka.errors.cluster_errors import (
    ClusterAuthenticationError,
    ClusterDeniedError,
    ClusterRequestError,
    ClusterTransientError,
    ClusterUnreachableError,
    TopicExistsError,
    UnknownTopicError,
)
from tandem.sink.kafka.errors.error_codes import PASSING, ErrorCode, ErrorMeaning

# ACL operations by the `operation` texts of callers.
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
_CERTIFICATE = re.compile(r"certificate verify failed|alert .*(certificate|unknown ca)")
# The answer of an OpenID provider, which librdkafka repeats in its message: it may contain anything, even secrets.
_ANSWER = re.compile(r"\{.*\}", re.DOTALL)


def error_of(raised: KafkaException | KafkaError) -> KafkaError:
    """Return the KafkaError in an exception of confluent-kafka."""
    if isinstance(raised, KafkaError):
        return raised
    error: KafkaError = raised.args[0]
    return error


def is_about_no_group(error: KafkaError) -> bool:
    """Return whether the broker refused only the look-up of a group's coordinator.

    librdkafka requires a `group.id` for every consumer and looks up its coordinator; a consumer that joins no group and
    commits nothing does not need the answer.
    """
    return bool(error.code() == ErrorCode.GROUP_AUTHORIZATION_FAILED)


def code_of(error: KafkaError) -> ErrorCode:
    """Return the entry of the table of error codes for an error of confluent-kafka."""
    return ErrorCode.of(error.code())


def may_pass(error: KafkaError) -> bool:
    """Return whether the error may pass without intervention."""
    return code_of(error).meaning in PASSING or bool(error.retriable())


def explain(
    error: KafkaError, *, operation: str, resource: str, servers: str, last_seen: KafkaError | None = None
) -> TandemError:
    """Return the typed error for `operation` ("describe the config of") on `resource` ("topic x").

    `last_seen` is the client's last report about its connections: it gives the reason why a call timed out.
    """
    code = code_of(error)
    what = f"Could not {operation} {resource}"
    why = error.str()
    meaning = code.meaning
    if meaning is ErrorMeaning.UNREACHABLE and last_seen is not None and _refuses(last_seen):
        meaning, why = ErrorMeaning.AUTHENTICATION, _ANSWER.sub("", last_seen.str())
    match meaning:
        case ErrorMeaning.AUTHENTICATION:
            return ClusterAuthenticationError(
                f"{what}: the Kafka brokers at {servers} refuse the connection: {why}",
                code="TDM-K050",
                remedy="check security.protocol, sasl.mechanism, sasl.username, sasl.password or "
                "sasl.oauthbearer.*, ssl.ca.location and ssl.certificate.location; docs/connections.md",
            )
        case ErrorMeaning.UNREACHABLE:
            more = f" ({last_seen.str()})" if last_seen is not None else ""
            return ClusterUnreachableError(
                f"{what}: no Kafka broker answers at {servers}: {why}{more}",
                code="TDM-K051",
                remedy="check bootstrap.servers and the network, that the brokers run, and security.protocol",
            )
        case ErrorMeaning.DENIED:
            right = _RIGHTS.get(operation, f"the right to {operation}")
            return ClusterDeniedError(
                f"{what}: not allowed: {why}",
                code="TDM-K052",
                remedy=f"grant the principal {right} on {resource}; `tandem policy kafka` prints what each role needs",
            )
        case ErrorMeaning.UNKNOWN_TOPIC:
            return UnknownTopicError(
                f"{what}: it does not exist", code="TDM-K053", remedy="check the name, or create it"
            )
        case ErrorMeaning.EXISTS:
            return TopicExistsError(
                f"{what}: it exists already",
                code="TDM-K054",
                remedy="choose another name, or use the one that is there",
            )
    if may_pass(error):
        return ClusterTransientError(f"{what} at {servers}: {why}", code="TDM-K055", remedy=code.remedy)
    return ClusterRequestError(f"{what} at {servers}: {why} ({error.name()})", code="TDM-K056", remedy=code.remedy)


def _refuses(error: KafkaError) -> bool:
    # librdkafka calls a handshake that fails in its very first step a transport error.
    return code_of(error).meaning is ErrorMeaning.AUTHENTICATION or _CERTIFICATE.search(error.str()) is not None


_NO_SUCH = re.compile(r'No such configuration property: "([^"]+)"')


def refused_config(raised: KafkaException | ValueError | TypeError) -> TandemError:
    """Return the error for a configuration that librdkafka refuses to start with. Its text contains no secrets."""
    text = error_of(raised).str() if isinstance(raised, KafkaException) else str(raised)
    found = _NO_SUCH.search(text)
    if found:
        return client_config.unknown_property(found.group(1))
    return ConfigError(f"kafka: librdkafka refuses the configuration: {text}", code="TDM-K057")
