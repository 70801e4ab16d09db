"""A notice on stderr that a command is still working when an answer takes long."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from tandem.controller.cli.output import output

_PATIENCE_S: Final = 6.0


@contextmanager
def patience(what: str, *, after_s: float = _PATIENCE_S) -> Iterator[None]:
    """Print once on stderr that `what` is under way, if the block takes longer than `after_s` seconds."""
    timer = threading.Timer(after_s, output.note, args=[f"{what} …"])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
