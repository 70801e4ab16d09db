"""Cache a slow call for many callers: it is made at most once per interval, and no caller waits for it for long.

The last answer is kept, with its age, until there is a newer one: a store that hangs makes the status page older, but
does not stop it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

import structlog

_LOG = structlog.get_logger()
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedAnswer(Generic[_T]):
    """The last answer and its age, both None before the first answer; and why the last call failed."""

    value: _T | None
    age_s: float | None
    trouble: str | None


class CachedCall(Generic[_T]):
    """Calls `ask` in a thread of its own when `get` is called at least `interval_s` after the last call began.

    It calls again, `interval_s` after each answer, until there was no `get` for `linger_s`.
    """

    def __init__(self, ask: Callable[[], _T], *, interval_s: float, linger_s: float = 0.0) -> None:
        self._ask = ask
        self._interval_s = interval_s
        self._linger_s = linger_s
        self._changed = threading.Condition()
        self._stopped = threading.Event()
        self._running = False
        self._began: float | None = None
        self._wanted = 0.0
        self._value: _T | None = None
        self._answered: float | None = None
        self._trouble: str | None = None

    def get(self, *, wait_s: float) -> CachedAnswer[_T]:
        """Return the last answer. Waits at most `wait_s`, and only if there is none or it is 3 * `interval_s` old."""
        with self._changed:
            now = self._wanted = time.monotonic()
            due = self._began is None or now - self._began >= self._interval_s
            if due and not self._running and not self._stopped.is_set():
                self._running = True
                self._began = now
                threading.Thread(target=self._run, name="on-demand", daemon=True).start()
            before = self._answered
            if self._running and (before is None or now - before > 3 * self._interval_s):
                self._changed.wait_for(lambda: self._answered != before or not self._running, wait_s)
            return CachedAnswer(
                value=self._value,
                age_s=None if self._answered is None else time.monotonic() - self._answered,
                trouble=self._trouble,
            )

    def stop(self) -> None:
        """Start no more calls."""
        self._stopped.set()

    def _run(self) -> None:
        while True:
            self._once()
            if self._stopped.wait(self._interval_s if self._linger_s else 0.0):
                break
            with self._changed:
                if time.monotonic() - self._wanted >= self._linger_s:
                    break
                self._began = time.monotonic()
        with self._changed:
            self._running = False
            self._changed.notify_all()

    def _once(self) -> None:
        try:
            value = self._ask()
        except Exception as error:  # noqa: BLE001 (callers of `get` see why there is no new answer)
            with self._changed:
                self._trouble = str(error) or type(error).__name__
            _LOG.debug("a cached call failed", error=error, kind=type(error).__name__)
        else:
            with self._changed:
                self._value, self._answered, self._trouble = value, time.monotonic(), None
                self._changed.notify_all()
