"""Worker processes: what becomes of their answers, of theirs and of their instance's end. No brokers are needed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, wait
from pathlib import Path

import pytest
from support.backups.chains import OPENING, PAIR
from support.pipeline.worker_setting import setting

from tandem.backup_avro.chain.entries import PartitionKey
from tandem.backup_avro.errors import TransientError
from tandem.sink.read.scan.range_tasks import RangeTask
from tandem.sink.read.scan.worker_processes import WorkerLostError, WorkerPool


def task(give_up_s: float = 60.0) -> RangeTask:
    """A range that nobody will ever read: there are no brokers."""
    return RangeTask(
        folder=(PAIR, "a", 1),
        key=PartitionKey("AAAAAAAAAAAAAAAAAAAAAQ", 0),
        topic="t",
        floor=1,
        leader=1,
        low=0,
        high=100,
        opening=OPENING,
        limit_s=60.0,
        best_effort=False,
        run="r",
        give_up_s=give_up_s,
    )


def started(folder: Path) -> set[int]:
    """The processes that there were."""
    return {int(path.stem) for path in folder.glob("*.pid")}


def alive(pids: set[int]) -> set[int]:
    """Those of them that run."""

    def runs(pid: int) -> bool:
        try:
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
        except OSError:
            return False

    return {pid for pid in pids if runs(pid)}


def until(true: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + 30
    while not true():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


@pytest.fixture
def workers(tmp_path: Path) -> Iterator[WorkerPool]:
    (tmp_path / "store").mkdir()
    it = WorkerPool(setting(tmp_path), 1)
    yield it
    it.close()
    until(lambda: not alive(started(tmp_path)), "workers end with their pool")


def test_a_worker_s_error_comes_back_and_it_goes_on(workers: WorkerPool, tmp_path: Path) -> None:
    """The message says what; the process is used again."""
    for _ in range(2):
        with pytest.raises(TransientError, match="t-0, offsets 0 to 100: nothing was read for 0 s"):
            workers.submit(task(give_up_s=0.3)).result(30)
    assert len(started(tmp_path)) == 1


def test_a_killed_worker_is_replaced(workers: WorkerPool, tmp_path: Path) -> None:
    """Its range is lost; the one that waited is read by another process, and so is what comes next."""
    first, second = workers.submit(task()), workers.submit(task(give_up_s=0.3))
    until(lambda: started(tmp_path), "a worker begins")
    (pid,) = started(tmp_path)
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(WorkerLostError, match="TDM-B009"):
        first.result(30)
    for future in (second, workers.submit(task(give_up_s=0.3))):
        with pytest.raises(TransientError, match="TDM-B006"):
            future.result(30)
    assert len(started(tmp_path)) == 2


def test_what_no_worker_has_is_called_off(workers: WorkerPool, tmp_path: Path) -> None:
    """What one has is not: its objects are to be known."""
    futures = [workers.submit(task(give_up_s=1.0)) for _ in range(5)]
    until(lambda: started(tmp_path), "a worker begins")
    assert futures[-1].cancel()
    assert futures[-1].cancelled()
    until(lambda: futures[0].done() or not futures[0].cancel(), "the first is begun")
    with pytest.raises(TransientError):
        futures[0].result(30)


def test_idle_workers_end(workers: WorkerPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two turns lie hours. The next range has another process."""
    monkeypatch.setattr("tandem.sink.read.scan.worker_processes._IDLE_S", 0.2)
    monkeypatch.setattr("tandem.sink.read.scan.worker_processes._LOOK_S", 0.05)
    with pytest.raises(TransientError):
        workers.submit(task(give_up_s=0.5)).result(30)
    until(lambda: not alive(started(tmp_path)), "it ends")
    with pytest.raises(TransientError):
        workers.submit(task(give_up_s=0.3)).result(30)
    assert len(started(tmp_path)) == 2


def test_nothing_is_read_after_the_end(workers: WorkerPool, tmp_path: Path) -> None:
    """What was under way is lost, what comes later is refused."""
    before = workers.submit(task())
    until(lambda: started(tmp_path), "a worker begins")
    workers.close()
    with pytest.raises(WorkerLostError):
        before.result(30)
    with pytest.raises(WorkerLostError, match="told to end"):
        workers.submit(task()).result(1)


def test_workers_end_with_their_instance(tmp_path: Path) -> None:
    """However it goes: here by kill -9."""
    (tmp_path / "store").mkdir()
    script = f"""
import sys, time
sys.path[:0] = {sys.path!r}
from pathlib import Path
sys.path.insert(0, {str(Path(__file__).parent)!r})
from test_worker import setting, task
from tandem.sink.read.scan.worker_processes import WorkerPool
workers = WorkerPool(setting(Path({str(tmp_path)!r})), 2)
futures = [workers.submit(task()) for _ in range(2)]
time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", script]) as parent:
        until(lambda: len(started(tmp_path)) == 2, "both workers begin")
        parent.kill()
    until(lambda: not alive(started(tmp_path)), "they end")


def test_no_secret_shows(tmp_path: Path) -> None:
    """Not in the repr of what workers are given."""
    assert "hunter2" not in repr(setting(tmp_path))


def test_waiting_for_several(workers: WorkerPool) -> None:
    """The answers are futures like any other."""
    futures = [workers.submit(task(give_up_s=0.2)) for _ in range(3)]
    done, pending = wait(futures, timeout=30)
    assert (len(done), len(pending)) == (3, 0)


def test_a_pool_that_can_not_be_started_is_an_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there may be no more threads, submitting raises RuntimeError; later ranges are read all the same."""
    workers = WorkerPool(setting(tmp_path), 1)
    failed: list[object] = []

    def refuse(self: ProcessPoolExecutor, *_: object) -> None:
        failed.append(self)
        raise RuntimeError("can't start new thread")

    try:
        with monkeypatch.context() as patch:
            patch.setattr(ProcessPoolExecutor, "submit", refuse)
            for _ in range(2):
                with pytest.raises(WorkerLostError, match="can't start new thread"):
                    workers.submit(task()).result(30)
        assert len(set(map(id, failed))) == len(failed) == 2, "a new pool each time"
        with pytest.raises(TransientError):
            workers.submit(task(give_up_s=0.1)).result(60)
        assert started(tmp_path)
    finally:
        workers.close()
