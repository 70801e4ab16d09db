"""Read the results of verifications, drills and sweeps in a thread: these jobs end before they can be scraped.

And the bucket's lifecycle rules: whoever adds one does not ask the instances.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

import structlog

from tandem.controller.metrics.instance_metrics import LastRuns
from tandem.sink.store.chain.outcomes import OutcomeReader
from tandem.sink.store.contract.lifecycle_rules import REMEDY, LifecycleRule, lifecycle_rules
from tandem.sink.store.contract.object_store import ObjectStore

_LOG = structlog.get_logger()
_INTERVAL_S = 300.0
"""Seconds between two reads: two requests each, so about eighteen thousand a month; jobs run once a day."""


class ResultsWatch:
    """Reads the results at once and then every `interval_s`. The last results stay while the store is away."""

    def __init__(self, store: ObjectStore, pair: str, *, interval_s: float = _INTERVAL_S) -> None:
        self._store = store
        self._pair = pair
        self._reader = OutcomeReader(store, pair)
        self._interval_s = interval_s
        self._stopped = threading.Event()
        self._results = LastRuns()
        self._rules: Sequence[LifecycleRule] | None = None
        self._failing = False
        self._thread = threading.Thread(target=self._run, name="results", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Have the thread end after the read under way."""
        self._stopped.set()

    def results(self) -> LastRuns:
        """Return the results of the last successful read."""
        return self._results

    def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                last, rules = self._reader.refresh(), self._lifecycle_rules()
                self._results = LastRuns(known=True, last=last, lifecycle_rules=None if rules is None else len(rules))
            except Exception as error:  # noqa: BLE001 (a thread that ended would show the last results for ever)
                if not self._failing and not self._stopped.is_set():
                    _LOG.warning("cannot read the results of jobs, trying again", error=error)
                self._failing = True
            else:
                self._failing = False
            self._stopped.wait(self._interval_s)

    def _lifecycle_rules(self) -> Sequence[LifecycleRule] | None:
        """Return the rules as last read, and log each new one."""
        rules = lifecycle_rules(self._store, f"{self._pair}/")
        if rules is not None:  # else as before: an alert does not end because the store is away
            for rule in rules:
                if rule not in (self._rules or ()):
                    _LOG.warning(f"the bucket will take objects of the backup away: {REMEDY}", rule=str(rule))
            self._rules = rules
        return self._rules
