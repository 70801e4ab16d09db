"""`tandem restore`: plan, create topics, load, verify, set the recorded config, report. Spark only schedules.

Records go from the store's blocks into Kafka's record batches inside the Python workers and never enter the JVM.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import zip_longest
from typing import TYPE_CHECKING, Final

from tandem.backup_avro.errors import RefusedError, TandemError
from tandem.backup_avro.selection.restorable_state import PartitionSelection
from tandem.sink.store.chain import pins, restore_targets
from tandem.sink.store.chain.chain_reader import ChainReader
from tandem.spark_jobs.compaction import memory_or_shuffle
from tandem.spark_jobs.connector.connector_reader import ConnectorReader
from tandem.spark_jobs.reading.object_reader import StoreAddress
from tandem.spark_jobs.reading.task_objects import with_used_parts_only
from tandem.spark_jobs.restore import forget_restores, worker_calls
from tandem.spark_jobs.restore.abandon import put_back
from tandem.spark_jobs.restore.ambiguous_keys import refuse_ambiguous_keys
from tandem.spark_jobs.restore.check import check_partition
from tandem.spark_jobs.restore.check.check_partition import CheckResult, CheckTask, ExpectedRecords
from tandem.spark_jobs.restore.groups import restore_groups
from tandem.spark_jobs.restore.lease.lease_record import OvertakenError
from tandem.spark_jobs.restore.load import closing, load
from tandem.spark_jobs.restore.load.load import LoadResult
from tandem.spark_jobs.restore.merge_source import MergePlan, MergeSource, MergeTopic, SourceTimes, in_order, source_of
from tandem.spark_jobs.restore.plan import plan as restore_plan
from tandem.spark_jobs.restore.plan.offset_mode import OffsetMode
from tandem.spark_jobs.restore.plan.options import RestoreOptions
from tandem.spark_jobs.restore.plan.plan import TargetTopic, TopicPlan
from tandem.spark_jobs.restore.prepare import filling, target_settings, wait_cleaned
from tandem.spark_jobs.restore.prepare import prepare as restore_prepare
from tandem.spark_jobs.restore.prepare.loading_config import LoadingConfig, notes_of_partitions, wanted_of
from tandem.spark_jobs.restore.prepare.prepare import PreparedRestore, check_consent, prepare_restore
from tandem.spark_jobs.restore.progress import offset_map, restore_record
from tandem.spark_jobs.restore.progress import task_progress as marks
from tandem.spark_jobs.restore.progress.task_progress import LostEndError, PlanPhase, RestoreProgress
from tandem.spark_jobs.restore.records.load_task import LoadTask, queued
from tandem.spark_jobs.restore.records.newest_by_key import load_by_key
from tandem.spark_jobs.restore.records.stray_keys import SurveyTask
from tandem.spark_jobs.restore.report import RestoreListener, RestoreReport, TopicReport
from tandem.spark_jobs.restore.restore_lease import RestoreLease
from tandem.spark_jobs.restore.sorted_load import LoadCalls, as_one, load_sorted, refuse_unless_whole
from tandem.spark_jobs.restore.target import append
from tandem.spark_jobs.restore.target.target_cluster import TargetCluster
from tandem.spark_jobs.spark.job_progress import thread_beside
from tandem.spark_jobs.spark.kafka_cluster import ClusterAddress
from tandem.spark_jobs.spark.session import encrypts_disks, require_encrypted_disks
from tandem.spark_jobs.spark.shuffle import shuffle_on
from tandem.spark_jobs.spark.worker_log import logged

if TYPE_CHECKING:
    from pyspark.core.context import SparkContext
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreRequest:
    """The inputs of a restore: the backup of `reader`, which workers open at `address`, and the `target` cluster.

    `options` are the user's; `now` returns ms since the epoch.
    """

    address: StoreAddress
    reader: ChainReader | ConnectorReader
    target: TargetCluster
    options: RestoreOptions
    now: Callable[[], int]


def restore(spark: SparkSession, request: RestoreRequest, *, tell: RestoreListener | None = None) -> RestoreReport:
    """Plan a restore and carry it out. See `prepare_restore` and `check_consent` for refusals.

    A run that ended unfinished, for whatever reason, is resumed by calling this again; two runs at once are safe: the
    later one takes over.
    """
    told = tell or RestoreListener()
    told.phase("planning")
    prepared = prepare_restore(request.reader, request.target, request.options)
    check_consent(prepared.plan, request.options, now=request.now())
    return carry_out(prepared, request, lambda: spark.sparkContext, tell=told)


def carry_out(
    prepared: PreparedRestore,
    request: RestoreRequest,
    context: Callable[[], SparkContext],
    *,
    tell: RestoreListener | None = None,
) -> RestoreReport:
    """Carry out the restore that was prepared from this request; `context` is called whenever Spark is needed."""
    reader = request.reader
    with pins.hold_pins(reader.store, reader.pair, sorted(prepared.plan.basis), owner="restore"):
        restore_prepare.refuse_if_clearing(reader, prepared.plan)
        return _RestoreRun(prepared, request, context, tell or RestoreListener()).run()


class _RestoreRun:
    """One run of a prepared restore."""

    def __init__(
        self,
        prepared: PreparedRestore,
        request: RestoreRequest,
        context: Callable[[], SparkContext],
        told: RestoreListener,
    ) -> None:
        self._context = context
        self._address = request.address
        self._target = target = request.target
        self._options = request.options
        self._prepared = prepared
        self._plan = prepared.plan
        self._now = request.now
        self._told = told
        self._charge = RestoreLease(prepared, target=target, now=request.now)
        self._cluster = ClusterAddress(props=dict(target.props))
        self._notes: dict[str, list[str]] = {topic.target: [] for topic in self._plan.topics}
        self._refused: dict[str, Mapping[str, str]] = {}
        self._filled: set[str] = set()
        self._segments: dict[str, int] = {}
        self._cleaned = False
        self._merges: dict[str, tuple[MergeTopic, MergePlan]] = {}

    def run(self) -> RestoreReport:
        """Carry out the run; if it fails, tell the listener that the restore is unfinished.

        An unfinished restore is to be resumed or given up.
        """
        try:
            report = self._carried_out()
        except LostEndError:
            self._tell_unless_overtaken(self._charge.spoil, wrong=True)
            raise
        except Exception:
            self._tell_unless_overtaken(self._charge.stand_by)
            raise
        except BaseException:
            if self._charge.said:
                self._told.unfinished(self._plan)
            raise
        if not report.ended:
            self._told.unfinished(self._plan, wrong=bool(report.mismatches))
        return report

    def _tell_unless_overtaken(self, find_out: Callable[[], None], *, wrong: bool = False) -> None:
        """Tell the listener that the restore is unfinished, unless another run has taken it over.

        `find_out` raises OvertakenError in that case, which is passed on: nothing is left for this run's user to do.
        """
        if not self._charge.said:
            return
        try:
            find_out()
        except OvertakenError:
            raise
        except TandemError:
            pass  # the cluster does not answer
        self._told.unfinished(self._plan, wrong=wrong)

    def _carried_out(self) -> RestoreReport:
        resumes = self._prepared.resumes
        targets = self._take_over() if resumes is not None else self._begin()
        if resumes is not None and resumes.state is PlanPhase.VERIFIED:
            loaded, checked = self._as_recorded(), []
            load_seconds = check_seconds = 0.0
        else:
            self._told.phase("waiting for Spark")
            self._context()
            began = time.monotonic()
            loaded = self._load(targets)
            load_seconds = time.monotonic() - began
            began = time.monotonic()
            checked = self._check(loaded, targets)
            check_seconds = time.monotonic() - began
        mismatches = tuple(item for item in checked if not item.same)
        if mismatches:
            # If another run has taken over, it may have set a config under which records were compacted since.
            self._charge.stand_by()
            self._note_other_writers(mismatches)
        else:
            if checked and self._options.leaves_record:
                self._leave_record(loaded, targets)
            self._set_recorded(targets)
        return RestoreReport(
            id=self._id(targets),
            plan=self._plan,
            topics=tuple(self._report(topic, loaded) for topic in self._plan.topics),
            mismatches=mismatches,
            resumed=sum(item.resumed for item in loaded),
            load_seconds=load_seconds,
            check_seconds=check_seconds,
        )

    def _note_other_writers(self, mismatches: Iterable[CheckResult]) -> None:
        """Add notes that name other producers of a target. Targets of an append have other records anyway."""
        found = {(item.target, item.partition): item.others for item in mismatches if not self._plan.append}
        for (target, number), others in sorted(found.items()):
            if others:
                self._notes[target].append(
                    f"partition {number}: {'; '.join(map(str, others[:_NAMED]))}: another producer writes to this "
                    "topic; stop it, delete the topic and restore again"
                )
        for item in mismatches:
            if item.marker_last:
                self._notes[item.target].append(
                    f"partition {item.partition} ends in the marker of a transaction at offset {item.end - 1}: an "
                    "application that reads until it gets the record before the end waits for ever; delete the topic "
                    "and restore again"
                )
            if item.shifted:
                self._notes[item.target].append(
                    f"partition {item.partition} has records at other offsets than was planned: delete the topic and "
                    "restore again"
                )

    def _begin(self) -> dict[str, TargetTopic]:
        merged = self._survey()
        self._told.phase("creating topics")
        if self._options.leaves_record and self._plan.recorded and not self._plan.append:
            # A topic that is restored under its own name stays in the pair's guarded topics, as before.
            there, plan = self._prepared.targets, self._plan
            names = [one.target for one in plan.topics if one.target not in {one.source.name, *there}]
            at = self._target.admin.cluster_id()
            unknown = restore_targets.announce_targets(self._address.open(), plan.pair, plan.hash, at, names)
            for name, why in unknown.items():
                self._notes[name].append(why)
        return self._identified(self._charge.begin(merged, lambda name, text: self._notes[name].append(text)))

    def _identified(self, targets: dict[str, TargetTopic]) -> dict[str, TargetTopic]:
        """Add the ids of the created topics to the announcement, so that it matches no later topic of such a name."""
        if self._options.leaves_record:
            ids = {name: item.topic_id for name, item in targets.items()}
            at = self._target.admin.cluster_id()
            restore_targets.identify_targets(self._address.open(), self._plan.pair, self._plan.hash, at, ids)
        return targets

    def _take_over(self) -> dict[str, TargetTopic]:
        state = self._prepared.resumes
        if state is not None and state.state is not PlanPhase.VERIFIED:
            self._plan_merges(state.merged)
        self._told.phase(f"resuming: {self._prepared.present} records are there already")
        return self._identified(self._charge.take_over())

    def _survey(self) -> tuple[str, ...]:
        """Return the ids of the re-partitioned topics in which one key may lie in several partitions."""
        partitioner = self._plan.shape.partitioner
        topics = [topic for topic in self._plan.topics if topic.repartitioned]
        if not topics or partitioner is None:
            return ()
        self._told.phase("looking whether each key lies in one partition")
        tasks = [
            SurveyTask(
                topic_id=topic.source.topic_id,
                partition=item.key.partition,
                slices=with_used_parts_only(item.slices),
                partitioner=partitioner,
                partitions=topic.source.partitions,
                store=self._address,
            )
            for topic in topics
            for item in topic.partitions
        ]
        spark = self._context()
        strays = worker_calls.results_of(
            spark.parallelize(tasks, len(tasks)).mapPartitions(logged(worker_calls.survey_all)).collect()
        )
        found = sorted({stray.topic_id for stray in strays if stray.offset is not None})
        for topic in topics:
            stray = next(
                (item for item in strays if item.topic_id == topic.source.topic_id and item.offset is not None), None
            )
            if stray is not None:
                self._notes[topic.target].append(
                    f"{partitioner} would not have put the key at offset {stray.offset} into {topic.source.name}-"
                    f"{stray.partition}: one key may lie in several partitions, so all were merged in the order in "
                    "which timestamps say that they were written"
                )
        self._plan_merges(found)
        return tuple(found)

    def _plan_merges(self, merged: Collection[str]) -> None:
        """Find the order of the records of topics (ids) whose partitions are merged. RefusedError if there is none."""
        topics = {
            topic.source.topic_id: MergeTopic.of(topic, self._plan, self._address)
            for topic in self._plan.topics
            if topic.source.topic_id in merged
        }
        if not topics:
            return
        self._told.phase("looking in which order the records of different partitions were written")
        context = self._context()
        require_encrypted_disks(dict(context.getConf().getAll()))
        small = [topic for topic in topics.values() if topic.small]
        plans: dict[str, MergePlan] = {}
        if small:
            planned = context.parallelize(small, len(small)).mapPartitions(logged(worker_calls.plan_merges))
            plans = dict(worker_calls.results_of(planned.collect()))
        large = [topic for topic in topics.values() if not topic.small]
        sources = [
            MergeSource(topic=replace(topic, sources=()), source=one) for topic in large for one in topic.sources
        ]
        if sources:
            read = context.parallelize(sources, len(sources)).mapPartitions(logged(worker_calls.read_times))
            found: list[SourceTimes] = worker_calls.results_of(read.collect())
            for topic in large:
                plan = MergePlan.of(topic, [times for times in found if times.topic_id == topic.topic_id])
                refuse_ambiguous_keys(topic, plan, shuffle=shuffle_on(context))
                plans[topic.topic_id] = plan
        self._merges = {topic_id: (topic, plans[topic_id]) for topic_id, topic in topics.items()}

    def _load(self, targets: Mapping[str, TargetTopic]) -> list[LoadResult]:
        self._told.phase("loading")
        for topic in self._plan.topics:
            note = filling.obstacle(
                self._target, topic, targets[topic.target], chosen=self._options.offsets is not None
            )
            self._notes[topic.target] += [] if note is None else [note]
            if note is None and topic.offsets.mode is OffsetMode.FLOOR:
                self._filled.add(topic.target)
        self._segments = closing.segments(self._plan, self._target)
        restore = self._id(targets) if self._leaves_map else None
        tasks = [
            self._task(topic, targets[topic.target], group, restore)
            for topic in self._plan.topics
            for group in self._groups(topic)
        ]
        with self._following():
            found = closing.load_in_stages(tasks, self._load_all, self._target)
        order = {(task.topic_id, task.number): number for number, task in enumerate(tasks)}
        return sorted(found, key=lambda item: order[item.topic_id, item.task])

    def _load_all(self, tasks: Sequence[LoadTask]) -> list[LoadResult]:
        """Carry out tasks; those of merged topics, and those whose newest records a shuffle finds, come first."""
        context = self._context()
        shuffle, slots = shuffle_on(context), context.defaultParallelism
        dealt = partial(queued, rate=self._options.bytes_per_second, slots=slots)
        encrypted = encrypts_disks(dict(context.getConf().getAll()))
        found: list[object] = []
        for topic_id, (topic, plan) in self._merges.items():
            queues = dealt([task for task in tasks if task.topic_id == topic_id])
            if plan.cuts or not topic.small:
                found += load_sorted(topic, plan, queues, _MERGING, shuffle=shuffle)
                continue
            given = context.parallelize([(topic, plan, queue) for queue in queues], len(queues))
            loaded = worker_calls.results_of(given.flatMap(logged(worker_calls.load_small)).collect())
            refuse_unless_whole(topic, plan, loaded)
            found += loaded
        tasks = [task for task in tasks if task.topic_id not in self._merges]
        small, large = memory_or_shuffle.choose_way(
            tasks, memory_or_shuffle.LOADED_IN_MEMORY, can_shuffle=lambda task: encrypted and task.shape.latest
        )
        # One of each queue at a time: no more loads run at once than there are shares of the rate.
        for wave in zip_longest(*dealt(large)):
            now = [task for task in wave if task is not None]
            found += load_by_key(now, worker_calls.load_one, worker_calls.failed, shuffle=shuffle, parallelism=slots)
        if queues := dealt(small):
            found += context.parallelize(queues, len(queues)).flatMap(logged(worker_calls.load_all)).collect()
        return worker_calls.results_of(found)

    def _id(self, targets: Mapping[str, TargetTopic]) -> str:
        return offset_map.restore_id(self._plan.hash, {name: item.topic_id for name, item in targets.items()})

    @property
    def _leaves_map(self) -> bool:
        """Whether tasks keep an offset map: the check needs it too, where several writers share a target partition."""
        return (
            self._options.leaves_record or self._plan.append or any(topic.repartitioned for topic in self._plan.topics)
        )

    def _groups(self, topic: TopicPlan) -> list[tuple[int, tuple[PartitionSelection, ...]]]:
        """Return the number of each task of a topic, and the source partitions whose records it may load, ascending."""
        if topic.source.topic_id in self._charge.merged:
            items = tuple(in_order(topic))
            return [(number, items) for number in range(topic.count)]
        return [(item.key.partition, (item,)) for item in topic.partitions]

    def _task(
        self,
        topic: TopicPlan,
        target: TargetTopic,
        group: tuple[int, Sequence[PartitionSelection]],
        restore: str | None,
    ) -> LoadTask:
        topic_id, pace, (number, items) = topic.source.topic_id, self._options.pace, group
        merged = topic_id in self._charge.merged
        return LoadTask(
            plan=self._plan.hash,
            run=self._charge.run,
            pair=self._plan.pair,
            restore=restore,
            topic=topic.source.name,
            topic_id=topic_id,
            sources=tuple(source_of(item, slices=not merged) for item in items),
            target=topic.target,
            target_topic_id=target.topic_id,
            transactional_id=restore_plan.transactional_id(self._plan.hash, topic_id, number),
            shape=self._plan.shape,
            count=topic.count if topic.repartitioned else None,
            spread=self._charge.spread,
            merged_into=number if merged else None,
            with_key=append.takes_keys_only(topic),
            alone=self._plan.alone(topic),
            floor=topic.target in self._filled,
            exact=topic.offsets.mode is OffsetMode.EXACT,
            segment=self._segments.get(topic.target, 0),
            store=self._address,
            cluster=self._cluster,
            pace=replace(
                pace,
                batch_bytes=topic.batch_bytes(pace.batch_bytes),
                compression=topic.compression(self._options.compression),
            ),
        )

    @contextmanager
    def _following(self) -> Iterator[None]:
        """Report the number of committed records from the progress topic, while the block runs."""

        def tell(progress: RestoreProgress) -> None:
            done = sum(item.records + item.left_out for item in progress.of_plan(self._plan.hash))
            self._told.records(done, self._plan.records)

        def follow(stop: threading.Event) -> None:
            numbers = range(1, self._charge.spread + 1) if self._charge.spread else [marks.PLANS_PARTITION]
            marks.follow(self._target.props, self._plan.hash, numbers, tell, stopped=stop.is_set)

        with thread_beside(follow, "restore-progress"):
            yield

    def _check(self, loaded: Sequence[LoadResult], targets: Mapping[str, TargetTopic]) -> list[CheckResult]:
        self._told.phase("verifying")
        there = self._target.look(targets)
        for name, target in targets.items():
            check_partition.refuse_if_made_anew(name, target.topic_id, there[name].topic_id if name in there else None)
            self._notes[name] += notes_of_partitions(target.partitions, there[name].partitions)
        held = LoadingConfig(self._target, wanted_of(self._plan))
        for name, note in held.set_again(self._charge.stand_by).items():
            self._notes[name].append(note)
        checked = self._read_back(loaded, there)
        if all(item.same for item in checked):
            held.refuse_if_changed()
        return checked

    def _read_back(self, loaded: Sequence[LoadResult], targets: Mapping[str, TargetTopic]) -> list[CheckResult]:
        put = _by_place(loaded)
        alone = {topic.target for topic in self._plan.topics if self._plan.alone(topic)}
        exact = {topic.target for topic in self._plan.topics if topic.offsets.mode is OffsetMode.EXACT}
        tasks = [
            CheckTask(
                target=name,
                target_topic_id=target.topic_id,
                partition=number,
                start=_lowest(expected, end) if self._plan.append else target.starts[number],
                # Records after that are not the restore's, and their producers may keep transactions open for long.
                end=_highest(expected) + 1 if self._plan.append else end,
                expected=expected,
                shared=self._plan.append or len(expected) > 1,
                among_others=self._plan.append,
                cluster=self._cluster,
                alone=name in alone,
                exact=name in exact,
            )
            for name, target in targets.items()
            for number, end in target.ends.items()
            for written in [put.get((name, number), ())]
            for expected in [tuple(map(_with_fillers, written) if name in exact else written)]
        ]
        maps = worker_calls.MapsAddress(self._address, self._plan.pair, self._id(targets))
        return worker_calls.check_on(self._context(), tasks, self._cluster, maps)

    def _leave_record(self, loaded: Sequence[LoadResult], targets: Mapping[str, TargetTopic]) -> None:
        """Put the record of the verified restore beside its offset map. An existing record stays."""
        record = restore_record.RestoreRecord(
            id=self._id(targets),
            pair=self._plan.pair,
            plan=self._plan.hash,
            generation=self._plan.generation,
            seq=self._plan.seq,
            as_of=None if self._plan.past is None else self._plan.past.at,
            at=self._now(),
            target_cluster=self._target.admin.cluster_id(),
            topics=tuple(
                restore_record.TopicRecord(
                    name=topic.source.name,
                    topic_id=topic.source.topic_id,
                    partitions=topic.source.partitions,
                    target=topic.target,
                    target_topic_id=targets[topic.target].topic_id,
                    ends={item.key.partition: item.end for item in topic.partitions},
                    tasks=tuple(
                        restore_record.TaskRecord(sources=item.sources, strands=item.strands, page=item.page)
                        for item in loaded
                        if item.target == topic.target
                    ),
                )
                for topic in self._plan.topics
            ),
            groups=self._plan.groups,
            append=self._plan.append,
        )
        why_not = restore_groups.leave(self._address.open(), record)
        if why_not is not None:
            for notes in self._notes.values():
                notes.append(why_not)

    def _as_recorded(self) -> list[LoadResult]:
        """Return the load results of earlier runs, from the progress topic, when only the config is left to be set."""
        progress = self._target.progress(settled=True)
        found = {
            (item.topic_id, item.task): item
            for item in restore_prepare.present(progress, self._plan, self._prepared.targets)
        }
        return [
            load.loaded(done, topic=topic.source.name, sources=numbers, resumed=done.records)
            for topic in self._plan.topics
            for number, items in self._groups(topic)
            for numbers in [tuple(item.key.partition for item in items)]
            for done in [found.get((topic.source.topic_id, number))]
            if done is not None
        ]

    def _set_recorded(self, targets: Mapping[str, TargetTopic]) -> None:
        self._charge.say(PlanPhase.VERIFIED, targets)
        if self._options.keep_load_config:
            for notes in self._notes.values():
                notes.append("the loading config was kept: nothing is compacted or deleted until you set another")
        else:
            self._told.phase("putting the config back" if self._plan.append else "setting the recorded config")
            changes: dict[str, Mapping[str, str | None]] = {}
            for topic in self._plan.topics:
                if topic.appended_to is not None:
                    self._put_back(topic.target)
                else:
                    some, notes = topic.recorded_changes(targets[topic.target].replication_factor)
                    changes[topic.target] = some
                    self._notes[topic.target] += notes
            for name, refused in self._target.set_configs(changes).items():
                self._refused[name] = refused
                self._notes[name] += [f"{key} could not be set: {why}" for key, why in sorted(refused.items())]
                self._notes[name] += target_settings.remedies(self._unset(name))
        if any(self._unset(name) for name in self._refused):
            return  # the plan stays VERIFIED: the same command sets the remaining settings
        if self._options.wait_cleaned:
            left = wait_cleaned.partitions_of(self._plan, self._target.look(targets))
            read = partial(worker_calls.keyless_on, self._context(), self._cluster)
            wait_cleaned.wait_cleaned(left, read, self._told.phase)
            self._cleaned = True
        keys = [
            marks.task_key(self._plan.hash, topic.source.topic_id, number)
            for topic in self._plan.topics
            for number, _ in self._groups(topic)
        ]
        self._charge.say(PlanPhase.FINISHED, targets)
        self._tidy(keys)

    def _unset(self, name: str) -> dict[str, str]:
        """Return the refused settings of a target without which the restore is not finished, with the reason."""
        matters = target_settings.decisive(self._options.topic_config)
        return {key: why for key, why in self._refused.get(name, {}).items() if key in matters}

    def _tidy(self, keys: Sequence[str]) -> None:
        """Clean up after a finished restore. Errors become notes: they don't make the restore a failure."""
        try:
            self._charge.tidy(keys)
            forget_restores.tidy(self._target, now=self._now())
        except TandemError as error:
            for notes in self._notes.values():
                notes.append(f"the restore has ended well, but tidying up after it has not: {error}")

    def _put_back(self, name: str) -> None:
        before = {name: self._charge.before.get(name, {})}
        refused = put_back(self._target, before)[name]
        if refused:
            wanted = "; ".join(f"{key}={before[name].get(key)} ({why})" for key, why in sorted(refused.items()))
            raise RefusedError(
                f"all is there, but {name} can't get its config back: {wanted}",
                code="TDM-R025",
                remedy="set these by hand (None: unset) and repeat the command, or use `tandem restore abandon`",
            )
        self._notes[name].append("appended to what was there; its config is as it was")

    def _config_of(self, topic: TopicPlan) -> Mapping[str, str]:
        if topic.appended_to is not None:
            return append.config_after(topic, self._charge.before.get(topic.target, {}))
        loading = topic.loading_config()
        if self._options.keep_load_config:
            known = self._target.as_known(topic.target, {**loading})
            return {key: value for key, value in loading.items() if key in known}
        refused = self._refused.get(topic.target, {})
        left = {key: loading[key] for key in loading.keys() & refused.keys()}
        return {key: value for key, value in topic.source.config.items() if key not in refused} | left

    def _report(self, topic: TopicPlan, loaded: Sequence[LoadResult]) -> TopicReport:
        mine = tuple(sorted((i for i in loaded if i.target == topic.target), key=lambda item: item.task))
        if topic.source.topic_id in self._charge.merged and mine:
            mine = (as_one(mine),)
        notes = list(self._notes[topic.target])
        unfilled = [item.partition for item in mine if item.unfilled]
        if unfilled:
            notes.append(
                f"records of {len(unfilled)} partitions ({unfilled[0]} is one of them) lie below their source offsets: "
                "an earlier run of this restore had no right to delete fillers; delete the topic and restore again for "
                "offsets that do not"
            )
        if not self._plan.alone(topic):
            notes.append(_MARKER_LAST)
        if topic.offsets.mode is OffsetMode.EXACT:
            written = (strand for item in mine for strand in item.strands.values() if strand.records)
            count = sum(strand.last + 1 - strand.first - strand.records for strand in written)
            stay = topic.target not in self._segments
            notes += restore_plan.filler_notes(count, stay=stay, cleaned=self._cleaned)
        left_out = sum(item.left_out for item in mine)
        if append.takes_keys_only(topic) and left_out:
            what = "some of them, perhaps, because they have" if self._plan.shape.selects else "they have"
            notes.append(f"{left_out} records were left out, {what} no key: a compacted topic takes none like them")
        keyless = sum(item.null_keys for item in mine)
        if keyless and topic.source.compacted:
            notes.append(
                f"{keyless} records have no key: a compacted topic takes no new ones like them, and its cleaner drops "
                "those that were restored"
            )
        return TopicReport(
            source=topic.source.name,
            target=topic.target,
            partitions=mine,
            config=self._config_of(topic),
            notes=tuple(notes),
            unset=self._unset(topic.target),
        )


#: How tasks that merge are carried out.
_MERGING: Final = LoadCalls(load=worker_calls.load_given, results=worker_calls.results_of)


def _lowest(expected: Iterable[ExpectedRecords], end: int) -> int:
    """Return the target offset of the first record, `end` if there is none."""
    return min((item.first for item in expected if item.first >= 0), default=end)


def _highest(expected: Iterable[ExpectedRecords]) -> int:
    """Return the target offset of the last record, -1 if there is none."""
    return max((item.last for item in expected), default=-1)


def _by_place(loaded: Iterable[LoadResult]) -> dict[tuple[str, int], list[ExpectedRecords]]:
    """Return the records that the tasks have written into each partition of the targets, by (target, partition)."""
    found: dict[tuple[str, int], list[ExpectedRecords]] = {}
    for item in loaded:
        what = f"{item.topic}-{item.partition}"
        for number, strand in item.strands.items():
            put = ExpectedRecords(
                what=what,
                records=strand.records,
                hash=strand.hash,
                first=strand.first,
                last=strand.last,
                page=item.page,
            )
            found.setdefault((item.target, number), []).append(put)
    return found


def _with_fillers(item: ExpectedRecords) -> ExpectedRecords:
    """Return the expectation that counts the fillers among a task's records, which its hash covers."""
    return replace(item, records=item.last + 1 - item.first) if item.records else item


_MARKER_LAST: Final = (
    "partitions into which records were restored end in a transaction's marker until something else is written: an "
    "application that reads until it gets the record before the end waits for ever there"
)

#: Most writers of a partition that a note names.
_NAMED: Final = 5
