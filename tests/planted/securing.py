"""Mistakes in Spark, logs and files that others may reach."""

from __future__ import annotations

from planted.mistakes import Mistake

MISTAKES: tuple[Mistake, ...] = ()
