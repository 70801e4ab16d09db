"""Fencing: no producer of an earlier run of a restore, or of an earlier attempt of a task, can write any more.

A producer with the same transactional id takes its place (KIP-98: InitProducerId raises the epoch and ends an open
transaction).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Final

from tandem.sink.kafka.auth.client_config import Value
from tandem.spark_jobs.restore.plan import plan as restore_plan
from tandem.spark_jobs.restore.progress.batch_producer import BatchProducer, FencedError, ProduceError
from tandem.spark_jobs.restore.progress.task_progress import PlanState

_FENCES_AT_ONCE: Final = 8
_LOOK_S: Final = 0.5


def fence(
    props: Mapping[str, Value],
    transactional_id: str,
    then: Callable[[BatchProducer], None] = lambda _: None,
    *,
    timeout_s: float = 60.0,
    given_up: Callable[[], bool] = lambda: False,
) -> None:
    """Fence every producer of `transactional_id`, end its transaction, and call `then` with the new producer.

    All of it is retried until it succeeds, `timeout_s` seconds have passed, or `given_up` returns True. Raises as
    `BatchProducer` and `then` do.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        producer = BatchProducer(props, transactional_id, timeout_s=timeout_s)
        try:
            producer.init_transactions()
            then(producer)
        except (ProduceError, FencedError):
            if given_up() or time.monotonic() > deadline:
                raise
        else:
            return
        finally:
            producer.discard()


def fence_all(props: Mapping[str, Value], states: Iterable[PlanState]) -> None:
    """Fence all producers of these plans' tasks, and end their transactions.

    Raises as `fence`, with the first that fails, and KeyboardInterrupt, and then waits for no fencing
    that is under way: each may take minutes if a broker is down, and there may be thousands. None is begun or retried
    after that, but up to eight that are under way may still complete: if such a plan is resumed at once, they may fence
    new tasks of it. Those then fail with FencedError, and the plan can be resumed again.
    """
    ids = [
        restore_plan.transactional_id(state.plan, topic_id, number)
        for state in states
        for topic_id, number in state.tasks
    ]
    left: SimpleQueue[str] = SimpleQueue()
    for name in ids:
        left.put(name)
    ended: SimpleQueue[Exception | None] = SimpleQueue()
    stop = threading.Event()

    def work() -> None:
        with suppress(Empty):
            while not stop.is_set():
                name = left.get_nowait()
                try:
                    fence(props, name, given_up=stop.is_set)
                except Exception as error:  # noqa: BLE001 - raised where they are waited for
                    stop.set()
                    ended.put(error)
                else:
                    ended.put(None)

    for number in range(min(_FENCES_AT_ONCE, len(ids))):
        threading.Thread(target=work, name=f"fence-{number}", daemon=True).start()
    try:
        for _ in ids:
            error = _next(ended)
            if error is not None:
                raise error
    finally:
        stop.set()


def _next(ended: SimpleQueue[Exception | None]) -> Exception | None:
    """Return the next result; waits in steps of `_LOOK_S` seconds, because signals are handled only between them."""
    while True:
        with suppress(Empty):
            return ended.get(timeout=_LOOK_S)
