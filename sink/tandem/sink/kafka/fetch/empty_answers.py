"""Decides when answers without records below the end of a log are accepted as proof that none are left there.

Compaction may have removed all records between a position and the end of its log, and then a fetch correctly returns
nothing. Brokers, proxies and tiered storage also answer without records for a moment while records exist
(librdkafka 5268, KAFKA-15388). Both answers look the same, so one empty answer proves nothing. Accepted are `ANSWERS`
answers in a row, over at least `SECONDS` seconds, with the same end of the log, the same leader epoch and no record.
All but the first answer requests of another shape: outside of the session, for this partition alone, with the whole
size of a response. The pauses between them grow.

An end that moves while no records come restarts the count: the last appended records are in the active segment, which
is never cleaned, so the broker has records that it does not send.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from tandem.sink.kafka.events import Evidence, TopicPartition

_PAUSES: Final = (0.1, 0.2, 0.4, 0.8, 1.5)
"""Seconds between an answer and the next request."""
_LONGEST_PAUSE: Final = 10.0
_UNANSWERED: Final = 2.0
"""Seconds after which a request is repeated if there was no answer, or none that proves anything."""

ANSWERS: Final = len(_PAUSES) + 1
SECONDS: Final = sum(_PAUSES)


class EmptyRange(NamedTuple):
    """The claim of an empty answer: no readable record in [offset, end), by the leader of `leader_epoch`.

    `serial` is that of the assignment or seek to which the request belonged.
    """

    serial: int
    offset: int
    end: int
    leader_epoch: int


@dataclass(slots=True, kw_only=True)
class _Claim:
    """The empty answers for one range so far. `shown` counts how often evidence was returned but not used."""

    place: EmptyRange
    since: float
    ask_at: float
    answers: int = 1
    counted: int = 1
    shown: int = 0


class EmptyAnswers:
    """The empty answers of one broker. Times are seconds of one clock."""

    def __init__(self) -> None:
        self._claims: dict[TopicPartition, _Claim] = {}

    def add(self, tp: TopicPartition, place: EmptyRange, *, asked_alone: bool, now: float) -> Evidence | None:
        """Add an empty answer. Returns the evidence once there is enough of it; then the count begins anew.

        If the reader does not use the evidence and stays at its position, the pauses between further requests grow.
        """
        claim = self._claims.get(tp)
        if claim is None or claim.place != place:
            self._claims[tp] = _Claim(place=place, since=now, ask_at=now + _PAUSES[0])
            return None
        if not asked_alone:
            return None
        claim.answers += 1
        claim.counted += 1
        evidence = None
        if claim.counted >= ANSWERS:
            evidence = Evidence(answers=claim.answers, since=claim.since, until=now)
            claim.counted, claim.shown = 1, claim.shown + 1
        claim.ask_at = now + min(_PAUSES[claim.counted - 1] * 2.0 ** min(claim.shown, 16), _LONGEST_PAUSE)
        return evidence

    def forget(self, tp: TopicPartition) -> None:
        """Discard the answers for a partition, because records came or the position is at the end."""
        self._claims.pop(tp, None)

    def take_due(self, now: float) -> tuple[TopicPartition, EmptyRange] | None:
        """Return the partition that has to be requested alone now and waits longest; None if none is due."""
        tp = min(self._claims, key=lambda tp: self._claims[tp].ask_at, default=None)
        if tp is None or self._claims[tp].ask_at > now:
            return None
        claim = self._claims[tp]
        claim.ask_at = now + _UNANSWERED
        return tp, claim.place

    @property
    def next_due(self) -> float | None:
        """Time of the next `take_due` that returns a partition; None if there is none."""
        return min((claim.ask_at for claim in self._claims.values()), default=None)
