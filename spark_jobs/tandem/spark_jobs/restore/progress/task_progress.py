"""The progress of restores: records of the compacted topic `_tandem_restore_progress` on the target cluster.

Two kinds of records, both JSON. The key `<plan hash>` holds the plan's state: which run is at work, and its phase. A
run writes it before it fences the producers of earlier runs; a task reads it after it has fenced the producer before
it, and stops if it names another run: so a fenced producer does not come back. The key `<plan hash>/<topic id>/<task>`
holds the progress of one task; it is written in the same Kafka transaction as the records that it counts.

Committed progress may lie above an open transaction of another restore, or of a run that was killed. So a reader that
resumes from it fences its own predecessors first, and then reads to the high watermark, not only to the last stable
offset. Plans' records are read before that, whether they are committed yet or not; `lease_record` says why.

Plans are in the topic's first partition, tasks are spread over the others: each task reads its own progress before it
begins, and thousands of tasks in one partition would each read the records of thousands. When a plan is FINISHED, the
records of its tasks are deleted.

The state of a plan of thousands of topics is larger than a record may be. It is cut into parts with the keys `<plan
hash>+<SHA-256 of the whole>+<number>`, which lie before the plan's record; that only names them. The parts of the state
before are deleted after it. Each of these steps is committed before the next begins. So wherever a reader and the
cleaner are, all parts of the last state are there. Parts that no plan's record names were left by a killed run.
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from typing import Any, Final

from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, Message, Producer, TopicPartition

from tandem.backup_avro.chain.json_codec import Fields
from tandem.backup_avro.errors import DamagedError, PermanentError, TimedOutError, TransientError
from tandem.sink.kafka.auth.client_config import Value, for_confluent, servers_of
from tandem.sink.kafka.cluster import admin_errors
from tandem.sink.kafka.cluster.admin import ClusterAdmin
from tandem.sink.kafka.cluster.admin_requests import LATEST
from tandem.sink.kafka.errors.cluster_errors import ClusterTransientError
from tandem.sink.kafka.errors.error_codes import ErrorCode
from tandem.sink.kafka.events import TopicPartition as Place
from tandem.spark_jobs.restore.progress.batch_producer import TRANSACTION_TIMEOUT_MS
from tandem.spark_jobs.restore.progress.offset_map import OffsetRow, dump_rows, load_rows

TOPIC: Final = "_tandem_restore_progress"
#: The partition that holds the plans' records.
PLANS_PARTITION: Final = 0
#: The group is never joined and commits nothing: librdkafka requires a name.
GROUP: Final = "tandem-restore"
_VERSION: Final = 1
#: Most bytes of one record about a plan: half of the brokers' default `max.message.bytes`.
_RECORD_BYTES: Final = 512 * 1024
#: First bytes of a plan's record that only names its parts; JSON keys are sorted, and a whole state begins with `at`.
_CUT: Final = b'{"parts":'
_FOLLOW_S: Final = 0.3
_FETCH_WAIT_MS: Final = 50
# Takes librdkafka's own log lines, which would go to stderr; of a producer errors only, since it logs each retry.
_LOG: Final = logging.getLogger(__name__)
_ERRORS: Final = 3
#: How long, in seconds, a reader waits for open transactions: brokers abort them earlier.
SETTLE_S: Final = TRANSACTION_TIMEOUT_MS / 1000 + 60


class PlanPhase(StrEnum):
    """The phase that a plan has reached on this cluster."""

    BEGUN = "begun"  # nothing is loaded yet, and the topics are not yet proven to be empty
    LOADING = "loading"
    VERIFIED = "verified"  # loaded and checked; the recorded config is not set yet
    FINISHED = "finished"
    ABANDONED = "abandoned"  # another plan took its place


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanState:
    """The state of one plan. `basis`: generation -> chain entry; `targets`: target's name -> its topic id.

    `sources`: topic id in the backup -> number of tasks at most; the plan's transactional ids follow from them.
    `merged`: ids of those topics whose partitions are merged, by a task for each target partition. `before`: target's
    name -> the config that was set on the topic itself before records were appended to it, for topics that held
    records. `configs`: target's name -> settings that the topic had of its own, where these are put back at the end
    because the backup recorded none. `spread`: over how many partitions of the progress topic, from the second on, the
    plan's tasks are spread; 0: they are in the first one. `at` is ms since the epoch.
    """

    plan: str
    run: str
    state: PlanPhase
    generation: int
    basis: Mapping[int, int]
    targets: Mapping[str, str]
    sources: Mapping[str, int]
    merged: tuple[str, ...]
    at: int
    before: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    configs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    spread: int = 0

    @property
    def unfinished(self) -> bool:
        """Whether a run may still be at work, or the plan can be resumed."""
        return self.state in {PlanPhase.BEGUN, PlanPhase.LOADING, PlanPhase.VERIFIED}

    @property
    def tasks(self) -> Iterator[tuple[str, int]]:
        """The tasks that the plan may have: topic id in the backup and number of each."""
        return ((topic_id, number) for topic_id, count in self.sources.items() for number in range(count))

    def concerns(self, topic_ids: Collection[str]) -> bool:
        """Return whether the plan writes, or wrote, into one of these topics."""
        return not set(self.targets.values()).isdisjoint(topic_ids)


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetStrand:
    """The records that one task has written into one partition of the target: count, hash in order (content_hash).

    `first` and `last` are target offsets, -1 if there are no records. With exact offsets, `hash` covers the fillers
    between the records as well; `records` does not count them.
    """

    records: int
    hash: str
    first: int
    last: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskProgress:
    """The committed progress of one task of a plan.

    `task` is the number of its source partition, or of its target partition if it merges several. Of each source
    partition, all records below `next_offsets` are in the target, except `left_out` records that the plan leaves out.
    `strands`: target partition -> the records that the task wrote there. `rows` are the offset map's rows that follow
    those of the page `page`. `held`: the source offset of the last record, if that is the only one that is missing in
    the target, or may be (see `load.last_record`); `next_offsets` count it as written, `strands` and `rows` don't.
    """

    plan: str
    topic_id: str
    task: int
    target: str
    target_topic_id: str
    next_offsets: Mapping[int, int]
    strands: Mapping[int, TargetStrand]
    tombstones: int
    null_keys: int
    left_out: int
    page: str | None
    rows: tuple[OffsetRow, ...]
    held: int | None = None

    @property
    def key(self) -> str:
        """The record's key."""
        return task_key(self.plan, self.topic_id, self.task)

    @property
    def records(self) -> int:
        """Records in the target."""
        return sum(strand.records for strand in self.strands.values())


def partition_of(key: str, spread: int) -> int:
    """Return the partition of the progress topic that holds the record of the task `key`."""
    return 1 + zlib.crc32(key.encode()) % spread if spread else PLANS_PARTITION


def task_key(plan: str, topic_id: str, task: int) -> str:
    """Return the key of a task's progress."""
    return f"{plan}/{topic_id}/{task}"


def encode_state(state: PlanState) -> bytes:
    """Return the value of a plan's record."""
    return _dump(
        {
            "plan": state.plan,
            "run": state.run,
            "state": state.state.value,
            "generation": state.generation,
            "basis": {str(number): seq for number, seq in state.basis.items()},
            "targets": dict(state.targets),
            "sources": dict(state.sources),
            "merged": list(state.merged),
            "before": {name: dict(config) for name, config in state.before.items()},
            "at": state.at,
            **({"configs": {name: dict(config) for name, config in state.configs.items()}} if state.configs else {}),
            **({"spread": state.spread} if state.spread else {}),
        }
    )


def records_of(state: PlanState) -> list[tuple[str, bytes]]:
    """Return the records that hold the state, key and value, in the order in which they are to be written."""
    whole = encode_state(state)
    if len(whole) <= _RECORD_BYTES:
        return [(state.plan, whole)]
    digest = hashlib.sha256(whole).hexdigest()
    pieces = [whole[at : at + _RECORD_BYTES] for at in range(0, len(whole), _RECORD_BYTES)]
    names = [_part_key(state.plan, digest, number) for number in range(len(pieces))]
    named = _dump({"plan": state.plan, "parts": len(pieces), "sha256": digest})
    return [*zip(names, pieces, strict=True), (state.plan, named)]


def _part_key(plan: str, digest: str, number: int) -> str:
    return f"{plan}+{digest[:16]}+{number}"


def _plan_in(key: str) -> str:
    """Return the plan hash in a record's key."""
    return key.partition("/")[0].partition("+")[0]


def _configs(document: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    return {str(name): {str(key): str(value) for key, value in own.items()} for name, own in document.items()}


def encode_progress(progress: TaskProgress) -> bytes:
    """Return the value of a task's record."""
    return _dump(
        {
            "plan": progress.plan,
            "topic_id": progress.topic_id,
            "task": progress.task,
            "target": progress.target,
            "target_topic_id": progress.target_topic_id,
            "next_offsets": {str(number): offset for number, offset in progress.next_offsets.items()},
            "strands": dump_strands(progress.strands),
            "tombstones": progress.tombstones,
            "null_keys": progress.null_keys,
            "left_out": progress.left_out,
            "page": progress.page,
            "rows": dump_rows(progress.rows),
            **({} if progress.held is None else {"held": progress.held}),
        }
    )


def _dump(document: dict[str, Any]) -> bytes:
    return json.dumps({"v": _VERSION, **document}, sort_keys=True, separators=(",", ":")).encode()


def decode_state(value: bytes, where: str) -> PlanState:
    """Read the value of a plan's record. DamagedError names `where`."""
    fields = Fields.of_bytes(value, where)
    sources: dict[str, Any] = fields.take_field("sources", dict)
    basis: dict[str, Any] = fields.take_field("basis", dict)
    targets: dict[str, Any] = fields.take_field("targets", dict)
    before: dict[str, Any] = fields.take_field("before", dict, {})
    configs: dict[str, Any] = fields.take_field("configs", dict, {})
    try:
        state = PlanState(
            plan=fields.take_field("plan", str),
            run=fields.take_field("run", str),
            state=PlanPhase(fields.take_field("state", str)),
            generation=fields.take_field("generation", int),
            basis={int(number): int(seq) for number, seq in basis.items()},
            targets={str(name): str(topic_id) for name, topic_id in targets.items()},
            sources={str(topic_id): int(count) for topic_id, count in sources.items()},
            merged=tuple(str(topic_id) for topic_id in fields.take_field("merged", list)),
            at=fields.take_field("at", int),
            before=_configs(before),
            configs=_configs(configs),
            spread=fields.take_field("spread", int, 0),
        )
    except (ValueError, TypeError, OverflowError, AttributeError) as error:
        raise DamagedError(f"{where}: {error}", code="TDM-R030") from error
    fields.refuse_other_fields()
    return state


def decode_progress(value: bytes, where: str) -> TaskProgress:
    """Read the value of a task's record. DamagedError names `where`."""
    fields = Fields.of_bytes(value, where)
    next_offsets: dict[str, Any] = fields.take_field("next_offsets", dict)
    strands: dict[str, Any] = fields.take_field("strands", dict)
    try:
        progress = TaskProgress(
            plan=fields.take_field("plan", str),
            topic_id=fields.take_field("topic_id", str),
            task=fields.take_field("task", int),
            target=fields.take_field("target", str),
            target_topic_id=fields.take_field("target_topic_id", str),
            next_offsets={int(number): int(offset) for number, offset in next_offsets.items()},
            strands=load_strands(strands),
            tombstones=fields.take_field("tombstones", int),
            null_keys=fields.take_field("null_keys", int),
            left_out=fields.take_field("left_out", int),
            page=fields.take_field("page", str, None),
            rows=load_rows(fields.take_field("rows", list), where),
            held=fields.take_field("held", int, None),
        )
    except (ValueError, TypeError, OverflowError) as error:
        raise DamagedError(f"{where}: {error}", code="TDM-R031") from error
    fields.refuse_other_fields()
    return progress


def dump_strands(strands: Mapping[int, TargetStrand]) -> dict[str, Any]:
    """Return strands as a JSON document."""
    return {str(number): [item.records, item.hash, item.first, item.last] for number, item in strands.items()}


def load_strands(document: Mapping[str, Any]) -> dict[int, TargetStrand]:
    """Return the strands of a document that `dump_strands` made. TypeError or ValueError for anything else."""
    return {int(number): _strand(*item) for number, item in document.items()}


def _strand(records: int, digest: str, first: int, last: int) -> TargetStrand:
    return TargetStrand(records=int(records), hash=str(digest), first=int(first), last=int(last))


class LostEndError(PermanentError):
    """A transaction stays open that the broker should have aborted: the committed progress can't be known."""


@dataclass(slots=True, kw_only=True)
class RestoreProgress:
    """The contents of the progress topic, the latest record per key. `damaged`: keys that can't be read -> why.

    `parts` are the parts of states that are cut into several records, by key; `cut` are plans whose last state is cut
    and was not put together yet: key -> the record that names the parts.
    """

    plans: dict[str, PlanState] = field(default_factory=dict)
    tasks: dict[str, TaskProgress] = field(default_factory=dict)
    damaged: dict[str, str] = field(default_factory=dict)
    parts: dict[str, bytes] = field(default_factory=dict)
    cut: dict[str, bytes] = field(default_factory=dict)

    def take(self, key: str, value: bytes | None) -> None:
        """Apply the next record. DamagedError if it can't be read."""
        if "/" in key:
            if value is None:
                self.tasks.pop(key, None)
            else:
                self.tasks[key] = decode_progress(value, f"{TOPIC}, key {key}")
        elif "+" in key:
            if value is None:
                self.parts.pop(key, None)
            else:
                self.parts[key] = value
        else:
            self._take_plan(key, value)

    def _take_plan(self, key: str, value: bytes | None) -> None:
        self.cut.pop(key, None)
        if value is None:
            self.plans.pop(key, None)
        elif value.startswith(_CUT):
            self.cut[key] = value
        else:
            self.plans[key] = decode_state(value, f"{TOPIC}, key {key}")

    def put_together(self, *, strict: bool = True) -> None:
        """Decode the states that are cut into several records.

        Raises DamagedError if a part is missing; unless `strict`, the key is added to `damaged` instead.
        """
        for key, value in self.cut.items():
            try:
                self.plans[key] = self._together(value, f"{TOPIC}, key {key}")
            except DamagedError as error:
                if strict:
                    raise
                self.plans.pop(key, None)
                self.damaged[key] = str(error)
        self.cut.clear()

    def _together(self, value: bytes, where: str) -> PlanState:
        fields = Fields.of_bytes(value, where)
        plan, digest, count = (
            fields.take_field("plan", str),
            fields.take_field("sha256", str),
            fields.take_field("parts", int),
        )
        fields.refuse_other_fields()
        few = min(count, len(self.parts))
        whole = b"".join(self.parts.get(_part_key(plan, digest, number), b"") for number in range(few))
        if few < count or hashlib.sha256(whole).hexdigest() != digest:
            raise DamagedError(
                f"{where}: its content lies in {count} other records, and some of them are missing",
                code="TDM-R032",
                remedy="what that restore was doing is not known any more: when none into this cluster is at work, "
                f"have it forgotten: write a record with its key and without a value to {TOPIC}-{PLANS_PARTITION}; "
                "docs/restore.md has the command, and says what then becomes of its topics",
            )
        return decode_state(whole, where)

    def parts_of(self, plan: str) -> list[str]:
        """Return the keys of all parts of a plan's states."""
        return [key for key in self.parts if _plan_in(key) == plan]

    def note(self, key: str, value: bytes | None) -> None:
        """Apply the next record; if it can't be read, drop its key from the progress and add it to `damaged`."""
        self.damaged.pop(key, None)
        try:
            self.take(key, value)
        except DamagedError as error:
            self.plans.pop(key, None)
            self.tasks.pop(key, None)
            self.damaged[key] = str(error)

    def of_plan(self, plan: str) -> list[TaskProgress]:
        """Return the progress of all tasks of a plan."""
        return [item for item in self.tasks.values() if item.plan == plan]


class ProgressView(Enum):
    """Which records a reader of the topic takes, and with which isolation level."""

    PLANS = IsolationLevel.READ_UNCOMMITTED
    """The plans' records: they are readable whatever transactions are open."""

    TASKS = IsolationLevel.READ_COMMITTED
    """The committed records of tasks."""


class ProgressReader:
    """Follows the topic, or `partitions` of it. One thread at a time."""

    def __init__(
        self,
        props: Mapping[str, Value],
        view: ProgressView,
        *,
        partitions: Collection[int],
        only: str | None = None,
        strict: bool = True,
    ) -> None:
        """Open a consumer at the start of the partitions. `only`: the hash of the one plan whose records are taken.

        Unless `strict`, records that can't be read are added to `damaged`: for callers that only show the progress.
        Raises the errors of `for_confluent`.
        """
        self._only = only
        self._strict = strict
        self._view = view
        self._admin = ClusterAdmin(props)
        self._servers = servers_of(props)
        self._consumer = Consumer(
            for_confluent(
                props,
                group_id=GROUP,
                isolation_level=view.value.name.lower(),
                enable_auto_commit=False,
                enable_auto_offset_store=False,
                enable_partition_eof=True,
                # The end of a log that ends in a transaction's marker is seen only by a response without records.
                fetch_wait_max_ms=_FETCH_WAIT_MS,
                auto_offset_reset="earliest",
                logger=_LOG,
            )
        )
        self._next = dict.fromkeys(partitions, 0)
        self._consumer.assign([TopicPartition(TOPIC, number, 0) for number in self._next])
        self.progress = RestoreProgress()

    def catch_up(self, *, settled: bool = True) -> RestoreProgress:
        """Read on to the current high watermark; unless `settled`, to the last stable offset.

        Of plans, the high watermark is asked for again until nothing is left below it. A plan's state may be replaced
        above the known end while this reads, and the cleaner may remove the old one first: then neither is there below
        that end. A task's record is replaced by its own producer alone, which is fenced before this.

        Open transactions are waited for: the caller fences those that no other process will end. Raises LostEndError
        if one stays open, TimedOutError if the broker is slow, ClusterTransientError, and DamagedError if strict.
        """
        deadline = time.monotonic() + SETTLE_S
        while self._read_on(deadline, settled=settled) and self._view is ProgressView.PLANS:
            pass
        self.progress.put_together(strict=self._strict)
        return self.progress

    def _read_on(self, deadline: float, *, settled: bool) -> bool:
        """Read to the current ends of the partitions; return whether any was not read to its end before."""
        places = [Place(TOPIC, number) for number in self._next]
        ends = self._admin.list_offsets({(TOPIC, number): LATEST for number in self._next}, read_committed=not settled)
        left = [place for place in places if self._next[place.partition] < ends[place][0]]
        for place in left:
            while self._next[place.partition] < ends[place][0]:
                if time.monotonic() > deadline:
                    raise self._held_back(place)
                self.poll(0.5)
        return bool(left)

    def _held_back(self, place: Place) -> TimedOutError | LostEndError:
        """Return the error for a partition that could not be read to its end within `SETTLE_S` seconds."""
        stable, _ = self._admin.list_offsets({place: LATEST}, read_committed=True)[place]
        at = self._next[place.partition]
        where = f"{TOPIC}-{place.partition}"
        if stable > at:
            return TimedOutError(
                f"{where} could be read to offset {at} only within {SETTLE_S:.0f} s",
                code="TDM-R033",
                remedy="the broker is slow: try again",
            )
        return LostEndError(
            f"{where}: a transaction that began at offset {stable} is open for longer than the broker's limit, "
            f"{TRANSACTION_TIMEOUT_MS // 1000} s: it has lost its end, perhaps in some of the target's partitions too",
            code="TDM-R034",
            remedy="don't go on with this restore: `tandem restore abandon` it, then `kafka-transactions.sh abort "
            f"--topic {TOPIC} --partition {place.partition} --start-offset {stable}`; docs/restore.md tells the rest",
        )

    def poll(self, timeout_s: float) -> bool:
        """Apply the next record that arrives within the time; return whether one did."""
        message = self._consumer.poll(timeout_s)
        if message is None:
            return False
        error, number = message.error(), message.partition() or 0
        if error is not None:
            if error.code() == ErrorCode.CLIENT_PARTITION_EOF:
                self._next[number] = max(self._next[number], message.offset() or 0)
                return False
            if admin_errors.is_about_no_group(error):
                return False
            raise admin_errors.explain(error, operation="read", resource=f"topic {TOPIC}", servers=self._servers)
        self._next[number] = (message.offset() or 0) + 1
        self._take(message)
        return True

    def _take(self, message: Message) -> None:
        key = (message.key() or b"").decode("utf-8", "replace")
        if self._only in {None, _plan_in(key)} and ("/" in key) is (self._view is ProgressView.TASKS):
            (self.progress.take if self._strict else self.progress.note)(key, message.value())

    def close(self) -> None:
        """Close the consumer's connections."""
        self._consumer.close()


@contextmanager
def following(
    props: Mapping[str, Value],
    view: ProgressView,
    *,
    partitions: Collection[int],
    only: str | None = None,
    strict: bool = True,
) -> Iterator[ProgressReader]:
    """Open a reader for the block, and close it afterwards."""
    reader = ProgressReader(props, view, partitions=partitions, only=only, strict=strict)
    try:
        yield reader
    finally:
        reader.close()


def partitions(admin: ClusterAdmin) -> tuple[int, ...]:
    """Return the topic's partitions, none if no restore ever came to this cluster."""
    return tuple(sorted(number for info in admin.topics([TOPIC]) for number in info.partitions))


def forget_tasks(props: Mapping[str, Value], state: PlanState, keys: Iterable[str], *, timeout_s: float = 60.0) -> None:
    """Write tombstones for tasks of a plan. ClusterTransientError unless the broker confirms all of them.

    They may come twice. A producer that rules this out takes half a second longer, to get its id.
    """
    failed: list[str] = []

    def delivered(error: KafkaError | None, _: Message) -> None:
        if error is not None:
            failed.append(error.str())

    producer = Producer(
        {**for_confluent(props, enable_idempotence=False, acks="all", logger=_LOG), "log_level": _ERRORS}
    )
    try:
        for key in keys:
            number = partition_of(key, state.spread)
            producer.produce(TOPIC, key=key.encode(), value=None, partition=number, on_delivery=delivered)
            producer.poll(0)
        left = producer.flush(timeout_s)
    except (KafkaException, BufferError) as error:
        raise ClusterTransientError(f"writing to {TOPIC}: {error}", code="TDM-R035") from error
    if left or failed:
        raise ClusterTransientError(f"writing to {TOPIC}: {'; '.join(failed) or 'no answer in time'}", code="TDM-R036")


Told = Callable[[RestoreProgress], None]


def follow(
    props: Mapping[str, Value], plan: str, numbers: Collection[int], tell: Told, *, stopped: Callable[[], bool]
) -> None:
    """Call `tell` with the progress of `plan` until `stopped`. For display only: errors are left to the loading tasks.

    The callback sums over all tasks, so it is called at most every `_FOLLOW_S` seconds, not at each record.
    """
    with following(props, ProgressView.TASKS, partitions=numbers, only=plan) as reader:
        told_at, news = time.monotonic(), False
        while not stopped():
            with suppress(TransientError, DamagedError):
                news = reader.poll(_FOLLOW_S) or news
            if news and time.monotonic() - told_at >= _FOLLOW_S:
                tell(reader.progress)
                told_at, news = time.monotonic(), False
