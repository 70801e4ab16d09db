"""How long a restore will take, about. Pure: from what the last drill of this pair took, else from a guess."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tandem.backup_avro.documents.outcome import JobOutcome

#: Of a restore into one broker on a machine with two cores (bench/README.md): a floor rather than a hope.
_GUESSED_RECORDS: Final = 200_000.0
_GUESSED_BYTES: Final = 10e6
_GUESSED_START_S: Final = 15.0
#: What depends on how much there is; the rest of a drill's time is spent once.
_GROWS: Final = frozenset({"load", "check"})


@dataclass(frozen=True, slots=True, kw_only=True)
class DurationEstimate:
    """About so many seconds. `measured`: by the last drill, else guessed."""

    seconds: float
    measured: bool


def estimate(records: int, size: int, drill: JobOutcome | None, *, rate: int | None) -> DurationEstimate:
    """Return how long it takes to restore `records` in `size` stored bytes.

    The worse of what the drill took for a record and for a byte counts, since one of the two is what limits. `rate` is
    what the user allows, in bytes a second as sent, which are taken to be about those that are stored.
    """
    least = 0.0 if rate is None else size / rate
    if drill is None or not drill.clean or drill.records <= 0 or drill.bytes <= 0:
        grows = max(records / _GUESSED_RECORDS, size / _GUESSED_BYTES)
        return DurationEstimate(seconds=_GUESSED_START_S + max(grows, least), measured=False)
    took = sum(seconds for name, seconds in drill.phases.items() if name in _GROWS)
    grows = took * max(records / drill.records, size / drill.bytes)
    return DurationEstimate(seconds=drill.seconds - took + max(grows, least), measured=True)
