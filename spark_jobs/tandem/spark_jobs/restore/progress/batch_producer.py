"""Sending ready-made record batches in transactions: kafka-python's producer, entered below its record builder.

The only module that touches the producer's inner parts. They are held by tests/contract/test_kafka_python_producer.py:
`KafkaProducer` (`_sender`, `_accumulator`, `_transaction_manager`, `_metadata.config`, `_closed`,
`_unregister_cleanup`), `Sender`
(`wakeup`, `force_close`, `join`, `_can_split`, `_is_retention_based_unknown_producer_id`), `RecordAccumulator`
(`_appends_in_progress`, `_tp_lock`, `_closed`, `_batches`, `_incomplete`), `ProducerBatch`, `FutureProduceResult`
(whose *success* value carries broker errors), `TransactionManager` (`maybe_add_partition_to_transaction`,
`begin_commit`, `is_send_to_partition_allowed`, `_supports_epoch_bump`, `last_error`, `producer_id_and_epoch`) and the
methods that a batch calls on its records (`ReadyRecords`).

Three of its recoveries don't fit a restore and are switched off for each producer. A batch that is too large would be
split by decoding it, and its future would never complete. A lost producer state would be repaired by a new epoch, which
lets an abandoned producer fence its successor. A sequence that the broker has forgotten would be started again within
the transaction. Here every error is final: the caller discards the producer, and resumes as after a crash.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, Final

import kafka.errors as kafka_errors
from kafka import KafkaProducer
from kafka.net.compat import KafkaNetClient
from kafka.net.selector import NetworkSelector
from kafka.producer.producer_batch import ProducerBatch
from kafka.structs import TopicPartition

from tandem.backup_avro.errors import PermanentError, TransientError
from tandem.sink.kafka.auth import tls
from tandem.sink.kafka.auth.client_config import Value, for_kafka_python, servers_of
from tandem.sink.kafka.errors.broker_errors import code_of
from tandem.sink.kafka.errors.cluster_errors import ClusterAuthenticationError, ClusterDeniedError
from tandem.sink.kafka.errors.error_codes import PERMANENT, ErrorMeaning
from tandem.sink.kafka.wire import connections
from tandem.sink.process import clock
from tandem.sink.transcode.implementation_choice import best_bodies

#: Longest that a transaction may stay open, in ms; then the broker aborts it. Open ones hold read_committed back.
TRANSACTION_TIMEOUT_MS: Final = 180_000
_DELIVERY_TIMEOUT_MS: Final = 120_000
#: Also the least time between two metadata requests, of which the start of a load needs three.
_RETRY_MS: Final = 20
#: Most bytes in one request, less than the brokers' `socket.request.max.bytes`; a single larger batch goes alone.
_REQUEST_BYTES: Final = 32 * 1024 * 1024
#: Most bytes that `BatchProducer.send` takes for one record, including its key and the header of its batch.
LARGEST_RECORD: Final = _REQUEST_BYTES - 64 * 1024

# Settings that `for_kafka_python` returns and kafka-python's producer refuses, but its connections take.
_CLIENT_ONLY: Final = tls.KEYS | {"socket_connection_setup_timeout_ms"}


class ProduceError(TransientError):
    """Sending failed, or its outcome is unknown. Discard the producer, and resume from the committed progress."""


class TransactionTimedOutError(ProduceError):
    """The broker has aborted a transaction that was open for too long. No other producer has taken over."""


class FencedError(PermanentError):
    """Another producer with the same transactional id has taken over: this one must stop."""


class RejectedError(PermanentError):
    """The brokers refuse the records or the transaction, and would again. The remedy is that of the error code."""


class ReadyRecords:
    """A finished record batch that stands in for kafka-python's record builder. `records`: how many the batch holds.

    `outside`: the batch is part of no transaction, though its producer is transactional.
    """

    __slots__ = ("_buffer", "_outside", "_records", "base_sequence", "producer_epoch", "producer_id")

    def __init__(self, data: bytes, records: int, *, outside: bool = False) -> None:
        self._buffer: bytes | bytearray = data
        self._records = records
        self._outside = outside
        self.producer_id = -1
        self.producer_epoch = -1
        self.base_sequence = -1

    def set_producer_state(
        self, producer_id: int, producer_epoch: int, base_sequence: int, transactional: bool
    ) -> None:
        """Write the producer's id, epoch and sequence into the batch header, and the CRC. Retries send these bytes."""
        self._buffer = best_bodies().stamped(
            self._buffer,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=base_sequence,
            transactional=transactional and not self._outside,
        )
        self.producer_id, self.producer_epoch, self.base_sequence = producer_id, producer_epoch, base_sequence

    def next_offset(self) -> int:
        """Return the number of records: sequence numbers count records, not batches."""
        return self._records

    def size_in_bytes(self) -> int:
        """Return the size of the whole batch."""
        return len(self._buffer)

    def buffer(self) -> bytes | bytearray:
        """Return the bytes that go over the wire."""
        return self._buffer

    def is_full(self) -> bool:
        """Return True: no record can be added, so the sender need not linger."""
        return True

    def compression_rate(self) -> float:
        """Return 1.0: the ratio, which only the metrics ask for, is not known here."""
        return 1.0

    def close(self) -> None:
        """Do nothing: the batch was closed when it was built."""


class Sent:
    """A batch that was queued for sending: waits for the broker's response."""

    __slots__ = ("_doing", "_future", "_open_s", "records", "size")

    def __init__(
        self,
        future: Any,  # noqa: ANN401 - kafka-python has no types
        place: str,
        records: int,
        size: int,
        open_s: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self._open_s = open_s
        self._doing = f"sending a batch to {place}"
        self._future = future
        self.records = records
        self.size = size

    def base_offset(self, timeout_s: float) -> int:
        """Wait for the broker and return the target offset of the first record, -1 if the broker no longer knows it.

        Raises ProduceError, FencedError, RejectedError, ClusterDeniedError.
        """
        if not self._future.wait(timeout_s):
            raise ProduceError(f"the broker did not confirm a batch within {timeout_s:.0f} s", code="TDM-R040")
        if not self._future.succeeded():
            raise wrapped(self._future.exception, self._doing, open_s=self._open_s())
        # A broker's error completes the future too; only the third part of its value shows it.
        base_offset, _, exceptions = self._future.value
        if exceptions is not None:
            raise wrapped(exceptions(0), self._doing, open_s=self._open_s())
        return int(base_offset)


class BatchProducer:
    """A transactional producer of ready-made record batches. One thread; after any error `discard` it."""

    def __init__(self, props: Mapping[str, Value], transactional_id: str, *, timeout_s: float = 60.0) -> None:
        """Connect with librdkafka's `props`.

        Raises ClusterUnreachableError, ClusterAuthenticationError, ConfigError.
        """
        self._timeout_s = timeout_s
        config = client_settings(props)
        servers = servers_of(props)
        try:
            self._producer = KafkaProducer(
                **{"retry_backoff_ms": _RETRY_MS, **config},
                transactional_id=transactional_id,
                transaction_timeout_ms=TRANSACTION_TIMEOUT_MS,
                delivery_timeout_ms=_DELIVERY_TIMEOUT_MS,
                max_block_ms=round(timeout_s * 1000),
                bootstrap_timeout_ms=round(timeout_s * 1000),
                max_request_size=_REQUEST_BYTES,
                metrics_enabled=False,
            )
        except kafka_errors.KafkaError as error:
            raise connections.explain(error, servers) from error
        # Its own setting of that name does not reach the metadata requests.
        self._producer._metadata.config["allow_auto_create_topics"] = False  # noqa: SLF001 - see the module's docstring
        self._sender = self._producer._sender  # noqa: SLF001 - as above
        self._accumulator = self._producer._accumulator  # noqa: SLF001 - as above
        self._transactions = self._producer._transaction_manager  # noqa: SLF001 - as above
        self._sender._can_split = _never  # noqa: SLF001 - as above
        self._sender._is_retention_based_unknown_producer_id = _never  # noqa: SLF001 - as above
        self._transactions._supports_epoch_bump = _never  # noqa: SLF001 - as above
        self._outside: set[TopicPartition] = set()
        in_transaction = self._transactions.is_send_to_partition_allowed
        self._transactions.is_send_to_partition_allowed = lambda place: place in self._outside or in_transaction(place)
        self._begun: float | None = None

    def _wrapped(self, error: BaseException, doing: str) -> TransientError | PermanentError:
        # Later calls raise only that the transaction failed before; the manager keeps the first error.
        return wrapped(self._transactions.last_error or error, doing, open_s=self._open_s())

    def _open_s(self) -> float:
        """Return for how many seconds the transaction has been open, never less than by the broker's count."""
        return 0.0 if self._begun is None else clock.now() - self._begun

    def init_transactions(self) -> None:
        """Fence every older producer of this transactional id, and end the transaction that it left open.

        Raises ProduceError (no answer), FencedError, ClusterDeniedError.
        """
        try:
            self._producer.init_transactions()
        except kafka_errors.KafkaError as error:
            raise self._wrapped(error, "opening the transactional id") from error

    def know(self, topic: str) -> frozenset[int]:
        """Fetch the metadata of `topic` and return its partitions. Raises ProduceError, ClusterDeniedError."""
        try:
            return frozenset(self._producer.partitions_for(topic))
        except kafka_errors.KafkaError as error:
            raise wrapped(error, f"looking up topic {topic}") from error

    def begin(self) -> None:
        """Begin a transaction."""
        try:
            self._producer.begin_transaction()
        except kafka_errors.KafkaError as error:
            raise self._wrapped(error, "beginning a transaction") from error
        self._begun = clock.now()

    def append(self, topic: str, partition: int, data: bytes, records: int) -> Sent:
        """Queue a finished batch (magic 2, uncommitted producer fields) of `records` records; it is sent at once.

        The order per partition is that of the calls. The topic must be known, see `know`.
        """
        place = TopicPartition(topic, partition)
        self._add_to_transaction(place)
        return self._queue(place, data, records, outside=False)

    def append_outside(self, topic: str, partition: int, data: bytes, records: int) -> Sent:
        """Queue a finished batch as `append` does, but outside of transactions, of which none may be open.

        No marker follows it. It has the producer's id and epoch, so the broker refuses it with InvalidProducerEpoch if
        a later producer of the transactional id has written to the partition before, be it a marker only (see `mark`).
        The broker refuses it with InvalidTxnState until the marker of this producer's last transaction in the
        partition is written, which is after the commit was answered: wait until the log's end has moved over it.
        """
        place = TopicPartition(topic, partition)
        self._outside.add(place)
        return self._queue(place, data, records, outside=True)

    def mark(self, topic: str, partition: int) -> None:
        """Commit an empty transaction in a partition: its marker has this producer's epoch, and fences older ones.

        `init_transactions` alone writes nothing to a partition without an open transaction, and a partition's leader
        refuses an older epoch only if it has seen a newer one. The marker may be written after this returns.
        """
        self.begin()
        self._add_to_transaction(TopicPartition(topic, partition))
        self.commit()

    def _add_to_transaction(self, place: TopicPartition) -> None:
        # From here on nothing is sent there until the coordinator knows that the partition is part of the transaction.
        self._outside.discard(place)
        try:
            self._transactions.maybe_add_partition_to_transaction(place)
        except kafka_errors.KafkaError as error:
            raise self._wrapped(error, f"sending to {place.topic}-{place.partition}") from error

    def _queue(self, place: TopicPartition, data: bytes, records: int, *, outside: bool) -> Sent:
        batch = ProducerBatch(place, ReadyRecords(data, records, outside=outside))
        queue = self._accumulator
        queue._appends_in_progress.increment()  # noqa: SLF001 - see the module's docstring
        try:
            with queue._tp_lock(place):  # noqa: SLF001 - as above
                if queue._closed:  # noqa: SLF001 - as above
                    raise ProduceError("the producer is closed", code="TDM-R041")
                queue._batches[place].append(batch)  # noqa: SLF001 - as above
                queue._incomplete.add(batch)  # noqa: SLF001 - as above
        finally:
            queue._appends_in_progress.decrement()  # noqa: SLF001 - as above
        self._sender.wakeup()
        return Sent(batch.produce_future, f"{place.topic}-{place.partition}", records, len(data), self._open_s)

    def send(self, topic: str, partition: int, *, key: bytes, value: bytes | None) -> None:
        """Send one record in the open transaction and wait for the broker's response. Raises as `Sent.base_offset`."""
        try:
            self._producer.send(topic, value, key=key, partition=partition).get(timeout=self._timeout_s)
        except kafka_errors.KafkaError as error:
            raise self._wrapped(error, f"sending to {topic}-{partition}") from error

    def commit(self) -> None:
        """Commit. All batches must have been waited for. After ProduceError it is unknown whether it took effect."""
        try:
            result = self._transactions.begin_commit()
            self._sender.wakeup()
            # kafka-python's own commit would wait for ever.
            answered = result.wait(timeout_ms=self._timeout_s * 1000)
        except kafka_errors.KafkaError as error:
            raise self._wrapped(error, "committing a transaction") from error
        if not answered:
            raise ProduceError(f"the broker did not answer a commit within {self._timeout_s:.0f} s", code="TDM-R042")

    def discard(self) -> None:
        """Close the producer without ending its transaction: the next producer of the id, or the timeout, aborts it."""
        producer = self._producer
        if producer._closed:  # noqa: SLF001 - see the module's docstring
            return
        producer._unregister_cleanup()  # noqa: SLF001 - as above
        producer._closed = True  # noqa: SLF001 - so that its destructor does not flush what must not be sent
        self._sender.force_close()
        self._sender.join(_JOIN_S)

    @property
    def has_predecessors(self) -> bool:
        """Whether the transactional id was opened before: an earlier producer of it may still be at work."""
        return self.producer_id_and_epoch[1] > 0

    @property
    def producer_id_and_epoch(self) -> tuple[int, int]:
        """The producer id and epoch that the broker has assigned."""
        state = self._transactions.producer_id_and_epoch
        return int(state.producer_id), int(state.epoch)


_JOIN_S: Final = 5.0


def _never(*_: object, **__: object) -> bool:
    return False


def client_settings(props: Mapping[str, Value]) -> dict[str, Any]:
    """Return the settings of a kafka-python client for librdkafka's `props`. Raises ConfigError."""
    config = connections.with_login(for_kafka_python(props))
    inner = {name: config.pop(name) for name in _CLIENT_ONLY & config.keys()}
    config["kafka_client"] = functools.partial(_client, inner)
    return config


def _client(inner: Mapping[str, object], **config: object) -> Any:  # noqa: ANN401 - kafka-python has no types
    whole = {**config, **inner}
    net = NetworkSelector(**whole)
    return KafkaNetClient(net=net, manager=connections.FailFastConnections(net, **whole))


def wrapped(error: BaseException | None, doing: str, *, open_s: float = 0.0) -> TransientError | PermanentError:
    """Return Tandem's error for one of kafka-python's. An error that is not known to be permanent counts as transient.

    `open_s` is how long, in seconds, the transaction has been open. Brokers send the same error for a transaction that
    they have aborted for its age and for a producer that was fenced: only the age tells them apart.
    """
    text = f"{doing}: {type(error).__name__}: {error}"
    code = code_of(error)
    match None if code is None else code.meaning:
        case ErrorMeaning.FENCED if open_s >= TRANSACTION_TIMEOUT_MS / 1000:
            return TransactionTimedOutError(
                f"{doing}: the transaction was open for {open_s:.0f} s, and the broker aborts one that is open for "
                f"{TRANSACTION_TIMEOUT_MS // 1000} s",
                code="TDM-R043",
                remedy="nothing of it counts, and the load goes on after the last commit; if it happens again, look "
                "what slows the brokers or this machine down",
            )
        case ErrorMeaning.FENCED:
            return FencedError(
                f"{doing}: another process has taken over this transactional id",
                code="TDM-R044",
                remedy="another run of the same restore is at work; let it finish, or stop it and start again",
            )
        case ErrorMeaning.DENIED:
            return ClusterDeniedError(
                text,
                code="TDM-R045",
                remedy="grant Write on the target and on the progress topic, and Write on TransactionalId "
                "tandem-restore-*",
            )
        case ErrorMeaning.AUTHENTICATION:
            return ClusterAuthenticationError(text, code="TDM-R046", remedy="check kafka: sasl.*")
    if code is not None and code.meaning in PERMANENT:
        return RejectedError(f"{text} ({code.name})", code="TDM-R047", remedy=code.remedy)
    return ProduceError(text, code="TDM-R048")
