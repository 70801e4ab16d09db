"""Mistakes in one history: the contents of a log against what was read."""

from __future__ import annotations

from planted.mistakes import Mistake

MISTAKES: tuple[Mistake, ...] = ()
