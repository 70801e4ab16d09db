"""One memory budget for all pipelines of a process: how much each may hold between fetch and store. Pure.

Half of the budget is split evenly among the open shares and is guaranteed to each; the other half is for whichever
pipeline fills it first. So a build that is always ahead of the store never stops the tail of the generation that it is
to replace, and the build is never stopped by that tail either. A pipeline that is alone has all of it.
"""

from __future__ import annotations

import threading


class MemoryBudget:
    """Bytes that the open shares may hold together. For any thread.

    Who merges objects holds `merging`: what that takes is beside the budget, so one pipeline does it at a time.
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
        """How many shares are open; 1 if none is, as for a pipeline that has ended."""
        return max(1, len(self._shares))

    @property
    def guaranteed(self) -> int:
        """Bytes that no other share may take from one that is open."""
        return self.bytes // (2 * self.shares)

    def _limit_of(self, share: MemoryShare) -> int:
        with self._lock:
            others = [one.charged for one in self._shares if one is not share]
        guaranteed = self.bytes // (2 * (len(others) + 1))
        return max(0, self.bytes - sum(max(charged, guaranteed) for charged in others))


class MemoryShare:
    """What one pipeline holds of the budget. `held` are its bytes; written by its thread alone, read by all."""

    def __init__(self, budget: MemoryBudget) -> None:
        self.budget = budget
        self.held = 0
        self._granted = 0

    @property
    def charged(self) -> int:
        """Bytes that others have to do without: what was read at once beyond the limit takes nothing from them."""
        return min(self.held, self._granted)

    @property
    def limit(self) -> int:
        """Bytes that it may hold now: all but what the others hold, and what is guaranteed to them.

        A share that was opened while another had taken everything begins with 0, until that one has stored something.
        """
        return self.budget._limit_of(self)  # noqa: SLF001 (one class in two parts)

    def is_full(self) -> bool:
        """Whether it holds all that it may. If not, what it may hold now is granted to it."""
        limit = self.limit
        if self.held >= limit:
            return True
        self._granted = limit
        return False

    @property
    def worth_storing(self) -> int:
        """Bytes from which on a commit is due, so that the rest of the share is filled while it is under way."""
        return max(self.limit, self.budget.guaranteed) // 2

    def close(self) -> None:
        """Give everything back. May be called twice."""
        self.held = 0
        self.budget._close(self)  # noqa: SLF001 (one class in two parts)
