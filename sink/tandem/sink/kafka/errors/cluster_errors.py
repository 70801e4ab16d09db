"""Errors between Tandem and a Kafka cluster. The client adapters turn vendor errors into these."""

from __future__ import annotations

from tandem.backup_avro.errors import PermanentError, TransientError


class ClusterUnreachableError(TransientError):
    """No broker answered in time. Names the bootstrap servers."""


class ClusterTransientError(TransientError):
    """The cluster answered, but could not serve the request now: no leader, not enough replicas, throttled."""


class ClusterAuthenticationError(PermanentError):
    """The brokers refuse the credentials, or TLS could not be agreed on."""


class ClusterDeniedError(PermanentError):
    """The principal lacks a permission. Names operation and resource."""


class UnidentifiedTopicError(ClusterDeniedError):
    """The cluster returned no id for a topic, or the same id for two topics, so the topic can't be identified."""


class ClusterAnswerError(ClusterTransientError):
    """The cluster's answer contradicts itself or the question: the same key twice, or not what was asked for."""


class UnknownTopicError(PermanentError):
    """The topic or partition does not exist."""


class TopicExistsError(PermanentError):
    """A topic of that name exists already."""


class ClusterRequestError(PermanentError):
    """The cluster refuses the request as such: invalid config value, unsupported version, policy violation."""
