"""Mistakes in floods, forgeries and numbers out of range."""

from __future__ import annotations

from planted.mistakes import Mistake

MISTAKES: tuple[Mistake, ...] = ()
