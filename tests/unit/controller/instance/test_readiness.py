"""Readiness is taken back when nothing gets through for longer than `liveness.timeout`, and comes back by itself."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
import structlog
from support.pairs.sights import POLICY

from tandem.controller.instance.readiness import Readiness, Service
from tandem.sink.pipeline_report import StoringState

BOUND_S = POLICY.liveness_timeout_s
STORING = StoringState(last_commit=None, failing=False)
FAILING = StoringState(last_commit=None, failing=True)


def tick(
    readiness: Readiness, upto_s: int, pipelines: Iterable[StoringState] = (), *, after_s: int = 0, mute: str = ""
) -> None:
    """One tick a second; every service but `mute` answers."""
    for second in range(after_s + 1, upto_s + 1):
        for service in Service:
            if service.name != mute:
                readiness.note_answer(service, second)
        readiness.judge(pipelines, second)


@pytest.mark.parametrize("service", Service)
def test_a_service_that_does_not_answer_takes_readiness_until_it_does(service: Service) -> None:
    """Not before the peer would count as dead, once in the log, and with its name and how long it has been."""
    readiness = Readiness(POLICY, started_mono=0)
    bound_s = round(BOUND_S)
    with structlog.testing.capture_logs() as logs:
        tick(readiness, bound_s, mute=service.name)
        assert readiness.obstacle is None
        tick(readiness, bound_s + 5, after_s=bound_s, mute=service.name)
        assert readiness.obstacle == f"{service.value} for {bound_s + 5} s"
        tick(readiness, bound_s + 6, after_s=bound_s + 5)
        assert readiness.obstacle is None
    assert [line["event"] for line in logs] == ["not ready any more", "ready again"]


def test_commits_that_the_store_refuses_count_from_the_first_failure() -> None:
    """Hours without a commit are normal while the topics get no records; the next commit ends it."""
    readiness = Readiness(POLICY, started_mono=0)
    tick(readiness, 3600, [STORING])
    tick(readiness, 3600 + round(BOUND_S), [FAILING], after_s=3600)
    assert readiness.obstacle is None
    tick(readiness, 3700, [FAILING], after_s=3600 + round(BOUND_S))
    assert readiness.obstacle == "the store has taken nothing of what was read for 100 s"
    tick(readiness, 3701, [STORING._replace(last_commit=3700.5)], after_s=3700)
    assert readiness.obstacle is None


def test_a_pipeline_that_fails_again_and_again_is_no_recovery() -> None:
    """It is started anew after each failure, and reads for a flush interval until the store refuses its commit."""
    readiness = Readiness(POLICY, started_mono=0)
    at = 100
    tick(readiness, at, [STORING])
    for _ in range(3):
        tick(readiness, at + 5, [FAILING], after_s=at)
        tick(readiness, at + 65, [STORING], after_s=at + 5)
        at += 65
    assert readiness.obstacle is not None
    tick(readiness, at + 300, [STORING], after_s=at)
    assert readiness.obstacle is None, "nothing has failed for long, and there is nothing to commit"


@pytest.mark.parametrize("every_s", [1, 30])
def test_one_topic_that_the_store_refuses_is_no_obstacle_while_others_are_stored(every_s: int) -> None:
    """It is set aside and reported; the instance does its work."""
    readiness = Readiness(POLICY, started_mono=0)
    for second in range(1, 300):
        tick(readiness, second, [FAILING._replace(last_commit=second - second % every_s)], after_s=second - 1)
        assert readiness.obstacle is None


def test_a_pipeline_that_failed_once_takes_no_readiness() -> None:
    """A fenced or spoilt generation is replaced by the next one."""
    readiness = Readiness(POLICY, started_mono=0)
    tick(readiness, 100, [STORING])
    tick(readiness, 105, [FAILING], after_s=100)
    for second in range(106, 500):
        tick(readiness, second, [], after_s=second - 1)
        assert readiness.obstacle is None
