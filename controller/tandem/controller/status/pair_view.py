"""The view of a pair from outside, as plain values: chains in S3, messages on the topic, topics of the brokers.

Pure. S3 is the authority; messages only show which instance is alive and what it does. A value that was not asked for,
or not answered, is None, never guessed. All times are ms by the store's clock: instances stamp their messages with it
too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tandem.backup_avro.chain.generation import Generation
from tandem.backup_avro.chain.heads import Head
from tandem.backup_avro.documents.checkpoint import Checkpoint
from tandem.backup_avro.documents.coordination_message import CoordinationMessage
from tandem.backup_avro.documents.pause import Pause, in_force
from tandem.backup_avro.documents.release import Release
from tandem.backup_avro.selection.coverage import GuardedPartitions
from tandem.controller.config import Config
from tandem.controller.coordination.heartbeat import Heartbeat
from tandem.controller.coordination.peer_state import LastHeard
from tandem.controller.decision import pair_rules
from tandem.controller.decision.observation import Policy
from tandem.controller.local_state.remembered_heads import SeenHead
from tandem.controller.watch.store_watch import StoreView
from tandem.sink.store.chain.pins import Pin
from tandem.sink.store.contract.lifecycle_rules import LifecycleRule


@dataclass(frozen=True, slots=True, kw_only=True)
class LogEnd:
    """Ends of one partition: `stable` is the end at the pair's isolation level, `high` the high watermark."""

    stable: int
    high: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Brokers:
    """The guarded topics that the cluster has. `missing` are names in topics.include that it does not have.

    `restored` are topics that a pattern matches and that are left out, because a restore created them.
    """

    guarded: GuardedPartitions
    ends: Mapping[tuple[str, int], LogEnd] = field(default_factory=dict)
    missing: tuple[str, ...] = ()
    restored: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """A request that failed: the values that are unknown therefore, why it failed, and the remedy."""

    message: str
    remedy: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PairView:
    """The pair at one moment. `generations` are the readable ones that are not wholly cleared, ascending.

    `newest` is the highest number of all generations. `damaged` has, by number, why a generation can't be read. `heard`
    and `brokers` are None if not asked or not answered; `gaps` then say why. `requests` are the last ACTIVATE of each
    sender. `pause` is the one in force. `lost_heads` were published by the instances, and are not in the store;
    `published_under` has, by generation, the other root under which they were published. `remembered_losses` were
    read by this machine, and are not in the store any more. `checkpoints` and, by id, why some can't be read are there
    where they were looked up. `expiring` are the rules of the bucket that delete or archive objects of the pair, as far
    as the store says. `policy_known` is whether `policy` is the pair's, not made of defaults because no
    configuration was named.
    """

    at: int
    pair: str
    root: str
    instances: tuple[str, ...]
    policy: Policy
    generations: tuple[Generation, ...]
    newest: int
    damaged: Mapping[int, str] = field(default_factory=dict)
    pins: Sequence[Pin] = ()
    releases: tuple[Release, ...] = ()
    pause: Pause | None = None
    heard: Mapping[str, LastHeard] | None = None
    requests: tuple[CoordinationMessage, ...] = ()
    brokers: Brokers | None = None
    gaps: tuple[Gap, ...] = ()
    lost_heads: tuple[Head, ...] = ()
    published_under: Mapping[int, str] = field(default_factory=dict)
    remembered_losses: tuple[SeenHead, ...] = ()
    policy_known: bool = True
    checkpoints: tuple[Checkpoint, ...] = ()
    damaged_checkpoints: Mapping[str, str] = field(default_factory=dict)
    expiring: Sequence[LifecycleRule] = ()

    @property
    def active(self) -> Generation | None:
        """The newest generation that is COMPLETE and takes records; its owner is the Active."""
        return pair_rules.active_of(self.generations)

    @property
    def building(self) -> list[Generation]:
        """The generations that are being built, can still become COMPLETE, and are not made needless by a newer one."""
        rest, policy = self.generations, self.policy
        return [g for g in rest if pair_rules.is_wanted(g, rest, now=self.at, policy=policy)]

    def since_s(self, at: int) -> float:
        """Return the seconds since `at`, never less than 0: clocks are read to the second."""
        return max(0.0, (self.at - at) / 1000)

    def last_heard(self, instance: str) -> LastHeard | None:
        """Return the last state heard of an instance; None if none was, or the topic was not read."""
        return None if self.heard is None else self.heard.get(instance)

    def heartbeat_of_living(self, instance: str) -> Heartbeat | None:
        """Return the last heartbeat of an instance that is alive; None if it is not, or has sent none."""
        heard = self.last_heard(instance)
        return None if heard is None or not self.alive(instance) else heard.heartbeat

    def alive(self, instance: str) -> bool | None:
        """Return whether an instance was heard within liveness.timeout and has not left; None if that is unknown."""
        if self.heard is None:
            return None
        heard = self.heard.get(instance)
        if heard is None:
            return False
        return pair_rules.is_heard((self.at - heard.at) / 1000, left=heard.left, policy=self.policy)

    def is_recent(self, at: int) -> bool:
        """Return whether `at` is within liveness.timeout of now. A time further ahead is wrong or forged."""
        return pair_rules.is_recent(at, now=self.at, policy=self.policy)

    def ahead_s(self, instance: str) -> float | None:
        """Return by how many seconds an instance's last message is in the future, if clock skew does not explain it."""
        heard = self.last_heard(instance)
        ahead_s = 0.0 if heard is None else (heard.at - self.at) / 1000
        return ahead_s if ahead_s >= self.policy.liveness_timeout_s else None

    @property
    def pending(self) -> list[CoordinationMessage]:
        """The requests for a generation that is not claimed yet, which are in force."""
        return [message for message in self.requests if message.generation == self.newest + 1]

    def guarded_of(self, generation: Generation) -> GuardedPartitions:
        """Return the guarded partitions by the brokers; if they were not asked, those that the generation has."""
        if self.brokers is not None:
            return self.brokers.guarded
        return GuardedPartitions(
            cluster_id=generation.claim.cluster_id,
            topics={t.topic_id: (t.name, t.partitions) for t in generation.topics.values() if not t.removed},
        )


def view_of_store(store: StoreView, *, config: Config, policy: Policy, root: str, at: int) -> PairView:
    """Return the view of one read of the store, without instances and brokers."""
    return PairView(
        at=at,
        pair=config.pair,
        root=root,
        instances=config.instances,
        policy=policy,
        generations=store.generations,
        newest=store.newest,
        damaged=store.damaged,
        releases=store.releases,
        pause=in_force(store.pause, at),
    )


def last_activity_at(generation: Generation) -> int | None:
    """Return when the newest commit, confirmation or checkpoint of a generation was appended; None without any."""
    return generation.moments[-1].at if generation.moments else None
