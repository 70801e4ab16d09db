"""What a full memory budget does to the fetch, and what is said of it."""

from __future__ import annotations

from tandem.sink.read.backpressure import Backpressure


def test_it_counts_the_time_in_which_nothing_may_be_fetched() -> None:
    """From the look that found the budget full to the one that did not, several times over."""
    pressure = Backpressure()
    assert not pressure.record_full(full=False, now=1.0)
    assert pressure.record_full(full=True, now=2.0)
    assert pressure.record_full(full=True, now=4.0)
    assert pressure.stopped_s(5.0) == 3.0
    assert not pressure.record_full(full=False, now=6.0)
    assert (pressure.stopped_s(7.0), pressure.waited_s(7.0)) == (0.0, 4.0)
    assert pressure.record_full(full=True, now=8.0)
    assert (pressure.stopped_s(9.0), pressure.waited_s(9.0)) == (1.0, 5.0)


def test_it_tells_at_once_and_then_once_a_minute() -> None:
    """A wait that is short is not worth a line; an hour of it is sixty."""
    pressure = Backpressure()
    pressure.record_full(full=True, now=0.0)
    assert pressure.due_report_s(0.5) is None
    assert pressure.due_report_s(1.5) == 1.5
    assert pressure.due_report_s(2.5) is None
    told = [waited for waited in (pressure.due_report_s(float(now)) for now in range(3, 3603)) if waited is not None]
    assert len(told) == 60
    assert all(59 <= waited <= 61 for waited in told)
    pressure.record_full(full=False, now=3603.0)
    pressure.due_report_s(3700.0)
    assert pressure.due_report_s(4000.0) is None, "nothing more was waited for"
