"""Transactions into a live partition: fenced first, aborted at once, committed only if it is known where they lie."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from tandem.backup_avro.record.current import Record, encode
from tandem.sink.kafka.errors.cluster_errors import ClusterUnreachableError
from tandem.sink.transcode.batch import Compression
from tandem.spark_jobs.restore.live_write import live_transactions
from tandem.spark_jobs.restore.live_write.guarded_writer import GuardedWriter, PlannedRecord
from tandem.spark_jobs.restore.live_write.live_transactions import LiveTransactions
from tandem.spark_jobs.restore.progress.batch_producer import FencedError, ProduceError, RejectedError

BODIES = [encode(Record(topic="t", partition=3, offset=at, key=b"k%d" % at, value=b"v")) for at in (7, 9)]


class Producer:
    """Notes what is called; `base` is the offset that the broker answers with, -1 for none."""

    calls: list[str]
    base = 40
    failures = 0

    def __init__(self, props: Any, transactional_id: str) -> None:
        assert props == {}
        self.calls.append(f"new {transactional_id}")

    def init_transactions(self) -> None:
        """Fail as often as is wanted, then fence."""
        if Producer.failures:
            Producer.failures -= 1
            raise ProduceError("busy", code="TDM-R001")
        self.calls.append("fence")

    def know(self, topic: str) -> None:
        """The topic is `t`."""
        assert topic == "t"

    def begin(self) -> None:
        """Begin."""
        self.calls.append("begin")

    def append(self, topic: str, partition: int, data: bytes, records: int) -> Any:
        """Append a batch."""
        assert (topic, partition) == ("t", 3)
        self.calls.append(f"append {records} {max(1, len(data) // 100)}")
        return SimpleNamespace(records=records, base_offset=lambda _: self.base)

    def commit(self) -> None:
        """Commit."""
        self.calls.append("commit")

    def discard(self) -> None:
        """Close the connections."""
        self.calls.append("discard")


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is called of all producers."""
    Producer.calls, Producer.base, Producer.failures = [], 40, 0
    monkeypatch.setattr(live_transactions, "BatchProducer", Producer)
    return Producer.calls


def transactions(max_message_bytes: int = 1_000_000, *, codecs: int = 0, codec: str = "producer") -> LiveTransactions:
    """Of partition t-3."""
    config = {"max.message.bytes": str(max_message_bytes), "compression.type": codec}
    return LiveTransactions(props={}, transactional_id="id", place=("t", 3), config=config, codecs=codecs)


def test_a_transaction_tells_where_its_records_lie(calls: list[str]) -> None:
    """One producer serves all transactions."""
    live = transactions()
    for _ in range(2):
        transaction = live.begin()
        assert transaction.send(BODIES) == [(40, 41)]
        transaction.commit()
    live.close()
    assert calls == ["new id", "fence", *["begin", "append 2 1", "commit"] * 2, "discard"]


def test_an_abandoned_transaction_is_aborted_at_once(calls: list[str]) -> None:
    """By the next producer of the id: else readers of committed records wait until it times out."""
    live = transactions()
    live.begin().abandon()
    assert calls == ["new id", "fence", "begin", "discard", "new id", "fence"]


class NoOthers:
    """A log into which nobody else writes."""

    def written_since(self, own: Any, *, until: int | None = None) -> set[int]:  # noqa: ARG002 - a protocol
        """Nothing."""
        return set()

    def committed_at(self, own: Any) -> set[int]:  # noqa: ARG002 - likewise
        """Nothing."""
        return set()


@pytest.mark.parametrize("error", [RejectedError("too large", code="TDM-R047"), KeyboardInterrupt()])
def test_a_failed_transaction_is_aborted_at_once(
    error: BaseException, calls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The topic is live: its readers would wait until the transaction times out."""
    live = transactions()
    monkeypatch.setattr(Producer, "commit", raising(error))
    with pytest.raises(type(error)):
        GuardedWriter(log=NoOthers(), begin=live.begin).write([PlannedRecord(7, BODIES[0])])
    assert calls == ["new id", "fence", "begin", "append 1 1", "discard", "new id", "fence"]


def test_the_error_is_that_of_the_transaction(monkeypatch: pytest.MonkeyPatch, calls: list[str]) -> None:
    """Also if the broker does not answer the abort either."""
    live = transactions()
    live.fence()
    monkeypatch.setattr(Producer, "append", raising(RejectedError("too large", code="TDM-R047")))
    monkeypatch.setattr(Producer, "init_transactions", raising(ClusterUnreachableError("gone", code="TDM-R001")))
    with pytest.raises(RejectedError):
        GuardedWriter(log=NoOthers(), begin=live.begin).write([PlannedRecord(7, BODIES[0])])
    assert calls[-1] == "discard"


def test_a_fenced_producer_aborts_nothing(calls: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """It would fence the one that has taken over."""
    live = transactions()
    monkeypatch.setattr(Producer, "append", raising(FencedError("another", code="TDM-R044")))
    with pytest.raises(FencedError):
        GuardedWriter(log=NoOthers(), begin=live.begin).write([PlannedRecord(7, BODIES[0])])
    assert calls == ["new id", "fence", "begin"]


def raising(error: BaseException) -> Callable[..., None]:
    """A method that fails."""

    def fail(*_: object) -> None:
        raise error

    return fail


def test_batches_keep_to_the_topics_limit(calls: list[str]) -> None:
    """A topic may take less than brokers do by default."""
    bodies = [encode(Record(topic="t", partition=3, offset=at, key=b"k", value=bytes(400))) for at in range(8)]
    transactions(max_message_bytes=1000).begin().send(bodies)
    assert len([call for call in calls if call.startswith("append")]) > 2


@pytest.mark.parametrize(
    ("codecs", "codec", "fits"),
    [(0, "producer", False), (1 << Compression.GZIP, "producer", True), (0, "zstd", True)],
    ids=["never compressed", "batches of the topic", "the topic"],
)
def test_batches_have_a_codec_of_the_topic(codecs: int, codec: str, *, fits: bool, calls: list[str]) -> None:
    """A value that came compressed may be larger than the topic's limit without."""
    body = encode(Record(topic="t", partition=3, offset=7, key=b"k", value=bytes(4_000)))
    transactions(1000, codecs=codecs, codec=codec).begin().send([body])
    [records, hundreds] = calls[-1].removeprefix("append ").split()
    assert records == "1"
    assert (int(hundreds) * 100 < 1000) is fits


def test_nothing_is_committed_if_it_is_unknown_where_it_lies(calls: list[str]) -> None:
    """Then nobody can say what lies before it."""
    Producer.base = -1
    with pytest.raises(ProduceError, match="TDM-R138"):
        transactions().begin().send(BODIES)
    assert "commit" not in calls


def test_fencing_is_tried_again(calls: list[str]) -> None:
    """The coordinator may be ending the transaction of the one before."""
    Producer.failures = 2
    transactions().fence()
    assert calls == ["new id", "discard", "new id", "discard", "new id", "fence"]
