"""`tandem rewind` on Spark: find the state at a moment, compare it with the live topic, one task for each partition.

Spark schedules; keys and values never enter its JVM, and nothing is shuffled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from tandem.backup_avro.chain.entries import iso
from tandem.backup_avro.errors import RefusedError, TandemError
from tandem.backup_avro.selection.restorable_state import PartitionSelection, Selection
from tandem.sink.kafka.cluster.admin import ClusterAdmin, TopicInfo
from tandem.sink.store.chain import pins
from tandem.sink.store.chain.chain_reader import ChainReader
from tandem.sink.store.encrypted_objects import require_keys
from tandem.spark_jobs.reading.object_reader import StoreAddress, require_pair
from tandem.spark_jobs.reading.task_objects import with_used_parts_only
from tandem.spark_jobs.reading.wanted_state import FoundState, StateRequest
from tandem.spark_jobs.restore.live_write.live_transactions import BATCH_SETTINGS
from tandem.spark_jobs.rewind.key_changes import EVERY_KEY, KeyChoice
from tandem.spark_jobs.rewind.rewind_partition import RewindTask, plan_partition
from tandem.spark_jobs.rewind.rewind_plan import PartitionRewind, RewindPlan, RewindReport, WrittenPartition
from tandem.spark_jobs.rewind.rewind_record import RewindRecord
from tandem.spark_jobs.rewind.rewind_write import WriteTask, write_partition
from tandem.spark_jobs.spark.job_progress import reporting
from tandem.spark_jobs.spark.kafka_cluster import ClusterAddress
from tandem.spark_jobs.spark.task_attempts import is_retried
from tandem.spark_jobs.spark.worker_log import logged
from tandem.spark_jobs.state.find_state import find_state

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Tell = Callable[[int, int], None]
"""Called with the partitions that are done and their number."""

_POLICY: Final = "cleanup.policy"
_Task = TypeVar("_Task")
_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class RewindRequest:
    """Rewind `topic` to the state that `state_request` names. `show_keys`: the plan's samples have the keys.

    `since` and `until`: only keys whose newest live record lies at or above, or below, the ends that the partitions had
    at these times (ms); `choice` has the other conditions. `choice_texts` describe all of them for the plan.
    """

    address: StoreAddress
    pair: str
    cluster: ClusterAddress
    topic: str
    state_request: StateRequest
    since: int | None = None
    until: int | None = None
    choice: KeyChoice = EVERY_KEY
    choice_texts: Sequence[str] = ()
    show_keys: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRewind:
    """A plan, and the tasks that carry it out: they compare up to the same ends and in as many passes as the plan did.

    `config` has the topic's effective `BATCH_SETTINGS`.
    """

    plan: RewindPlan
    tasks: tuple[RewindTask, ...]
    config: Mapping[str, str]


@contextmanager
def planned_rewind(spark: SparkSession, request: RewindRequest, *, tell: Tell | None = None) -> Iterator[PlannedRewind]:
    """Compare the live topic with the state, and hold the state's generations during the block.

    Raises ConfigError for a state that is not in the backup, RefusedError for one that cannot be restored whole, for a
    topic that was created again, has another number of partitions or is not compacted; errors of the store and of the
    cluster, DamagedError for chains. An error of one partition is in its part of the plan.
    """
    require_pair(request.address, request.pair)
    reader = ChainReader(request.address.open(), request.pair)
    numbers = [state.number for state in reader.refresh(tolerant=True)]
    with pins.hold_pins(reader.store, request.pair, numbers, owner="rewind"):
        state, selection = _selected(reader, request.topic, request.state_request)
        info, config = _live_topic(request)
        parts = whole_topic(selection, request.topic, info)
        require_keys(reader.store, parts)
        choice = replace(
            request.choice,
            since=_both(request.choice.since, _ends(reader, request, request.since), max),
            until=_both(request.choice.until, _ends(reader, request, request.until), min),
        )
        tasks = [
            RewindTask(
                topic=request.topic,
                key=piece.key,
                slices=with_used_parts_only(piece.slices),
                moment_end=piece.end,
                expires="delete" in config[_POLICY],
                store=request.address,
                cluster=request.cluster,
                choice=choice,
                show_keys=request.show_keys,
            )
            for piece in parts
        ]
        found = run_tasks(spark, tasks, plan_partition, _failed_plan, tell)
        past = state.known(selection)
        plan = RewindPlan(
            pair=request.pair,
            topic=request.topic,
            topic_id=info.topic_id,
            generation=selection.generation,
            seq=selection.seq,
            as_of=None if past is None else iso(past.at),
            checkpoint=request.state_request.checkpoint,
            key_choice=tuple(request.choice_texts),
            partitions=tuple(found),
            warnings=(*state.doubts(selection), *_uncommitted(state, selection)),
        )
        yield PlannedRewind(
            plan=plan,
            tasks=tuple(
                replace(task, head=one.head, passes=one.passes) for task, one in zip(tasks, found, strict=True)
            ),
            config=config,
        )


def write_back(
    spark: SparkSession, planned: PlannedRewind, record: RewindRecord, *, tell: Tell | None = None
) -> RewindReport:
    """Write the keys of the plan, within the block of `planned_rewind`. An error of a partition is in its result.

    Keys whose newest record others have written since the plan was made are left alone, and counted.
    """
    plan = planned.plan
    starts = {one.partition: one.log_start for one in plan.partitions if one.planned}
    tasks = [
        WriteTask(
            compared=task,
            log_start=starts[task.key.partition],
            pair=plan.pair,
            rewind=record.id,
            config=planned.config,
        )
        for task in planned.tasks
        if task.key.partition in starts
    ]
    return RewindReport(
        id=record.id,
        pair=plan.pair,
        topic=plan.topic,
        as_of=plan.as_of,
        state_checkpoint=plan.checkpoint,
        checkpoint=record.checkpoint,
        planned=plan.planned,
        partitions=tuple(run_tasks(spark, tasks, write_partition, _failed_write, tell)),
    )


def _failed_write(task: WriteTask, error: str) -> WrittenPartition:
    return WrittenPartition(partition=task.compared.key.partition, error=error)


def _selected(reader: ChainReader, topic: str, state_request: StateRequest) -> tuple[FoundState, Selection]:
    state = find_state(reader, state_request)
    return state, state.select(wanted=lambda found: found.name == topic, removed=False)


def _live_topic(request: RewindRequest) -> tuple[TopicInfo, Mapping[str, str]]:
    """Return the live topic, and its effective policy and `BATCH_SETTINGS`.

    Raises RefusedError if it is not compacted.
    """
    with ClusterAdmin(request.cluster.props) as admin:
        infos = admin.topics([request.topic])
        if not infos:
            raise RefusedError(
                f"the cluster has no topic {request.topic}: there is nothing to rewind",
                code="TDM-R140",
                remedy="`tandem restore` brings back a topic that was deleted",
            )
        config = admin.config([request.topic], defaults=(_POLICY, *BATCH_SETTINGS))[request.topic]
    if "compact" not in config[_POLICY]:
        raise RefusedError(
            f"{request.topic} has cleanup.policy={config[_POLICY]}: its records are a sequence, not the values of keys",
            code="TDM-R141",
            remedy="`tandem restore --to` writes the records of a moment into another topic",
        )
    return infos[0], config


def whole_topic(selection: Selection, topic: str, info: TopicInfo) -> list[PartitionSelection]:
    """Return the topic's partitions as of the moment. Raises RefusedError unless they are those of the live topic."""
    parts = sorted(selection.partitions, key=lambda piece: piece.key.partition)
    others = {piece.key.topic_id for piece in parts} - {info.topic_id}
    if others:
        raise RefusedError(
            f"{topic} was deleted and created again since: its id is {info.topic_id}, at the moment {min(others)}",
            code="TDM-R142",
            remedy="`tandem restore` writes the former topic's records into a new topic",
        )
    count = max((piece.topic.partitions for piece in parts), default=len(info.partitions))
    if count != len(info.partitions):
        raise RefusedError(
            f"{topic} has {len(info.partitions)} partitions, and had {count} at the moment: keys may have moved",
            code="TDM-R144",
            remedy="`tandem restore --repartition` writes the records of the moment into another topic",
        )
    lacking = sorted(set(info.partitions) - {piece.key.partition for piece in parts})
    if not parts or lacking or selection.incomplete:
        which = f"partition {', '.join(map(str, lacking))} of {topic}" if parts and lacking else topic
        raise RefusedError(
            f"{selection.source_text} does not hold {which} as of the moment",
            code="TDM-R143",
            remedy="take a later moment: `tandem history` shows when generations were complete, `tandem describe "
            f"{topic}` what is stored of it. A topic that was created again since is brought back by `tandem restore`",
        )
    return parts


def _ends(reader: ChainReader, request: RewindRequest, at: int | None) -> Mapping[int, int] | None:
    """Return the ends that the topic's partitions had at a time (ms); None without one."""
    if at is None:
        return None
    _, selection = _selected(reader, request.topic, StateRequest(at=at))
    return {piece.key.partition: piece.end for piece in selection.partitions}


def _both(
    one: Mapping[int, int] | None, other: Mapping[int, int] | None, narrower: Callable[[int, int], int]
) -> Mapping[int, int] | None:
    """Return the bounds of the partitions that both name, the narrower one of each."""
    if one is None or other is None:
        return other if one is None else one
    return {number: narrower(one[number], other[number]) for number in one.keys() & other.keys()}


def _uncommitted(state: FoundState, selection: Selection) -> Iterator[str]:
    openings = [one.opening for one in state.generations if one.number == selection.generation]
    if any(opening is not None and opening.isolation_level != "read_committed" for opening in openings):
        yield (
            "the backup has records of aborted transactions too (isolation_level read_uncommitted), the live topic is "
            "compared without them: keys that such records wrote by the moment show as changed"
        )


def run_tasks(
    spark: SparkSession,
    tasks: Sequence[_Task],
    work: Callable[[_Task], _Result],
    failed: Callable[[_Task, str], _Result],
    tell: Tell | None,
) -> list[_Result]:
    """Run each task in a Spark task of its own; return the results in the order of the tasks.

    An error that a retry would repeat becomes the partition's result by `failed`; so does any error at the last
    attempts: a partition without a leader must not end the others.
    """
    if not tasks:
        return []
    context = spark.sparkContext
    done = context.accumulator(0)
    with reporting(
        lambda: min(done.value, len(tasks)), None if tell is None else lambda count: tell(count, len(tasks))
    ):
        rows = context.parallelize(tasks, len(tasks))
        return rows.mapPartitions(logged(partial(_worked, work, failed, done))).collect()


def _worked(
    work: Callable[[_Task], _Result],
    failed: Callable[[_Task, str], _Result],
    done: Any,  # noqa: ANN401 - an accumulator
    tasks: Iterable[_Task],
) -> Iterator[_Result]:
    for task in tasks:
        try:
            yield work(task)
        except TandemError as error:
            if is_retried(error):
                raise
            yield failed(task, str(error))
        done.add(1)


def _failed_plan(task: RewindTask, error: str) -> PartitionRewind:
    return PartitionRewind(
        partition=task.key.partition, moment_end=task.moment_end, log_start=0, head=-1, keys=0, error=error
    )
