"""What goes wrong between Tandem and a Kafka cluster. Vendor errors are turned into these at the edge."""

from __future__ import annotations

from tandem.backup_avro.errors import PermanentError, TransientError


class ClusterUnreachableError(TransientError):
    """No broker answered in time. Names the bootstrap servers."""


class ClusterTransientError(TransientError):
    """The cluster answered, but could not do it right now: no leader, not enough replicas, throttled."""


class ClusterAuthenticationError(PermanentError):
    """The brokers refuse the credentials, or TLS could not be agreed on."""


class ClusterDeniedError(PermanentError):
    """The principal lacks a permission. Names operation and resource."""


class UnidentifiedTopicError(ClusterDeniedError):
    """The cluster tells no id of a topic, or the same one of two: nobody can say which topic it is."""


class ClusterAnswerError(ClusterTransientError):
    """The answer contradicts itself: it names the same thing twice."""


class UnknownTopicError(PermanentError):
    """The topic or partition does not exist."""


class TopicExistsError(PermanentError):
    """A topic of that name exists already."""


class ClusterRequestError(PermanentError):
    """The cluster refuses the request as such: invalid config value, unsupported version, policy violation."""
