"""Rates: bursts, what comes back, and what is said of what was left out."""

from __future__ import annotations

from contextlib import suppress

import structlog
from structlog.testing import capture_logs

from tandem.sink.process.rates import LINES, LINES_EVERY_S, RatedLog, TokenBucket


def test_a_bucket_gives_a_burst_and_then_its_rate() -> None:
    """Tokens come back with time, up to the burst; a clock that stands still gives none."""
    bucket = TokenBucket(3, 10.0)
    assert [bucket.take_token(100.0) for _ in range(5)] == [True, True, True, False, False]
    assert [bucket.take_token(at) for at in (105.0, 110.0, 110.0, 119.9, 120.0)] == [False, True, False, False, True]
    assert [bucket.take_token(10_000.0) for _ in range(4)] == [True, True, True, False]
    assert not bucket.take_token(9_000.0), "a clock that went back gives nothing"


def test_a_flood_is_a_few_lines_and_a_number() -> None:
    """Twenty thousand times the same: five lines at once, one a minute later that says how many there were."""
    now = [0.0]
    log = RatedLog(structlog.get_logger(), clock=lambda: now[0])
    with capture_logs() as lines:
        for number in range(20_000):
            log.warning("junk", offset=number)
        log.error("something else")
        now[0] = LINES_EVERY_S
        log.warning("junk", offset=20_000)
    assert [line.get("offset") for line in lines] == [0, 1, 2, 3, 4, None, 20_000]
    assert lines[-1]["more"] == 20_000 - LINES
    assert all("more" not in line for line in lines[:-1])


def _fail(log: RatedLog, number: int) -> None:
    try:
        int("no number")
    except ValueError:
        log.exception("a fault", number=number)
        raise


def test_what_was_left_out_is_said_when_the_flood_is_over() -> None:
    """Not before a line may be logged again, and once."""
    now = [0.0]
    log = RatedLog(structlog.get_logger(), clock=lambda: now[0])
    with capture_logs() as lines:
        for number in range(LINES + 3):
            with suppress(ValueError):
                _fail(log, number)
        log.flush()
        assert len(lines) == LINES
        now[0] = LINES_EVERY_S
        log.flush()
        log.flush()
    assert (lines[-1]["event"], lines[-1]["more"], lines[-1]["log_level"]) == ("a fault", 3, "error")
    assert len(lines) == LINES + 1
