"""The documents that `-o json` and `-o yaml` print, as types: what scripts may rely on. docs/schemas is made from them.

`show` adds `schemaVersion` and `kind`, and puts names of dataclasses' fields in camelCase. Within one schemaVersion
fields may be added, never taken away or given another meaning. Times are strings in ISO 8601, UTC, ending in Z.

Imported for types alone: it needs all that the commands need.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final, Literal, NotRequired

from typing_extensions import TypedDict  # pydantic wants this one before Python 3.12

from tandem.backup_avro.documents.coordination_message import Event, Position
from tandem.controller.history.events import Happening
from tandem.controller.history.handover_progress import Stage, Step
from tandem.controller.roles.kafka import Acl
from tandem.controller.roles.role import Role
from tandem.controller.sandbox.server import ServerState
from tandem.controller.status.check import Figure
from tandem.controller.status.checkpoint_view import CheckpointStatus, CutPartition
from tandem.controller.status.describe import (
    CheckpointHeld,
    EntryKind,
    ObjectStored,
    PinStatus,
    ReleaseStatus,
    TopicCopy,
    TopicStored,
)
from tandem.controller.status.health import Fault, Problem
from tandem.controller.status.instance_state import InstanceState
from tandem.controller.status.key_use import KeyUse
from tandem.controller.status.overview import (
    GenerationStatus,
    InstanceStatus,
    PauseStatus,
    RequestStatus,
    RestoreStatus,
    State,
)
from tandem.controller.status.pair_list import PairSummary
from tandem.sink.store.chain.pins import Pin
from tandem.sink.store.object_store import UploadInfo
from tandem.spark_jobs.connector.file_findings import FileFinding
from tandem.spark_jobs.connector.verify_files import CopyResult
from tandem.spark_jobs.retention.retention_steps import Action, Doomed, Kept
from tandem.spark_jobs.verify.compare_plan import KeyFinding
from tandem.spark_jobs.verify.verify_plan import Finding, GenerationResult, Sampled

# --- looking at a pair ------------------------------------------------------------------------------------------------


class Unsettled(TypedDict):
    """What an earlier verification found and none has read again since. `hurt`: the generations it found it in."""

    at: datetime
    scope: Literal["all", "sample", "generation", "part", "keys"]
    what: str
    findings: int
    hurt: Sequence[int]


class Run(TypedDict):
    """What the last verification, drill or sweep came to. `generations`: up to which entry each chain was read.

    Of a verification, `scope` says how far it went; null for others.
    """

    at: datetime
    by: str
    clean: bool
    what: str
    findings: int
    records: int
    bytes: int
    generations: Mapping[int, int]
    phases: Mapping[str, float]
    error: str | None
    scope: Literal["all", "sample", "generation", "part", "keys"] | None
    hurt: Sequence[int]
    unsettled: Sequence[Unsettled]
    seconds: float


class Status(TypedDict):
    """`tandem status`."""

    pair: str
    root: str
    at: datetime
    healthy: bool
    problems: Sequence[Problem]
    notes: Sequence[str]
    restore: RestoreStatus | None
    requests: Sequence[RequestStatus]
    pause: PauseStatus | None
    instances: Sequence[InstanceStatus]
    generations: Sequence[GenerationStatus]
    lastVerify: Run | None
    lastDrill: Run | None
    lastRetention: Run | None


class CheckFinding(TypedDict):
    """One reason for a severity; `fault` is that of `tandem status`, null where a limit is exceeded."""

    severity: str
    fault: Fault | None
    message: str
    remedy: str


class Check(TypedDict):
    """`tandem check`."""

    pair: str
    at: datetime
    severity: Literal["OK", "WARNING", "CRITICAL", "UNKNOWN"]
    summary: str
    findings: Sequence[CheckFinding]
    figures: Sequence[Figure]


class Pairs(TypedDict):
    """`tandem list`."""

    root: str
    pairs: Sequence[PairSummary]


class Condition(TypedDict):
    """One condition; `lacks` is what is missing, null if it holds."""

    condition: str
    met: bool
    lacks: str | None


class Wait(TypedDict):
    """`tandem wait`."""

    pair: str
    met: bool
    seconds: float
    conditions: Sequence[Condition]


class GenerationDescription(TypedDict):
    """`tandem describe GENERATION`."""

    pair: str
    root: str
    at: datetime
    generation: GenerationStatus
    entries: Sequence[EntryKind]
    topics: Sequence[TopicStored]
    objects: Sequence[ObjectStored]
    checkpoints: Sequence[CheckpointHeld]
    pins: Sequence[PinStatus]
    releases: Sequence[ReleaseStatus]


class TopicDescription(TypedDict):
    """`tandem describe TOPIC`."""

    pair: str
    root: str
    at: datetime
    topic: str
    copies: Sequence[TopicCopy]
    checkpoints: Sequence[CheckpointHeld]
    releases: Sequence[ReleaseStatus]


class History(TypedDict):
    """`tandem history`."""

    pair: str
    root: str
    damaged: Mapping[int, str]
    events: Sequence[Happening]


class ServedHistory(History):
    """`/history`: what `tandem history` has, read by and by.

    `unread`: how many entries of each generation are not read yet, null if that is not known; `trouble`: why none is.
    """

    unread: Mapping[int, int | None] | None
    trouble: str | None


class KeyAtHand(TypedDict):
    """A key that the configuration names, and where. Its id tells nothing about it."""

    keyId: str
    place: str


class Keys(TypedDict):
    """`tandem keys`. `current` is the key for new objects, null if they are not encrypted."""

    pair: str
    root: str
    current: str | None
    atHand: Sequence[KeyAtHand]
    uses: Sequence[KeyUse]
    damaged: Mapping[int, str]


class Message(TypedDict):
    """A message on the coordination topic, decoded."""

    event: Event
    pair: str
    instance: str
    incarnation: str
    clusterId: str
    requestId: str
    at: datetime
    target: str | None
    generation: int | None
    state: str | None
    chainSeq: int | None
    lagRecords: int | None
    reason: str | None
    positions: Sequence[Position]
    details: Mapping[str, str]


class CoordinationMessage(TypedDict):
    """`tandem coordination tail`: one per line. `undecodable` says why `message` is null."""

    partition: int
    offset: int
    at: datetime | None
    key: str | None
    undecodable: str | None
    message: Message | None


class Config(TypedDict):
    """`tandem config show`; keys are those of the file. `origins`: key path -> where its value came from."""

    config: Mapping[str, Any]
    origins: Mapping[str, str]


# --- acting on a pair -------------------------------------------------------------------------------------------------


class Cost(TypedDict):
    """At most about so much is read again, and stored beside the present generation."""

    records: int
    bytes: int


class Built(TypedDict):
    """What the new generation holds."""

    records: int
    bytes: int
    objects: int


class Failover(TypedDict):
    """`tandem failover`, `switchover` and `reinit`. `built` is there when --wait saw it done."""

    pair: str
    requestId: str
    reason: str | None
    requestedAt: datetime
    fromInstance: str | None
    fromGeneration: int | None
    toInstance: str
    toGeneration: int
    stage: Stage
    timedOut: bool
    steps: Sequence[Step]
    seconds: float
    cost: Cost
    built: Built | None


class Pause(TypedDict):
    """`tandem pause` and `resume`. `number` counts both."""

    pair: str
    paused: bool
    number: int
    at: datetime
    until: datetime | None
    by: str
    reason: str


class Checkpoint(TypedDict):
    """`tandem checkpoint create` and `show`."""

    pair: str
    id: str
    status: str
    requestedAt: datetime | None
    requestedBy: str | None
    reason: str | None
    deadline: datetime | None
    settledAt: datetime | None
    generation: int | None
    seq: int | None
    keptUntil: datetime | None
    restorable: bool
    whyNot: str | None
    detail: str | None
    partitions: Sequence[CutPartition]


class Checkpoints(TypedDict):
    """`tandem checkpoint list`."""

    pair: str
    checkpoints: Sequence[CheckpointStatus]
    damaged: Mapping[str, str]


class CheckpointDeleted(TypedDict):
    """`tandem checkpoint delete`."""

    pair: str
    id: str
    deleted: bool


class Loss(TypedDict):
    """What one generation lets go of."""

    generation: int
    instance: str
    state: State
    partitions: Sequence[int]
    records: int
    bytes: int
    lastReadAt: datetime
    waitsFor: str | None


class Release(TypedDict):
    """`tandem release`. `release` is its number, null if it was released before."""

    pair: str
    topic: str
    topicId: str
    partitions: Sequence[int] | None
    through: int
    release: int | None
    losses: Sequence[Loss]


class CatchUp(TypedDict):
    """`tandem catch-up`."""

    pair: str
    generation: int
    ranges: int
    failed: int
    records: int
    bytes: int
    seconds: float


# --- getting data back ------------------------------------------------------------------------------------------------


class Shape(TypedDict):
    """What a restore changes about records; keys appear as hashes only."""

    keys: str | None
    excluded: str
    asTombstones: bool
    since: int | None
    before: int | None
    until: int | None
    latest: bool
    tombstones: bool


class Difference(TypedDict):
    """A configuration key in which an existing target differs."""

    present: str | None
    recorded: str | None


class Expiry(TypedDict):
    """Records that the later retention would delete at once. `heldAtMost`: of those that a topic held before."""

    surely: int
    atMost: int
    heldAtMost: int
    settings: Sequence[str]


class PlannedPartition(TypedDict):
    """`records` is a bound unless `exact`; `end` is the offset below which everything is restored."""

    partition: int
    objects: int
    records: int
    exact: bool
    tombstones: int
    bytes: int
    end: int
    expiredBelow: int | None
    generations: Sequence[int]


class PlannedTopic(TypedDict):
    """One topic of a plan. `largestRecord`: bytes, uncompressed; null: not known. `maxMessageBytes`: while it loads."""

    source: str
    topicId: str
    target: str
    targetExists: bool
    targetPartitions: int
    targetEmpty: bool
    replicationFactor: int
    config: Mapping[str, str]
    configDifferences: Mapping[str, Difference]
    records: int
    bytes: int
    largestRecord: int | None
    maxMessageBytes: int
    expireAtOnce: Expiry
    partitions: Sequence[PlannedPartition]


class Estimate(TypedDict):
    """How long it takes, about; `measured` by the last drill, or guessed."""

    seconds: float
    measured: bool


class RestorePlan(TypedDict):
    """`tandem restore --dry-run`. `refused`: why it may not be done, null if it may. `recorded`: by a pair's chains."""

    dryRun: Literal[True]
    pair: str
    generation: int
    seq: int
    recorded: bool
    basis: Mapping[str, int]
    hash: str
    at: str | None
    shape: Shape
    append: bool
    topics: Sequence[PlannedTopic]
    warnings: Sequence[str]
    estimate: Estimate
    resumes: bool
    present: int
    refused: str | None


class Strand(TypedDict):
    """What went from one source partition into one of the target."""

    partition: int
    records: int
    sha256: str
    firstOffset: int | None
    lastOffset: int | None


class RestoredPartition(TypedDict):
    """One source partition."""

    partition: int
    end: int
    records: int
    tombstones: int
    nullKeys: int
    leftOut: int
    resumed: int
    into: Sequence[Strand]
    seconds: float


class RestoredTopic(TypedDict):
    """One topic that was restored."""

    source: str
    target: str
    records: int
    config: Mapping[str, str]
    notes: Sequence[str]
    unset: Mapping[str, str]
    partitions: Sequence[RestoredPartition]


class Mismatch(TypedDict):
    """Where a target is not what the backup is."""

    target: str
    partition: int
    source: str
    records: int
    expectedRecords: int
    sha256: str
    expectedSha256: str


class RestoreReport(TypedDict):
    """`tandem restore`. `leftOut`: records that were read and, as was chosen, not written."""

    dryRun: Literal[False]
    id: str
    pair: str
    generation: int
    seq: int
    at: str | None
    hash: str
    verified: bool
    records: int
    leftOut: int
    resumed: int
    seconds: float
    loadSeconds: float
    checkSeconds: float
    recordsPerSecond: int
    topics: Sequence[RestoredTopic]
    warnings: Sequence[str]
    mismatches: Sequence[Mismatch]


class GroupMove(TypedDict):
    """A group's offset in the target; `before` null: it had none. `mayComeAgain`: records that it may see twice."""

    group: str
    source: str
    topic: str
    partition: int
    offset: int
    before: int | None
    mayComeAgain: int | None
    note: str | None


class RestoreGroups(TypedDict):
    """`tandem restore groups`. `before`: how the names begin under which the offsets of before are kept, if any are."""

    restore: str
    executed: bool
    before: str | None
    offsets: Sequence[GroupMove]


class GroupBefore(TypedDict):
    """An offset that was put back; null: it was removed."""

    group: str
    topic: str
    partition: int
    offset: int | None


class RestoreGroupsRolledBack(TypedDict):
    """`tandem restore groups --rollback`."""

    restore: str
    rolledBack: Literal[True]
    offsets: Sequence[GroupBefore]


class BegunRestore(TypedDict):
    """A restore that a cluster knows of. `records`: those that are there, null once it ended, or if it is not known."""

    restore: str
    state: Literal["begun", "loading", "verified", "finished", "abandoned"]
    at: str
    generation: int | None
    targets: Sequence[str]
    appends: bool
    records: int | None


class Restores(TypedDict):
    """`tandem restore list`. `damaged`: record of `_tandem_restore_progress` -> why it can't be read."""

    restores: Sequence[BegunRestore]
    damaged: Mapping[str, str]


class RefusedSetting(TypedDict):
    """A setting that the cluster refuses to set as `wanted`; null: to drop from the topic."""

    topic: str
    setting: str
    wanted: str | None
    reason: str


class RestoreAbandoned(TypedDict):
    """`tandem restore abandon`. `stay`: topics that are left as they were loaded; `gone`: that are not there."""

    restore: str
    records: int
    putBack: Sequence[str]
    stay: Sequence[str]
    gone: Sequence[str]
    refused: Sequence[RefusedSetting]


class DrillTopic(TypedDict):
    """A topic and the scratch topic that it was restored into."""

    source: str
    target: str
    records: int
    notes: Sequence[str]


class DrillMismatch(TypedDict):
    """Where a scratch topic was not what the backup is."""

    target: str
    partition: int
    records: int
    expectedRecords: int


class Drill(TypedDict):
    """`tandem drill`."""

    pair: str
    generation: int
    seq: int
    at: str | None
    clean: bool
    records: int
    bytes: int
    seconds: float
    phases: Mapping[str, float]
    topics: Sequence[DrillTopic]
    mismatches: Sequence[DrillMismatch]
    deleted: Sequence[str]
    left: Mapping[str, str]
    warnings: Sequence[str]


class Bytes(TypedDict):
    """Bytes as text if they are that, else as base64."""

    utf8: NotRequired[str]
    base64: NotRequired[str]


class Header(TypedDict):
    """One header of a record."""

    key: str
    value: Bytes | None


class Record(TypedDict):
    """One record; `timestamp` in ms, -1 if it has none. `value` null is a tombstone."""

    partition: int
    offset: int
    timestamp: int
    time: str | None
    timestampType: str
    tombstone: bool
    value: Bytes | None
    headers: Sequence[Header]
    generation: int
    object: str


class Records(TypedDict):
    """`tandem records`."""

    pair: str
    topic: str
    key: Bytes | None
    generation: int
    seq: int
    at: str | None
    seconds: float
    records: Sequence[Record]


class Export(TypedDict):
    """`tandem export`."""

    pair: str
    generation: int
    at: str | None
    topics: Sequence[str]
    format: str
    to: str
    records: int
    tombstones: int
    seconds: float


# --- looking after what is stored -------------------------------------------------------------------------------------


class Repair(TypedDict):
    """What `--repair` came to."""

    asked: bool
    message: str
    requestId: NotRequired[str]
    generation: NotRequired[int | None]
    target: NotRequired[str | None]


class Verified(TypedDict):
    """`tandem verify`. `skipped`: generation -> why it was not read."""

    pair: str
    root: str
    clean: bool
    seconds: float
    generations: Sequence[GenerationResult]
    skipped: Mapping[int, str]
    sample: Sampled | None
    findings: Sequence[Finding]
    repair: NotRequired[Repair]


class VerifiedFiles(TypedDict):
    """`tandem verify --layout connector`. `choices`: topic -> the copy that a restore takes, or why it takes none."""

    layout: Literal["connector"]
    root: str
    clean: bool
    seconds: float
    copies: Sequence[CopyResult]
    choices: Mapping[str, str]
    findings: Sequence[FileFinding]
    notes: Sequence[str]
    notProven: Sequence[str]


class ComparedPartition(TypedDict):
    """One partition, between `start` and `cut`. `records`: of both sides. `counts`: findings by kind."""

    topic: str
    partition: int
    start: int
    cut: int
    records: Sequence[int]
    keys: int
    counts: Mapping[str, int]
    explained: int
    notJudged: Mapping[str, int]
    error: str | None
    seconds: float


class Compared(TypedDict):
    """`tandem verify --against-topic` and `--against-generation`."""

    pair: str
    root: str
    clean: bool
    seconds: float
    against: str
    generation: int
    counts: Mapping[str, int]
    partitions: Sequence[ComparedPartition]
    notCompared: Mapping[str, str]
    warnings: Sequence[str]
    findings: Sequence[KeyFinding]
    repair: NotRequired[Repair]


class RetentionStep(TypedDict):
    """One step of a plan."""

    action: Action
    generation: int | None
    instance: str | None
    reason: str
    topics: Sequence[str]
    count: int
    bytes: int
    objects: Sequence[Doomed]
    uploads: Sequence[UploadInfo]
    pins: Sequence[Pin]


class RetentionOutcome(TypedDict):
    """What became of a step."""

    action: Action
    generation: int | None
    count: int
    bytes: int
    note: str | None
    failed: bool


class SweepHorizon(TypedDict):
    """The oldest moment of a generation after a sweep."""

    generation: int
    entry: int
    at: str


class SweptTopic(TypedDict):
    """What a sweep takes out of a topic."""

    generation: int
    topic: str
    partitions: int
    records: int
    tombstones: int
    objects: int
    bytes: int
    read: int
    forgotten: int
    dropped: int


class SweepLeft(TypedDict):
    """Compacted topics that stay as they are, and why."""

    generation: int
    reason: str
    topics: Sequence[str]


class SweepNote(TypedDict):
    """What is to be said of a partition."""

    generation: int
    topic: str
    partition: int
    note: str
    failed: bool


class Sweeps(TypedDict):
    """What `--horizon` adds."""

    at: str
    horizons: Sequence[SweepHorizon]
    topics: Sequence[SweptTopic]
    left: Sequence[SweepLeft]
    notes: Sequence[SweepNote]


class Retention(TypedDict):
    """`tandem retention`. `outcomes` with --execute, `sweeps` with --horizon."""

    pair: str
    root: str
    at: str
    executed: bool
    bytes: int
    steps: Sequence[RetentionStep]
    kept: Sequence[Kept]
    outcomes: NotRequired[Sequence[RetentionOutcome]]
    sweeps: NotRequired[Sweeps | None]


# --- trying things ----------------------------------------------------------------------------------------------------


class Server(TypedDict):
    """A server of the sandbox."""

    name: str
    state: ServerState
    address: str | None
    pid: int | None
    log: str


class SigningKey(TypedDict):
    """`tandem signing-key generate` and `show`. `public` goes into signing.trusted; `id` is its short name."""

    id: str
    public: str


class S3Policy(TypedDict):
    """`tandem policy s3` and `bucket`. `role` is None for the bucket's; `policy` is in the syntax of AWS IAM."""

    pair: str
    role: Role | None
    policy: Mapping[str, Any]


class KafkaPolicy(TypedDict):
    """`tandem policy kafka`. `commands` are the ACLs as command lines of kafka-acls."""

    pair: str
    role: Role
    principal: str
    acls: Sequence[Acl]
    commands: Sequence[str]


class SandboxStatus(TypedDict):
    """`tandem sandbox status`."""

    folder: str
    running: bool
    bucket: str | None
    servers: Sequence[Server]


class Demo(TypedDict):
    """`tandem demo`."""

    recordsWritten: int
    tombstonesWritten: int
    keys: int
    recordsRestored: int
    keysRestored: int
    missing: int
    extra: int
    different: int
    seconds: float


#: Command -> (kind, what it prints); the schema of each is docs/schemas/<command>.json, spaces as dashes.
DOCUMENTS: Final[Mapping[str, tuple[tuple[str, Any], ...]]] = {
    "list": (("Pairs", Pairs),),
    "status": (("Status", Status),),
    "wait": (("Wait", Wait),),
    "check": (("Check", Check),),
    "describe": (("GenerationDescription", GenerationDescription), ("TopicDescription", TopicDescription)),
    "failover": (("Failover", Failover),),
    "reinit": (("Failover", Failover),),
    "pause": (("Pause", Pause),),
    "resume": (("Pause", Pause),),
    "history": (("History", History),),
    "keys": (("Keys", Keys),),
    "coordination tail": (("CoordinationMessage", CoordinationMessage),),
    "catch-up": (("CatchUp", CatchUp),),
    "checkpoint create": (("Checkpoint", Checkpoint),),
    "checkpoint list": (("Checkpoints", Checkpoints),),
    "checkpoint show": (("Checkpoint", Checkpoint),),
    "checkpoint delete": (("CheckpointDeleted", CheckpointDeleted),),
    "restore": (("Restore", RestorePlan), ("Restore", RestoreReport)),
    "restore groups": (("RestoreGroups", RestoreGroups), ("RestoreGroups", RestoreGroupsRolledBack)),
    "restore list": (("Restores", Restores),),
    "restore abandon": (("RestoreAbandoned", RestoreAbandoned),),
    "records": (("Records", Records),),
    "export": (("Export", Export),),
    "verify": (("Verify", Verified), ("Verify", VerifiedFiles), ("Verify", Compared)),
    "drill": (("Drill", Drill),),
    "retention": (("Retention", Retention),),
    "release": (("Release", Release),),
    "policy s3": (("S3Policy", S3Policy),),
    "policy bucket": (("S3Policy", S3Policy),),
    "policy kafka": (("KafkaPolicy", KafkaPolicy),),
    "signing-key generate": (("SigningKey", SigningKey),),
    "signing-key show": (("SigningKey", SigningKey),),
    "config show": (("Config", Config),),
    "sandbox status": (("SandboxStatus", SandboxStatus),),
    "demo": (("Demo", Demo),),
}
"""What each command prints."""

SERVED: Final[Mapping[str, tuple[tuple[str, Any], ...]]] = {
    "/status": (("Instance", InstanceState),),
    "/history": (("History", ServedHistory),),
}
"""What an instance answers at each path."""
