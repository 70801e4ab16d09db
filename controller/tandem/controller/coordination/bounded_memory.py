"""Bounded memory for messages: a principal with Write on the topic can send any number of them. Pure.

The pair's two instances are always remembered. Of all other senders (people who run a command) only the newest are.
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
    """The last value of each key, in the order in which the keys first came.

    Keys for which `kept` is true stay. Of the others at most `most` are remembered: one more evicts the key that was
    noted longest ago, first among the values for which `gone` is true, if there are any.
    """

    def __init__(
        self, most: int, *, kept: Callable[[K], bool] = lambda _: False, gone: Callable[[V], bool] = lambda _: False
    ) -> None:
        self._most = most
        self._kept = kept
        self._gone = gone
        self._values: dict[K, V] = {}
        self._noted: dict[K, None] = {}  # keys that may be evicted, the one that was noted longest ago first

    def note(self, key: K, value: V) -> None:
        """Remember `value`, and make `key` the last one to be evicted."""
        self._values[key] = value
        if self._kept(key):
            return
        self._noted.pop(key, None)
        if len(self._noted) >= self._most:
            out = next((one for one in self._noted if self._gone(self._values[one])), next(iter(self._noted)))
            del self._noted[out], self._values[out]
        self._noted[key] = None

    def get(self, key: K) -> V | None:
        """Return the remembered value of a key; None if there is none."""
        return self._values.get(key)

    def __iter__(self) -> Iterator[V]:
        return iter(self._values.values())

    def as_dict(self) -> dict[K, V]:
        """Return all remembered values by key."""
        return dict(self._values)


def drop_unused_parts(message: CoordinationMessage, *, of_pair: bool) -> CoordinationMessage:
    """Return a message without its large unused parts: positions, endless texts, details from outside the pair."""
    cut: dict[str, Any] = {
        name: text[:LONGEST] for name in _TEXTS if len(text := getattr(message, name) or "") > LONGEST
    }
    details = message.details if of_pair else _NOTHING
    if not cut and not message.positions and details is message.details:
        return message
    return replace(message, positions=(), details=details, **cut)
