"""Hints to the instances that the store has changed: without a hint they notice the change a little later."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tandem.backup_avro.documents.coordination_message import CoordinationMessage
from tandem.backup_avro.errors import ConfigError, TandemError
from tandem.controller.config import Config
from tandem.controller.coordination.topic_reader import ANSWER_S, partition_count, send
from tandem.sink.kafka.auth.client_config import Value
from tandem.sink.kafka.cluster.admin import ClusterAdmin

SENDER: Final = "cli"
"""The sender's name in messages of commands."""

_SEND_S: Final = 5.0


def send_hint(config: Config, make: Callable[[ClusterAdmin], CoordinationMessage]) -> TandemError | None:
    """Send the message that `make` returns once a client is open; return the error if it could not be sent."""
    if not config.kafka.root:
        return ConfigError("kafka.bootstrap.servers is not configured", code="TDM-I001")
    props: dict[str, Value] = dict(config.kafka.reveal())
    topic = config.coordination.topic
    try:
        with ClusterAdmin(props, timeout_s=ANSWER_S) as admin:
            message = make(admin)
            partitions = partition_count(admin, topic)
        send(props, message, topic=topic, partitions=partitions, timeout_s=_SEND_S)
    except TandemError as error:
        return error
    return None
