"""One memory budget for all pipelines of a process: the bytes that each may hold between fetch and store.

Half of the budget is split evenly among the open shares and is guaranteed to each; the other half goes to the
pipeline that fills it first. So a build that is always ahead of the store never stops the tail of the generation that
it is to replace, and that tail never stops the build. A single pipeline may hold the whole budget.
"""

from __future__ import annotations

import threading


class MemoryBudget:
    """Bytes that the open shares may hold together. Thread-safe.

    A merge of objects holds the lock `merging`: its memory is not part of the budget, so one pipeline merges at a time.
    """

    def __init__(self, size: int) -> None:
        self.bytes = size
        self._lock = threading.Lock()
        self._shares: list[MemoryShare] = []
        self.merging = threading.Lock()

    def open_share(self) -> MemoryShare:
        """Return a share for one pipeline. It counts until it is closed."""
        share = MemoryShare(self)
        with self._lock:
            self._shares.append(share)
        return share

    def _close(self, share: MemoryShare) -> None:
        with self._lock:
            self._shares = [one for one in self._shares if one is not share]

    @property
    def shares(self) -> int:
        """Number of open shares; 1 if none is open, as for a pipeline that has ended."""
        return max(1, len(self._shares))

    @property
    def guaranteed(self) -> int:
        """Bytes that are guaranteed to each open share."""
        return self.bytes // (2 * self.shares)

    def _limit_of(self, share: MemoryShare) -> int:
        with self._lock:
            others = [one.charged for one in self._shares if one is not share]
        guaranteed = self.bytes // (2 * (len(others) + 1))
        return max(0, self.bytes - sum(max(charged, guaranteed) for charged in others))


class MemoryShare:
    """The part of the budget that one pipeline holds. Only its thread writes `held` (bytes); any thread reads it."""

    def __init__(self, budget: MemoryBudget) -> None:
        self.budget = budget
        self.held = 0
        self._granted = 0

    @property
    def charged(self) -> int:
        """The part of `held` that counts against other shares: bytes beyond the granted limit don't."""
        return min(self.held, self._granted)

    @property
    def limit(self) -> int:
        """Bytes that this share may hold now: the budget without the others' bytes, held or guaranteed.

        A share that is opened while another one holds everything begins with 0, until that one has stored something.
        """
        return self.budget._limit_of(self)  # noqa: SLF001 (one class in two parts)

    def is_full(self) -> bool:
        """Return whether the share has reached its limit; if not, the current limit is granted to it."""
        limit = self.limit
        if self.held >= limit:
            return True
        self._granted = limit
        return False

    @property
    def worth_storing(self) -> int:
        """Held bytes from which a commit is due, so that fetching fills the rest while the commit is under way."""
        return max(self.limit, self.budget.guaranteed) // 2

    def close(self) -> None:
        """Return all bytes of this share to the budget. May be called twice."""
        self.held = 0
        self.budget._close(self)  # noqa: SLF001 (one class in two parts)
