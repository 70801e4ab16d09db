"""Mistakes in reading logs: fetch, tail and scan."""

from __future__ import annotations

from planted.mistakes import Mistake

MISTAKES: tuple[Mistake, ...] = ()
