"""Limits the bytes of each broker's next answer, so that the answers of all brokers together fit into one sum.

A broker may answer in full at any time, and its answer is in memory before it can be counted. A hundred answers of
`fetch.max.bytes` would be most of a gigabyte outside of `memory.budget`. All fetchers of a process share the sum: half
of it is guaranteed to them, evenly, so that unread answers of a build never use up the share of the tail.
"""

from __future__ import annotations

import threading
from collections.abc import Collection
from typing import Final

from tandem.sink.kafka.fetch.assignment import LeaderBroker

LEAST: Final = 64 << 10
"""Least bytes requested of any broker, however many there are. One record batch always comes whole (KIP-74)."""
WHOLE_ANSWERS: Final = 4
"""Number of answers of the largest size that fit into the sum."""


class AnswerSum:
    """The bytes that the fetchers of a process may have requested and not yet handed out. Thread-safe.

    The sum stays within `WHOLE_ANSWERS` times `most`, and `LEAST` more for each broker of each fetcher.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._fetchers: dict[int, dict[int, LeaderBroker]] = {}

    def add(self, brokers: dict[int, LeaderBroker]) -> None:
        """Count the brokers of a fetcher, including later ones, until they are removed."""
        with self._lock:
            self._fetchers[id(brokers)] = brokers

    def remove(self, brokers: dict[int, LeaderBroker]) -> None:
        """Stop counting the brokers of a fetcher."""
        with self._lock:
            self._fetchers.pop(id(brokers), None)

    def reserve_bytes(self, broker: LeaderBroker, brokers: dict[int, LeaderBroker], *, most: int) -> int:
        """Record and return the number of bytes that the next request to `broker`, one of `brokers`, asks for.

        Called by the fetcher's thread when the request leaves.
        """
        with self._lock:
            others = [list(one.values()) for one in self._fetchers.values() if one is not brokers]
            broker.asked = bytes_to_ask(broker, list(brokers.values()), most=most, others=others)
            broker.in_flight = True
            return broker.asked


def bytes_to_ask(
    broker: LeaderBroker,
    brokers: Collection[LeaderBroker],
    *,
    most: int,
    others: Collection[Collection[LeaderBroker]] = (),
) -> int:
    """Return how many bytes the next request to `broker` asks for, at most `most`.

    `brokers` are all brokers of its fetcher, this one included; `others` are those of the other fetchers. If more than
    `WHOLE_ANSWERS` brokers are read from, idle ones are asked for `LEAST` bytes: they send little, or become busy by
    filling it. The busy ones, which had more to send at their last answer, share the remaining bytes.
    """
    total = WHOLE_ANSWERS * most
    beside = [found for one in others if (found := [other for other in one if _is_read(other)])]
    guaranteed = total // (2 * (len(beside) + 1))
    limit = total - sum(max(_asked(one), guaranteed) for one in beside)
    own = [one for one in brokers if one is broker or _is_read(one)]
    read = [*own, *(other for one in beside for other in one)]
    if len(read) <= WHOLE_ANSWERS:
        wanted = most
    elif broker.busy:
        wanted = min(_each(read, total), _each(own, limit))
    else:
        wanted = LEAST
    return min(most, max(LEAST, min(wanted, limit - _asked(own))))


def _is_read(broker: LeaderBroker) -> bool:
    return len(broker.session) > 0 or broker.in_flight or broker.buffered


def _asked(brokers: Collection[LeaderBroker]) -> int:
    return sum(one.asked for one in brokers if one.in_flight or one.buffered)


def _each(brokers: Collection[LeaderBroker], total: int) -> int:
    """Return the bytes of `total` for each busy one of `brokers`; at least one has to be busy."""
    busy = sum(one.busy for one in brokers)
    return (total - LEAST * (len(brokers) - busy)) // busy
