"""The observation of one tick as plain values: the input of `decide`. Times named `*_mono` are monotonic seconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from tandem.backup_avro.chain.generation import Generation
from tandem.backup_avro.documents.pause import Pause
from tandem.backup_avro.documents.release import Release
from tandem.backup_avro.selection.completion import EarlierPositions
from tandem.backup_avro.selection.coverage import GuardedPartitions
from tandem.controller.decision.spoilt_builds import NONE_SPOILT, SpoiltBuilds


class Role(StrEnum):
    """The states of an instance."""

    PASSIVE = "Passive"
    CATCH_UP = "Catch-up"
    ACTIVE = "Active"
    HALTED = "Halted"


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The settings that decisions depend on; times in seconds."""

    first: str
    rotation_interval_s: float
    liveness_timeout_s: float
    peer_timeout_s: float
    handover_timeout_s: float
    heartbeat_s: float
    flush_interval_s: float
    recovery_window_s: float = 0.0
    progress_timeout_s: float = 2700.0
    """An Active without a new chain entry for so long counts as silent; three times the longest CONFIRM interval."""
    quiet_s: float = 1080.0
    """A live instance's chain may be without a new entry for so long; used to judge it if heartbeats can't be heard."""
    restart_delay_s: float = 5.0
    """The wait before a failed pipeline is started again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """The state of the other instance. `heard_mono` counts only messages that came while this process ran.

    `left` is whether its last message was LEAVING. `progressed_mono` is when one of its chains was last seen to grow,
    `progressed_before_mono` when the growth before that one was seen.
    """

    instance: str
    heard_mono: float | None = None
    left: bool = False
    progressed_mono: float | None = None
    progressed_before_mono: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Twin:
    """Other incarnations under this instance's name: `heard_mono` as for the peer; `left` if all sent LEAVING.

    `incarnations` maps those that were heard and have not left to the time of their last message.
    """

    known: bool = False
    heard_mono: float | None = None
    left: bool = False
    incarnations: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Activation:
    """An ACTIVATE message: a request to `target` to build `generation`; `by_person`: not sent by an instance.

    `at` is when it was sent, in ms by the store's clock.
    """

    request_id: str
    target: str
    generation: int
    reason: str
    by_person: bool = False
    at: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineState:
    """The state of one of this instance's pipelines. `fenced`: another incarnation has taken its chain over."""

    started_mono: float
    drained_mono: float | None = None
    draining: bool = False
    failed_mono: float | None = None
    fenced: bool = False
    resumed: bool = False
    """Whether it was started again after a drain that the successor did not cover in time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """One tick's view. `generations` are those not wholly cleared, ascending; `newest` is the highest number.

    `guarded` is None when the brokers do not answer, or (then `topicless`) none of the guarded topics exists.
    `started_mono` is when this process started, or went on after it had stood still. `listening_mono` is since when it
    has been able to hear the peer without a break.
    """

    now_mono: float
    at: int
    me: str
    incarnation: str
    started_mono: float
    listening_mono: float
    generations: tuple[Generation, ...]
    newest: int
    guarded: GuardedPartitions | None
    peer: Peer
    twin: Twin = Twin()
    activations: tuple[Activation, ...] = ()
    requested: Mapping[int, int] = field(default_factory=dict)
    """The generations that were claimed because a message asked for them, wholly cleared ones too, and when (ms)."""
    pipelines: Mapping[int, PipelineState] = field(default_factory=dict)
    tasks: frozenset[tuple[str, int]] = frozenset()
    """Work under way, as (name of the action, generation)."""
    resting: frozenset[tuple[str, int]] = frozenset()
    """Those of `tasks` that failed, whose effect on the chains has been read since, and that wait for the next try."""
    asked_mono: Mapping[int, float] = field(default_factory=dict)
    """When this instance first asked the peer to build a generation, by number."""
    topicless: bool = False
    releases: tuple[Release, ...] = ()
    """The stored partitions that a person released."""
    pause: Pause | None = None
    """The newest pause that a person asked for, in force or not."""
    damaged: frozenset[int] = frozenset()
    """Generations whose chains can't be read, and which are therefore not among `generations`."""
    deaf: bool = False
    """Whether this instance can't read or write the coordination topic: a peer that is not heard may be alive."""
    spoilt: SpoiltBuilds = NONE_SPOILT
    """The newest builds in a row that were spoilt, cleared ones too."""
    earlier: Mapping[int, EarlierPositions] = field(default_factory=dict)
    """What others had earlier, for each build of this instance that lacks nothing of its own, by its number."""
    held: frozenset[int] = frozenset()
    """Generations that a checkpoint keeps from being cleared, by the last look; the Clear task checks again."""
