"""The plan of a restore, made from the state in the store and the topics of the target. Pure: no clock, no network."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from tandem.backup_avro.chain import layout
from tandem.backup_avro.chain.entries import (
    GroupOffset,
    PartitionKey,
    Topic,
    codecs_of,
    iso,
    largest_of,
    number_setting,
)
from tandem.backup_avro.errors import ConfigError, DamagedError, RefusedError
from tandem.backup_avro.selection.restorable_state import PartitionSelection, Selection, bounded
from tandem.backup_avro.selection.state_as_of import KnownMoment
from tandem.sink.process.safe_text import enumerated
from tandem.sink.transcode.batch import Compression
from tandem.spark_jobs.reading.wanted_state import FoundState, ReadyState, doubts
from tandem.spark_jobs.restore.plan.expiry import ExpiryForecast, HeldRecords, forecast_expiry, held_of
from tandem.spark_jobs.restore.plan.offset_mode import (
    NOT_CHOSEN,
    OffsetMode,
    TopicOffsets,
    TopicTarget,
    choose_mode,
    most_between,
    most_fillers,
)
from tandem.spark_jobs.restore.plan.target_codec import choose_codec
from tandem.spark_jobs.restore.plan.timestamp_limits import LIMITS
from tandem.spark_jobs.restore.records.record_changes import NOTHING, RecordChanges, key_hash

_HASH_VERSION: Final = 1
_LONG_MAX: Final = str(2**63 - 1)
#: The brokers' default of `socket.request.max.bytes`, less room for the other fields of a request.
_REQUEST_LIMIT: Final = 100 * 1024 * 1024 - 64 * 1024

#: The config of a topic while it is loaded. No record may be deleted, refused or stamped anew, however old it is, and
#: segments must not roll by the records' timestamps, which jump. Limits that the target does not know are left out.
LOADING: Final[Mapping[str, str]] = {
    "cleanup.policy": "delete",
    "retention.ms": "-1",
    "retention.bytes": "-1",
    "message.timestamp.type": "CreateTime",
    **LIMITS,
    "segment.ms": _LONG_MAX,
    "compression.type": "producer",
}
POLICY: Final = "cleanup.policy"
#: The settings that delete records under a policy with `delete`.
RETENTION: Final = frozenset({"retention.ms", "retention.bytes"})
MAX_MESSAGE_BYTES: Final = "max.message.bytes"
#: The brokers' default of `max.message.bytes`.
_USUAL_LIMIT: Final = 1_048_588
SEGMENT: Final = "segment.bytes"
_FILLERS_LEFT: Final = (
    "{count:,} fillers, records without key and value, lie between the records until the cleaner has removed them"
)
_FILLERS_STAY: Final = "; in the last segment of a partition they stay until new records make it roll"
#: The least `segment.bytes` that brokers take since Kafka 4.0 (KIP-1030), and the most to which a filler is padded.
_LEAST_SEGMENT: Final = 1 << 20
_LARGEST_PADDING: Final = 16 << 20
#: Bytes that a batch of one record takes besides the record, and that compression may add.
_BATCH_OVERHEAD: Final = 1024
_SMALLEST_BATCH: Final = 1024
_MIN_INSYNC: Final = "min.insync.replicas"

#: Settings that name brokers of the cluster that was backed up.
_NOT_CARRIED: Final = frozenset({"leader.replication.throttled.replicas", "follower.replication.throttled.replicas"})
#: Tandem's own topics, which can't be targets.
_OWN: Final = frozenset({"_tandem_restore_progress"})


def own_again(own: Mapping[str, str]) -> dict[str, str | None]:
    """Return the changes from the loading config to a topic's `own` settings. None: drop the key."""
    return {**dict.fromkeys((*LOADING, MAX_MESSAGE_BYTES)), **own}


def filler_notes(count: int, *, stay: bool, cleaned: bool) -> list[str]:
    """Return the report's notes on `count` fillers. `stay`: in last segments; `cleaned`: a reading found none."""
    if not count:
        return []
    if cleaned:
        return [f"{count:,} fillers lay between the records; it was read to its end, and the cleaner has removed all"]
    return [f"{_FILLERS_LEFT.format(count=count)}{_FILLERS_STAY if stay else ''}"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicNaming:
    """Maps a topic's name in the backup to its name on the target.

    The first that applies: `only`; `renamed`; the first of `patterns`, (expression, replacement), that matches the
    whole name; the name with the suffix. With `shortens` a name that would be too long with its suffix is cut, and a
    hash stands for the rest.
    """

    only: str | None = None
    renamed: Mapping[str, str] = field(default_factory=dict)
    patterns: tuple[tuple[str, str], ...] = ()
    suffix: str = ""
    shortens: bool = False

    def target(self, topic: str) -> str:
        """Return the target's name. ConfigError for an invalid expression or replacement."""
        if self.only is not None:
            return self.only
        if topic in self.renamed:
            return self.renamed[topic]
        for pattern, replacement in self.patterns:
            name = self.matched(topic, pattern, replacement)
            if name is not None:
                return name
        if self.shortens and len(topic) + len(self.suffix) > layout.LONGEST_TOPIC:
            digest = hashlib.sha256(topic.encode()).hexdigest()[:8]
            topic = f"{topic[: layout.LONGEST_TOPIC - len(self.suffix) - 9]}-{digest}"
        return f"{topic}{self.suffix}"

    @staticmethod
    def matched(topic: str, pattern: str, replacement: str) -> str | None:
        """Return the name that one pattern gives, None unless it matches the whole `topic`; raises as `target`."""
        try:
            match = re.fullmatch(pattern, topic)
            return None if match is None else match.expand(replacement)
        except (re.error, IndexError) as error:
            raise ConfigError(
                f"--map-pattern {pattern}={replacement}: {error}",
                code="TDM-R056",
                remedy=r"for example '(.*)\.v1=\1.v2'",
            ) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetTopic:
    """A topic that exists on the target. `starts` and `ends` are the log's, by partition."""

    name: str
    topic_id: str
    replication_factor: int
    config: Mapping[str, str]
    starts: Mapping[int, int]
    ends: Mapping[int, int]

    @property
    def partitions(self) -> int:
        """Number of partitions."""
        return len(self.ends)

    @property
    def empty(self) -> bool:
        """Whether the topic holds no record, because none was ever written or all were deleted."""
        return all(self.starts[number] == end for number, end in self.ends.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicPlan:
    """The plan of one topic, from the backup to the target, which has `count` partitions.

    `appended_to`: the config of a target that keeps its own, because it holds other records, None otherwise; `held`:
    upper bounds of these records, by partition. `offsets`: which offsets the records get.
    """

    source: Topic
    target: str
    partitions: tuple[PartitionSelection, ...]
    count: int
    appended_to: Mapping[str, str] | None = None
    offsets: TopicOffsets = NOT_CHOSEN
    held: Mapping[int, HeldRecords] = field(default_factory=dict)

    def most_fillers(self, item: PartitionSelection) -> int:
        """Return an upper bound of the fillers that a partition of the target gets, exact if its records are."""
        return 0 if self.offsets.mode is OffsetMode.DENSE else most_fillers(item.slices)

    @property
    def final_config(self) -> Mapping[str, str]:
        """The config of the target after the restore."""
        return self.source.config if self.appended_to is None else self.appended_to

    @property
    def repartitioned(self) -> bool:
        """Whether the target has another number of partitions, so that a partitioner assigns records by key."""
        return self.count != self.source.partitions

    @property
    def records(self) -> int:
        """Number of records, see PartitionSelection.records."""
        return sum(item.records for item in self.partitions)

    def loading_config(self) -> dict[str, str]:
        """Return the config under which the topic is loaded.

        One record may be many times larger than the compressed batch that it came in. If the size of the largest one is
        not known, `max.message.bytes` admits all that fits a request.
        """
        recorded = number_setting(self.final_config, MAX_MESSAGE_BYTES, unsaid=_USUAL_LIMIT, unclear=_USUAL_LIMIT)
        least = max(_REQUEST_LIMIT if self.largest is None else self.largest, _SMALLEST_BATCH) + _BATCH_OVERHEAD
        needed = max(min(least, _REQUEST_LIMIT), self.closing_segment)
        return {**LOADING, MAX_MESSAGE_BYTES: str(max(recorded, needed))}

    @property
    def closing_segment(self) -> int:
        """The `segment.bytes` at which the last filler of each partition is put into a segment that is closed.

        No batch may be larger. 0: there are no fillers between records, or a record may be too large for that.
        """
        gaps = self.offsets.mode is OffsetMode.EXACT and any(most_between(item.slices) for item in self.partitions)
        segment = max((self.largest or 0) + _BATCH_OVERHEAD, _LEAST_SEGMENT)
        return segment if gaps and self.largest is not None and segment <= _LARGEST_PADDING else 0

    @property
    def largest(self) -> int | None:
        """Upper bound of the size of the largest record, in bytes, uncompressed; None if that is not known."""
        return largest_of(piece.part for item in self.partitions for piece in item.slices)

    @property
    def bytes(self) -> int:
        """Stored bytes, compressed."""
        return sum(piece.part.end - piece.part.start for item in self.partitions for piece in item.slices)

    def batch_bytes(self, wanted: int) -> int:
        """Return the size of batches in bytes: at most `wanted`, and at most the final `max.message.bytes`."""
        recorded = number_setting(self.final_config, MAX_MESSAGE_BYTES, unsaid=wanted, unclear=wanted)
        return max(min(wanted, recorded), _SMALLEST_BATCH)

    @property
    def codecs(self) -> int:
        """The compression codecs that the topic's batches had, as far as the chain says, bits as in `Part.codecs`."""
        return codecs_of(piece.part for item in self.partitions for piece in item.slices)

    def compression(self, wanted: Compression | None) -> Compression:
        """Return the codec of the batches that are written: `wanted`, or else one that the topic had."""
        return choose_codec(self.source.config, self.codecs, wanted)

    def recorded_changes(self, replicas: int) -> tuple[dict[str, str | None], list[str]]:
        """Return the changes from the loading config to the recorded one (None: drop the key), and notes on the rest.

        The notes name recorded settings that can't be kept as they were. `replicas`: the target's replication factor.
        """
        changes: dict[str, str | None] = dict.fromkeys(self.loading_config())
        if self.closing_segment:
            changes[SEGMENT] = None
        notes = []
        for key, value in sorted(self.source.config.items()):
            if key in _NOT_CARRIED:
                notes.append(f"{key} names brokers of the cluster that was backed up; it is left out")
            elif key == _MIN_INSYNC and number_setting(self.source.config, key, unsaid=0, unclear=replicas) > replicas:
                changes[key] = str(replicas)
                notes.append(f"{key} is {replicas} instead of {value}: the target has no more replicas")
            else:
                changes[key] = value
        if self.source.config.get("message.timestamp.type") == "LogAppendTime":
            notes.append(
                "message.timestamp.type is LogAppendTime: the restored records keep their times, but carry the mark "
                "CreateTime; new ones get the broker's time"
            )
        return changes, notes

    def expiry(self, now: int) -> ExpiryForecast:
        """Return the records that the final retention would delete at `now` (ms)."""
        return forecast_expiry(
            self.partitions, self.final_config, now=now, repartitioned=self.repartitioned, held=self.held
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RestorePlan:
    """The plan of a restore.

    Two plans with the same `hash` write the same records, in the same order, to topics of the same names.
    `basis`: generation -> the last chain entry that was read of it, for each generation that the plan rests on.
    `read_by`: when the last of the records may have been read from the source (ms, the store's time), None: unknown.
    `groups` are the offsets that consumer groups had committed at that moment on the restored partitions. Unless
    `recorded`, the topics' config and number of partitions are unknown; `notes` are further warnings.
    """

    pair: str
    generation: int
    seq: int
    basis: Mapping[int, int]
    topics: tuple[TopicPlan, ...]
    incomplete: tuple[str, ...]
    hash: str
    damaged: Mapping[int, str] = field(default_factory=dict)
    past: KnownMoment | None = None
    asked: int | None = None
    read_by: int | None = None
    groups: Mapping[str, tuple[GroupOffset, ...]] = field(default_factory=dict)
    shape: RecordChanges = NOTHING
    append: bool = False
    recorded: bool = True
    notes: tuple[str, ...] = ()

    @property
    def records(self) -> int:
        """Number of records, an upper bound where parts are cut."""
        return sum(topic.records for topic in self.topics)

    @property
    def bytes(self) -> int:
        """Stored bytes, compressed."""
        return sum(topic.bytes for topic in self.topics)

    def alone(self, topic: TopicPlan) -> bool:
        """Return whether each partition of a target gets the records of one source partition, and no others."""
        return not self.append and not topic.repartitioned

    @property
    def as_of(self) -> str | None:
        """The moment in ISO 8601, None for the newest state or a checkpoint."""
        return None if self.past is None else iso(self.past.at)

    def warnings(self) -> list[str]:
        """Return the warnings about the backup that concern this restore, to be shown to the user."""
        found = doubts(
            generation=self.generation,
            partitions=[item for topic in self.topics for item in topic.partitions],
            incomplete=self.incomplete,
            past=self.past,
            asked=self.asked,
            damaged=self.damaged,
        )
        found += [*self.notes, *self.shape.describe()]
        found += [
            f"{topic.source.name} holds a record of up to {topic.largest:,} bytes uncompressed; brokers take requests "
            "of up to socket.request.max.bytes, 100 MiB unless set otherwise"
            for topic in self.topics
            if topic.largest is not None and topic.largest > _REQUEST_LIMIT
        ]
        for topic in self.topics:
            if topic.offsets.mode is OffsetMode.EXACT and any(most_between(item.slices) for item in topic.partitions):
                found.append(
                    f"{topic.target}: consumers get fillers, records without key and value, from between its records "
                    f"until the cleaner has removed them{'' if topic.closing_segment else _FILLERS_STAY}"
                )
            if topic.repartitioned:
                found.append(
                    f"{topic.source.name} has {topic.source.partitions} partitions, {topic.target} gets {topic.count}: "
                    f"records go where {self.shape.partitioner} puts their keys"
                )
            missing = sorted(set(range(topic.source.partitions)) - {item.key.partition for item in topic.partitions})
            if not self.recorded and missing:
                found.append(
                    f"{topic.source.name}: {len(missing)} of {topic.source.partitions} partitions have no record and "
                    f"stay empty: {enumerated(missing)}"
                )
                continue
            found.extend(
                f"{topic.source.name}-{number} is not in the backup; the target's partition stays empty"
                for number in missing
                if f"{topic.source.name}-{number}" not in self.incomplete
            )
        return found


def plan_of_state(
    found: FoundState,
    *,
    pair: str,
    naming: TopicNaming,
    topics: Sequence[str] | None = None,
    until: Mapping[tuple[str, int], int] | None = None,
) -> RestorePlan:
    """Plan the restore of `topics` (None: all) from the found state.

    `until` bounds partitions, (topic, number) -> the first offset that is not restored. A topic that is named is
    restored even if the cluster has deleted it since. Raises RefusedError if no generation can be restored, ConfigError
    for topics that are not in it or names that collide.
    """
    wanted = None if topics is None else frozenset(topics)
    selection = found.select(
        wanted=lambda topic: wanted is None or topic.name in wanted,
        removed=wanted is not None,
    )
    selection = bounded(selection, found.generations, until or {})
    by_topic: dict[str, list[PartitionSelection]] = {}
    for item in selection.partitions:
        by_topic.setdefault(item.key.topic_id, []).append(item)
    plans = tuple(
        sorted(
            (
                TopicPlan(
                    source=items[0].topic,
                    target=naming.target(items[0].topic.name),
                    partitions=tuple(items),
                    count=items[0].topic.partitions,
                )
                for items in by_topic.values()
            ),
            key=lambda plan: plan.source.name,
        )
    )
    _check_wanted(plans, wanted, selection)
    _check_names(plans, naming)
    return RestorePlan(
        pair=pair,
        generation=selection.generation,
        seq=selection.seq,
        basis=found.basis_of(selection),
        topics=plans,
        incomplete=selection.incomplete,
        past=found.known(selection),
        asked=found.asked,
        read_by=max((state.at for state in found.generations if state.number in selection.used), default=None),
        damaged=found.damaged,
        groups=_groups(found, selection),
        hash=_hash(pair, selection, plans, found.ready),
        recorded=found.ready is None,
        notes=(*found.notes, *_unrecorded(found, selection)),
    )


def _unrecorded(found: FoundState, selection: Selection) -> Iterator[str]:
    """Yield a warning about groups whose positions the newest of the used generations could not record."""
    used = [state for state in found.generations if state.number in selection.used]
    groups = max(used, key=lambda state: (state.at, state.number)).unrecorded if used else {}
    if groups:
        named = [f"{name} ({why})" for name, why in sorted(groups.items())]
        yield (
            f"the backup has no positions of groups {enumerated(named)}: what reads the restored topics "
            "under these names begins where its own settings say"
        )


def _groups(found: FoundState, selection: Selection) -> dict[str, tuple[GroupOffset, ...]]:
    """Return the offsets that groups had committed on the selected partitions, by group.

    The plan's main generation may have ended long before the restored state, which then has newer records of other
    generations. So of all generations that records are taken from, the one that read a group's offsets last decides,
    for all topics that it knows.
    """
    pictured = {picture.number: picture.at for picture in found.past}
    used = (state for state in found.generations if state.number in selection.used)
    offsets: dict[str, dict[PartitionKey, GroupOffset]] = {}
    for state in sorted(used, key=lambda state: (pictured.get(state.number, state.at), state.number)):
        for name, items in state.groups.items():
            elsewhere = {key: item for key, item in offsets.get(name, {}).items() if key.topic_id not in state.topics}
            offsets[name] = elsewhere | items
    selected = {item.key for item in selection.partitions}
    kept = {
        name: tuple(item for key, item in sorted(items.items()) if key in selected)
        for name, items in sorted(offsets.items())
    }
    return {name: items for name, items in kept.items() if items}


def _check_wanted(plans: Iterable[TopicPlan], wanted: frozenset[str] | None, selection: Selection) -> None:
    found = {plan.source.name for plan in plans}
    if wanted is not None and wanted - found:
        raise ConfigError(
            f"{selection.source_text} holds no complete partition of {', '.join(sorted(wanted - found))}",
            code="TDM-R057",
            remedy="`tandem status` shows what is backed up; --generation names another one"
            if selection.generation
            else "`tandem verify --layout connector` shows what there is",
        )
    if not found:
        raise RefusedError(
            f"{selection.source_text} holds nothing that could be restored",
            code="TDM-R058",
            remedy="`tandem status` shows which partitions are complete, and in which generation"
            if selection.generation
            else "`tandem verify --layout connector` shows what there is",
        )


def _check_names(plans: Sequence[TopicPlan], naming: TopicNaming) -> None:
    if naming.only is not None and len(plans) != 1:
        raise ConfigError(
            f"--to names one topic, but {len(plans)} are to be restored",
            code="TDM-R059",
            remedy="add --topics, or use --map or --suffix",
        )
    unknown = naming.renamed.keys() - {plan.source.name for plan in plans}
    if unknown:
        raise ConfigError(
            f"--map renames {', '.join(sorted(unknown))}, which is not restored",
            code="TDM-R060",
            remedy=_restored(plans, "correct it"),
        )
    for pattern, replacement in naming.patterns:
        if not any(naming.matched(plan.source.name, pattern, replacement) for plan in plans):
            raise ConfigError(
                f"--map-pattern {pattern}={replacement} matches no topic that is restored",
                code="TDM-R061",
                remedy=_restored(plans, "it has to match a whole name"),
            )
    taken: dict[str, str] = {}
    for plan in plans:
        try:
            layout.check_topic(plan.target)
        except DamagedError as error:
            raise ConfigError(
                f"{plan.target!r} is no name for a topic", code="TDM-R062", remedy="choose another target"
            ) from error
        if plan.target in _OWN or plan.target in layout.INTERNAL_TOPICS:
            whose = "Tandem" if plan.target in _OWN else "Kafka itself"
            raise ConfigError(
                f"{plan.target} can't be a target: it belongs to {whose}", code="TDM-R063", remedy="choose another name"
            )
        if plan.target in taken:
            raise ConfigError(
                f"{taken[plan.target]} and {plan.source.name} would both be restored into {plan.target}",
                code="TDM-R064",
                remedy="give one of them another name, with --map, or restore them one after the other, with --topics",
            )
        taken[plan.target] = plan.source.name


def _restored(plans: Sequence[TopicPlan], advice: str) -> str:
    """Return the advice with the names of the restored topics, as a remedy."""
    return f"{advice}; restored are {enumerated([plan.source.name for plan in plans])}"


def _hash(pair: str, selection: Selection, plans: Iterable[TopicPlan], ready: ReadyState | None) -> str:
    digest = hashlib.sha256()
    for piece in _hashed(pair, selection, plans, ready):
        digest.update(piece.encode())
    return digest.hexdigest()


def _hashed(pair: str, selection: Selection, plans: Iterable[TopicPlan], ready: ReadyState | None) -> Iterator[str]:
    """Yield the canonical JSON of what a plan is identified by, one partition at a time: it names each object."""
    frame = {"generation": selection.generation, "pair": pair, "seq": selection.seq}
    frame |= {} if ready is None else {"reading": ready.reading}
    yield "{" + "".join(f"{_json(name)}:{_json(value)}," for name, value in sorted(frame.items())) + '"topics":['
    for number, plan in enumerate(plans):
        yield ("," if number else "") + f'{{"id":{_json(plan.source.topic_id)},"partitions":['
        for place, item in enumerate(plan.partitions):
            slices = [
                [piece.item.sha256, piece.part.start, piece.part.end, piece.low, piece.high] for piece in item.slices
            ]
            partition = {"partition": item.key.partition, "end": item.end, "slices": slices}
            yield ("," if place else "") + _json(partition)
        yield f'],"target":{_json(plan.target)}}}'
    yield f'],"v":{_HASH_VERSION}}}'


def _json(value: object) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


#: The prefix of the transactional ids of all restores.
TRANSACTIONAL_ID_PREFIX: Final = "tandem-restore-"


def transactional_id(plan_hash: str, topic_id: str, partition: int) -> str:
    """Return the transactional id under which every run of a plan writes a source partition."""
    return f"{TRANSACTIONAL_ID_PREFIX}{plan_hash[:16]}-{topic_id}-{partition}"


def plans_transactional_id(plan_hash: str) -> str:
    """Return the transactional id under which every run of a plan writes the plan's state."""
    return f"{TRANSACTIONAL_ID_PREFIX}{plan_hash[:16]}-plan"


def shaped(
    plan: RestorePlan,
    shape: RecordChanges,
    targets: Mapping[str, TargetTopic],
    *,
    count: int | None = None,
    append: bool = False,
    offsets: OffsetMode | None = None,
) -> RestorePlan:
    """Return the plan with the changes of `shape`, or appending: its hash differs if it changes or appends records.

    `offsets`: the chosen mode, None for the default; the hash differs for another mode than the default.

    `count` is the number of partitions that new topics get, None: as many as they had. Raises RefusedError if a topic
    has another number on the target, or would get one, and `shape` has no partitioner.
    """
    topics = tuple(_counted(topic, shape, targets.get(topic.target), count) for topic in plan.topics)
    counts = {topic.target: topic.count for topic in topics if topic.repartitioned}
    notes = plan.notes
    if shape.partitioner is not None:
        notes += tuple(
            f"{topic.target} has {topic.count} partitions, as {topic.source.name} had: records keep theirs, wherever "
            f"{shape.partitioner} would put their keys"
            for topic in topics
            if not topic.repartitioned
        )
    changed = plan.hash
    if counts or shape.selects:
        changed = _changed(changed, key_hash(shape, counts))
    if append:
        changed = _changed(changed, "append")
        topics = tuple(_appended(topic, targets.get(topic.target)) for topic in topics)
    facts = [
        TopicTarget(
            name=topic.target,
            append=append,
            repartitioned=topic.repartitioned,
            selects=shape.selects,
            recorded=plan.recorded,
            compacted=topic.source.compacted,
        )
        for topic in topics
    ]
    chosen = [choose_mode(offsets, fact) for fact in facts]
    if offsets is not None and [one.mode for one in chosen] != [choose_mode(None, fact).mode for fact in facts]:
        changed = _changed(changed, offsets.value)
    topics = tuple(replace(topic, offsets=mode) for topic, mode in zip(topics, chosen, strict=True))
    return replace(
        plan,
        topics=topics,
        shape=shape if shape.selects or counts else NOTHING,
        append=append,
        hash=changed,
        notes=notes,
    )


def _appended(topic: TopicPlan, target: TargetTopic | None) -> TopicPlan:
    if target is None:
        return topic
    largest = number_setting(target.config, MAX_MESSAGE_BYTES, unsaid=_USUAL_LIMIT, unclear=_USUAL_LIMIT)
    return replace(topic, appended_to=target.config, held=held_of(target.starts, target.ends, largest=largest))


def _changed(plan_hash: str, what: str) -> str:
    return hashlib.sha256(f"{plan_hash} {what}".encode()).hexdigest()


def _counted(topic: TopicPlan, shape: RecordChanges, target: TargetTopic | None, count: int | None) -> TopicPlan:
    if target is not None:
        if count is not None and count != target.partitions:
            raise RefusedError(
                f"topic {target.name} has {target.partitions} partitions on the target, not {count}",
                code="TDM-R065",
                remedy="leave --partitions out, or restore into a topic that does not exist yet",
            )
        count = target.partitions
    count = count or topic.source.partitions
    if count != topic.source.partitions and shape.partitioner is None:
        raise RefusedError(
            f"topic {topic.target} has, or is to get, {count} partitions, {topic.source.name} has "
            f"{topic.source.partitions} in the backup",
            code="TDM-R066",
            remedy="say with --repartition how its producers choose a partition, murmur2 (Java) or crc32 (librdkafka); "
            "or restore into a topic that does not exist yet, with --to, --map or --suffix",
        )
    return replace(topic, count=count)


def refuse_unless_empty(target: TargetTopic, plan: RestorePlan) -> None:
    """Raise RefusedError if the topic holds records; the error says if it is the very topic that was backed up.

    For exact offsets no record must ever have been in it.
    """
    exact = any(topic.target == target.name and topic.offsets.mode is OffsetMode.EXACT for topic in plan.topics)
    if exact and target.empty and any(target.ends.values()):
        raise RefusedError(
            f"topic {target.name} on the target is empty, but its offsets do not begin at 0: --offsets exact needs all "
            "of them",
            code="TDM-R130",
            remedy="delete it first, or restore into another topic, e.g. with --suffix .restored",
        )
    if not target.empty:
        count = sum(target.ends.values()) - sum(target.starts.values())
        if any(target.topic_id == topic.source.topic_id for topic in plan.topics):
            raise RefusedError(
                f"topic {target.name} on the target is the very topic that was backed up, and it holds about {count:,} "
                "records",
                code="TDM-R067",
                remedy="restore beside it, with --suffix .restored; --append adds to it, where what is restored counts "
                "as newer than what is there",
            )
        raise RefusedError(
            f"topic {target.name} on the target is not empty: it holds about {count:,} records "
            "that are not of this very plan",
            code="TDM-R068",
            remedy="restore into another topic, e.g. with --suffix .restored, or empty it by deleting it, or add to it "
            "with --append",
        )
