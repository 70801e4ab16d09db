"""The recovery window: how far back moments can be restored, beside what the configuration promises. Pure."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime

from tandem.backup_avro.chain.generation import Generation
from tandem.backup_avro.chain.integers import utc_time
from tandem.backup_avro.selection import moments
from tandem.controller.cli.output.output import at, duration
from tandem.controller.decision.decide import Reason
from tandem.controller.decision.observation import Policy


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryWindow:
    """Every moment from `start` to now can be restored; `promised_s` is recovery.window, 0 if nothing is promised.

    `missing_s` is how much of what was promised is gone: a pair that is younger than its window misses nothing.
    `full_at` is when the window is as long as promised, if nothing happens; None if it is. `copies` is how
    many generations the schedule of turns needs at once.
    """

    start: datetime
    length_s: float
    promised_s: float
    missing_s: float
    full_at: datetime | None
    copies: int

    @property
    def text(self) -> str:
        """The window in a sentence or two."""
        back = f"Recovery window: {duration(self.length_s)}"
        if not self.promised_s:
            return f"{back}; recovery.window promises none, so the next turn may end it."
        promised = f"recovery.window promises {duration(self.promised_s)}"
        if self.full_at is None:
            return f"{back}; {promised}."
        why = "older copies are gone" if self.missing_s else "the backup is not older"
        return f"{back}, as {why}; {promised}, reached at {at(self.full_at)}."


def recovery_window(generations: Collection[Generation], *, now: int, policy: Policy) -> RecoveryWindow | None:
    """Return the window at `now`, ms by the store's clock; None if no generation can be restored."""
    start = moments.unbroken_from(generations)
    if start is None:
        return None
    promised_ms, length_ms = _promised_ms(policy), max(0, now - start)
    cut = cut_until(generations, start, policy)
    return RecoveryWindow(
        start=utc_time(start),
        length_s=length_ms / 1000,
        promised_s=promised_ms / 1000,
        missing_s=0.0 if cut is None else max(0, cut - now) / 1000,
        full_at=utc_time(start + promised_ms) if length_ms < promised_ms else None,
        copies=most_copies(policy.recovery_window_s, policy.rotation_interval_s),
    )


def cut_until(generations: Collection[Generation], start: int | None, policy: Policy) -> int | None:
    """Return until when (ms) less can be restored than was promised, as older copies are gone; None if none are.

    It may have passed already. `start` is that of the window (`moments.unbroken_from`), None if there is none.
    """
    if start is None or not policy.recovery_window_s or _begins_with_the_backup(generations, start):
        return None
    return start + _promised_ms(policy)


def most_copies(window_s: float, rotation_s: float) -> int:
    """Return how many generations the schedule of turns needs at once: the Active's, one being built, those kept.

    A build may take half a rotation interval; a later one is reported as overdue. Requested turns add to it.
    """
    return 2 + max(0, math.ceil(window_s / rotation_s - 0.5))


def _promised_ms(policy: Policy) -> int:
    return round(policy.recovery_window_s * 1000)


def _begins_with_the_backup(generations: Collection[Generation], start: int) -> bool:
    """Whether the first complete generation of the pair begins the window: no earlier moment ever was restorable."""
    first = next((g for g in generations if g.completed_at == start), None)
    return first is not None and first.claim.reason == Reason.NOTHING_EXISTS
