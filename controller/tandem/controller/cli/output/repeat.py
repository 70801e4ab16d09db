"""Polling, for commands that follow a process of the pair."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from tandem.backup_avro.errors import TransientError
from tandem.controller.cli.output import output

Seen = TypeVar("Seen")


def looks(look: Callable[[], Seen], *, every_s: float, for_s: float | None = None) -> Iterator[Seen]:
    """Yield the result of `look` about every `every_s` seconds, and once more at the very end of `for_s` seconds.

    Errors of the first call are raised. A later call that raises TransientError is reported once and repeated.
    """
    began = time.monotonic()
    yield look()
    troubled = False
    while for_s is None or time.monotonic() - began < for_s:
        left = every_s if for_s is None else min(every_s, began + for_s - time.monotonic())
        time.sleep(max(0.0, left))
        try:
            seen = look()
        except TransientError as error:
            if not troubled:
                output.warn(f"no answer, going on: {error.args[0] if error.args else type(error).__name__}")
            troubled = True
            continue
        troubled = False
        yield seen
