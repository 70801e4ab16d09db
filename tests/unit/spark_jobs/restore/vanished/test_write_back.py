"""Writing keys that vanished back into a log that others write to: a newer record is never overwritten."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tandem.backup_avro.chain.entries import PartitionKey
from tandem.backup_avro.record.current import Record, encode
from tandem.spark_jobs.restore.load.batch_producer import ProduceError
from tandem.spark_jobs.restore.vanished.find import KeptPartition, LostKeys, LostRecord
from tandem.spark_jobs.restore.vanished.write_back import WriteBack

KEYS = [b"a", b"b", b"c"]


class Log:
    """A partition from offset 100 on: what lies at an offset, and which of it was committed."""

    def __init__(self) -> None:
        self.keys: list[bytes | None] = []
        self.values: dict[bytes, str] = {}
        self.read = 0

    def put(self, key: bytes) -> None:
        """Another producer writes."""
        self.keys.append(key)
        self.values[key] = "newer"

    def records(self, end: int | None = None) -> Iterator[tuple[int, bytes | None]]:
        """As `LivePartition.records`."""
        if end is not None:
            assert end <= 100 + len(self.keys)
        until = len(self.keys) if end is None else end - 100
        while self.read < until:
            self.read += 1
            yield 99 + self.read, self.keys[self.read - 1]


class Producer:
    """A transactional producer; `at_begin` is called when a transaction begins, before anything is sent."""

    def __init__(self, log: Log, at_begin: Callable[[], None], *, knows: bool = True) -> None:
        self.log, self.at_begin, self.knows = log, at_begin, knows
        self.open: list[bytes] = []
        self.sent: list[list[bytes]] = []
        self.aborted = 0

    def know(self, topic: str) -> frozenset[int]:
        """The topic has one partition."""
        assert topic == "t"
        return frozenset([0])

    def begin(self) -> None:
        """Begin."""
        assert not self.open
        self.at_begin()

    def append(self, topic: str, partition: int, data: bytes, records: int) -> Any:
        """Append the keys of a batch, which stand in it uncompressed."""
        assert (topic, partition) == ("t", 0)
        keys = sorted((key for key in KEYS if b"key-" + key in data), key=data.index)
        assert len(keys) == records
        base = 100 + len(self.log.keys)
        self.log.keys += keys
        self.open += keys
        self.sent.append(keys)
        return SimpleNamespace(records=records, base_offset=lambda _: base if self.knows else -1)

    def commit(self) -> None:
        """Commit; a marker takes an offset."""
        for key in self.open:
            self.log.values[key] = "restored"
        self.log.keys.append(None)
        self.open = []

    def discard(self) -> None:
        """Leave the transaction; the next producer aborts it."""
        self.aborted += bool(self.open)
        self.log.keys += [None] * bool(self.open)
        self.open = []


def lost() -> LostKeys:
    """Three keys, at offsets 7, 8 and 9."""
    partition = KeptPartition(
        key=PartitionKey("id", 0), topic="t", kept=cast("Any", None), missing_in=cast("Any", None)
    )
    return LostKeys(partition=partition, offsets={key: 7 + n for n, key in enumerate(KEYS)}, vanished=3)


def records() -> list[LostRecord]:
    """Their records."""
    made = [(7 + n, b"key-" + key) for n, key in enumerate(KEYS)]
    bodies = [encode(Record(topic="t", partition=0, offset=offset, key=key, value=b"v")) for offset, key in made]
    return [LostRecord(offset=7 + n, key=key, body=bodies[n]) for n, key in enumerate(KEYS)]


def written(log: Log, producer: Producer) -> WriteBack:
    """Write all three back."""
    back = WriteBack(lost(), cast("Any", log), lambda: cast("Any", producer))
    back.write(records())
    return back


def test_keys_come_back_in_one_transaction() -> None:
    """All of them, in the order of their offsets."""
    log = Log()
    producer = Producer(log, lambda: None)
    assert written(log, producer).written == 3
    assert log.values == dict.fromkeys(KEYS, "restored")
    assert producer.sent == [KEYS]


def test_a_key_that_was_written_since_the_plan_is_not_sent() -> None:
    """The log is read again right before."""
    log = Log()
    log.put(b"b")
    producer = Producer(log, lambda: None)
    assert written(log, producer).written == 2
    assert producer.sent == [[b"a", b"c"]]
    assert log.values == {b"a": "restored", b"b": "newer", b"c": "restored"}


def test_a_key_that_is_written_meanwhile_keeps_its_newer_record() -> None:
    """Its record lies before those of the transaction, which is aborted and sent again without the key."""
    log = Log()
    others = [b"c"]
    producer = Producer(log, lambda: log.put(others.pop()) if others else None)
    assert written(log, producer).written == 2
    assert (producer.sent, producer.aborted) == ([KEYS, [b"a", b"b"]], 1)
    assert log.values == {b"a": "restored", b"b": "restored", b"c": "newer"}


def test_what_is_not_committed_is_aborted_at_once() -> None:
    """Also if no key is left to be written: an open transaction would hold back readers until it times out."""
    log = Log()
    others = list(KEYS)

    def write() -> None:
        while others:
            log.put(others.pop())

    producer = Producer(log, write)
    opened: list[int] = []

    def open_producer() -> Any:
        opened.append(producer.aborted)
        return producer

    back = WriteBack(lost(), cast("Any", log), open_producer)
    back.write(records())
    assert back.written == 0
    assert log.values == dict.fromkeys(KEYS, "newer")
    assert opened == [0, 1], "no producer followed that ends the transaction on the broker"


def test_nothing_is_committed_if_it_is_unknown_where_it_lies() -> None:
    """Then nobody can say what lies before it."""
    log = Log()
    producer = Producer(log, lambda: None, knows=False)
    with pytest.raises(ProduceError):
        written(log, producer)
    assert (log.values, producer.aborted) == ({}, 1)
