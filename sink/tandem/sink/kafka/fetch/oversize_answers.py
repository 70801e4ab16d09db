"""Finds the partition that makes an answer larger than a frame may be.

A response exceeds its limit by one record batch at most, the first one of the first partition that has any (KIP-74). If
it exceeds `receive.message.max.bytes` as well, the connection is closed, and the answers for all partitions of that
broker are lost: again and again, as the next request is the same. So each partition of such a request is requested
alone, until the one is found that can't be read. It rests, and the others are read on.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from tandem.sink.kafka.events import FaultKind, TopicPartition
from tandem.sink.kafka.fetch.assignment import AssignedPartition, Assignment, LeaderBroker, backoff
from tandem.sink.kafka.wire.sessions import PartitionRequest

_FIRST_REST: Final = 30.0
_LONGEST_REST: Final = 600.0


def next_suspect(broker: LeaderBroker) -> tuple[tuple[TopicPartition, PartitionRequest], ...]:
    """Return the partition that has to be requested alone now, with its request; an empty tuple if there is none."""
    while broker.suspects:
        tp = broker.suspects.popleft()
        ask = broker.session.wanted(tp)
        if ask is not None:
            return ((tp, ask),)
    return ()


def answer_too_large(
    assignment: Assignment, broker: LeaderBroker, asked: Collection[TopicPartition], *, most: int, now: float
) -> None:
    """Record that the answer to a request for `asked` has more than `most` bytes, the limit of a frame."""
    found = [part for tp in asked if (part := assignment.parts.get(tp)) is not None]
    if len(asked) > 1:
        broker.suspects.clear()
        broker.suspects.extend(part.tp for part in sorted(found, key=_suspect_order))
        return
    for part in found:
        broker.suspects.clear()
        detail = (
            f"what comes next in {part}, from offset {part.offset} on, does not fit receive.message.max.bytes "
            f"({most:,}): raise that in `kafka`, and the memory of the process by as much"
        )
        assignment.add_fault(part, FaultKind.TOO_LARGE, detail, now)
        assignment.retry(part, now + backoff(part.failures, first=_FIRST_REST, most=_LONGEST_REST))
        part.failures += 1


def _suspect_order(part: AssignedPartition) -> int:
    """Return the sort key for suspects: first one that was too large before, then those that may have records."""
    if FaultKind.TOO_LARGE in part.told:
        return 0
    return 2 if 0 <= part.end <= part.offset else 1
