"""When an answer without records below the end of a log is believed; pure.

Compaction may have removed all that lies between a position and the end of its log, and then a fetch rightly brings
nothing. Brokers, proxies and tiered storage also answer so for a moment while records are there
(librdkafka 5268, KAFKA-15388). The two
answers look the same, so an empty answer alone says nothing. What is believed is that `ANSWERS` answers in a row, over
at least `SECONDS` seconds, name the same end of the log in the same leader epoch and bring no record. All but the first
are answers to requests of another shape: outside of the session, for this partition alone, with all the room that a
response has. The pauses between them grow.

An end that moves while nothing comes begins the count anew: what was appended last is in the active segment, which is
never cleaned, so the broker has records that it does not send.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from tandem.sink.kafka.fetch.events import Evidence, TopicPartition

_PAUSES: Final = (0.1, 0.2, 0.4, 0.8, 1.5)
"""Seconds between an answer and the next request."""
_LONGEST_PAUSE: Final = 10.0
_UNANSWERED: Final = 2.0
"""Seconds after which a request is made again that brought no answer, or one that says nothing."""

ANSWERS: Final = len(_PAUSES) + 1
SECONDS: Final = sum(_PAUSES)


class EmptyRange(NamedTuple):
    """What an empty answer is about: nothing readable in [offset, end), by the leader of `leader_epoch`.

    `serial` is that of the assignment or seek that the request belonged to.
    """

    serial: int
    offset: int
    end: int
    leader_epoch: int


@dataclass(slots=True, kw_only=True)
class _Claim:
    """What was answered about one place so far. `shown` counts how often it was believed and not made use of."""

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
        """Take an empty answer. Returns the evidence if that is enough to believe it; then the count begins anew.

        A place that was believed and is asked about once more, because nobody went on from it, is asked about ever more
        rarely.
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
        """Records came, or the position is at the end: nothing is claimed any more."""
        self._claims.pop(tp, None)

    def take_due(self, now: float) -> tuple[TopicPartition, EmptyRange] | None:
        """Return a partition that is to be asked about alone now, the one that waits longest; None if none is."""
        tp = min(self._claims, key=lambda tp: self._claims[tp].ask_at, default=None)
        if tp is None or self._claims[tp].ask_at > now:
            return None
        claim = self._claims[tp]
        claim.ask_at = now + _UNANSWERED
        return tp, claim.place

    @property
    def next_due(self) -> float | None:
        """When `take_due` has something to return."""
        return min((claim.ask_at for claim in self._claims.values()), default=None)
