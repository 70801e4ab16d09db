"""Defers the rest of a response to another fetch when the memory that a step may fill is full. Pure.

The size of a response is known only after it was transcoded. So a lane transcodes partition by partition, checks the
budget after each, and defers the others: it seeks to their unchanged positions and fetches them again. Nothing that
the response says of a deferred partition counts. At the next step deferred partitions come first, the one that has
waited longest before all others, so that none starves beside partitions that expand again and again.
"""

from __future__ import annotations

from collections.abc import Sequence

from tandem.sink.kafka.events import AtHead, Fetched, FetchFault, TopicPartition
from tandem.sink.read.reader_context import ReaderContext


class DeferredResponses:
    """The deferred partitions of one lane. Each step reads the records of at least one, however small the room."""

    def __init__(self, context: ReaderContext) -> None:
        self._context = context
        self._waiting: dict[TopicPartition, None] = {}
        self._has_read = False

    def order_events(self, events: Sequence[Fetched | AtHead | FetchFault]) -> Sequence[Fetched | AtHead | FetchFault]:
        """Begin a step: return its events, with those of partitions that were deferred before in front.

        Events of one partition keep their order: what comes behind a lost leader may be of another log.
        """
        self._has_read = False
        if not self._waiting:
            return events
        places = {tp: place for place, tp in enumerate(self._waiting)}
        last = len(places)
        return sorted(
            events,
            key=lambda event: last if isinstance(event, AtHead) else places.get(_tp(event), last),
        )

    def must_defer(self, fetched: Fetched) -> bool:
        """Return whether the caller must seek to its position instead of reading this response.

        A response without records is never deferred.
        """
        if not fetched.records:
            return False
        if self._has_read and self._context.is_full:
            self._waiting.setdefault(_tp(fetched))
            return True
        self._has_read = True
        self._waiting.pop(_tp(fetched), None)
        return False

    def forget(self, tp: TopicPartition) -> None:
        """Forget a partition that is no longer read."""
        self._waiting.pop(tp, None)


def _tp(event: Fetched | FetchFault) -> TopicPartition:
    return TopicPartition(event.topic, event.partition)
