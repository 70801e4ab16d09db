"""The wait before the next build after builds that ended spoilt. Pure.

A claim and the entries of its chain are never deleted. If every build is spoilt at once (a broker that answers
wrongly, a topic that deletes faster than it is read), claims would follow one another every few seconds for good.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tandem.backup_avro.chain.generation import Generation

_FIRST_REST_S: Final = 10.0
_LONGEST_REST_S: Final = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SpoiltBuilds:
    """The newest generations in a row that were tainted, or never became COMPLETE: `count`.

    `claimed_at` is when the newest generation was claimed, in ms by the store's clock; `why` its taint, if it has one.
    """

    count: int = 0
    claimed_at: int = 0
    why: str = ""

    @property
    def rest_s(self) -> float:
        """Return the seconds between the newest claim and the next: 0 after one spoilt build, then doubling."""
        if self.count < 2:
            return 0.0
        return min(_FIRST_REST_S * 2.0 ** min(self.count - 2, 16), _LONGEST_REST_S)

    def must_wait(self, at: int) -> bool:
        """Return whether the next build waits at `at`, ms by the store's clock; a clock set back ends the wait."""
        return 0 <= at - self.claimed_at < self.rest_s * 1000

    def __str__(self) -> str:
        """Return their number, and why the last one was spoilt."""
        if not self.count:
            return ""
        last = f"; the last one because {self.why}" if self.why else ""
        return f"{self.count} generations in a row were tainted or never complete{last}"


NONE_SPOILT: Final = SpoiltBuilds()


def spoilt_builds(history: Sequence[Generation]) -> SpoiltBuilds:
    """Return the spoilt builds at the end of `history`, which holds all generations ever claimed, ascending."""
    count = 0
    for generation in reversed(history):
        if generation.complete and not generation.taints:
            break
        count += 1
    if not count:
        return NONE_SPOILT
    newest = history[-1]
    why = next((taint.reason for taint in newest.taints.values()), "")
    return SpoiltBuilds(count=count, claimed_at=newest.claim.at, why=why)
