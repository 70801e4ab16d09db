"""A broker whose fetch answers have records taken out on their way: no error, the right watermark, nothing to read.

Brokers, proxies and tiered storage answer so for a moment while records are there (librdkafka 5268, KAFKA-15388).
Clients are told of versions of Fetch up to 11 alone: its answers name topics, and have no fields of varying size.
"""

from __future__ import annotations

import math
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple, TypeAlias

from support.clusters.capped import FETCH, CappedKafka

_VERSION = 11

Place: TypeAlias = tuple[str, int]
Rule: TypeAlias = Callable[[list[Place]], set[Place]]
"""Which of the partitions of an answer that have records are sent none."""


class _Part(NamedTuple):
    """One partition in an answer: the length of its records stands at byte `at`."""

    place: Place
    at: int
    size: int


class EmptyingKafka(CappedKafka):
    """A broker behind a gate. `rule` may be changed at any time; `emptied` counts what was taken out."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, {FETCH: _VERSION}, {FETCH: self._change})
        self.emptied = 0
        self.rule: Rule = nothing
        self._lock = threading.Lock()

    def _change(self, frame: bytes, version: int) -> bytes:
        assert version == _VERSION, "clients choose the highest one that they are told of"
        parts = list(_parts(frame))
        having = [part.place for part in parts if part.size > 0]
        with self._lock:
            emptied = self.rule(having) if having else set()
            self.emptied += len(emptied)
        out, done = [], 0
        for part in parts:
            if part.place in emptied:
                out += [frame[done : part.at], struct.pack(">i", 0)]
                done = part.at + 4 + part.size
        return b"".join([*out, frame[done:]])


def _parts(frame: bytes) -> Iterator[_Part]:
    """Yield the partitions of an answer: Fetch 11 in Kafka's list of messages."""
    at = 4 + 4 + 2 + 4  # correlation, throttling, error, session
    (topics,) = struct.unpack_from(">i", frame, at)
    at += 4
    for _ in range(topics):
        (length,) = struct.unpack_from(">h", frame, at)
        name = frame[at + 2 : at + 2 + length].decode()
        (partitions,) = struct.unpack_from(">i", frame, at + 2 + length)
        at += 2 + length + 4
        for _ in range(partitions):
            (number,) = struct.unpack_from(">i", frame, at)
            at += 4 + 2 + 8 + 8 + 8  # and error, watermark, stable offset, log start
            (aborted,) = struct.unpack_from(">i", frame, at)
            at += 4 + 16 * max(aborted, 0) + 4  # and the preferred replica
            (size,) = struct.unpack_from(">i", frame, at)
            yield _Part((name, number), at, max(size, 0))
            at += 4 + max(size, 0)


def nothing(having: list[Place]) -> set[Place]:
    """Leave answers as they are."""
    del having
    return set()


def empties(place: Place, *, times: float = math.inf, seconds: float = math.inf) -> Rule:
    """Return a rule that takes a partition out of so many answers, for so long from the first one on."""
    left, until = times, math.inf

    def rule(having: list[Place]) -> set[Place]:
        nonlocal left, until
        if place not in having:
            return set()
        if until == math.inf:
            until = time.monotonic() + seconds
        left -= 1
        return {place} if left >= 0 and time.monotonic() < until else set()

    return rule


def serves_one(topic: str) -> Rule:
    """Return a rule that leaves the records of one partition of a topic in each answer."""
    return lambda having: set([place for place in having if place[0] == topic][1:])
