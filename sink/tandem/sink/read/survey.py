"""Asks the cluster, in a thread of its own, for the guarded topics and for the offsets of consumer groups."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import structlog

from tandem.backup_avro.chain.entries import GroupOffset
from tandem.backup_avro.errors import TandemError
from tandem.sink.kafka.cluster.guarded_topics import ClusterView, GuardedTopics
from tandem.sink.process import clock
from tandem.sink.process.meters import NOBODY, Meters

_LOG = structlog.get_logger()
_RETRY_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSurvey:
    """Result of one survey.

    `groups` is None when the groups were not due or could not be read; the value of one group is None when that group
    could not be read. `unrecorded`: group -> why its positions are not in the backup, as of the same time. `asked` is
    when the topics were requested, by `sink.process.clock`.
    """

    found: GuardedTopics
    groups: Mapping[str, tuple[GroupOffset, ...] | None] | None
    unrecorded: Mapping[str, str] = field(default_factory=dict)
    asked: float = field(default_factory=clock.now)


class ClusterSurveyor:
    """Asks for topics every `interval_s`, for groups every `groups_interval_s` (None: never).

    `trouble` is why the last survey failed.
    """

    def __init__(
        self, *, cluster: ClusterView, interval_s: float, groups_interval_s: float | None, meters: Meters = NOBODY
    ) -> None:
        self._cluster = cluster
        self._meters = meters
        self._interval_s = interval_s
        self._groups_interval_s = groups_interval_s
        self._groups_at = 0.0
        self._wake = threading.Event()
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self._latest: ClusterSurvey | None = None
        self._thread = threading.Thread(target=self._run, name="survey", daemon=True)
        self.trouble: str | None = None

    def start(self) -> None:
        """Start the thread; the first survey begins at once."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread after the call under way."""
        self._stopped.set()
        self._wake.set()

    def survey_soon(self) -> None:
        """Survey again soon, because the last survey is outdated."""
        self._wake.set()

    def take_survey(self) -> ClusterSurvey | None:
        """Return the newest survey, None if it was returned before."""
        with self._lock:
            latest, self._latest = self._latest, None
            return latest

    def _run(self) -> None:
        while not self._stopped.is_set():
            wait_s = self._interval_s
            try:
                self._once()
            except Exception as error:  # noqa: BLE001 (a dead thread would keep the last survey valid for ever)
                wait_s = min(_RETRY_S, self._interval_s)
                self._meters.retried("brokers")
                if self.trouble is None:
                    _LOG.warning("cannot survey the cluster, trying again", error=error, kind=type(error).__name__)
                self.trouble = str(error) or type(error).__name__
            else:
                if self.trouble is not None:
                    _LOG.info("the cluster answers again")
                self.trouble = None
            if self._wake.wait(wait_s):
                self._wake.clear()
                self._stopped.wait(min(_RETRY_S, self._interval_s))  # one survey serves many calls of `hurry`

    def _once(self) -> None:
        asked = clock.now()
        found = self._cluster.guarded()
        self._hand_out(ClusterSurvey(found=found, groups=None, asked=asked))  # groups may take minutes
        if self._groups_interval_s is None or time.monotonic() < self._groups_at:
            return
        try:
            answer = self._cluster.group_offsets(found.topics)
            groups = {name: None if offsets is None else tuple(offsets) for name, offsets in answer.offsets.items()}
        except TandemError as error:
            _LOG.warning("cannot read consumer-group offsets", error=error)
            return
        self._groups_at = time.monotonic() + self._groups_interval_s
        self._hand_out(ClusterSurvey(found=found, groups=groups, unrecorded=answer.unrecorded, asked=asked))

    def _hand_out(self, survey: ClusterSurvey) -> None:
        with self._lock:
            if survey.groups is None and self._latest is not None:
                survey = replace(survey, groups=self._latest.groups, unrecorded=self._latest.unrecorded)
            self._latest = survey
