"""The source of an instance's status page and history: the instance's view, and data that is looked up for the page.

Pins, last runs, log ends and past events are looked up only while the page is requested, and at most every few seconds,
however many clients request it. A request waits a moment at most and then gets the last data with its age: a store or
a broker that hangs makes the page older, but does not stop it.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import Final

from tandem.backup_avro.documents.outcome import JobKind, JobOutcome
from tandem.backup_avro.errors import TandemError
from tandem.controller.cli.output.output import document
from tandem.controller.config import Config
from tandem.controller.coordination.topic_reader import ANSWER_S
from tandem.controller.history.background_history import BackgroundHistory, BackgroundHistoryView
from tandem.controller.history.store_history import ServedHistory
from tandem.controller.history.turns import turn_of
from tandem.controller.http.page.content import Content, Freshness, content
from tandem.controller.http.page.render import page, policy, topics
from tandem.controller.http.page.topics import topic_page
from tandem.controller.http.page.trends import Trends
from tandem.controller.http.server import HttpAnswer
from tandem.controller.process.cached_call import CachedCall
from tandem.controller.status.instance_view import InstanceView, pair_view
from tandem.controller.status.outside_view import gap_of_ends, impatient_store, log_ends
from tandem.controller.status.overview import overview
from tandem.controller.status.pair_view import LogEnd
from tandem.sink.kafka.auth.client_config import Value
from tandem.sink.kafka.cluster.admin import ClusterAdmin
from tandem.sink.kafka.events import TopicPartition
from tandem.sink.store import ObjectStore
from tandem.sink.store.chain import checkpoints, outcomes, pins
from tandem.sink.store.chain.checkpoints import CheckpointCache, CheckpointListing
from tandem.sink.store.chain.pins import KnownPins, Pin
from tandem.sink.store.contract.lifecycle_rules import LifecycleRule, lifecycle_rules

_LOOK_S: Final = 10.0
_PAST_S: Final = 2.0
_LINGER_S: Final = 300.0
_WAIT_S: Final = 1.0
_PAGE_S: Final = 5.0
"""Least seconds between two renderings of the page: ten thousand partitions take half a second of a core."""
_OLD_S: Final = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _StoreDetails:
    """The data of the store beside chains that the page shows."""

    pins: tuple[Pin, ...]
    checkpoints: CheckpointListing
    ran: Mapping[JobKind, JobOutcome | None]
    expiring: Sequence[LifecycleRule]


@dataclass(frozen=True, slots=True, kw_only=True)
class _LogEnds:
    """The known ends of logs, and what is to be said of the others."""

    known: Mapping[tuple[str, int], LogEnd]
    trouble: str | None = None


class PageSource:
    """Answers `/`, `/topics` and `/history`; thread-safe. Until `show` is called they say that the instance starts."""

    def __init__(self, config: Config, *, config_file: PurePath | None = None) -> None:
        """Take `config_file`, the file to name in the commands on the page; None: the commands find it themselves."""
        self._config = config
        self._config_file = config_file
        self._me = config.require_instance()
        self._look: Callable[[], InstanceView] | None = None
        self._store: ObjectStore | None = None
        self._admin: ClusterAdmin | None = None
        self._known_pins: KnownPins = {}
        self._known_checkpoints = CheckpointCache()
        self._beside = CachedCall(self._ask_store, interval_s=_LOOK_S)
        self._ends = CachedCall(self._ask_brokers, interval_s=_LOOK_S)
        self._past: CachedCall[BackgroundHistoryView] | None = None
        self._lock = threading.Lock()
        self._drawn: HttpAnswer | None = None
        self._shown = Content(pair=config.pair, me=self._me, found=None)
        self._drawn_mono = 0.0
        self._trends = Trends()

    def show(self, look: Callable[[], InstanceView]) -> None:
        """Show the instance whose view `look` returns from now on."""
        self._store = impatient_store(self._config)
        props: dict[str, Value] = dict(self._config.kafka.reveal())
        self._admin = ClusterAdmin(props, timeout_s=ANSWER_S)
        past = BackgroundHistory(self._store, self._config.pair, lambda: look().store)
        self._past = CachedCall(past.step, interval_s=_PAST_S, linger_s=_LINGER_S)
        self._look = look
        self._trends.start(lambda: pair_view(look()), self._me)

    @property
    def pages(self) -> Mapping[str, Callable[[str], HttpAnswer]]:
        """The functions that make the answers from a query, by path."""
        return {"/": lambda _: self.page(), "/topics": self.topics, "/history": lambda _: self.history()}

    def page(self) -> HttpAnswer:
        """Return the status page. While one is rendered, other requests get the last one, unless that is 60 s old."""
        drawn = self._drawn
        must_wait = drawn is None or time.monotonic() - self._drawn_mono >= _OLD_S
        if not self._lock.acquire(blocking=must_wait) and drawn is not None:
            return drawn
        try:
            return self._newest()
        finally:
            self._lock.release()

    def topics(self, query: str) -> HttpAnswer:
        """Return the page of topics, made from what the last status page was made from, and the chains as they are."""
        self.page()
        view = None if self._look is None else self._look().store
        return _html(topics(topic_page(self._shown, query, () if view is None else view.generations)))

    def _newest(self) -> HttpAnswer:
        if self._drawn is None or time.monotonic() - self._drawn_mono >= _PAGE_S:
            self._shown = self._content()
            self._drawn = _html(page(self._shown))
            self._drawn_mono = time.monotonic()
        return self._drawn

    def history(self) -> HttpAnswer:
        """Return the past events read so far, in the form of `tandem history -o json`; `unread` counts the others."""
        past = None if self._past is None else self._past.get(wait_s=_WAIT_S)
        view = None if past is None else past.value
        body = ServedHistory(
            pair=self._config.pair,
            root=self._config.store.root,
            damaged={} if view is None else view.past_events.damaged,
            events=() if view is None else view.past_events.happenings,
            unread=None if view is None else view.unread,
            trouble=None if past is None else past.trouble,
        )
        return HttpAnswer(body=json.dumps(document("History", body), allow_nan=False), kind="application/json")

    def close(self) -> None:
        """Stop the look-ups."""
        self._trends.stop()
        for asking in (self._beside, self._ends, self._past):
            if asking is not None:
                asking.stop()

    def _content(self) -> Content:
        known = None if self._look is None else self._look()
        seen, view = (None, None) if known is None else (pair_view(known), known.store)
        if seen is None or view is None or self._past is None:
            return Content(pair=self._config.pair, me=self._me, found=None)
        # All three are started at once, so that one that hangs costs one wait in all.
        for asking in (self._beside, self._ends, self._past):
            asking.get(wait_s=0.0)
        until = time.monotonic() + _WAIT_S
        beside = self._beside.get(wait_s=_WAIT_S)
        ends = self._ends.get(wait_s=max(0.0, until - time.monotonic()))
        past = self._past.get(wait_s=max(0.0, until - time.monotonic()))
        logs = ends.value or _LogEnds(known={})
        brokers = None if seen.brokers is None else replace(seen.brokers, ends=logs.known)
        seen = replace(seen, brokers=brokers)
        if beside.value is not None:
            named = beside.value.checkpoints
            seen = replace(
                seen,
                pins=beside.value.pins,
                checkpoints=named.checkpoints,
                damaged_checkpoints=named.damaged,
                expiring=beside.value.expiring,
            )
        over = () if past.value is None else past.value.turns
        live = {generation.number for generation in view.generations}
        shown = content(
            overview(seen),
            me=self._me,
            config=self._config_file,
            trends=self._trends,
            turns=[
                *(turn for turn in over if turn.generation not in live),
                *(turn_of(generation) for generation in view.generations if generation.seq),
            ],
            ran=None if beside.value is None else beside.value.ran,
        )
        return replace(
            shown,
            freshness=(
                Freshness(what="Chains", age_s=time.monotonic() - view.began_mono),
                Freshness(what="Ends of the logs", age_s=ends.age_s, trouble=ends.trouble or logs.trouble),
                Freshness(what="Checkpoints and checks", age_s=beside.age_s, trouble=beside.trouble),
            ),
        )

    def _ask_store(self) -> _StoreDetails:
        assert self._store is not None
        pair = self._config.pair
        return _StoreDetails(
            pins=tuple(pins.list_pins(self._store, pair, known=self._known_pins)),
            checkpoints=checkpoints.list_checkpoints(self._store, pair, remembered=self._known_checkpoints),
            ran=outcomes.latest_of_each(self._store, pair),
            expiring=lifecycle_rules(self._store, f"{pair}/") or (),
        )

    def _ask_brokers(self) -> _LogEnds:
        assert self._look is not None
        assert self._admin is not None
        seen = pair_view(self._look())
        if seen is None or seen.brokers is None:
            return _LogEnds(known={})
        missing: dict[TopicPartition, TandemError] = {}
        known = log_ends(self._config, self._admin, seen.brokers.guarded, missing=missing)
        return _LogEnds(known=known, trouble=gap_of_ends(known, missing).message if missing else None)


def _html(text: str) -> HttpAnswer:
    return HttpAnswer(body=text, kind="text/html", headers={"Content-Security-Policy": policy()})
