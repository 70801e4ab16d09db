"""What goes on beside a Spark job while it runs: mostly telling how far it is."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, TypeVar

_EVERY_S: Final = 2.0
_Progress = TypeVar("_Progress")


@contextmanager
def thread_beside(run: Callable[[threading.Event], None], name: str) -> Iterator[None]:
    """Run a thread beside the block. It gets an event that is set when it is to end; the block's end waits for it."""
    stop = threading.Event()
    thread = threading.Thread(target=run, args=(stop,), name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@contextmanager
def reporting(progress: Callable[[], _Progress], tell: Callable[[_Progress], None] | None) -> Iterator[None]:
    """Tell the progress every two seconds during the block, and once at its end if it ends well."""
    if tell is None:
        yield
        return

    def run(stop: threading.Event) -> None:
        while not stop.wait(_EVERY_S):
            tell(progress())

    with thread_beside(run, "progress"):
        yield
    tell(progress())
