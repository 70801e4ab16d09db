"""What tandem.spark_jobs.restore.progress.batch_producer relies on inside kafka-python's producer, on a real broker."""

from __future__ import annotations

import inspect
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Consumer, KafkaError, Message, TopicPartition
from kafka import KafkaProducer
from kafka.producer.future import FutureProduceResult
from kafka.producer.producer_batch import ProducerBatch
from kafka.producer.record_accumulator import RecordAccumulator
from kafka.producer.sender import Sender
from kafka.producer.transaction_manager import TransactionManager
from kafka.record.default_records import DefaultRecordBatch
from kafka.record.memory_records import MemoryRecordsBuilder
from support.clusters.topics import TopicMaker

from tandem.backup_avro.record.current import Record, TimestampType, encode
from tandem.controller.sandbox.kafka import KafkaServer
from tandem.sink.transcode.avro_to_batch import build_batches
from tandem.sink.transcode.batch import Compression
from tandem.sink.transcode.body_operations import BuiltBatch
from tandem.spark_jobs.restore.lease.fencing import fence
from tandem.spark_jobs.restore.progress import batch_producer
from tandem.spark_jobs.restore.progress.batch_producer import (
    BatchProducer,
    FencedError,
    ProduceError,
    ReadyRecords,
    RejectedError,
    TransactionTimedOutError,
)

# The records are old: with the usual retention the broker would delete them at once.
_KEEP = {"retention.ms": "-1"}
_HEADERS: tuple[tuple[str, bytes | None], ...] = (("h", b"1"), ("h", None), ("", b""))


def _records(count: int, *, first: int = 0, size: int = 20) -> list[Record]:
    """Records of one partition with a gap after each."""
    return [
        Record(
            topic="source",
            partition=3,
            offset=first + 2 * n,
            timestamp=1_600_000_000_000 + n,
            timestamp_type=TimestampType.CREATE_TIME,
            key=b"k%d" % n,
            value=b"v" * size,
            headers=_HEADERS if n % 2 else (),
        )
        for n in range(count)
    ]


def _built(
    records: list[Record], *, compression: Compression = Compression.NONE, most: int = 1000, size: int = 900_000
) -> list[BuiltBatch]:
    body = b"".join(map(encode, records))
    return list(
        build_batches(body, len(records), max_batch_bytes=size, max_batch_records=most, compression=compression)
    )


def _read(bootstrap: str, topic: str, *, level: str = "read_committed", least: int = 0) -> list[Message]:
    """Read to the end, or on until there are `least`: a commit is answered before its marker is in the log."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "contract",
            "isolation.level": level,
            "enable.partition.eof": True,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: list[Message] = []
    try:
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            message = consumer.poll(1.0)
            if message is None:
                continue
            if error := message.error():
                if error.code() == KafkaError._PARTITION_EOF and len(found) >= least:
                    return found
                continue
            found.append(message)
    finally:
        consumer.close()
    raise AssertionError(f"{topic} was not read to its end")


@pytest.fixture
def producer(kafka: KafkaServer, topic_name: str) -> Iterator[Callable[..., BatchProducer]]:
    """A function that makes a producer with this test's own transactional id; all are discarded afterwards."""
    made: list[BatchProducer] = []

    def make(*, timeout_s: float = 20.0, suffix: str = "") -> BatchProducer:
        made.append(
            BatchProducer({"bootstrap.servers": kafka.bootstrap}, f"contract-{topic_name}{suffix}", timeout_s=timeout_s)
        )
        return made[-1]

    yield make
    for item in made:
        item.discard()


def _ready(producer: BatchProducer, topic: str) -> None:
    producer.init_transactions()
    assert producer.know(topic) == {0}
    producer.begin()


def test_the_parts_that_are_entered_exist() -> None:
    """Every inner name that produce.py uses is there, with the arguments that it gives."""
    assert list(inspect.signature(ProducerBatch.__init__).parameters) == ["self", "tp", "records", "now"]
    assert list(inspect.signature(Sender._can_split).parameters) == ["self", "batch", "error"]
    assert list(inspect.signature(Sender._is_retention_based_unknown_producer_id).parameters) == [
        "self",
        "batch",
        "error_cls",
        "log_start_offset",
    ]
    assert list(inspect.signature(TransactionManager._supports_epoch_bump).parameters) == ["self"]
    assert list(inspect.signature(TransactionManager.begin_commit).parameters) == ["self"]
    assert list(inspect.signature(TransactionManager.maybe_add_partition_to_transaction).parameters) == [
        "self",
        "topic_partition",
    ]
    assert list(inspect.signature(TransactionManager.is_send_to_partition_allowed).parameters) == ["self", "tp"]
    assert list(inspect.signature(FutureProduceResult.wait).parameters) == ["self", "timeout"]
    accumulator = RecordAccumulator()
    for name in ("_appends_in_progress", "_closed", "_batches", "_incomplete", "_tp_lock"):
        assert hasattr(accumulator, name), name
    assert callable(KafkaProducer._unregister_cleanup)


def test_records_are_asked_for_nothing_else() -> None:
    """kafka-python asks a batch's records for no more than ReadyRecords answers."""
    wanted = {name for name in dir(MemoryRecordsBuilder) if not name.startswith("_")} - {"append", "records", "skip"}
    assert wanted <= set(dir(ReadyRecords))


def test_producer_state_lies_where_it_is_written() -> None:
    """Id, epoch, sequence and the transactional bit are read back by kafka-python's own decoder, with a right CRC."""
    [batch] = _built(_records(5))
    records = ReadyRecords(batch.data, batch.records)
    records.set_producer_state(2**40 + 7, 300, 70_000, True)
    read = DefaultRecordBatch(records.buffer())
    assert (read.producer_id, read.producer_epoch, read.base_sequence) == (2**40 + 7, 300, 70_000)
    assert read.is_transactional
    assert read.validate_crc()
    assert [record.key for record in read] == [b"k%d" % n for n in range(5)]
    assert records.next_offset() == 5


@pytest.mark.integration
@pytest.mark.parametrize("compression", list(Compression))
def test_batches_arrive_as_they_are(
    kafka: KafkaServer, make_topic: TopicMaker, producer: Callable[..., BatchProducer], compression: Compression
) -> None:
    """Committed batches of every compression arrive with key, value, headers and timestamp, numbered from 0."""
    topic = make_topic(compacted=False, config=_KEEP)
    records = _records(25)
    sender = producer()
    _ready(sender, topic)
    sent = [
        sender.append(topic, 0, batch.data, batch.records)
        for batch in _built(records, compression=compression, most=10)
    ]
    assert [item.base_offset(20) for item in sent] == [0, 10, 20]
    assert _read(kafka.bootstrap, topic) == []
    sender.commit()
    found = _read(kafka.bootstrap, topic, least=25)
    assert [(m.key(), m.value(), tuple(m.headers() or ()), m.timestamp()[1]) for m in found] == [
        (r.key, r.value, r.headers, r.timestamp) for r in records
    ]


@pytest.mark.integration
def test_sequences_count_records_over_many_transactions(
    kafka: KafkaServer, make_topic: TopicMaker, producer: Callable[..., BatchProducer]
) -> None:
    """Batches of different sizes in several transactions keep the broker's sequence check content, in order."""
    topic = make_topic(compacted=False, config=_KEEP)
    sender = producer()
    sender.init_transactions()
    sender.know(topic)
    for round_ in range(4):
        sender.begin()
        sent = [
            sender.append(topic, 0, batch.data, batch.records)
            for most in (1, 7, 3)
            for batch in _built(_records(20, first=1000 * round_), most=most)
        ]
        assert all(item.base_offset(20) >= 0 for item in sent)
        sender.commit()
    assert [m.key() for m in _read(kafka.bootstrap, topic, least=240)] == [b"k%d" % n for n in range(20)] * 12


@pytest.mark.integration
def test_a_batch_that_is_too_large_fails_once(make_topic: TopicMaker, producer: Callable[..., BatchProducer]) -> None:
    """A batch of many records above max.message.bytes is refused with an error, not split, and not waited for."""
    topic = make_topic(compacted=False, config={"max.message.bytes": "2000", **_KEEP})
    sender = producer()
    _ready(sender, topic)
    [batch] = _built(_records(200))
    began = time.monotonic()
    with pytest.raises(RejectedError, match="TooLarge"):
        sender.append(topic, 0, batch.data, batch.records).base_offset(20)
    assert time.monotonic() - began < 10
    with pytest.raises((ProduceError, RejectedError)):
        sender.commit()


@pytest.mark.integration
def test_a_damaged_batch_is_an_error_though_its_future_succeeds(
    make_topic: TopicMaker, producer: Callable[..., BatchProducer]
) -> None:
    """The broker's refusal comes as the future's success value; Sent turns it into an error."""
    topic = make_topic(compacted=False, config=_KEEP)
    sender = producer()
    _ready(sender, topic)
    [batch] = _built(_records(3))
    # Says that it holds one record more than it does.
    broken = batch.data[:57] + (4).to_bytes(4, "big") + batch.data[61:]
    sent = sender.append(topic, 0, broken, 3)
    with pytest.raises((ProduceError, RejectedError)):
        sent.base_offset(20)
    assert sent._future.succeeded()
    assert sent._future.value[2] is not None


@pytest.mark.integration
def test_what_was_discarded_is_aborted_by_the_next_of_that_id(
    kafka: KafkaServer, make_topic: TopicMaker, producer: Callable[..., BatchProducer]
) -> None:
    """Discarding leaves the transaction open; opening the same id again aborts it and goes on with a new epoch."""
    topic = make_topic(compacted=False, config=_KEEP)
    first = producer()
    _ready(first, topic)
    [batch] = _built(_records(5))
    first.append(topic, 0, batch.data, batch.records).base_offset(20)
    before = first.producer_id_and_epoch
    first.discard()
    second = producer()
    _ready(second, topic)
    assert second.producer_id_and_epoch[0] == before[0]
    assert second.producer_id_and_epoch[1] > before[1]
    [batch] = _built(_records(2))
    second.append(topic, 0, batch.data, batch.records).base_offset(20)
    second.commit()
    assert [m.key() for m in _read(kafka.bootstrap, topic, least=2)] == [b"k0", b"k1"]
    assert len(_read(kafka.bootstrap, topic, level="read_uncommitted")) == 7


@pytest.mark.integration
@pytest.mark.parametrize("moment", ["before sending", "before committing"])
def test_a_fenced_producer_stays_fenced(
    kafka: KafkaServer, make_topic: TopicMaker, producer: Callable[..., BatchProducer], moment: str
) -> None:
    """Once fenced, sending or committing fails, nothing of it is seen, and it does not fence its successor."""
    topic = make_topic(compacted=False, config=_KEEP)
    [batch] = _built(_records(5))
    zombie = producer()
    _ready(zombie, topic)
    if moment == "before committing":
        zombie.append(topic, 0, batch.data, batch.records).base_offset(20)
    heir = producer()
    _ready(heir, topic)
    epoch = heir.producer_id_and_epoch
    if moment == "before sending":
        sent = zombie.append(topic, 0, batch.data, batch.records)
        with pytest.raises(FencedError):
            sent.base_offset(20)
    with pytest.raises(FencedError):
        zombie.commit()
    time.sleep(1)
    heir.append(topic, 0, batch.data, batch.records).base_offset(20)
    heir.commit()
    assert heir.producer_id_and_epoch == epoch
    assert len(_read(kafka.bootstrap, topic, least=5)) == 5


@pytest.mark.integration
def test_fence_ends_an_open_transaction(
    kafka: KafkaServer, make_topic: TopicMaker, producer: Callable[..., BatchProducer], topic_name: str
) -> None:
    """`fence` aborts what is open under an id, so that read_committed reaches the end again."""
    topic = make_topic(compacted=False, config=_KEEP)
    zombie = producer()
    _ready(zombie, topic)
    [batch] = _built(_records(5))
    zombie.append(topic, 0, batch.data, batch.records).base_offset(20)
    fence({"bootstrap.servers": kafka.bootstrap}, f"contract-{topic_name}")
    with pytest.raises(FencedError):
        zombie.commit()
    assert _read(kafka.bootstrap, topic) == []


@pytest.mark.integration
def test_one_record_travels_with_the_batches(
    kafka: KafkaServer, make_topic: TopicMaker, producer: Callable[..., BatchProducer]
) -> None:
    """A single record sent in the same transaction is seen if and only if the batches are."""
    topic, side = make_topic(compacted=False, config=_KEEP), make_topic(compacted=False, config=_KEEP)
    sender = producer()
    _ready(sender, topic)
    sender.know(side)
    [batch] = _built(_records(5))
    sender.append(topic, 0, batch.data, batch.records).base_offset(20)
    sender.send(side, 0, key=b"key", value=b"value")
    assert (_read(kafka.bootstrap, topic), _read(kafka.bootstrap, side)) == ([], [])
    sender.commit()
    assert len(_read(kafka.bootstrap, topic, least=5)) == 5
    assert [(m.key(), m.value()) for m in _read(kafka.bootstrap, side, least=1)] == [(b"key", b"value")]


@pytest.mark.integration
def test_a_broker_that_pauses_is_waited_for(own_kafka: Callable[..., KafkaServer], make_topic: TopicMaker) -> None:
    """A broker that stands still in mid-transaction is waited for, in bounds: nothing is lost, nothing is twice."""
    server = own_kafka()
    topic = make_topic(compacted=False, config=_KEEP, bootstrap=server.bootstrap)
    sender = BatchProducer({"bootstrap.servers": server.bootstrap}, "contract-pause", timeout_s=30)
    try:
        _ready(sender, topic)
        [batch] = _built(_records(5))
        server.suspend()
        sent = [sender.append(topic, 0, batch.data, batch.records) for _ in range(3)]
        with pytest.raises(ProduceError, match="within"):
            sent[0].base_offset(0.5)
        threading.Timer(3, server.resume).start()
        assert [item.base_offset(40) for item in sent] == [0, 5, 10]
        sender.commit()
    finally:
        sender.discard()
    assert len(_read(server.bootstrap, topic, least=15)) == 15


@pytest.mark.integration
def test_a_transaction_that_times_out_is_no_takeover(
    kafka: KafkaServer,
    make_topic: TopicMaker,
    producer: Callable[..., BatchProducer],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The broker answers as if another producer had taken over; the age of the transaction tells. A new one goes on."""
    monkeypatch.setattr(batch_producer, "TRANSACTION_TIMEOUT_MS", 1000)
    topic = make_topic(compacted=False, config=_KEEP)
    late = producer()
    _ready(late, topic)
    [batch] = _built(_records(2))
    late.append(topic, 0, batch.data, batch.records).base_offset(20.0)
    time.sleep(14.0)  # the coordinator looks every ten seconds
    with pytest.raises(TransactionTimedOutError):
        late.commit()
    after = producer()
    _ready(after, topic)
    after.append(topic, 0, batch.data, batch.records).base_offset(20.0)
    after.commit()
    assert len(_read(kafka.bootstrap, topic, least=2)) == 2


@pytest.mark.integration
def test_a_time_limit_above_that_of_the_brokers_is_refused(
    producer: Callable[..., BatchProducer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """At once and for good, with the setting that has to be changed."""
    monkeypatch.setattr(batch_producer, "TRANSACTION_TIMEOUT_MS", 24 * 3600 * 1000)
    with pytest.raises(RejectedError, match=r"transaction\.max\.timeout\.ms"):
        producer().init_transactions()


@pytest.mark.integration
def test_a_record_outside_of_transactions_has_no_marker_behind_it(
    kafka: KafkaServer, make_topic: TopicMaker, producer: Callable[..., BatchProducer]
) -> None:
    """It has the producer's id and epoch, and the next transaction goes on after it."""
    topic = make_topic(compacted=False, config=_KEEP)
    sender = producer()
    _ready(sender, topic)
    [batch], [one] = _built(_records(5)), _built(_records(1))
    sender.append(topic, 0, batch.data, batch.records).base_offset(20)
    sender.commit()
    _wait_for_end(kafka.bootstrap, topic, 6)
    assert sender.append_outside(topic, 0, one.data, 1).base_offset(20) == 6
    assert _end(kafka.bootstrap, topic) == 7
    sender.begin()
    sender.append(topic, 0, batch.data, batch.records).base_offset(20)
    sender.commit()
    assert len(_read(kafka.bootstrap, topic, least=11)) == 11


@pytest.mark.integration
@pytest.mark.parametrize("marked", [True, False])
def test_a_marker_fences_records_outside_of_transactions(
    kafka: KafkaServer, make_topic: TopicMaker, producer: Callable[..., BatchProducer], marked: bool
) -> None:
    """A newer producer alone does not: a leader refuses an older epoch only if it has seen a newer one."""
    topic = make_topic(compacted=False, config=_KEEP)
    [batch], [one] = _built(_records(5)), _built(_records(1))
    zombie = producer()
    _ready(zombie, topic)
    zombie.append(topic, 0, batch.data, batch.records).base_offset(20)
    zombie.commit()
    _wait_for_end(kafka.bootstrap, topic, 6)
    heir = producer()
    heir.init_transactions()
    heir.know(topic)
    assert heir.has_predecessors
    if not marked:
        assert zombie.append_outside(topic, 0, one.data, 1).base_offset(20) == 6
        return
    heir.mark(topic, 0)
    _wait_for_end(kafka.bootstrap, topic, 7)
    with pytest.raises(FencedError):
        zombie.append_outside(topic, 0, one.data, 1).base_offset(20)
    assert heir.append_outside(topic, 0, one.data, 1).base_offset(20) == 7
    assert _end(kafka.bootstrap, topic) == 8


def _end(bootstrap: str, topic: str) -> int:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "contract"})
    try:
        return int(consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=20)[1])
    finally:
        consumer.close()


def _wait_for_end(bootstrap: str, topic: str, end: int) -> None:
    deadline = time.monotonic() + 30
    while _end(bootstrap, topic) < end:
        assert time.monotonic() < deadline, "the marker is not written"
