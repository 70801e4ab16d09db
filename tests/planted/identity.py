"""Mistakes in which topic it is: ids, names, brokers of other versions."""

from __future__ import annotations

from planted.mistakes import Mistake

MISTAKES: tuple[Mistake, ...] = ()
