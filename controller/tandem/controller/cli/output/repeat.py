"""Looking again and again: for commands that follow how something goes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from tandem.backup_avro.errors import TransientError
from tandem.controller.cli.output import output

Seen = TypeVar("Seen")


def looks(look: Callable[[], Seen], *, every_s: float, for_s: float | None = None) -> Iterator[Seen]:
    """Yield what `look` returns, about every `every_s` seconds, and once more at the very end of `for_s`.

    The first look raises what it meets. Later ones that fail in passing are told once and tried again.
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
