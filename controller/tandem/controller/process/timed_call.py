"""Calls with a time limit for their result: each runs in a daemon thread, which does not keep the process alive."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final, Generic, TypeVar

_T = TypeVar("_T")

_given_up: Final[list[threading.Thread]] = []


class TimedCall(Generic[_T]):
    """A call under way. A process whose call timed out must not end by the interpreter's exit: see `left_behind`."""

    def __init__(self, call: Callable[[], _T], *, name: str) -> None:
        """Start the call at once; `name` is that of the thread."""
        self._call = call
        self._results: list[_T] = []
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._results.append(self._call())
        except Exception as error:  # noqa: BLE001 - `result` raises it
            self._error = error

    def result(self, timeout_s: float | None = None) -> _T:
        """Return the call's result, or raise its error; TimeoutError after `timeout_s` seconds."""
        self._thread.join(None if timeout_s is None else max(0.0, timeout_s))
        if self._thread.is_alive():
            _given_up.append(self._thread)
            raise TimeoutError
        if self._error is not None:
            raise self._error
        return self._results[0]


def left_behind() -> bool:
    """Return whether a call that timed out still runs: threads that it started would keep the interpreter alive."""
    return any(thread.is_alive() for thread in _given_up)
