"""Estimating a restore's duration from the last drill of the pair, or else from guessed rates. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tandem.backup_avro.documents.outcome import JobOutcome

#: Measured into one broker on a machine with two cores (bench/README.md): conservative rates.
_GUESSED_RECORDS: Final = 200_000.0
_GUESSED_BYTES: Final = 10e6
_GUESSED_START_S: Final = 15.0
#: The phases of a drill whose duration grows with the number of records and bytes; the others are constant.
_GROWS: Final = frozenset({"load", "check"})


@dataclass(frozen=True, slots=True, kw_only=True)
class DurationEstimate:
    """About so many seconds. `measured`: by the last drill, else guessed."""

    seconds: float
    measured: bool


def estimate(records: int, size: int, drill: JobOutcome | None, *, rate: int | None) -> DurationEstimate:
    """Return the estimated duration of restoring `records` records in `size` stored bytes.

    Of the drill's time per record and its time per byte, the one that gives the longer duration counts, since either
    may be the limit. `rate` is the user's limit in bytes a second as sent, which are taken to be about as many as the
    stored bytes.
    """
    least = 0.0 if rate is None else size / rate
    if drill is None or not drill.clean or drill.records <= 0 or drill.bytes <= 0:
        grows = max(records / _GUESSED_RECORDS, size / _GUESSED_BYTES)
        return DurationEstimate(seconds=_GUESSED_START_S + max(grows, least), measured=False)
    took = sum(seconds for name, seconds in drill.phases.items() if name in _GROWS)
    grows = took * max(records / drill.records, size / drill.bytes)
    return DurationEstimate(seconds=drill.seconds - took + max(grows, least), measured=True)
