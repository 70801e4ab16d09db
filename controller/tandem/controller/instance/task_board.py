"""Which tasks of an instance run, in a few threads, and which wait after a failure."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import structlog

from tandem.backup_avro.errors import RefusedError, TandemError
from tandem.sink.store.chain.chain_writer import ClaimLostError, HolderLostError, StoppedError
from tandem.sink.write.confirm import CoverLostError

_LOG = structlog.get_logger()
_SLOT = tuple[str, int]
_LONGEST_REST_S = 60.0
_COUNTED = 10
"""The number of failures from which on the wait grows no longer: an unreadable pin may block a task for years."""
_TROUBLE = 3
"""Failures in a row from which on `failing` names a task; fewer are only logged."""
_WANTED_WITHIN_S = 10.0
"""A task that is still wanted is started again within so long after its rest."""


_SHORT = frozenset({"TakeOver", "ClaimNext", "Seal"})
"""Tasks that append a few entries. A put is tried until its outcome is known: a key that never answers holds them."""
_STALLED_S = 120.0
"""Seconds after which `failing` names a short task that is still under way."""


_LONG = {"Clear": 3, "Compare": 1, "Complete": 2, "Checkpoint": 2, "LostObjects": 1}
"""Tasks that may take hours, because they read whole copies or wait for a commit, and the most that run at once.
Each has a thread of its own: none of the others, nor of the short ones, waits for it."""
_SHORT_WORKERS = 3


class InUseError(TandemError):
    """A generation has pins: it is not cleared until its readers have released them."""


@dataclass(slots=True, kw_only=True)
class _Running:
    future: Future[None]
    since_mono: float
    done_mono: float | None = None


class TaskBoard:
    """Runs tasks in threads, one at a time for each slot (action, generation). Failed slots back off."""

    def __init__(self) -> None:
        self._short = ThreadPoolExecutor(_SHORT_WORKERS, thread_name_prefix="task")
        self._long = ThreadPoolExecutor(sum(_LONG.values()), thread_name_prefix="long-task")
        self._running: dict[_SLOT, _Running] = {}
        self._rest_until: dict[_SLOT, float] = {}
        self._failures: dict[_SLOT, int] = {}
        self._trouble: dict[_SLOT, str] = {}
        self.fenced: TandemError | None = None
        self.refused: RefusedError | None = None

    def submit(self, slot: _SLOT, work: Callable[[], None]) -> None:
        """Start a task unless it is under way, rests after a failure, or as many like it run as may at once."""
        if slot in self._running or time.monotonic() < self._rest_until.get(slot, 0.0):
            return
        alike = sum(of == slot[0] and not one.future.done() for (of, _), one in self._running.items())
        if alike >= _LONG.get(slot[0], alike + 1):
            return
        pool = self._long if slot[0] in _LONG else self._short
        self._running[slot] = _Running(future=pool.submit(work), since_mono=time.monotonic())

    def under_way(self, read_began_mono: float) -> frozenset[_SLOT]:
        """Return the tasks that run, or that ended after the read of the chains that began at `read_began_mono`."""
        for slot, running in list(self._running.items()):
            if running.future.done() and running.done_mono is None:
                running.done_mono = time.monotonic()
                self._note_result(slot, running.future.exception())
            if running.done_mono is not None and running.done_mono < read_began_mono:
                del self._running[slot]
        return frozenset(self._running.keys() | self.waiting_tasks())

    def waiting_tasks(self) -> frozenset[_SLOT]:
        """Return the failed tasks that wait for the next try and after whose end the chains were read again."""
        now = time.monotonic()
        return frozenset(slot for slot, until in self._rest_until.items() if now < until and slot not in self._running)

    def failing(self) -> tuple[str, ...]:
        """Return the tasks that fail repeatedly and are still wanted, each with its last error; for any thread.

        Short tasks that do not end come first.
        """
        now = time.monotonic()
        stalled = [
            f"{action} of generation {number} does not come to an end: the store does not answer for an object that "
            "the log names, or takes very long"
            for (action, number), running in sorted(self._running.copy().items(), key=lambda item: item[0])
            if action in _SHORT and not running.future.done() and now - running.since_mono >= _STALLED_S
        ]
        return (*stalled, *self._failed(now))

    def _failed(self, now: float) -> tuple[str, ...]:
        return tuple(
            f"{action} of generation {number} fails: {error}"
            for (action, number), error in sorted(dict(self._trouble).items())
            if (action, number) in self._running or now < self._rest_until[action, number] + _WANTED_WITHIN_S
        )

    def _note_result(self, slot: _SLOT, error: BaseException | None) -> None:
        action, generation = slot
        if error is None:
            self._failures.pop(slot, None)
            self._trouble.pop(slot, None)
            return
        if isinstance(error, HolderLostError):
            self.fenced = error
        elif isinstance(error, ClaimLostError | StoppedError):
            _LOG.info("given up", action=action, generation=generation, why=str(error))
        elif isinstance(error, RefusedError):
            self.refused = error
        else:
            count = self._failures[slot] = self._failures.get(slot, 0) + 1
            rest = min(_LONGEST_REST_S, 2.0 ** min(count, _COUNTED))
            self._rest_until[slot] = time.monotonic() + rest
            if count >= _TROUBLE and not isinstance(error, InUseError | CoverLostError):
                self._trouble[slot] = str(error)
            _LOG.error("failed, trying again", action=action, generation=generation, error=error, wait_s=rest)

    def close(self) -> None:
        """Start no more tasks, and return without waiting for the running ones."""
        for pool in (self._short, self._long):
            pool.shutdown(wait=False, cancel_futures=True)
