"""Which broker lets requests wait, and when it is named."""

from __future__ import annotations

from tandem.sink.kafka.fetch.slow_brokers import SLOW, WINDOW, SlowBrokers, ThrottledBrokers


def watched(slowness: SlowBrokers, begin: float, end: float) -> list[tuple[float, int]]:
    """(when, broker) of those that are named while somebody looks twice a second."""
    told = []
    now = begin
    while now <= end:
        told += [(now, broker) for broker in slowness.newly_slow(now)]
        now += 0.5
    return told


def test_a_broker_is_named_while_it_lets_wait() -> None:
    """Not when its answer comes, which may be never; and once, however long it takes."""
    slowness = SlowBrokers()
    watched(slowness, 0.0, 5.0)
    slowness.sent(1, 5.0)
    slowness.sent(2, 5.0)
    slowness.ended(2, 5.4)
    assert watched(slowness, 5.5, 100.0) == [(5.0 + SLOW, 1)]


def test_who_stays_slow_is_not_named_again() -> None:
    """Until one answer comes in time."""
    slowness = SlowBrokers()
    slowness.sent(1, 0.0)
    assert len(watched(slowness, 0.0, 20.0)) == 1
    slowness.ended(1, 20.0)
    slowness.sent(1, 20.0)
    assert watched(slowness, 20.5, 40.0) == []
    slowness.ended(1, 40.0)
    slowness.sent(1, 40.0)
    assert watched(slowness, 40.5, 41.0) == []
    slowness.ended(1, 41.0)
    slowness.sent(1, 41.0)
    assert len(watched(slowness, 41.5, 60.0)) == 1


def test_time_in_which_nobody_looked_does_not_count() -> None:
    """The answer may have been there all the time."""
    slowness = SlowBrokers()
    watched(slowness, 0.0, 1.0)
    slowness.sent(1, 1.0)
    assert watched(slowness, 100.0, 100.0 + SLOW - 0.5) == []
    assert watched(slowness, 100.0 + SLOW, 100.0 + SLOW) == [(100.0 + SLOW, 1)]
    slowness.ended(1, 100.0 + SLOW)
    slowness.sent(1, 200.0)
    assert watched(slowness, 300.0, 300.0) == []
    slowness.ended(1, 300.0)
    slowness.sent(1, 300.0)
    assert len(watched(slowness, 300.5, 300.0 + SLOW)) == 1, "that answer was in time"


def test_a_quota_that_holds_fetches_back_is_named_once() -> None:
    """When it was five seconds in a minute; again only when a minute has gone by almost without."""
    quotas = ThrottledBrokers()

    def named(begin: float, end: float, throttled_s: float) -> list[float]:
        return [float(now) for now in range(int(begin), int(end)) if quotas.answered(1, throttled_s, float(now))]

    assert named(0, 60, 0.05) == []
    assert named(60, 200, 0.5) == [69]
    assert not quotas.answered(2, 1.0, 200.0), "each broker by itself"
    assert named(200, 330, 0.0) == []
    assert named(330, 400, 1.0) != []


def test_long_without_an_answer_ends_what_a_quota_did() -> None:
    """Nobody asked, so nobody was held back."""
    quotas = ThrottledBrokers()
    assert quotas.answered(1, 5.0, 0.0)
    assert not quotas.answered(1, 5.0, WINDOW)
    assert quotas.answered(1, 5.0, 3 * WINDOW)
