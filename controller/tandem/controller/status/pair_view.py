"""What is seen of a pair from outside, as plain values: chains in S3, voices on the topic, what the brokers have.

Pure. S3 is the authority; messages only tell who is alive and what it is doing. What was not asked, or did not answer,
is None, never guessed. All times are ms by the store's clock: instances stamp their messages with it too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tandem.backup_avro.chain.generation import Generation
from tandem.backup_avro.chain.heads import Head, longest
from tandem.backup_avro.documents.coordination_message import CoordinationMessage, Event
from tandem.backup_avro.documents.pause import Pause
from tandem.backup_avro.documents.release import Release
from tandem.backup_avro.selection import coverage
from tandem.backup_avro.selection.coverage import Guarded
from tandem.controller.coordination.bounded_memory import INCARNATIONS, STRANGERS, Remembered, lean
from tandem.controller.coordination.heads import Published
from tandem.controller.coordination.heartbeat import Heartbeat, heartbeat_in
from tandem.controller.decision.observation import Policy
from tandem.sink.store.chain.pins import Pin


@dataclass(frozen=True, slots=True, kw_only=True)
class Voice:
    """The last that was heard of an instance. `heartbeat` is its newest process's last PROGRESS, if there is one.

    `at` is the time in the message, or that at which the brokers had it, if that is earlier and they say it. `left`:
    its last word was LEAVING. `twin_at`: when a process spoke under this name although another one had spoken after it,
    that is, when two of them were seen to run at once.
    """

    instance: str
    incarnation: str
    at: int
    left: bool = False
    heartbeat: Heartbeat | None = None
    twin_at: int | None = None


class Listener:
    """Folds messages, in the order of their offsets, into voices. Of senders other than `instances` the newest."""

    def __init__(self, instances: Iterable[str]) -> None:
        self._instances = frozenset(instances)
        of_pair = self._instances.__contains__
        self._voices: Remembered[str, Voice] = Remembered(STRANGERS, kept=of_pair)
        self._former: Remembered[str, Remembered[str, str]] = Remembered(STRANGERS, kept=of_pair)
        self._requests: Remembered[str, CoordinationMessage] = Remembered(STRANGERS, kept=of_pair)
        self._heads = {name: Published() for name in self._instances}

    def take(self, message: CoordinationMessage, *, appended_at: int | None = None) -> None:
        """Note a message; whoever sent it. `appended_at` is when the brokers had it, None if they don't say."""
        at = message.at if appended_at is None else min(message.at, appended_at)
        message = lean(message, of_pair=message.instance in self._instances)
        said = heartbeat_in(message)
        if message.event is Event.ACTIVATE:
            self._requests.note(message.instance, message)
        if message.instance in self._heads:
            self._heads[message.instance].note(said)
        before = self._voices.get(message.instance)
        heartbeat = said if message.event is Event.PROGRESS else None
        twin_at = None
        if before is not None:
            twin_at = before.twin_at
            former = self._former.get(message.instance) or Remembered(INCARNATIONS)
            self._former.note(message.instance, former)
            if before.incarnation == message.incarnation:
                heartbeat = heartbeat or before.heartbeat
                if message.event is Event.LEAVING:
                    twin_at = None  # one of the two is gone, so the other one, if it speaks on, is alone
            elif former.get(message.incarnation) is not None:
                if message.event is Event.LEAVING:
                    # The last word of a process whose successor is at work already: that one is alone now.
                    self._voices.note(message.instance, replace(before, twin_at=None))
                    return
                twin_at = None if before.left else at
            if before.incarnation != message.incarnation:
                former.note(before.incarnation, before.incarnation)
        voice = Voice(
            instance=message.instance,
            incarnation=message.incarnation,
            at=at,
            left=message.event is Event.LEAVING,
            heartbeat=heartbeat,
            twin_at=twin_at,
        )
        self._voices.note(message.instance, voice)

    def voices(self) -> dict[str, Voice]:
        """Return what was heard so far, by instance; senders from outside the pair are among them."""
        return self._voices.as_dict()

    def heads(self, instances: Iterable[str]) -> tuple[Head, ...]:
        """Return the last head of each generation that one of `instances` has published."""
        known: dict[int, Head] = {}
        for instance in instances:
            for head in self._heads.get(instance, ()):
                longest(known, head)
        return tuple(known.values())

    def roots(self, heads: Iterable[Head]) -> dict[int, str]:
        """Return under which root each of `heads` was published, by generation, as far as somebody said."""
        found = {}
        for head in heads:
            root = next((root for one in self._heads.values() if (root := one.root_of(head)) is not None), None)
            if root is not None:
                found[head.generation] = root
        return found

    def requests(self) -> tuple[CoordinationMessage, ...]:
        """Return the last ACTIVATE of each sender; instances remember no other."""
        return tuple(self._requests)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogEnd:
    """Ends of one partition: `stable` is where a reader of the pair's isolation level gets to, `high` the watermark."""

    stable: int
    high: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Brokers:
    """What the cluster has of what the pair guards. `missing` are names of topics.include that it does not have.

    `restored` are topics that a pattern matches and that are left out, because a restore created them.
    """

    guarded: Guarded
    ends: Mapping[tuple[str, int], LogEnd] = field(default_factory=dict)
    missing: tuple[str, ...] = ()
    restored: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """Something that was asked in vain: what is not known therefore, why, and what to do."""

    message: str
    remedy: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """One look. `generations` are those that are readable and not wholly cleared, ascending; `newest` counts all.

    `damaged` says of the other ones why they can't be read. `voices` and `brokers` are None if not asked or not
    answered; `gaps` then say why. `requests` are the last ACTIVATE of each sender. `pause` is the one in force.
    `lost_heads` were published by the instances, and are not in the store; `published_under` says of generations of
    theirs under which root that was.
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
    voices: Mapping[str, Voice] | None = None
    requests: tuple[CoordinationMessage, ...] = ()
    brokers: Brokers | None = None
    gaps: tuple[Gap, ...] = ()
    lost_heads: tuple[Head, ...] = ()
    published_under: Mapping[int, str] = field(default_factory=dict)

    @property
    def active(self) -> Generation | None:
        """The newest generation that is COMPLETE and takes records; its owner is the Active."""
        return active_of(self.generations)

    @property
    def building(self) -> list[Generation]:
        """The generations that are being built, can still become COMPLETE, and that no newer one made needless."""
        return [g for g in self.generations if self._wanted(g)]

    def _wanted(self, generation: Generation) -> bool:
        if generation.complete or generation.clearing is not None or generation.gone or coverage.spoilt(generation):
            return False
        if generation.seq == 0 and self.since_s(generation.claim.at) >= self.policy.liveness_timeout_s:
            return False  # its claimer died before OPEN, and only that process could have opened it
        return coverage.successor(generation, self.generations) is None

    def since_s(self, at: int) -> float:
        """Return the seconds since `at`, never less than 0: clocks are read to the second."""
        return max(0.0, (self.at - at) / 1000)

    def voice(self, instance: str) -> Voice | None:
        """Return what was heard of an instance; None if nothing was, or nobody listened."""
        return None if self.voices is None else self.voices.get(instance)

    def heartbeat_of_living(self, instance: str) -> Heartbeat | None:
        """Return the last heartbeat of an instance that is alive; None if it is not, or has sent none."""
        voice = self.voice(instance)
        return None if voice is None or not self.alive(instance) else voice.heartbeat

    def alive(self, instance: str) -> bool | None:
        """Whether an instance was heard within liveness.timeout and has not left; None if nobody listened."""
        if self.voices is None:
            return None
        voice = self.voices.get(instance)
        return voice is not None and not voice.left and self.lately(voice.at)

    def lately(self, at: int) -> bool:
        """Whether `at` is within liveness.timeout of now. A time further ahead is a wrong or a forged one."""
        return abs(self.at - at) < self.policy.liveness_timeout_s * 1000

    def ahead_s(self, instance: str) -> float | None:
        """Return how far in the future an instance was last heard, if that is too far for clocks that differ."""
        voice = self.voice(instance)
        ahead_s = 0.0 if voice is None else (voice.at - self.at) / 1000
        return ahead_s if ahead_s >= self.policy.liveness_timeout_s else None

    @property
    def pending(self) -> list[CoordinationMessage]:
        """The requests for a generation that nobody has claimed yet: they are in force."""
        return [message for message in self.requests if message.generation == self.newest + 1]

    def guarded_of(self, generation: Generation) -> Guarded:
        """Return what the brokers have of the guarded topics; if they were not asked, what the generation knows."""
        if self.brokers is not None:
            return self.brokers.guarded
        return Guarded(
            cluster_id=generation.claim.cluster_id,
            topics={t.topic_id: (t.name, t.partitions) for t in generation.topics.values() if not t.removed},
        )


def active_of(generations: Iterable[Generation]) -> Generation | None:
    """Return the newest generation that is COMPLETE and takes records; None if there is none."""
    found = [g for g in generations if g.complete and not g.sealed]
    return max(found, key=lambda g: g.number, default=None)


def stands_at(generation: Generation) -> int | None:
    """Return when the newest commit, confirmation or checkpoint of a generation was made; None if there is none."""
    return generation.moments[-1].at if generation.moments else None
