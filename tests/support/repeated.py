"""Something that is done again and again beside a test."""

from __future__ import annotations

import threading
from typing import Self


class Repeated:
    """Calls `once` in a thread, with `every_s` between two calls, from the begin of a context to its end."""

    def __init__(self, every_s: float) -> None:
        self._every_s = every_s
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name=type(self).__name__, daemon=True)

    def once(self) -> None:
        raise NotImplementedError

    def _run(self) -> None:
        while not self._stopped.wait(self._every_s):
            self.once()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join(30)
        assert not self._thread.is_alive()
