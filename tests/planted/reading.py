"""Mistakes in reading logs: fetch, tail and scan."""

from __future__ import annotations

from planted.mistakes import Mistake

MISTAKES: tuple[Mistake, ...] = (
    Mistake(
        name="positions are looked through while the committer adds some",
        file="sink/drafts.py",
        old="for key in list(self._state.positions) if key not in read",
        new="for key in self._state.positions if key not in read",
    ),
)
