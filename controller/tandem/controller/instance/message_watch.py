"""Compare messages with the store: hints, published heads, and the terms of both instances.

No decision depends on it. Differences are logged, and shown by heartbeats, health and metrics.
"""

from __future__ import annotations

import time
from typing import Any

import structlog

from tandem.backup_avro.chain.heads import Head
from tandem.backup_avro.documents.coordination_message import CoordinationEvent
from tandem.controller.config import Config
from tandem.controller.coordination import agreement, heads
from tandem.controller.instance.start import InstanceParts
from tandem.controller.local_state.remembered_heads import ACCEPT_REMEDY
from tandem.controller.watch.store_watch import StoreView, StoreWatch
from tandem.sink.process.rates import TokenBucket

_LOG = structlog.get_logger()
_HURRIES = 3
"""Reads of the store that hints may cause at once; after that one per heartbeat interval."""


class MessageWatch:
    """The differences found so far. `published_under`: by generation, the other root under which a lost head was.

    `dispute` is the difference between the two instances' terms; None if there is none, or the peer's are unknown.
    """

    def __init__(self, config: Config, parts: InstanceParts, watch: StoreWatch) -> None:
        self._config = config
        self._parts = parts
        self._watch = watch
        self._hints: frozenset[str] = frozenset()
        self._hurries = TokenBucket(_HURRIES, config.coordination.heartbeat_interval.total_seconds())
        self._heads = heads.LostHeads()
        self._remembered: tuple[Head, ...] = ()
        self._disputed: tuple[str, float] | None = None
        self.published_under: dict[int, str] = {}
        self.dispute: str | None = None

    @property
    def lost_heads(self) -> tuple[Head, ...]:
        """The heads that the store has lost, published ones and those that this machine remembers; one a generation."""
        return tuple({head.generation: head for head in (*self._remembered, *self._heads.lost)}.values())

    def check_remembered(self, view: StoreView) -> None:
        """Log heads that this machine remembers and the store has lost."""
        for loss in view.remembered_losses:
            if loss.head not in self._remembered:
                self._remembered = (*self._remembered, loss.head)
                _LOG.error("the store was set back", what=loss.describe_loss(), remedy=ACCEPT_REMEDY)

    def follow_hints(self) -> None:
        """Have the store read at once after a new PAUSE or RESUME message."""
        hints = self._parts.peers.hints(CoordinationEvent.PAUSE, CoordinationEvent.RESUME)
        if hints - self._hints:
            self._read_soon_for_hint()
        self._hints = hints

    def _read_soon_for_hint(self) -> None:
        """Have the store read at once, at a limited rate: any writer on the topic can send hints."""
        if self._hurries.take_token(time.monotonic()):
            self._watch.read_soon()

    def check_heads(self, view: StoreView) -> bool:
        """Log published heads that a later read of the store does not find.

        Return whether every published head is either found or lost by now.
        """
        known, now = self._parts.peers.heads(), time.monotonic()
        for head in self._heads.find_lost(
            known, view.generations, numbers=view.numbers, began=view.began_mono, now=now
        ):
            was, root = self._parts.peers.roots([head]).get(head.generation), self._parts.store.url
            what: dict[str, Any] = {"generation": head.generation, "entry": head.seq, "sha256": head.sha256}
            if was is not None and was != root:
                self.published_under[head.generation] = was
                _LOG.error(
                    "an entry that was published is not in the store: store.root was changed",
                    **what,
                    published_under=was,
                    root=root,
                    remedy=heads.MOVED_REMEDY,
                )
                continue
            _LOG.error(
                "an entry that was published is not in the store: the bucket is in an older state, or another one",
                **what,
                remedy="check store.root; bring the newer state back from the bucket's versions or a replica; see "
                "docs/signing.md",
            )
        if not self._heads.settled:
            self._read_soon_for_hint()
        return self._heads.settled

    def compare_terms(self, view: StoreView) -> None:
        """Log when the two instances begin or cease to differ in their store or their guarded topics."""
        me, peer = self._parts.identity.instance, self._config.peer_instance
        theirs = self._peer_terms()
        found = None if theirs is None else agreement.dispute(me, self.own_terms(view), peer, theirs)
        now = time.monotonic()
        if found is None:
            if self.dispute is not None:
                _LOG.info("the instances agree again", peer=peer)
            self._disputed = self.dispute = None
        elif self._disputed is None or self._disputed[0] != found:
            self._disputed = (found, now)
        elif self._disputed[1] < view.began_mono and self.dispute != found:
            # The store was read after the difference was first seen, so a first claim of the peer would be known.
            self.dispute = found
            _LOG.error("the instances do not agree", peer=peer, what=found, remedy=agreement.REMEDY)

    def _peer_terms(self) -> agreement.PairTerms | None:
        said = self._parts.peers.current_heartbeat(self._config.peer_instance)
        return None if said is None else said.terms

    def own_terms(self, view: StoreView) -> agreement.PairTerms:
        """Return the terms of this instance."""
        topics = self._config.topics
        return agreement.PairTerms(
            root=self._parts.store.url,
            origin=view.origin,
            topics=agreement.topics_id(topics.include, topics.expressions, topics.exclude),
        )
