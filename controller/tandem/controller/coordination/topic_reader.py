"""The coordination topic for commands: read it from a time on to its end and beyond, or send one message.

A command waits for answers, but never long, and shows undecodable records instead of skipping them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, NoReturn, Self

from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, KafkaError, KafkaException, Message, Producer
from confluent_kafka import TopicPartition as ConfluentPartition

from tandem.backup_avro.chain.integers import is_moment
from tandem.backup_avro.documents.coordination_message import (
    CoordinationMessage,
    decode,
    encode,
    message_key,
    parse_message_key,
)
from tandem.backup_avro.errors import DamagedError, PermanentError, TandemError
from tandem.backup_avro.json_fields import NOT_IN_JSON, TIME_MS
from tandem.controller.coordination.topic import appended_at, open_consumer, partition_of
from tandem.sink.kafka.auth import client_config
from tandem.sink.kafka.cluster import admin_errors
from tandem.sink.kafka.cluster.admin import ClusterAdmin
from tandem.sink.kafka.errors.cluster_errors import ClusterUnreachableError
from tandem.sink.kafka.errors.error_codes import ErrorCode

ANSWER_S = 4.0
"""Longest wait for one answer of the brokers, in seconds."""

_POLL_S = 0.2
_GREETING_S = 1.0
_TIMESTAMP_NOT_AVAILABLE = 0


class NoTopicError(PermanentError):
    """There is no coordination topic: no instance has run against this cluster yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRecordDocument:
    """`tandem coordination tail`: a record of the topic. `undecodable` says why `message` is None.

    `at` is the record's timestamp in ms, None if it has none that is a time, `appended_at` the same if it is the
    broker's own. `key` is text for people, with escapes.
    """

    partition: int
    offset: int
    at: int | None = field(metadata=TIME_MS)
    key: str | None
    message: CoordinationMessage | None = None
    undecodable: str | None = None
    appended_at: int | None = field(default=None, metadata=NOT_IN_JSON)


def open_topic_record(
    *,
    partition: int,
    offset: int,
    at: int | None,
    key: bytes | None,
    value: bytes | None,
    appended_at: int | None = None,
) -> TopicRecordDocument:
    """Return a decoded record. Raises nothing, whatever the record holds: any principal with Write may produce it."""
    shown = None if key is None else key.decode("utf-8", "backslashreplace")
    message, trouble = None, None
    try:
        if value is None:
            trouble = "a tombstone: it has no value"
        elif key is None:
            trouble = "it has no key"
        else:
            message = decode(value)
            where = parse_message_key(key)
            if (where.pair, where.instance, where.event) != (message.pair, message.instance, message.event):
                trouble = (
                    f"its key and its value disagree: the value is {message.event} of {message.pair}/{message.instance}"
                )
    except DamagedError as error:
        trouble = str(error)
    return TopicRecordDocument(
        partition=partition,
        offset=offset,
        at=_moment(at),
        key=shown,
        message=None if trouble is not None else message,
        undecodable=trouble,
        appended_at=_moment(appended_at),
    )


def _moment(at: int | None) -> int | None:
    """Return a record's timestamp, None if it is no valid time: a producer can write any number."""
    return None if at is None or not is_moment(at) else at


class TopicReader:
    """Reads the coordination topic; use it in a `with`. Not thread-safe.

    All methods raise errors of `sink.kafka.errors.cluster_errors` when the brokers do not answer or refuse.
    """

    def __init__(self, props: Mapping[str, client_config.Value], *, topic: str, partitions: Sequence[int]) -> None:
        self._servers = client_config.servers_of(props)
        self._topic = topic
        self._unread = set(partitions)
        self._partitions = tuple(partitions)
        try:
            # The end is reported by an empty answer, which the broker holds back for the wait.
            self._consumer: Any = open_consumer({**props, "enable.partition.eof": True, "fetch.wait.max.ms": 100})
        except (KafkaException, ValueError, TypeError) as error:
            raise admin_errors.refused_config(error) from None

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        """Close the connections."""
        self._consumer.close()

    def rewind(self, since: int | None, *, timeout_s: float) -> None:
        """Seek to the first record written at or after `since` (ms), or to the log's beginning if that is None."""
        offsets = [ConfluentPartition(self._topic, number, OFFSET_BEGINNING) for number in self._partitions]
        if since is None:
            self._get_to_know(min(timeout_s, _GREETING_S))
        else:
            asked = [ConfluentPartition(self._topic, number, since) for number in self._partitions]
            try:
                found = self._consumer.offsets_for_times(asked, timeout=timeout_s)
            except KafkaException as error:
                self._refuse(admin_errors.error_of(error))
            offsets = [
                ConfluentPartition(part.topic, part.partition, part.offset if part.offset >= 0 else OFFSET_END)
                for part in found
            ]
        self._consumer.assign(offsets)

    def _get_to_know(self, timeout_s: float) -> None:
        """Ask the leaders for something, so that they are connected: librdkafka repeats in 500 ms what comes too early.

        An error is left to what follows.
        """
        with suppress(KafkaException):
            for number in self._partitions:
                self._consumer.get_watermark_offsets(ConfluentPartition(self._topic, number), timeout=timeout_s)

    @property
    def partitions(self) -> int:
        """Number of partitions that are read."""
        return len(self._partitions)

    @property
    def at_end(self) -> bool:
        """Whether all partitions have been read to their ends."""
        return not self._unread

    def poll(self, timeout_s: float = _POLL_S) -> TopicRecordDocument | None:
        """Return the next record; None if none came within `timeout_s`. Transient broker errors are waited out."""
        record = self._consumer.poll(timeout_s)
        if record is None:
            return None
        error = record.error()
        if error is None:
            return _topic_record(record)
        if error.code() == ErrorCode.CLIENT_PARTITION_EOF:
            self._unread.discard(record.partition())
        elif not admin_errors.is_about_no_group(error) and (error.fatal() or not admin_errors.may_pass(error)):
            self._refuse(error)
        return None

    def read_to_end(self, *, timeout_s: float) -> Iterator[TopicRecordDocument]:
        """Yield all records up to the end. Raises ClusterUnreachableError if the end is not reached in `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        while not self.at_end:
            if time.monotonic() >= deadline:
                raise ClusterUnreachableError(
                    f"Could not read the coordination topic {self._topic} to its end within {timeout_s:g} s",
                    code="TDM-I004",
                    remedy=f"check that the brokers at {self._servers} run and have leaders for it",
                )
            topic_record = self.poll()
            if topic_record is not None:
                yield topic_record

    def _refuse(self, error: KafkaError) -> NoReturn:
        raise admin_errors.explain(
            error, operation="read", resource=f"the coordination topic {self._topic}", servers=self._servers
        ) from None


def _topic_record(record: Message) -> TopicRecordDocument:
    kind, at = record.timestamp()
    return open_topic_record(
        partition=record.partition() or 0,
        offset=record.offset() or 0,
        at=None if kind == _TIMESTAMP_NOT_AVAILABLE else at,
        key=_bytes(record.key()),
        value=_bytes(record.value()),
        appended_at=appended_at(record),
    )


def _bytes(data: str | bytes | None) -> bytes | None:
    return data.encode() if isinstance(data, str) else data


def partition_count(admin: ClusterAdmin, topic: str) -> int:
    """Return how many partitions the coordination topic has. Raises NoTopicError if it does not exist."""
    found = admin.topics([topic])
    if not found:
        raise NoTopicError(
            f"the coordination topic {topic} does not exist",
            code="TDM-I005",
            remedy="the first `tandem run` creates it; check kafka.bootstrap.servers and coordination.topic",
        )
    return len(found[0].partitions)


def send(
    props: Mapping[str, client_config.Value],
    message: CoordinationMessage,
    *,
    topic: str,
    partitions: int,
    timeout_s: float,
) -> tuple[int, int]:
    """Send a message and wait until the brokers acknowledge it; return its partition and offset.

    Raises errors of `sink.kafka.errors.cluster_errors`. After such an error it is unknown whether the message was
    appended.
    """
    servers = client_config.servers_of(props)
    outcome: list[TandemError | tuple[int, int]] = []

    def explained(error: KafkaError) -> TandemError:
        return admin_errors.explain(
            error, operation="write to", resource=f"the coordination topic {topic}", servers=servers
        )

    def delivered(error: KafkaError | None, record: Message) -> None:
        outcome.append(explained(error) if error is not None else (record.partition() or 0, record.offset() or 0))

    limits = {"acks": "all", "linger.ms": 0, "message.timeout.ms": round(timeout_s * 1000), "retries": 3}
    try:
        producer: Any = Producer(client_config.for_confluent(props, **limits))
    except (KafkaException, ValueError, TypeError) as error:
        raise admin_errors.refused_config(error) from None
    try:
        producer.produce(
            topic,
            key=message_key(message),
            value=encode(message),
            partition=partition_of(message.pair, partitions),
            headers={"event": message.event.value},
            on_delivery=delivered,
        )
        producer.flush(timeout_s + 1.0)
    except KafkaException as error:
        raise explained(admin_errors.error_of(error)) from None
    if not outcome:
        raise ClusterUnreachableError(
            f"Could not write to the coordination topic {topic}: no answer from {servers} within {timeout_s:g} s",
            code="TDM-I006",
            remedy="look with `tandem coordination tail` whether the message is there, and ask again if not",
        )
    if isinstance(outcome[0], TandemError):
        raise outcome[0]
    return outcome[0]
