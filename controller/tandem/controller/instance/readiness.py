"""What keeps a running instance from its work, and for how long: the part of readiness that is taken back.

Pure but for its log line. Times are monotonic seconds. docs/decisions/0142 has the reasons.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from enum import StrEnum

import structlog

from tandem.controller.decision.observation import Policy
from tandem.sink.pipeline_report import StoringState

_LOG = structlog.get_logger()


class Service(StrEnum):
    """What an instance must reach, each as the text that says that it does not."""

    STORE = "the store could not be read"
    BROKERS = "the brokers have not answered"
    COORDINATION = "no heartbeat has come through the coordination topic"


_UNSTORED = "the store has taken nothing of what was read"


class Readiness:
    """Judges once a tick whether something has kept the instance from its work for more than `liveness.timeout`.

    An instance whose heartbeats nobody hears for that time counts as dead in the pair; shorter outages are normal, and
    take no readiness. `obstacle` is the present one, None if there is none; for any thread.
    """

    def __init__(self, policy: Policy, *, started_mono: float) -> None:
        self._bound_s = policy.liveness_timeout_s
        # A pipeline that fails for good is started again and reads for a flush interval before it fails again.
        self._forgotten_after_s = policy.liveness_timeout_s + 2 * policy.flush_interval_s
        self._reached = dict.fromkeys(Service, started_mono)
        self._stored_mono = started_mono
        self._refused_mono = -math.inf
        self.obstacle: str | None = None

    def note_answer(self, service: Service, mono: float) -> None:
        """Note that a service answered."""
        self._reached[service] = max(self._reached[service], mono)

    def judge(self, pipelines: Iterable[StoringState], now_mono: float) -> None:
        """Set `obstacle`, and log when it comes and goes. `pipelines` are the present ones."""
        self._note_commits(pipelines, now_mono)
        silent_s = {service.value: now_mono - answered for service, answered in self._reached.items()}
        silent_s[_UNSTORED] = self._refused_mono - self._stored_mono
        before, self.obstacle = self.obstacle, "; ".join(
            f"{what} for {for_s:.0f} s" for what, for_s in silent_s.items() if for_s > self._bound_s
        ) or None  # fmt: skip
        if before is None and self.obstacle is not None:
            _LOG.warning("not ready any more", obstacle=self.obstacle)
        elif before is not None and self.obstacle is None:
            _LOG.info("ready again")

    def _note_commits(self, pipelines: Iterable[StoringState], now_mono: float) -> None:
        """Note commits, and attempts that failed. One topic that the store refuses is none while others are stored."""
        failing = False
        for pipeline in pipelines:
            failing = failing or pipeline.failing
            self._stored_mono = max(self._stored_mono, pipeline.last_commit or -math.inf)
        if failing:
            self._refused_mono = now_mono
        elif now_mono - self._refused_mono > self._forgotten_after_s:
            self._stored_mono = now_mono
