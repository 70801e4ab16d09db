"""Run a thread beside a Spark job, mostly to report its progress."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, TypeVar

_EVERY_S: Final = 2.0
_Progress = TypeVar("_Progress")


@contextmanager
def thread_beside(run: Callable[[threading.Event], None], name: str) -> Iterator[None]:
    """Run a thread beside the block; `run` gets an event that is set when the block ends, and is then waited for."""
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
    """Report the progress every two seconds during the block, and once more if it ends without an error."""
    if tell is None:
        yield
        return

    def run(stop: threading.Event) -> None:
        while not stop.wait(_EVERY_S):
            tell(progress())

    with thread_beside(run, "progress"):
        yield
    tell(progress())
