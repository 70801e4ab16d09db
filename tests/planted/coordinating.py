"""Mistakes in floods, forgeries and numbers out of range."""
# ruff: noqa: E501 (places are quoted as they stand)

from __future__ import annotations

from planted.mistakes import Mistake

MISTAKES: tuple[Mistake, ...] = ()
