"""Mistakes in restores, groups and sweeps."""
# ruff: noqa: E501 (places are quoted as they stand)

from __future__ import annotations

from planted.mistakes import Mistake

MISTAKES: tuple[Mistake, ...] = ()
