"""The state of an instance at one moment, and the heartbeat and the pair view made from it. Pure.

Health (`instance_state`), metrics (`instance_metrics`) and the page are made of the same `InstanceView`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tandem.backup_avro.chain.entries import PartitionKey
from tandem.backup_avro.chain.generation import Generation
from tandem.backup_avro.chain.heads import Head
from tandem.backup_avro.documents.coordination_message import ReaderPosition
from tandem.backup_avro.selection.losses import KeptLoss, loss_of
from tandem.controller.config import Config
from tandem.controller.coordination import heads
from tandem.controller.coordination.agreement import PairTerms
from tandem.controller.coordination.heartbeat import Heartbeat
from tandem.controller.coordination.peer_state import PeerState
from tandem.controller.decision.observation import Policy, Role
from tandem.controller.status.health import first_names
from tandem.controller.status.pair_view import Brokers, PairView, view_of_store
from tandem.controller.watch.guarded_cluster import as_guarded
from tandem.controller.watch.store_watch import StoreView
from tandem.sink.kafka.cluster.guarded_topics import GuardedTopics
from tandem.sink.pipeline_report import PipelineReport
from tandem.sink.process import safe_text
from tandem.sink.process.resource_limits import resource_shortage
from tandem.sink.store.chain.chain_writer import Identity
from tandem.sink.write.confirm import CoverLostError

_POSITIONS_IN_HEARTBEAT = 200
_HELD_IN_HEARTBEAT = 20
_TROUBLES_IN_HEARTBEAT = 3
_VANISHED_IN_HEARTBEAT = 20
_KEYS_IN_HEARTBEAT = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceView:
    """One moment of one instance: `at` in ms by the store's clock, `now_mono` and the last tick in monotonic seconds.

    `role` and `reason` are those of the last decision; `reason` is None before the first. `store` is the last view of
    the chains, `topics` the result of the last survey of the brokers; the troubles are why later ones failed. `failing`
    are duties that fail repeatedly, `uncovered` its own generations that are kept because a generation that covers them
    has lost objects; `vanished` are lost keys that sealed ones of its own have. `lost_heads` were published and are not
    in the store; `published_under` has, by generation, the other root under which they were published. `terms` are its
    own, `dispute` is how the peer's differ. `obstacle` is what keeps it from its work for more than `liveness.timeout`.
    """

    config: Config
    policy: Policy
    identity: Identity
    root: str
    peers: PeerState
    at: int
    now_mono: float = 0.0
    ticked_mono: float = 0.0
    role: Role = Role.PASSIVE
    reason: str | None = None
    store: StoreView | None = None
    store_trouble: str | None = None
    topics: GuardedTopics | None = None
    brokers_trouble: str | None = None
    coordination_caught_up: bool = False
    coordination_failing: bool = False
    obstacle: str | None = None
    reports: Sequence[PipelineReport] = ()
    failing: tuple[str, ...] = ()
    uncovered: Mapping[int, CoverLostError] = field(default_factory=dict)
    vanished: Mapping[int, Mapping[PartitionKey, str]] = field(default_factory=dict)
    lost_heads: tuple[Head, ...] = ()
    published_under: Mapping[int, str] = field(default_factory=dict)
    terms: PairTerms | None = None
    dispute: str | None = None
    transcoder: str | None = None

    @property
    def not_ready(self) -> str | None:
        """Why it takes no part in the pair now; None: it has begun to, and nothing has kept it from that for long."""
        if self.reason is None:
            return "it has not read store, brokers and coordination topic yet"
        if not self.coordination_caught_up:
            return "the coordination topic has not been read to its end"
        return self.obstacle

    @property
    def ready(self) -> bool:
        """Whether it takes part in the pair."""
        return self.not_ready is None

    @property
    def troubles(self) -> tuple[str, ...]:
        """Duties that fail repeatedly, and missing rights on single topics that no pipeline reports."""
        denied = None if self.topics is None or self.brokers_trouble is not None else self.topics.trouble
        if denied is None or any(denied in report.trouble for report in self.reports):
            return self.failing
        return (denied, *self.failing)

    @property
    def lost_covers(self) -> tuple[str, ...]:
        """The lost objects, in one sentence without a remedy for each of the generations that are `uncovered`."""
        return tuple(str(error.args[0]) for _, error in sorted(self.uncovered.items()))

    @property
    def missing_keys(self) -> str | None:
        """The keys that encrypted objects need and the configuration does not name, in one sentence; None: none."""
        if self.store is None or not self.store.missing_keys:
            return None
        found = self.store.missing_keys
        keys = sorted(self.store.missing_key_ids)
        objects = sum(count for missing in found.values() for count in missing.values())
        needing = f"{objects:,} object{'s' if objects > 1 else ''} of generation {', '.join(map(str, sorted(found)))}"
        return (
            f"key{'s' if len(keys) > 1 else ''} {first_names(keys, _KEYS_IN_HEARTBEAT)}, which {needing} "
            f"need{'' if objects > 1 else 's'}, {'are' if len(keys) > 1 else 'is'} not at hand"
        )


def heartbeat_of(known: InstanceView) -> Heartbeat:
    """Return the heartbeat that the instance publishes on the coordination topic."""
    newest = known.reports[-1] if known.reports else None
    state = None
    if known.store is not None and newest is not None:
        state = next((g for g in known.store.generations if g.number == newest.generation), None)
    # Held partitions of all pipelines: an open transaction may hold back a build and the Active at once.
    held = sorted({tp for report in known.reports for tp in report.held})
    return replace(
        Heartbeat() if newest is None else _of_pipeline(newest),
        role=known.role.value,
        reason=known.reason,
        positions=() if state is None else _positions(state),
        head=None if state is None else Head.of(state),
        held=tuple(f"{tp.topic}-{tp.partition}" for tp in held[:_HELD_IN_HEARTBEAT]),
        transcoder=known.transcoder,
        terms=known.terms,
        store=known.store_trouble,
        brokers=known.brokers_trouble,
        rolled_back=heads.summary(known.lost_heads, known.published_under.values()),
        objects_lost="; ".join(known.lost_covers) or None,
        objects_lost_of=frozenset(error.generation for error in known.uncovered.values()),
        keys_missing=known.missing_keys,
        failing="; ".join(known.troubles) or None,
        loss_signs=() if known.store is None else known.store.loss_signs,
        vanished=tuple(compared_losses(known))[:_VANISHED_IN_HEARTBEAT],
    )


def compared_losses(known: InstanceView) -> Iterator[tuple[int, KeptLoss]]:
    """Yield the losses that the instance found in its own sealed generations, each with the generation's number."""
    for number, found in sorted(known.vanished.items()):
        for loss in (loss_of(key, reason) for key, reason in sorted(found.items())):
            if loss is not None:
                yield number, loss


def _of_pipeline(report: PipelineReport) -> Heartbeat:
    return Heartbeat(
        generation=report.generation,
        lag=report.lag_records,
        phase=report.phase.value,
        partitions=report.partitions,
        base_remaining=report.base_remaining,
        records=report.records,
        error=error_text(report.error),
        trouble="; ".join(report.trouble[:_TROUBLES_IN_HEARTBEAT]) or None,
    )


def _positions(state: Generation) -> tuple[ReaderPosition, ...]:
    return tuple(
        ReaderPosition(topic=state.topics[key.topic_id].name, partition=key.partition, offset=position.offset)
        for key, position in sorted(state.positions.items())[:_POSITIONS_IN_HEARTBEAT]
    )


def error_text(error: Exception | None) -> str | None:
    """Return the text of a pipeline's error in one line and without secrets."""
    if error is None:
        return None
    lacking = resource_shortage(error)
    why = str(error) if lacking is None else f"{lacking.message}: {lacking.remedy}"
    return safe_text.redact(" ".join(why.split()))


def stored_view(known: InstanceView) -> PairView | None:
    """Return the view of the last read of the store, without instances and brokers; None before the first read."""
    if known.store is None:
        return None
    return replace(
        view_of_store(known.store, config=known.config, policy=known.policy, root=known.root, at=known.at),
        lost_heads=known.lost_heads,
        published_under=known.published_under,
    )


def pair_view(known: InstanceView) -> PairView | None:
    """Return the view of the pair; None before the first read of the store.

    It equals the view of a command, but has no pins and no log ends, and has this instance's present heartbeat: so this
    instance counts as alive, however long the coordination topic rejects its heartbeats.
    """
    stored, me = stored_view(known), known.identity.instance
    if stored is None:
        return None
    brokers = None
    if known.topics is not None and known.brokers_trouble is None:
        guarded = as_guarded(known.identity.cluster_id, known.topics, stored.generations)
        missing = (
            frozenset(known.config.topics.include) - {name for name, _ in guarded.topics.values()} - guarded.denied
        )
        brokers = Brokers(
            guarded=guarded, missing=tuple(sorted(missing - guarded.denied)), restored=known.topics.restored
        )
    heard = known.peers.last_heard() | {me: known.peers.own_state_as_heard(me, heartbeat_of(known), known.at)}
    return replace(stored, heard=heard, requests=known.peers.requests(), brokers=brokers)
