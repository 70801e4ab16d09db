"""The coordination topic for a running instance: it publishes and reads requests and hints of the pair.

Nothing here is authority. All of a pair's messages go to one partition, so every reader sees one order.
`CoordinationTopic` holds the clients and a reading thread; `peer_state` folds the messages that it reads.
"""

from __future__ import annotations

import threading
import time
import uuid
import zlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, Final

import structlog
from confluent_kafka import (
    OFFSET_BEGINNING,
    TIMESTAMP_LOG_APPEND_TIME,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
)
from confluent_kafka import TopicPartition as ConfluentPartition

from tandem.backup_avro.chain.integers import is_moment
from tandem.backup_avro.chain.signatures import SignatureError, Signer
from tandem.backup_avro.documents.coordination_message import (
    CoordinationEvent,
    CoordinationMessage,
    decode,
    encode,
    message_key,
    parse_message_key,
)
from tandem.backup_avro.documents.turn_request import sign_request
from tandem.backup_avro.errors import DamagedError, PermanentError, TandemError, TransientError
from tandem.controller.config.model import CoordinationSettings
from tandem.controller.coordination.bounded_memory import LONGEST
from tandem.controller.coordination.peer_state import PeerState
from tandem.sink.kafka.auth import client_config
from tandem.sink.kafka.auth.renewed_files import CredentialFiles, RenewedClient
from tandem.sink.kafka.cluster import admin_errors
from tandem.sink.kafka.cluster.admin import ClusterAdmin
from tandem.sink.kafka.errors.cluster_errors import TopicExistsError
from tandem.sink.kafka.errors.error_codes import ErrorCode, ErrorMeaning
from tandem.sink.process.rates import RatedLog, TokenBucket
from tandem.sink.process.safe_text import redact

_LOG = structlog.get_logger()
_RATED = RatedLog(_LOG)
_SHOWN = 200
"""Characters of untrusted text that go into a log line."""
_WAKES, _WAKE_EVERY_S = 10, 1.0
"""A token bucket: messages that wake the instance at once, and seconds until one more may. It ticks every second."""
#: Prefix of the consumer group id that librdkafka requires; the group is never joined.
GROUP_PREFIX: Final = "tandem-coordination-"
_POLL_S = 0.2
_ANSWER_S = 10.0
_CREATE_AGAIN_S = 5.0
_READ_AGAIN_S = 1.0
#: A leader that hangs sends no error after which the client would look for another one. By itself it looks every five
#: minutes, and waits a minute for an answer, also where it asks the broker that hangs for the leaders.
_SEES_NEW_LEADERS: Final = {"topic.metadata.refresh.interval.ms": 5_000, "socket.timeout.ms": 5_000}


class CoordinationError(TransientError):
    """The coordination topic can't be read or written right now."""


def partition_of(pair: str, partitions: int) -> int:
    """Return the partition that all messages of a pair go to."""
    return zlib.crc32(pair.encode()) % partitions


def log_refused(message: CoordinationMessage, error: SignatureError) -> None:
    """Log, at a limited rate, an ACTIVATE that is ignored because of its signature."""
    _RATED.warning(
        "a request for a turn counts for nothing",
        sender=message.instance[:_SHOWN],
        target=(message.target or "")[:_SHOWN],
        generation=message.generation,
        error=str(error)[:LONGEST],
    )


class CoordinationTopic:
    """Reads the pair's partition from the beginning, in a thread, into `peers`; publishes without waiting.

    If the topic is deleted while it is in use, it is created again, as at the start. No backup depends on its records.
    """

    def __init__(
        self,
        props: Mapping[str, client_config.Value],
        settings: CoordinationSettings,
        *,
        admin: ClusterAdmin,
        peers: PeerState,
        identity: CoordinationMessage,
        signer: Signer | None = None,
    ) -> None:
        self._props = props
        self._signer = signer
        self._wakes = TokenBucket(_WAKES, _WAKE_EVERY_S)
        self._topic = settings.topic
        self._replication_factor = settings.replication_factor
        self._admin = admin
        self._peers = peers
        self._identity = identity
        self._producers: RenewedClient[Any] | None = None
        self._partition = 0
        self._stopped = threading.Event()
        self._caught_up = threading.Event()
        self._wake: threading.Event | None = None
        self._thread = threading.Thread(target=self._run, name="coordination", daemon=True)
        self._failing: str | None = None
        self._deaf = False
        self._echoed_mono: float | None = None
        self._gone = threading.Event()

    def start(self, wake: threading.Event) -> None:
        """Create the topic if it is missing, check it, begin to read. New messages set `wake`, at a limited rate.

        Heartbeats do not set it.

        Raises TransientError if the brokers do not answer, PermanentError if the topic can't be used.
        """
        count = ensure_topic(self._admin, self._topic, self._replication_factor)
        self._partition = partition_of(self._identity.pair, count)
        self._wake = wake
        config = client_config.for_confluent(
            self._props,
            **{
                "acks": "all",
                "linger.ms": 0,
                "message.timeout.ms": 30_000,
                # How long a missing topic counts as not yet propagated. This one existed at the start.
                "topic.metadata.propagation.max.ms": 5_000,
                **_unless_set(_SEES_NEW_LEADERS, self._props),
                "logger": _LibrdkafkaLog(),
            },
        )
        self._producers = RenewedClient(self._props, partial(Producer, config), lambda old: old.flush(0))
        self._thread.start()

    @property
    def _producer(self) -> Any:  # noqa: ANN401 - confluent-kafka has no types
        assert self._producers is not None, "start() makes it"
        return self._producers.get()

    @property
    def caught_up(self) -> bool:
        """Whether all records that were written before this process began have been read."""
        return self._caught_up.is_set()

    @property
    def failing(self) -> bool:
        """Whether the last publish failed, reading fails, or the records from before the start were never read."""
        return self._failing is not None or self._deaf or not self.caught_up

    @property
    def echoed_mono(self) -> float | None:
        """When this process last read a message of its own, so publishing and reading both worked; None: never."""
        return self._echoed_mono

    def publish(self, event: CoordinationEvent, *, at: int, **fields: Any) -> None:  # noqa: ANN401 (fields of the message)
        """Send a message without waiting; a failure is only logged: messages are hints.

        Its texts repeat error messages of stores and brokers, so secrets are masked in them.
        """
        message = replace(
            self._identity, event=event, request_id=fields.pop("request_id", uuid.uuid4().hex), at=at, **fields
        )
        message = replace(
            message,
            reason=None if message.reason is None else redact(message.reason),
            details={key: redact(value) for key, value in message.details.items()},
        )
        if event is CoordinationEvent.ACTIVATE and self._signer is not None:
            message = sign_request(message, self._signer)
        try:
            self._producer.produce(
                self._topic,
                key=message_key(message),
                value=encode(message),
                partition=self._partition,
                headers={"event": event.value},
                on_delivery=self._delivered,
            )
        except BufferError as error:
            self._fail(str(error))
        except KafkaException as error:  # what the client knows already, such as a missing right, is raised at once
            self._refused(error.args[0])
        self._producer.poll(0)

    def close(self, timeout_s: float) -> None:
        """Send the queued messages, for at most `timeout_s`, and stop reading."""
        self._stopped.set()
        if self._producers is not None:
            self._producer.flush(timeout_s)
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    def _delivered(self, error: KafkaError | None, _: Message) -> None:
        if error is not None:
            self._refused(error)
        elif self._failing is not None:
            _LOG.info("coordination topic takes messages again", topic=self._topic)
            self._failing = None

    def _refused(self, error: KafkaError) -> None:
        self._fail(str(self._explain(error, "write to")))
        if admin_errors.code_of(error).meaning is ErrorMeaning.UNKNOWN_TOPIC:
            self._gone.set()

    def _fail(self, why: str) -> None:
        if self._failing is None:
            _LOG.warning("cannot publish on the coordination topic", topic=self._topic, error=why)
        self._failing = why

    def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                self._read()
            except Exception as error:  # noqa: BLE001 (a thread that ended would leave the instance deaf for ever)
                _RATED.warning("cannot read the coordination topic, trying again", topic=self._topic, error=error)
                self._deaf = True
                self._stopped.wait(_READ_AGAIN_S)
            if self._gone.is_set():
                self._create_again()

    def _create_again(self) -> None:
        told = False
        while not self._stopped.is_set():
            try:
                count = ensure_topic(self._admin, self._topic, self._replication_factor)
            except TandemError as error:
                if not told:
                    _LOG.warning(
                        "the coordination topic is gone and can't be created, trying again",
                        topic=self._topic,
                        error=error,
                    )
                told = True
                self._stopped.wait(_CREATE_AGAIN_S)
            else:
                with suppress(KafkaException):  # else the producer uses the old topic's metadata for minutes
                    self._producer.list_topics(self._topic, timeout=_ANSWER_S)
                self._partition = partition_of(self._identity.pair, count)
                self._gone.clear()
                return

    def _read(self) -> None:
        """Read until `close`, until files of the login were replaced, or until the topic was created anew.

        Then it is to be read again, from its beginning: the start offset of live messages in an old log means nothing
        in a new one.
        """
        files = CredentialFiles(self._props)
        consumer = open_consumer(self._props)
        try:
            where = ConfluentPartition(self._topic, self._partition, OFFSET_BEGINNING)
            _, end = consumer.get_watermark_offsets(where, timeout=_ANSWER_S)
            consumer.assign([where])
            next_offset, complained = 0, False
            while not self._stopped.is_set() and not self._gone.is_set() and not files.replaced():
                if next_offset >= end or consumer.position([where])[0].offset >= end:
                    self._caught_up.set()
                    self._deaf = complained
                message = consumer.poll(_POLL_S)
                if message is None:
                    _RATED.flush()
                    continue
                if message.error():
                    complained = self._complain(message.error()) or complained
                    continue
                complained = False  # this instance's own heartbeats arrive here too, so reading works again
                if message.offset() < next_offset:
                    _LOG.warning("the coordination topic has begun again, reading it anew", topic=self._topic)
                    # Auto-creation may have made the topic with the broker's default settings and partition count.
                    self._gone.set()
                    return
                next_offset = message.offset() + 1
                self._process_record(message, live=message.offset() >= end)
        finally:
            consumer.close()

    def _complain(self, error: KafkaError) -> bool:
        """Log an error that prevents reading; return whether it does prevent it."""
        if error.code() == ErrorCode.CLIENT_PARTITION_EOF or admin_errors.is_about_no_group(error):
            return False
        why = str(self._explain(error, "read"))
        _RATED.warning("trouble reading the coordination topic", topic=self._topic, error=why)
        self._deaf = True
        return True

    def _explain(self, error: KafkaError, operation: str) -> TandemError:
        resource, servers = f"the coordination topic {self._topic}", client_config.servers_of(self._props)
        return admin_errors.explain(error, operation=operation, resource=resource, servers=servers)

    def _process_record(self, message: Message, *, live: bool) -> None:
        parsed = parse(message)
        if parsed is None:
            return
        now = time.monotonic()
        if parsed.incarnation == self._identity.incarnation:
            self._echoed_mono = now
        self._peers.note_message(parsed, heard_mono=now if live else None, appended_at=appended_at(message))
        wakes = live and parsed.event is not CoordinationEvent.PROGRESS and parsed.pair == self._identity.pair
        if self._wake is not None and wakes and self._wakes.take_token(now):
            self._wake.set()


def appended_at(record: Message) -> int | None:
    """Return when the broker appended a record, ms by its clock; None if the timestamp is the producer's."""
    kind, at = record.timestamp()
    return at if kind == TIMESTAMP_LOG_APPEND_TIME and is_moment(at) else None


def parse(message: Message) -> CoordinationMessage | None:
    """Return the message in a Kafka record; log a warning and return None if it is no coordination message."""
    value, key = message.value(), message.key()
    if value is None or key is None:
        return None
    try:
        parsed = decode(value)
        where = parse_message_key(key)
    except DamagedError as error:
        _RATED.warning("ignoring a record on the coordination topic", offset=message.offset(), error=error)
        return None
    if (where.pair, where.instance, where.event) != (parsed.pair, parsed.instance, parsed.event):
        _RATED.warning("ignoring a record whose key and value disagree", offset=message.offset())
        return None
    return parsed


def _unless_set(ours: Mapping[str, int], props: Mapping[str, client_config.Value]) -> dict[str, int]:
    return {name: value for name, value in ours.items() if name not in props}


def open_consumer(props: Mapping[str, client_config.Value]) -> Any:  # noqa: ANN401 (confluent-kafka has no types)
    """Return a consumer that never joins its group and commits no offsets."""
    return Consumer(
        client_config.for_confluent(
            props,
            **{
                "group.id": f"{GROUP_PREFIX}{uuid.uuid4().hex}",
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                **_unless_set(_SEES_NEW_LEADERS, props),
                "logger": _LibrdkafkaLog(),
            },
        )
    )


def ensure_topic(admin: ClusterAdmin, topic: str, replication_factor: int) -> int:
    """Create the coordination topic if it is missing; return its number of partitions."""
    found = admin.topics([topic])
    if not found:
        _LOG.info("creating the coordination topic", topic=topic, replication_factor=replication_factor)
        try:
            admin.create_topic(
                topic,
                partitions=1,
                replication_factor=replication_factor,
                config={
                    "cleanup.policy": "compact",
                    "min.cleanable.dirty.ratio": "0.1",
                    "segment.ms": "3600000",
                    # The broker's append time: a producer can set any timestamp.
                    "message.timestamp.type": "LogAppendTime",
                },
            )
        except TopicExistsError:
            _LOG.info("the other instance created the coordination topic", topic=topic)
        except PermanentError as error:
            raise PermanentError(
                f"cannot create the coordination topic {topic}: {error}",
                code="TDM-I002",
                remedy="create it (one partition, cleanup.policy=compact), or set coordination.replication_factor "
                "to at most the number of brokers",
            ) from error
        found = admin.topics([topic])
    if not found:
        raise CoordinationError(f"the coordination topic {topic} is not there yet", code="TDM-I003")
    policy = admin.config([topic])[topic].get("cleanup.policy", "")
    if "compact" not in policy.split(","):
        _LOG.warning(
            "the coordination topic is not compacted: requests may expire before they are read",
            topic=topic,
            cleanup_policy=policy,
            remedy="set cleanup.policy=compact on it",
        )
    return len(found[0].partitions)


class _LibrdkafkaLog:
    """Forwards librdkafka's log lines, which are about connections, to structlog at debug level."""

    def log(self, level: int, text: str, *args: object) -> None:
        """Log one line."""
        _LOG.debug("librdkafka", detail=text % args if args else text, level_no=level)
