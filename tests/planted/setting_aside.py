"""Mistakes in one topic that can not be backed up, and what the instances cost."""

from __future__ import annotations

from planted.mistakes import Mistake

MISTAKES: tuple[Mistake, ...] = ()
