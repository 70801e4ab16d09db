"""Telling how far a Spark job is while it runs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, TypeVar

_EVERY_S: Final = 2.0
_Progress = TypeVar("_Progress")


@contextmanager
def telling(progress: Callable[[], _Progress], tell: Callable[[_Progress], None] | None) -> Iterator[None]:
    """Tell the progress every two seconds during the block, and once at its end if it ends well."""
    if tell is None:
        yield
        return
    stop = threading.Event()

    def run() -> None:
        while not stop.wait(_EVERY_S):
            tell(progress())

    thread = threading.Thread(target=run, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
    tell(progress())
