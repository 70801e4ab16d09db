"""Work under way: once at a time, marked until the chains were read again, resting after failures; watching chains."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from support.backups.build_backup import PAIR, Backup, TopicSpec, records
from support.backups.chains import Chain, part
from support.pipeline.doubles import MemoryStore
from support.pipeline.waiting import until

from tandem.backup_avro.chain.entries import Entry, EntryKind
from tandem.backup_avro.errors import PermanentError, RefusedError, TransientError
from tandem.controller.instance import task_board as tasks_module
from tandem.controller.instance.task_board import InUseError, TaskBoard
from tandem.controller.watch.store_watch import StoreWatch
from tandem.sink.store.chain.chain_reader import ChainReader
from tandem.sink.store.chain.chain_writer import ChainWriter, ClaimLostError, HolderLostError
from tandem.sink.store.contract.object_store import StoreTransientError
from tandem.sink.write.confirm import CoverLostError, ObjectLoss

SLOT = ("Seal", 1)
LOSS = ObjectLoss(Chain().object(part(0, 9)), "is missing")


@pytest.fixture
def context() -> Iterator[TaskBoard]:
    it = TaskBoard()
    yield it
    it.close()


def fail(error: Exception) -> Callable[[], None]:
    def work() -> None:
        raise error

    return work


def test_a_task_counts_until_the_chains_were_read_after_it(context: TaskBoard) -> None:
    """A decision on an older picture would repeat it."""
    done = threading.Event()
    before = time.monotonic()
    context.submit(SLOT, done.set)
    assert done.wait(5)
    until(lambda: context.under_way(before) == {SLOT})
    until(lambda: context.under_way(time.monotonic()) == frozenset())


def test_what_takes_hours_leaves_threads_for_others() -> None:
    """After a restart all kept generations are compared, hours for each: the Active must read on meanwhile.

    A COMPLETE may read a whole copy back, and a drained generation must be sealed all the same.
    """
    board = TaskBoard()
    hold, other = threading.Event(), threading.Event()
    begun: list[tuple[str, int]] = []

    def work(*slot: Any) -> None:
        begun.append(slot)
        hold.wait(5)

    for action in ("Compare", "Clear", "Complete"):
        for number in range(1, 8):
            board.submit((action, number), partial(work, action, number))
    for action in ("TakeOver", "ClaimNext"):
        board.submit((action, 9), partial(work, action, 9))
    board.submit(("Seal", 9), other.set)
    assert other.wait(5)
    long = [("Clear", 1), ("Clear", 2), ("Clear", 3), ("Compare", 1), ("Complete", 1), ("Complete", 2)]
    until(lambda: sorted(begun) == [("ClaimNext", 9), *long, ("TakeOver", 9)])
    hold.set()
    until(lambda: board.under_way(time.monotonic()) == frozenset())
    board.submit(("Compare", 3), partial(work, "Compare", 3))
    until(lambda: ("Compare", 3) in begun)
    board.close()


def test_a_slot_runs_one_task(context: TaskBoard) -> None:
    """Whoever submits it again meanwhile."""
    hold = threading.Event()
    count: list[int] = []

    def work() -> None:
        count.append(1)
        hold.wait(5)

    for _ in range(3):
        context.submit(SLOT, work)
    until(lambda: count)
    hold.set()
    until(lambda: not context.under_way(time.monotonic()))
    assert len(count) == 1


@pytest.mark.parametrize(
    ("action", "told"), [("TakeOver", True), ("ClaimNext", True), ("Seal", True), ("Clear", False)]
)
def test_a_short_task_that_does_not_end_is_told(
    action: str, told: bool, context: TaskBoard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A put is tried until its outcome is known, whatever the store answers; a deletion may take hours."""
    hold = threading.Event()

    def work() -> None:
        hold.wait(5)

    context.submit((action, 1), work)
    assert context.failing() == ()
    monkeypatch.setattr(tasks_module, "_STALLED_S", 0.05)
    time.sleep(0.1)
    said = f"{action} of generation 1 does not come to an end: the store does not answer for an object"
    assert [text[: len(said)] for text in context.failing()] == ([said] if told else [])
    hold.set()
    until(lambda: not context.failing())


def test_a_failure_rests(context: TaskBoard) -> None:
    """It stays marked, and is not begun again at once."""
    context.submit(SLOT, fail(TransientError("no", code="TDM-X001")))
    time.sleep(0.05)
    context.under_way(time.monotonic())
    assert context.under_way(time.monotonic() + 1) == {SLOT}
    ran = threading.Event()
    context.submit(SLOT, ran.set)
    assert not ran.wait(0.05)


def test_what_rests_is_not_under_way_once_the_chains_were_read(context: TaskBoard) -> None:
    """Until then nobody knows what it left: an append may have come through though its answer did not."""
    before = time.monotonic()
    context.submit(SLOT, fail(TransientError("no", code="TDM-X001")))
    until(lambda: context.under_way(before) and context._running[SLOT].done_mono is not None)
    assert (context.under_way(before), context.waiting_tasks()) == ({SLOT}, frozenset())
    assert (context.under_way(time.monotonic()), context.waiting_tasks()) == ({SLOT}, {SLOT})


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (PermanentError("no right to list", code="TDM-X001", remedy="print the policy anew"), True),
        (InUseError("in use by r", code="TDM-X001"), False),
        (CoverLostError(1, 2, [LOSS]), False),
    ],
)
def test_what_fails_again_and_again_is_told(
    error: Exception, told: bool, context: TaskBoard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As long as it is wanted, and unless it is told elsewhere, or is nobody's fault."""
    monkeypatch.setattr(tasks_module, "_LONGEST_REST_S", 0.0)
    says = []
    for _ in range(3):
        says.append(context.failing())
        context.submit(SLOT, fail(error))
        until(lambda: not context.under_way(time.monotonic()))
    assert says == [()] * 3
    assert context.failing() == (
        ("Seal of generation 1 fails: no right to list (print the policy anew)",) if told else ()
    )
    monkeypatch.setattr(tasks_module, "_WANTED_WITHIN_S", 0.0)
    assert context.failing() == (), "nobody tries it any more"
    monkeypatch.undo()
    context.submit(SLOT, lambda: None)
    until(lambda: not context.under_way(time.monotonic()))
    assert context.failing() == ()


@pytest.mark.parametrize(
    ("error", "fenced", "refused"),
    [
        (HolderLostError("x", code="TDM-X001"), True, False),
        (RefusedError("x", code="TDM-X001"), False, True),
        (ClaimLostError("x", code="TDM-X001"), False, False),
    ],
)
def test_what_an_error_means(context: TaskBoard, error: Exception, fenced: bool, refused: bool) -> None:
    """A lost chain and a refusal end the instance; a lost claim is nobody's fault."""
    context.submit(SLOT, fail(error))
    until(lambda: not context.under_way(time.monotonic()))
    assert (context.fenced is error, context.refused is error) == (fenced, refused)


def test_what_a_janitor_appends_is_no_sign_of_life() -> None:
    """A sweep of a dead instance's chain takes minutes: its peer must not take it for the instance."""
    store = MemoryStore()
    backup = Backup.claim(store, topics=[TopicSpec("orders")])
    first = backup.commit(records("orders", 0, range(3))).objects[0].key
    watch = StoreWatch(ChainReader(store, PAIR), interval_s=0.01, wake=threading.Event())
    watch.start()
    try:
        until(lambda: watch.view is not None)
        cleaner = ChainWriter(store, ChainReader(store, PAIR).load(1), "janitor-1", stop=threading.Event())
        swept = cleaner.append(
            Entry(kind=EntryKind.REWRITE, seq=0, prev_sha256="", incarnation="", at=0, replaced=(first,))
        )
        until(lambda: watch.view is not None and watch.view.generations[0].seq == swept.seq)
        assert watch.view is not None
        assert watch.view.grew_mono == {}
        said = backup.commit(records("orders", 0, range(3, 5)))
        until(lambda: watch.view is not None and watch.view.generations[0].seq == said.seq)
        assert set(watch.view.grew_mono) == {"a"}
    finally:
        watch.stop()


def test_a_view_follows_the_chains_and_stands_still() -> None:
    """Copies of what was read; who grew is noted, not on the first look; trouble comes and goes; damage is left out."""
    store = MemoryStore()
    backup = Backup.claim(store, topics=[TopicSpec("orders")])
    wake = threading.Event()
    watch = StoreWatch(ChainReader(store, PAIR), interval_s=0.01, wake=wake)
    assert watch.view is None
    watch.start()
    try:
        until(lambda: watch.view is not None)
        first = watch.view
        assert first is not None
        assert (first.newest, first.grew_mono) == (1, {})
        backup.commit(records("orders", 0, range(3)))
        until(lambda: watch.view is not None and "a" in watch.view.grew_mono)
        assert first.generations[0].seq == 1, "the old view did not move"
        once = watch.view
        assert once is not None
        assert once.grew_before_mono == {}
        backup.append(EntryKind.REWRITE, reason="more")
        until(lambda: watch.view is not None and "a" in watch.view.grew_before_mono)
        assert watch.view is not None
        assert watch.view.grew_before_mono == once.grew_mono
        assert watch.view.grew_mono["a"] > once.grew_mono["a"]
        assert wake.is_set()
        store.before = lambda *_: StoreTransientError("503", code="TDM-X001")
        until(lambda: watch.trouble)
        store.before = lambda *_: None
        watch.read_soon()
        until(lambda: watch.trouble is None)
        backup.commit(records("orders", 0, range(3, 5)))
        name = max(store.objects, key=lambda key: (key.startswith(f"{PAIR}/generations/"), key))
        until(lambda: watch.view is not None and watch.view.generations[0].seq == 4)
        store.objects[name.replace("4.json", "5.json")] = b"{}"
        until(lambda: watch.view is not None and not watch.view.generations)
        assert watch.view is not None
        assert watch.view.newest == 1, "its number stays taken"
    finally:
        watch.stop()
