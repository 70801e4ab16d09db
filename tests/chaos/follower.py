"""The independent consumer: reads along with all guarded topics from their first record on, and tells the facts."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

from chaos.facts import Facts, Place, Seen, digest_of

_QUIET_S = 30.0


def settings(bootstrap: str) -> dict[str, Any]:
    """Return what a consumer needs that belongs to no group in effect and sees committed records only."""
    return {
        "bootstrap.servers": bootstrap,
        "group.id": "chaos",
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "isolation.level": "read_committed",
        "auto.offset.reset": "earliest",
        "fetch.wait.max.ms": 100,
        "reconnect.backoff.max.ms": 1000,
        "log_level": 0,
    }


def seen_of(message: Any, *, place: Place | None = None) -> Seen:
    """Return what a message is; under another place if it came from a copy."""
    key, value, headers = message.key(), message.value(), tuple(message.headers() or ())
    return Seen(
        place or (message.topic(), message.partition()),
        message.offset(),
        key,
        digest_of(key, value, headers, message.timestamp()[1]),
        value is None,
    )


class Follower:
    """Reads from a thread; broker outages are waited out by the client library.

    A client that brings nothing for half a minute, while the writers never pause, is replaced by a new one: once, after
    a restart of the broker, one brought nothing for four minutes, though the pair's own reader went on.
    """

    def __init__(self, bootstrap: str, places: Iterable[Place], facts: Facts) -> None:
        self._bootstrap = bootstrap
        self._places = list(places)
        self._facts = facts
        self._next: dict[Place, int] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="follower", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join(_QUIET_S)

    @property
    def alive(self) -> bool:
        """Whether it still reads."""
        return self._thread.is_alive()

    def _run(self) -> None:
        while not self._stop.is_set():
            self._read(Consumer(settings(self._bootstrap)))

    def _read(self, consumer: Any) -> None:
        try:
            consumer.assign([TopicPartition(*place, self._next.get(place, OFFSET_BEGINNING)) for place in self._places])
            heard = time.monotonic()
            while not self._stop.is_set() and time.monotonic() - heard < _QUIET_S:
                for message in consumer.consume(500, timeout=0.2):
                    if self._take(message):
                        heard = time.monotonic()
        finally:
            consumer.close()

    def _take(self, message: Any) -> bool:
        """Tell the facts; return whether it is a record."""
        error, place = message.error(), (message.topic(), message.partition())
        if error is None:
            self._facts.follow(seen_of(message))
            self._next[place] = message.offset() + 1
        elif error.code() == KafkaError._PARTITION_EOF:
            self._facts.reach(place, message.offset())
            self._next[place] = message.offset()
        return error is None


def read_topics(bootstrap: str, places: Mapping[Place, Place]) -> dict[Place, list[Seen]]:
    """Read partitions from start to end; the values of `places` are the places to report them under.

    Raises TimeoutError if the broker goes quiet before their ends.
    """
    found: dict[Place, list[Seen]] = {name: [] for name in places.values()}
    unread = set(places)
    consumer: Any = Consumer(settings(bootstrap))
    try:
        consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for topic, number in places])
        heard = time.monotonic()
        while unread:
            messages = consumer.consume(2000, timeout=1.0)
            if messages:
                heard = time.monotonic()
            elif time.monotonic() - heard > _QUIET_S:
                raise TimeoutError(f"the broker sent nothing before the ends of {sorted(unread)}")
            for message in messages:
                place = (message.topic(), message.partition())
                error = message.error()
                if error is None and place in unread:
                    found[places[place]].append(seen_of(message, place=places[place]))
                elif error is not None and error.code() == KafkaError._PARTITION_EOF:
                    unread.discard(place)
    finally:
        consumer.close()
    return found
