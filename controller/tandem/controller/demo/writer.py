"""The demo's writer: produces to the topic, and keeps a ledger of the records with their offsets."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from confluent_kafka import KafkaError, Message, Producer

from tandem.backup_avro.errors import PermanentError
from tandem.controller.demo.airports import AirportChange, Headers


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """One record with the offset that the broker acknowledged. `timestamp` in ms."""

    partition: int
    offset: int
    timestamp: int
    key: bytes
    value: bytes | None
    headers: Headers


class Ledger:
    """All acknowledged records, in offset order within each partition."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._written: list[Written] = []
        self.failed: str | None = None

    def note(self, change: AirportChange, error: KafkaError | None, message: Message) -> None:
        """Record a delivery report."""
        partition, offset = message.partition(), message.offset()
        if error is not None or partition is None or offset is None:
            self.failed = str(error)
            return
        record = Written(
            partition=partition,
            offset=offset,
            timestamp=message.timestamp()[1],
            key=change.key,
            value=change.value,
            headers=change.headers,
        )
        with self._lock:
            self._written.append(record)

    def __len__(self) -> int:
        return len(self._written)

    def first(self, count: int) -> list[Written]:
        """Return the first `count` records that the broker acknowledged."""
        with self._lock:
            return self._written[:count]

    def tombstones(self) -> int:
        """Return how many records were tombstones."""
        with self._lock:
            return sum(record.value is None for record in self._written)

    def latest(self, ends: dict[int, int] | None = None) -> dict[tuple[int, bytes], Written]:
        """Return the last record of each key in each partition, below the given end of the partition."""
        found: dict[tuple[int, bytes], Written] = {}
        with self._lock:
            written = list(self._written)
        for record in written:
            if ends is not None and record.offset >= ends.get(record.partition, 0):
                continue
            slot = (record.partition, record.key)
            if slot not in found or found[slot].offset < record.offset:
                found[slot] = record
        return found


class DemoWriter:
    """Writes a first load at full speed, then changes at a constant rate in a thread, until stopped."""

    def __init__(self, bootstrap_servers: str, topic: str, ledger: Ledger) -> None:
        self._topic = topic
        self._ledger = ledger
        self._producer: Any = Producer(
            {
                "bootstrap.servers": bootstrap_servers,
                "compression.type": "lz4",
                "linger.ms": 20,
                "acks": "all",
                "log_level": 0,  # else librdkafka writes to the terminal when the sandbox stops
            }
        )
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def write(self, changes: Iterable[AirportChange]) -> None:
        """Write all changes and wait for the acknowledgements. Raises PermanentError if the broker refused a record."""
        for change in changes:
            self._send(change)
        self._producer.flush(60)
        if self._ledger.failed is not None:
            raise PermanentError(f"the broker refused a record of the demo: {self._ledger.failed}", code="TDM-D008")

    def keep_writing(self, changes: Iterator[AirportChange], *, per_second: int) -> None:
        """Write changes in a thread, `per_second` records a second, until `stop`."""
        self._thread = threading.Thread(target=self._run, args=(changes, per_second), name="writer", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread and wait until the broker has acknowledged all records."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(30)
        self._producer.flush(60)

    def _run(self, changes: Iterator[AirportChange], per_second: int) -> None:
        began, sent = time.monotonic(), 0
        while not self._stop.is_set():
            due = int((time.monotonic() - began) * per_second)
            for _ in range(min(due - sent, per_second)):
                self._send(next(changes))
            sent = due
            self._producer.poll(0)
            self._stop.wait(0.05)

    def _send(self, change: AirportChange) -> None:
        while True:
            try:
                self._producer.produce(
                    self._topic,
                    key=change.key,
                    value=change.value,
                    headers=list(change.headers),
                    on_delivery=lambda error, message: self._ledger.note(change, error, message),
                )
            except BufferError:
                self._producer.poll(0.1)
            else:
                return
