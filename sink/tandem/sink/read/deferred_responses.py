"""What a lane leaves for another fetch, because the memory that a step may fill is full. Pure.

What a response expands to is known only when it was transcoded. So a lane transcodes partition by partition, asks after
each, and leaves the others where they are: they are sought, and fetched again. Nothing that the response said of
them counts. At the next step they come first, those that have waited longest before all others, so that none starves
beside partitions that expand again and again.
"""

from __future__ import annotations

from collections.abc import Sequence

from tandem.sink.kafka.fetch.events import AtHead, Fetched, FetchFault, TopicPartition
from tandem.sink.read.reader_context import ReaderContext


class DeferredResponses:
    """One lane's. At least one partition's records are read in a step, however little room there is."""

    def __init__(self, context: ReaderContext) -> None:
        self._context = context
        self._waiting: dict[TopicPartition, None] = {}
        self._has_read = False

    def in_turn(self, events: Sequence[Fetched | AtHead | FetchFault]) -> Sequence[Fetched | AtHead | FetchFault]:
        """Begin a step: return its events with the records of those that were left before in front."""
        self._has_read = False
        if not self._waiting:
            return events
        places = {tp: place for place, tp in enumerate(self._waiting)}
        last = len(places)
        return sorted(
            events,
            key=lambda event: places.get(_tp(event), last) if isinstance(event, Fetched) and event.records else last,
        )

    def leaves(self, fetched: Fetched) -> bool:
        """Whether the caller must seek where it stands instead of reading this; what has no records is always read."""
        if not fetched.records:
            return False
        if self._has_read and self._context.is_full:
            self._waiting.setdefault(_tp(fetched))
            return True
        self._has_read = True
        self._waiting.pop(_tp(fetched), None)
        return False

    def forget(self, tp: TopicPartition) -> None:
        """The partition is read no more."""
        self._waiting.pop(tp, None)


def _tp(fetched: Fetched) -> TopicPartition:
    return TopicPartition(fetched.topic, fetched.partition)
