"""Sets aside topics whose objects the store refuses while it takes others: they rest, longer each time. Pure."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from tandem.sink.kafka.fetch.assignment import backoff

_FIRST_REST_S = 60.0
_LONGEST_REST_S = 3600.0
_NAMED = 5


@dataclass(slots=True, kw_only=True)
class _Resting:
    """Why the store refuses a topic, how often in a row, and when it is read again (seconds by `process.clock`)."""

    name: str
    why: str
    failures: int
    until: float


class TopicsAside:
    """Topics by id that were set aside. Used by the pipeline's thread alone.

    A topic stays here until records of it are committed, or it is no longer guarded. Its rest doubles with each
    refusal, from a minute to an hour, because each attempt reads the records that are not stored once more.
    """

    def __init__(self) -> None:
        self._topics: dict[str, _Resting] = {}

    def __len__(self) -> int:
        return len(self._topics)

    def __contains__(self, topic_id: str) -> bool:
        return topic_id in self._topics

    def set_aside(self, topic_id: str, *, name: str, why: str, now: float) -> None:
        """Rest a topic because the store refuses its objects for the reason `why`."""
        before = self._topics.get(topic_id)
        failures = 0 if before is None else before.failures + 1
        until = now + backoff(failures, first=_FIRST_REST_S, most=_LONGEST_REST_S)
        self._topics[topic_id] = _Resting(name=name, why=why, failures=failures, until=until)

    def committed(self, topic_ids: Collection[str]) -> None:
        """Forget topics of which records were committed."""
        for topic_id in self._topics.keys() & set(topic_ids):
            del self._topics[topic_id]

    def forget_unguarded(self, guarded: Collection[str]) -> None:
        """Forget the topics that are no longer guarded."""
        for topic_id in self._topics.keys() - set(guarded):
            del self._topics[topic_id]

    def is_set_aside(self, topic_id: str, now: float) -> bool:
        """Return whether a topic must not be read now."""
        found = self._topics.get(topic_id)
        return found is not None and now < found.until

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the topics that were set aside."""
        return tuple(sorted(one.name for one in self._topics.values()))

    @property
    def trouble(self) -> str | None:
        """The topics that were set aside, the first few with the reason; None if there is none."""
        found = sorted(self._topics.values(), key=lambda one: one.name)
        if not found:
            return None
        named = "; ".join(f"{one.name}: {one.why}" for one in found[:_NAMED])
        more = f"; and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
        return f"topics are set aside, because the store takes nothing of them: {named}{more}"
