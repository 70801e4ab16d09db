"""What an instance knows of its pair without asking anybody, in the form that a look from outside has. Pure."""

from __future__ import annotations

from dataclasses import replace

from tandem.backup_avro.documents.pause import in_force
from tandem.backup_avro.selection.coverage import Guarded
from tandem.controller.config import Config
from tandem.controller.coordination.peer_state import LastHeard, PeerState
from tandem.controller.decision.observation import Policy
from tandem.controller.instance.store_watch import StoreView
from tandem.controller.status.pair_view import Brokers, Sight


def stored_sight(config: Config, view: StoreView, *, at: int, root: str, policy: Policy) -> Sight:
    """Return what the last look at the store has shown, and nothing of instances and brokers."""
    return Sight(
        at=at,
        pair=config.pair,
        root=root,
        instances=config.instances,
        policy=policy,
        generations=view.generations,
        newest=view.newest,
        damaged=view.damaged,
        releases=view.releases,
        pause=in_force(view.pause, at),
    )


def own_sight(config: Config, stored: Sight, *, peers: PeerState, own: LastHeard, guarded: Guarded | None) -> Sight:
    """Return `stored` with what is known of instances and brokers.

    `own` is what this instance would say of itself now. So it is told as alive however long the coordination topic does
    not take its heartbeats. `guarded` is None while the brokers do not answer.
    """
    brokers = None
    if guarded is not None:
        missing = frozenset(config.topics.include) - {name for name, _ in guarded.topics.values()} - guarded.denied
        brokers = Brokers(guarded=guarded, missing=tuple(sorted(missing)))
    heard = peers.last_heard() | {own.instance: own}
    return replace(stored, heard=heard, requests=peers.requests(), brokers=brokers)
