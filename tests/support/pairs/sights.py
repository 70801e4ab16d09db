"""Makes what `tandem status` and `tandem failover` look at: real chains in a store, with voices and brokers beside."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

from support.backups.build_backup import CLUSTER, PAIR, TopicSpec
from tandem.backup_avro.documents.coordination_message import CoordinationEvent, CoordinationMessage
from tandem.backup_avro.selection.coverage import GuardedPartitions
from tandem.controller.config import Config
from tandem.controller.coordination.peer_state import PeerState
from tandem.controller.decision.observation import Policy, Role
from tandem.controller.status.instance_view import InstanceView
from tandem.controller.status.outside_view import read_chains
from tandem.controller.status.pair_view import Brokers, Gap, LogEnd, PairView
from tandem.controller.watch.store_watch import StoreView
from tandem.sink.store import ObjectStore
from tandem.sink.store.chain import pins
from tandem.sink.store.chain.chain_reader import ChainReader
from tandem.sink.store.chain.chain_writer import Identity, now_ms

LIVENESS_S = 60
POLICY = Policy(
    first="a",
    rotation_interval_s=7 * 86_400,
    liveness_timeout_s=LIVENESS_S,
    peer_timeout_s=600,
    handover_timeout_s=600,
    heartbeat_s=5,
    flush_interval_s=60,
)


def message(
    event: CoordinationEvent = CoordinationEvent.PROGRESS,
    *,
    instance: str = "a",
    incarnation: str = "",
    at: int = 0,
    details: Mapping[str, str] | None = None,
    **fields: object,
) -> CoordinationMessage:
    """A message of an instance; each has one process unless `incarnation` says otherwise."""
    made = CoordinationMessage(
        event=event,
        pair=PAIR,
        instance=instance,
        incarnation=incarnation or f"process-of-{instance}",
        cluster_id=CLUSTER,
        request_id="request",
        at=at,
        details=dict(details or {}),
    )
    return replace(made, **fields)  # type: ignore[arg-type]  # the caller names fields of the message


def listening(*messages: CoordinationMessage) -> PeerState:
    """What was heard after these messages, in this order."""
    peers = PeerState(pair=PAIR, instances=("a", "b"))
    for one in messages:
        peers.note_message(one)
    return peers


def stored(store: ObjectStore) -> StoreView:
    """What a look at a store shows an instance."""
    reader = ChainReader(store, PAIR)
    return StoreView(
        began_mono=time.monotonic(),
        generations=tuple(reader.refresh()),
        numbers=tuple(reader.numbers),
        grew_mono={},
    )


def known(config: Config, place: ObjectStore, /, **fields: object) -> InstanceView:
    """What instance a knows that has read a store and heard nobody; `fields` are those of `InstanceView`."""
    view = InstanceView(
        config=config,
        policy=POLICY,
        identity=Identity(pair=PAIR, instance="a", incarnation="now", cluster_id=CLUSTER),
        root=place.url,
        peers=PeerState(pair=PAIR, instances=("a", "b"), incarnation="now"),
        at=now_ms(place),
        now_mono=time.monotonic(),
        role=Role.ACTIVE,
        store=stored(place),
    )
    return replace(view, **fields)  # type: ignore[arg-type]  # the caller names fields of the view


def sight(
    store: ObjectStore,
    *,
    later_s: float = 0.0,
    heard_s: Mapping[str, float] | None = None,
    listener: PeerState | None = None,
    topics: Sequence[TopicSpec] | None = None,
    ends: Mapping[tuple[str, int], int | tuple[int, int]] | None = None,
    missing: Sequence[str] = (),
    cluster_id: str = CLUSTER,
    window_s: float = 0.0,
    gaps: tuple[Gap, ...] = (),
) -> PairView:
    """Look at a store `later_s` after now. `heard_s`: how long ago each instance sent its last heartbeat.

    With `topics` the brokers were asked too; `ends` are (last stable offset, high watermark) or both in one.
    """
    chains = read_chains(ChainReader(store, PAIR))
    at = now_ms(store) + round(later_s * 1000)
    if heard_s is not None:
        listener = listening(
            *(message(instance=name, at=at - round(ago * 1000), state="Passive") for name, ago in heard_s.items())
        )
    brokers = None
    if topics is not None:
        found = [spec.topic() for spec in topics]
        pairs = {key: end if isinstance(end, tuple) else (end, end) for key, end in (ends or {}).items()}
        brokers = Brokers(
            guarded=GuardedPartitions(
                cluster_id=cluster_id, topics={topic.topic_id: (topic.name, topic.partitions) for topic in found}
            ),
            ends={key: LogEnd(stable=stable, high=high) for key, (stable, high) in pairs.items()},
            missing=tuple(missing),
        )
    return PairView(
        at=at,
        pair=PAIR,
        root=store.url,
        instances=("a", "b"),
        policy=replace(POLICY, recovery_window_s=window_s),
        generations=chains.generations,
        newest=chains.newest,
        damaged=chains.damaged,
        pins=pins.list_pins(store, PAIR),
        heard=None if listener is None else listener.last_heard(),
        requests=() if listener is None else listener.requests(),
        brokers=brokers,
        gaps=gaps,
    )
