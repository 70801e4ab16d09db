"""Writers that never stop: plain, idempotent, transactional. Each tells the facts what the broker confirmed.

A record has an id among its headers, so that no two are alike. A writer works through broker outages by itself: what it
never learned about (a transaction whose end it did not hear) is left to the independent consumer.
"""

from __future__ import annotations

import random
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from chaos.facts import Facts, Headers, Place, Seen, digest_of

_TURN_S = 0.1
_TOMBSTONES = 0.18
_ABORTS = 0.2
_FLUSH_S = 60.0
_BATCH = 25
# Longer than any outage: a writer that gives a record up does not know whether it is in the log.
_PATIENCE_MS = 600_000


class Kind(StrEnum):
    """How a writer writes."""

    PLAIN = "plain"
    IDEMPOTENT = "idempotent"
    TRANSACTIONAL = "transactional"


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What one writer writes. `rate` in records a second, `keys` per partition; `stamped` if the broker sets times."""

    name: str
    kind: Kind
    places: tuple[Place, ...]
    rate: int
    keys: int
    stamped: frozenset[str] = frozenset()


class Writer:
    """Writes from a thread until it is stopped."""

    def __init__(self, bootstrap: str, order: Order, facts: Facts, *, seed: str) -> None:
        self._bootstrap = bootstrap
        self._order = order
        self._facts = facts
        self._random = random.Random(seed)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"writer-{order.name}", daemon=True)
        self._number = 0
        self._life = 0
        self._pending: list[Seen] = []
        self._ended: deque[tuple[float, bool, list[Seen]]] = deque(maxlen=1000)
        self._producer = self._open()
        self.sent = 0
        self.commits = 0
        self.aborts = 0
        self.troubles: list[str] = []

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Ask it to end; `join` waits."""
        self._stop.set()

    def join(self) -> None:
        """Wait until the broker has what was sent, or does not answer."""
        if self._thread.ident is not None:
            self._thread.join(2 * _FLUSH_S)

    @property
    def transactional_id(self) -> str | None:
        """Under which name it begins transactions, if it does."""
        return f"chaos-{self._order.name}" if self._order.kind is Kind.TRANSACTIONAL else None

    @property
    def alive(self) -> bool:
        """Whether it still writes."""
        return self._thread.is_alive()

    # --- the thread -------------------------------------------------------------------------------------------------

    def _open(self) -> Any:
        self._life += 1
        settings: dict[str, Any] = {
            "bootstrap.servers": self._bootstrap,
            "acks": "all",
            "linger.ms": 10,
            "message.timeout.ms": _PATIENCE_MS,
            "reconnect.backoff.max.ms": 1000,
            "queue.buffering.max.messages": 5000,
            "compression.type": self._random.choice(["none", "lz4", "zstd"]),
            "log_level": 0,
        }
        if self._order.kind is not Kind.PLAIN:
            settings["enable.idempotence"] = True
        if self._order.kind is Kind.TRANSACTIONAL:
            settings |= {
                "transactional.id": self.transactional_id,
                "transaction.timeout.ms": 20_000,
                "message.timeout.ms": 20_000,
            }
        return Producer(settings)

    def _run(self) -> None:
        if self._order.kind is Kind.TRANSACTIONAL:
            self._begin_again()
        owed, last = 0.0, time.monotonic()
        while not self._stop.wait(_TURN_S):
            now = time.monotonic()
            # What an outage held back is not made up for, so that the load stays what it is.
            owed, last = min(owed + (now - last) * self._order.rate, 2.0 * _BATCH), now
            if self._order.kind is Kind.TRANSACTIONAL:
                if owed >= _BATCH:
                    owed -= self._transaction(self._random.randint(1, 2 * _BATCH))
            else:
                while owed >= 1:
                    owed -= 1
                    self._send(self._confirmed)
                self._producer.poll(0)
        if self._order.kind is not Kind.TRANSACTIONAL:
            self._producer.flush(_FLUSH_S)

    def _transaction(self, count: int) -> int:
        self._pending = []
        try:
            self._producer.begin_transaction()
            for _ in range(count):
                self._send(self._collected)
            if self._random.random() < _ABORTS:
                # Written, then taken back: without the flush nothing of it would ever reach the log.
                self._producer.flush(_FLUSH_S)
                self._end(committed=False)
            else:
                self._end(committed=True)
        except KafkaException as error:
            self._trouble(error)
            self._recover(error)
        return count

    def records_of(self, at: float) -> list[Seen]:
        """Return the records of the transaction that was being committed `at` this time (UNIX s), none if none was."""
        for began, committed, records in reversed(list(self._ended)):
            if began <= at:
                return list(records) if committed else []
        return []

    def _end(self, *, committed: bool) -> None:
        self._ended.append((time.time(), committed, self._pending))
        while True:
            try:
                if committed:
                    self._producer.commit_transaction(10)
                else:
                    self._producer.abort_transaction(10)
            except KafkaException as error:
                if not error.args[0].retriable():
                    raise
                self._trouble(error)
            else:
                break
        for seen in self._pending:
            (self._facts.acknowledge if committed else self._facts.abort)(seen)
        self.commits += committed
        self.aborts += not committed

    def _recover(self, error: KafkaException) -> None:
        """Abort if that is what it asks for; else begin as a new producer, which ends what was open at the broker."""
        if error.args[0].txn_requires_abort():
            try:
                self._end(committed=False)
            except KafkaException as again:
                self._trouble(again)
            else:
                return
        self._begin_again()

    def _begin_again(self) -> None:
        self._pending = []
        fresh = self._life == 1 and self.sent == 0
        while not self._stop.is_set():
            if not fresh:
                self._producer = self._open()
            try:
                self._producer.init_transactions(20)
            except KafkaException as error:
                self._trouble(error)
                fresh = False
            else:
                return

    def _trouble(self, error: KafkaException) -> None:
        self.troubles.append(str(error.args[0]))
        del self.troubles[:-20]

    # --- records ----------------------------------------------------------------------------------------------------

    def _send(self, told: Any) -> None:
        topic, partition = self._random.choice(self._order.places)
        self._number += 1
        key = b"key-%d" % self._random.randrange(self._order.keys)
        value, headers = self._value(), self._headers()
        timestamp = round(time.time() * 1000)
        stamped = topic in self._order.stamped

        def delivered(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                self.troubles.append(f"{self._order.name}: {error}")
                return
            offset = message.offset()
            if offset is None or offset < 0:
                return  # in the log, but the broker did not say where: the consumer will tell
            time_ms = message.timestamp()[1] if stamped else timestamp
            digest = digest_of(key, value, headers, time_ms)
            told(Seen((topic, partition), offset, key, digest, value is None))

        while not self._stop.is_set():
            try:
                self._producer.produce(
                    topic,
                    partition=partition,
                    key=key,
                    value=value,
                    headers=list(headers),
                    timestamp=0 if stamped else timestamp,
                    on_delivery=delivered,
                )
            except BufferError:
                self._producer.poll(0.2)
            else:
                self.sent += 1
                return

    def _confirmed(self, seen: Seen) -> None:
        self._facts.acknowledge(seen)

    def _collected(self, seen: Seen) -> None:
        self._pending.append(seen)

    def _value(self) -> bytes | None:
        draw = self._random.random()
        if draw < _TOMBSTONES:
            return None
        if draw < _TOMBSTONES + 0.03:
            return b""
        return self._random.randbytes(self._random.choice([8, 60, 200]))

    def _headers(self) -> Headers:
        headers: list[tuple[str, bytes | None]] = [("id", f"{self._order.name}/{self._life}/{self._number}".encode())]
        draw = self._random.random()
        if draw < 0.2:
            headers += [("again", b"1"), ("again", b"2"), ("none", None), ("empty", b"")]
        elif draw < 0.3:
            headers.insert(0, ("größe", b"\x00\xff"))
        return tuple(headers)


def stop_all(writers: Sequence[Writer]) -> None:
    """Stop all at once and wait for them."""
    for writer in writers:
        writer.stop()
    for writer in writers:
        with suppress(RuntimeError):
            writer.join()
