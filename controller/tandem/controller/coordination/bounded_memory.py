"""What is remembered of messages, within bounds: whoever may write to the topic can send as many as it takes. Pure.

The pair's two instances are always remembered. Of all others, people with a command, only the newest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final, Generic, TypeVar

from tandem.backup_avro.documents.coordination_message import CoordinationMessage

STRANGERS: Final = 64
"""Senders from outside the pair, or their messages, that are remembered."""
INCARNATIONS: Final = 32
"""Processes of one instance that are remembered; a topic that has not been compacted yet names more."""
HEADS: Final = 256
"""Generations whose heads are remembered."""
LONGEST: Final = 1000
"""Characters of a text that are remembered."""
_TEXTS: Final = ("incarnation", "cluster_id", "request_id", "target", "state", "reason")
_NOTHING: Final[Mapping[str, str]] = MappingProxyType({})

K = TypeVar("K")
V = TypeVar("V")


class BoundedMap(Generic[K, V]):
    """The last value of each key, in the order in which the keys first came; those not `kept` are `most` at most.

    One more, and the one goes that was noted longest ago; of those `gone` says true of, if there are any.
    """

    def __init__(
        self, most: int, *, kept: Callable[[K], bool] = lambda _: False, gone: Callable[[V], bool] = lambda _: False
    ) -> None:
        self._most = most
        self._kept = kept
        self._gone = gone
        self._values: dict[K, V] = {}
        self._noted: dict[K, None] = {}  # of those that may go, the one that was noted longest ago first

    def note(self, key: K, value: V) -> None:
        """Remember `value`; what was noted last is not what goes."""
        self._values[key] = value
        if self._kept(key):
            return
        self._noted.pop(key, None)
        if len(self._noted) >= self._most:
            out = next((one for one in self._noted if self._gone(self._values[one])), next(iter(self._noted)))
            del self._noted[out], self._values[out]
        self._noted[key] = None

    def get(self, key: K) -> V | None:
        """Return what is remembered of a key."""
        return self._values.get(key)

    def __iter__(self) -> Iterator[V]:
        return iter(self._values.values())

    def as_dict(self) -> dict[K, V]:
        """Return all that is remembered."""
        return dict(self._values)


def lean(message: CoordinationMessage, *, of_pair: bool) -> CoordinationMessage:
    """Return a message without what is large and asked of nobody: positions, endless texts, details of strangers."""
    cut: dict[str, Any] = {
        name: text[:LONGEST] for name in _TEXTS if len(text := getattr(message, name) or "") > LONGEST
    }
    details = message.details if of_pair else _NOTHING
    if not cut and not message.positions and details is message.details:
        return message
    return replace(message, positions=(), details=details, **cut)
