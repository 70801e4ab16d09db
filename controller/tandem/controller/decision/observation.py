"""What one tick sees, as plain values: the input of `decide`. All times named `*_mono` are monotonic seconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from tandem.backup_avro.chain.generation import Generation
from tandem.backup_avro.documents.pause import Pause
from tandem.backup_avro.documents.release import Release
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
    retain_generations: int = 0
    retain_age_s: float = 0.0
    progress_timeout_s: float = 2700.0
    """An Active whose chain stands still this long counts as silent; three times the longest CONFIRM interval."""
    quiet_s: float = 1080.0
    """A chain may be without a new entry for so long; where heartbeats can't be heard that tells who lives."""
    restart_delay_s: float = 5.0
    """How long a failed pipeline rests before it is started again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """What is known of the other instance. `heard_mono` counts messages that came while this process ran.

    `left` is whether its last word was LEAVING. `progressed_mono` is when one of its chains was last seen to grow,
    `progressed_before_mono` when at an earlier look.
    """

    instance: str
    heard_mono: float | None = None
    left: bool = False
    progressed_mono: float | None = None
    progressed_before_mono: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Twin:
    """Other incarnations under my own instance name: `heard_mono` as for the peer; `left` if all said goodbye.

    `incarnations` are those that were heard and have not left, with the moment.
    """

    known: bool = False
    heard_mono: float | None = None
    left: bool = False
    incarnations: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Activation:
    """An ACTIVATE message: somebody asks `target` to build generation `generation`; `by_person`: not an instance.

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
    """What `decide` needs to know of a pipeline of mine. `fenced`: another incarnation took its chain."""

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
    """

    now_mono: float
    at: int
    me: str
    incarnation: str
    started_mono: float
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
    """Those of `tasks` that failed, have left nothing undecided, and wait to be tried again."""
    asked_mono: Mapping[int, float] = field(default_factory=dict)
    """When I first asked the peer to build a generation, by number."""
    topicless: bool = False
    releases: tuple[Release, ...] = ()
    """What persons let go of."""
    pause: Pause | None = None
    """The newest pause that a person asked for, whether it still holds or not."""
    damaged: frozenset[int] = frozenset()
    """Generations whose chains can't be read, and which are therefore not among `generations`."""
    deaf: bool = False
    """Whether I can't read or write on the coordination topic: that nobody is heard says nothing."""
    spoilt: SpoiltBuilds = NONE_SPOILT
    """What became of the newest builds, cleared ones too."""
    held: frozenset[int] = frozenset()
    """Generations that a checkpoint keeps from being cleared, as far as was seen; the task looks once more."""
