"""Mistakes in which topic it is: ids, names, brokers of other versions."""
# ruff: noqa: E501 (places are quoted as they stand)

from __future__ import annotations

from planted.mistakes import Mistake

MISTAKES: tuple[Mistake, ...] = ()
