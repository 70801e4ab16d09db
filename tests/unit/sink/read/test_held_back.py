"""Which open transactions are worth an alarm."""

from __future__ import annotations

from tandem.sink.kafka.events import TopicPartition
from tandem.sink.read.open_transactions import HeldOffset, OpenTransactions

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def test_a_stable_offset_that_stands_still_is_told_once() -> None:
    """Counted from when it was first seen there, whatever is appended behind it."""
    held = OpenTransactions(patience_s=5.0)
    held.seen(T0, stable=10, high=12, now=100.0)
    held.seen(T0, stable=10, high=40, now=104.0)
    assert held.due(104.9) == []
    assert held.due(105.0) == [(T0, HeldOffset(offset=10, since=100.0))]
    held.seen(T0, stable=10, high=50, now=106.0)
    assert held.due(200.0) == []


def test_transactions_that_come_and_go_are_no_news() -> None:
    """The stable offset moves, even if it never reaches the high watermark."""
    held = OpenTransactions(patience_s=5.0)
    for at in range(100):
        assert held.seen(T0, stable=at, high=at + 3, now=float(at)) is None
        assert held.due(float(at)) == []


def test_the_end_of_a_told_one_is_told_and_the_next_one_again() -> None:
    """By what was held back; also when another transaction holds the log at a later offset."""
    held = OpenTransactions(patience_s=5.0)
    for tp in (T0, T1):
        held.seen(tp, stable=10, high=12, now=0.0)
    assert len(held.due(5.0)) == 2
    assert held.seen(T0, stable=12, high=12, now=6.0) == HeldOffset(offset=10, since=0.0)
    assert held.seen(T0, stable=12, high=12, now=7.0) is None
    assert held.seen(T1, stable=11, high=12, now=6.0) == HeldOffset(offset=10, since=0.0)
    assert held.due(10.9) == []
    assert held.due(11.0) == [(T1, HeldOffset(offset=11, since=6.0))]


def test_the_end_of_one_that_was_not_told_is_no_news() -> None:
    """Nobody was alarmed."""
    held = OpenTransactions(patience_s=5.0)
    held.seen(T0, stable=10, high=12, now=0.0)
    assert held.seen(T0, stable=12, high=12, now=4.0) is None


def test_what_is_read_no_more_is_forgotten() -> None:
    """A topic that was deleted while a transaction was open in it."""
    held = OpenTransactions(patience_s=5.0)
    held.seen(T0, stable=10, high=12, now=0.0)
    held.due(5.0)
    held.forget(T0)
    assert held.due(99.0) == []
    assert held.seen(T0, stable=12, high=12, now=99.0) is None
