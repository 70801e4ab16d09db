"""Mistakes in errors of brokers while a restore loads."""
# ruff: noqa: E501 (places are quoted as they stand)

from __future__ import annotations

from planted.mistakes import Mistake

MISTAKES: tuple[Mistake, ...] = ()
