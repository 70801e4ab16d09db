"""Worker processes of one instance: each reads ranges of bases from the brokers into the store."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import CancelledError, Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from typing import Final

import structlog

from backup_avro.errors import TransientError
from sink.object_store import ObjectStore, StoreSettings, open_store
from sink.offers import RangeRead, RangeTask, read_range
from sink.source.client_config import Value
from sink.source.fetcher import RawFetcher
from sink.transcode.choice import best_transcoder

_LOG = structlog.get_logger()
_LOOK_S: Final = 1.0
_IDLE_S: Final = 60.0


class WorkerLostError(TransientError):
    """A worker ended before its range was read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What a worker needs. `prepare` is called first in its process, for its log. The repr hides secrets."""

    props: Mapping[str, Value] = field(repr=False)
    root: str
    settings: StoreSettings
    prepare: Callable[[], None]


class _Answer(Future[RangeRead]):
    """What comes of a range; called off only where the pool can still do so."""

    inner: Future[RangeRead] | None = None

    def cancel(self) -> bool:
        """Call the range off unless a worker has it."""
        return (self.inner is None or self.inner.cancel()) and super().cancel()


class Workers:
    """Starts processes when there is something to read, ends them when there was nothing for a minute. Thread-safe.

    However this process ends, they end with it.
    """

    def __init__(self, setting: Setting, count: int) -> None:
        self._setting = setting
        self._count = count
        self._lock = threading.Lock()
        self._pool: ProcessPoolExecutor | None = None
        self._under_way = 0
        self._used_at = 0.0
        self._closed = False

    @property
    def count(self) -> int:
        """How many ranges are read at a time."""
        return self._count

    def submit(self, task: RangeTask) -> Future[RangeRead]:
        """Have a range read. The future raises what `read_range` does, or WorkerLostError."""
        answer = _Answer()
        with self._lock:
            if self._closed:
                answer.set_exception(WorkerLostError("the workers were told to end"))
                return answer
            try:
                pool = self._pool = self._pool or self._start()
                inner = answer.inner = pool.submit(_work, task)
            except BrokenProcessPool:
                self._lost(self._pool)
                answer.set_exception(_lost())
                return answer
            self._under_way += 1

        def done(found: Future[RangeRead]) -> None:
            with self._lock:
                self._under_way -= 1
                self._used_at = time.monotonic()
            try:
                answer.set_result(found.result())
            except CancelledError:
                return
            except BrokenProcessPool:
                with self._lock:
                    self._lost(pool)
                answer.set_exception(_lost())
            except Exception as error:  # noqa: BLE001 (it is for whoever waits for the answer)
                answer.set_exception(error)

        inner.add_done_callback(done)
        return answer

    def _start(self) -> ProcessPoolExecutor:
        pool = ProcessPoolExecutor(
            self._count,
            # Not forked: this process has threads and connections.
            mp_context=multiprocessing.get_context("spawn"),
            initializer=_begin,
            initargs=(self._setting, os.getpid()),
        )
        self._used_at = time.monotonic()
        threading.Thread(target=self._rest, args=(pool,), name="workers", daemon=True).start()
        return pool

    def _rest(self, pool: ProcessPoolExecutor) -> None:
        """End the processes when they are not needed any more: between two turns lie hours."""
        while True:
            time.sleep(_LOOK_S)
            with self._lock:
                if self._pool is not pool:
                    return
                if not self._under_way and time.monotonic() - self._used_at > _IDLE_S:
                    self._pool = None
                    pool.shutdown(wait=False)
                    return

    def _lost(self, pool: ProcessPoolExecutor | None) -> None:
        if pool is not None and self._pool is pool:
            _LOG.warning("a worker process has ended, starting others")
            self._pool = None
            pool.shutdown(wait=False)

    def close(self) -> None:
        """End the processes; what they are about is lost."""
        with self._lock:
            self._closed = True
            pool, self._pool = self._pool, None
        if pool is None:
            return
        processes = list((pool._processes or {}).values())  # noqa: SLF001 (no other way to end a range that is being read)
        pool.shutdown(wait=False, cancel_futures=True)
        for process in processes:
            process.terminate()


def _lost() -> WorkerLostError:
    return WorkerLostError("a worker process has ended", remedy="see whether memory ran out")


@dataclass(slots=True)
class _Here:
    """What this worker keeps between ranges."""

    setting: Setting
    store: ObjectStore
    sources: dict[bool, RawFetcher] = field(default_factory=dict)


_here: list[_Here] = []


def _begin(setting: Setting, parent: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the instance, which ends its workers
    threading.Thread(target=_watch, args=(parent,), name="parent", daemon=True).start()
    setting.prepare()
    _here[:] = [_Here(setting, open_store(setting.root, setting.settings))]


def _watch(parent: int) -> None:
    """End with the parent, however that ends."""
    while os.getppid() == parent:
        time.sleep(_LOOK_S)
    os._exit(1)


def _work(task: RangeTask) -> RangeRead:
    (here,) = _here
    committed = task.opening.isolation_level == "read_committed"
    source = here.sources.get(committed)
    if source is None:
        source = here.sources[committed] = RawFetcher(here.setting.props, read_committed=committed)
    try:
        return read_range(task, source=source, store=here.store, transcoder=best_transcoder())
    except Exception:
        # Whatever state it is in: the next range begins with a connection of its own.
        del here.sources[committed]
        with contextlib.suppress(Exception):
            source.close()
        raise
