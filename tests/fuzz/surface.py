"""One reader of input from outside: how sound input of it is twisted, and what reads it."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

WHERE: Final = "here"
"""What readers are told that their input is called."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Surface:
    """`refusals` are errors that the caller of `read` turns into ours, besides ours."""

    name: str
    twist: Callable[[random.Random], Any]
    read: Callable[[Any], object]
    refusals: tuple[type[Exception], ...] = ()
