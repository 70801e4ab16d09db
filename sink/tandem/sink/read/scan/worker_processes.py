"""Worker processes of one instance: each reads ranges of scans from the brokers into the store."""

from __future__ import annotations

import multiprocessing
import os
import queue
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Final, NamedTuple

import structlog

from tandem.backup_avro.errors import TandemError, TransientError
from tandem.sink.kafka.auth.client_config import Value
from tandem.sink.read.scan.range_reader import RangeReader
from tandem.sink.read.scan.range_tasks import RangeRead, RangeTask
from tandem.sink.store import StoreAccess, open_store
from tandem.sink.transcode.plain_transcoder import BATCH_LIMIT

_LOG = structlog.get_logger()
_LOOK_S: Final = 1.0
_IDLE_S: Final = 60.0
_CLOSE_S: Final = 5.0


class WorkerLostError(TransientError):
    """A worker ended before its range was read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """Settings of a worker. `prepare` is called first in its process: log and memory. The repr hides secrets.

    `batch_limit`: most bytes that the records of one batch may decompress to.
    """

    props: Mapping[str, Value] = field(repr=False)
    root: str
    settings: StoreAccess
    prepare: Callable[[], None] = field(repr=False)
    batch_limit: int = BATCH_LIMIT


class _Asked(NamedTuple):
    task: RangeTask
    answer: Future[RangeRead]


class _Begun(NamedTuple):
    answer: Future[RangeRead]
    pool: ProcessPoolExecutor


class WorkerPool:
    """Starts worker processes when ranges are submitted, ends them after a minute without one. Thread-safe.

    The workers end with this process, however it ends. A thread of its own operates the process pool, and submits no
    more ranges than the pool can begin at once: so waiting ranges can be cancelled, and the pool's own callbacks never
    touch the pool.
    """

    def __init__(self, setting: WorkerSettings, count: int) -> None:
        self._setting = setting
        self._count = count
        self._inbox: queue.SimpleQueue[_Asked | Future[RangeRead] | None] = queue.SimpleQueue()
        self._waiting: deque[_Asked] = deque()
        self._running: dict[Future[RangeRead], _Begun] = {}
        self._pool: ProcessPoolExecutor | None = None
        self._used_at = 0.0
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="workers", daemon=True)
        self._thread.start()

    @property
    def count(self) -> int:
        """How many ranges are read at a time."""
        return self._count

    def submit(self, task: RangeTask) -> Future[RangeRead]:
        """Queue a range to read. The future raises the errors of `read_range`, or WorkerLostError."""
        answer: Future[RangeRead] = Future()
        if self._closed.is_set():
            answer.set_exception(WorkerLostError("the workers were told to end", code="TDM-B007"))
        else:
            self._inbox.put(_Asked(task, answer))
        return answer

    def close(self) -> None:
        """End the processes; the ranges under way are lost."""
        self._closed.set()
        self._inbox.put(None)
        self._thread.join(_CLOSE_S)

    def _run(self) -> None:
        while not self._closed.is_set():
            try:
                item = self._inbox.get(timeout=_LOOK_S)
            except queue.Empty:
                item = None
            if isinstance(item, _Asked):
                self._waiting.append(item)
            elif item is not None:
                self._done(item)
            self._hand_out()
            self._rest()
        self._end()

    def _hand_out(self) -> None:
        while self._waiting and len(self._running) < self._count:
            asked = self._waiting.popleft()
            if not asked.answer.set_running_or_notify_cancel():
                continue
            try:
                pool = self._pool = self._pool or self._start()
                inner = pool.submit(_work, asked.task)
            except Exception as error:  # noqa: BLE001 (no process, no thread, or a pool that has just broken)
                self._drop_pool()
                asked.answer.set_exception(
                    WorkerLostError(f"no worker process could be started: {error}", code="TDM-B008")
                )
                continue
            self._running[inner] = _Begun(asked.answer, pool)
            inner.add_done_callback(self._inbox.put)

    def _done(self, inner: Future[RangeRead]) -> None:
        answer, pool = self._running.pop(inner)
        self._used_at = time.monotonic()
        error = inner.exception()
        if error is None:
            answer.set_result(inner.result())
        elif isinstance(error, BrokenProcessPool):
            if self._pool is pool:  # otherwise another range has reported it already, and there is a new pool
                _LOG.warning("a worker process has ended, starting others")
                self._drop_pool()
            answer.set_exception(
                WorkerLostError("a worker process has ended", code="TDM-B009", remedy="see whether memory ran out")
            )
        elif isinstance(error, TandemError):
            answer.set_exception(error)
        else:
            answer.set_exception(WorkerLostError(f"a worker failed: {type(error).__name__}: {error}", code="TDM-B010"))

    def _start(self) -> ProcessPoolExecutor:
        self._used_at = time.monotonic()
        return ProcessPoolExecutor(
            self._count,
            # Not forked: this process has threads and connections.
            mp_context=multiprocessing.get_context("spawn"),
            initializer=_begin,
            initargs=(self._setting, os.getpid()),
        )

    def _rest(self) -> None:
        """End the processes when they are no longer needed, because hours pass between two generations."""
        busy = self._running or self._waiting
        if self._pool is not None and not busy and time.monotonic() - self._used_at > _IDLE_S:
            self._drop_pool()

    def _drop_pool(self) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(wait=False)

    def _end(self) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            # Only ending the process ends a range that is being read.
            processes = list((pool._processes or {}).values())  # noqa: SLF001
            pool.shutdown(wait=False)
            for process in processes:
                process.terminate()
        with suppress(queue.Empty):
            while True:
                item = self._inbox.get_nowait()
                if isinstance(item, _Asked):
                    self._waiting.append(item)
        left = [asked.answer for asked in self._waiting if asked.answer.set_running_or_notify_cancel()]
        for answer in (*left, *(begun.answer for begun in self._running.values())):
            answer.set_exception(WorkerLostError("the workers were told to end", code="TDM-B011"))


_here: list[RangeReader] = []


def _begin(setting: WorkerSettings, parent: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the instance, which ends its workers
    threading.Thread(target=_watch, args=(parent,), name="parent", daemon=True).start()
    setting.prepare()
    # The store is opened with the first range: an error here would be reported as a process that has ended.
    open_store_ = partial(open_store, setting.root, setting.settings)
    _here[:] = [RangeReader(setting.props, open_store_, batch_limit=setting.batch_limit)]


def _watch(parent: int) -> None:
    """End this process when its parent has ended, however that happens."""
    while os.getppid() == parent:
        time.sleep(_LOOK_S)
    os._exit(1)


def _work(task: RangeTask) -> RangeRead:
    (reader,) = _here
    return reader.read(task)
