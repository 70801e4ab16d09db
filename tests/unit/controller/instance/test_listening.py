"""Since when an instance runs on and hears its peer: what it did not see does not count as the peer's silence."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from support.pairs.observations import POLICY

from tandem.controller.instance.observe import Observer

TIMEOUT = POLICY.liveness_timeout_s


def after(*ticks: tuple[float, bool], **policy: float) -> tuple[float, float]:
    """Since when a process that began at 0 runs on and hears; each tick has its time, and whether messages fail."""
    coordination = SimpleNamespace(failing=False)
    it: Any = SimpleNamespace(
        started_mono=0.0,
        _ticked_mono=0.0,
        _listening_mono=0.0,
        _policy=replace(POLICY, **policy),
        _parts=SimpleNamespace(coordination=coordination),
    )
    for at, coordination.failing in ticks:
        Observer._note_tick(it, at)
    return it.started_mono, it._listening_mono


def test_a_process_that_runs_on() -> None:
    """It hears from its start on; after an outage of the brokers since then, and it ran all the time."""
    assert after((5.0, False), (10.0, False)) == (0.0, 0.0)
    assert after((5.0, True), (10.0, True), (15.0, False)) == (0.0, 10.0)


def test_a_process_that_stood_still() -> None:
    """It begins anew in both."""
    assert after((5.0, False), (6.0 + TIMEOUT / 2, False)) == (6.0 + TIMEOUT / 2, 6.0 + TIMEOUT / 2)
    assert after((5.0, True), (6.0 + TIMEOUT / 2, True), (7.0 + TIMEOUT / 2, False))[0] == 6.0 + TIMEOUT / 2


@pytest.mark.parametrize(("heartbeat_s", "timeout_s"), [(1.0, 2.0), (0.5, 1.0), (10.0, 20.0)])
def test_ticks_of_the_tightest_settings_are_no_standstill(heartbeat_s: float, timeout_s: float) -> None:
    """Else a dead Active would never be replaced. The loop waits a heartbeat, at most a second, and then works."""
    ticks = [(number * 1.5 * min(1.0, heartbeat_s), False) for number in range(1, 20)]
    assert after(*ticks, heartbeat_s=heartbeat_s, liveness_timeout_s=timeout_s) == (0.0, 0.0)
