"""Asking something slow for many: how often, for how long, and what is told while there is no answer."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest
from support.pipeline.waiting import until

from tandem.controller.process.cached_call import CachedCall

SOON_S = 20.0


class Slow:
    """Counts how often it is asked; waits for `gate`, fails with `error`."""

    def __init__(self) -> None:
        self.asked = 0
        self.gate = threading.Event()
        self.gate.set()
        self.error: Exception | None = None

    def __call__(self) -> int:
        """Answer with the number of the asking."""
        self.asked += 1
        number = self.asked
        assert self.gate.wait(SOON_S)
        if self.error is not None:
            raise self.error
        return number


@pytest.fixture
def slow() -> Iterator[Slow]:
    found = Slow()
    yield found
    found.gate.set()


def test_nobody_asks_nothing_is_asked(slow: Slow) -> None:
    """Making it costs nothing; the first who wants it waits for the first answer."""
    it = CachedCall(slow, interval_s=60)
    assert slow.asked == 0
    known = it.get(wait_s=SOON_S)
    assert (known.value, known.trouble) == (1, None)
    assert known.age_s is not None
    assert known.age_s < SOON_S


def test_a_crowd_is_one_asking(slow: Slow) -> None:
    """However many want it, within the interval it is asked once."""
    it = CachedCall(slow, interval_s=60)
    found: list[int | None] = []
    crowd = [threading.Thread(target=lambda: found.append(it.get(wait_s=SOON_S).value)) for _ in range(20)]
    for one in crowd:
        one.start()
    for one in crowd:
        one.join(SOON_S)
    assert found == [1] * 20
    assert slow.asked == 1


def test_nobody_waits_for_long(slow: Slow) -> None:
    """While it hangs, what was known before is told, with its age."""
    it = CachedCall(slow, interval_s=0.01)
    it.get(wait_s=SOON_S)
    until(lambda: not it._running)
    slow.gate.clear()
    time.sleep(0.05)
    began = time.monotonic()
    known = it.get(wait_s=0.05)
    assert time.monotonic() - began < SOON_S / 2
    until(lambda: slow.asked == 2)
    assert known.value == 1
    assert known.age_s is not None
    assert known.age_s >= 0.05
    assert slow.asked == 2
    it.get(wait_s=0.0)
    assert slow.asked == 2, "one asking at a time"
    slow.gate.set()
    until(lambda: it.get(wait_s=0.0).value != 1)


def test_a_failure_keeps_what_was_known(slow: Slow) -> None:
    """The trouble is told beside the old value, and goes with the next answer."""
    it = CachedCall(slow, interval_s=0.01)
    it.get(wait_s=SOON_S)
    slow.error = OSError("no route")
    until(lambda: it.get(wait_s=0.1).trouble == "no route")
    assert it.get(wait_s=0.1).value == 1
    slow.error = None
    until(lambda: it.get(wait_s=0.1).trouble is None)


def test_a_failure_at_first_is_not_waited_out(slow: Slow) -> None:
    """There is nothing to tell but the trouble."""
    slow.error = ValueError()
    began = time.monotonic()
    known = CachedCall(slow, interval_s=60).get(wait_s=SOON_S)
    assert (known.value, known.age_s, known.trouble) == (None, None, "ValueError")
    assert time.monotonic() - began < SOON_S / 2


def test_it_goes_on_while_somebody_may_still_want_it(slow: Slow) -> None:
    """With a lingering time it asks again by itself, and stops after it, or when told to."""
    it = CachedCall(slow, interval_s=0.01, linger_s=60)
    it.get(wait_s=SOON_S)
    until(lambda: slow.asked > 3)
    it.stop()
    until(lambda: not it._running)
    asked = slow.asked
    it.get(wait_s=0.0)
    assert slow.asked == asked
    brief = CachedCall(slow, interval_s=0.01, linger_s=0.02)
    brief.get(wait_s=SOON_S)
    until(lambda: not brief._running)
