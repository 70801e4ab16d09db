"""What Spark calls in its Python workers: loads, surveys and checks, whose permanent failures come back as results."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from tandem.backup_avro.errors import PermanentError, TimedOutError
from tandem.spark_jobs.reading.object_reader import StoreAddress
from tandem.spark_jobs.restore.check import check_partition
from tandem.spark_jobs.restore.check.check_partition import CheckResult, CheckTask, MapTask
from tandem.spark_jobs.restore.check.written_ranges import WrittenRange, WrittenRanges
from tandem.spark_jobs.restore.load import load
from tandem.spark_jobs.restore.load.load import LoadResult
from tandem.spark_jobs.restore.prepare.wait_cleaned import CleanedPartition
from tandem.spark_jobs.restore.progress.batch_producer import FencedError
from tandem.spark_jobs.restore.records import stray_keys
from tandem.spark_jobs.restore.records.load_task import LoadTask
from tandem.spark_jobs.restore.records.record_stream import GivenUnits
from tandem.spark_jobs.restore.records.stray_keys import StrayKey, SurveyTask
from tandem.spark_jobs.spark.kafka_cluster import ClusterAddress
from tandem.spark_jobs.spark.worker_log import logged

if TYPE_CHECKING:
    from pyspark.core.context import SparkContext

    from tandem.spark_jobs.restore.merge_source import MergePlan, MergeSource, MergeTopic, SourceTimes
    from tandem.spark_jobs.restore.records.newest_by_key import Winners

#: Most tasks for each core that read offset maps.
_SLICES: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class _Failed:
    """A task's permanent failure, returned as a result so that Spark does not retry the task."""

    error: PermanentError | TimedOutError


class MapsAddress(NamedTuple):
    """Where the offset maps of a restore lie."""

    store: StoreAddress
    pair: str
    restore: str


def results_of(found: Iterable[object]) -> list:  # type: ignore[type-arg]  # of whatever the tasks return
    """Return the results, and raise the first failure."""
    results = []
    for item in found:
        if isinstance(item, _Failed):
            raise item.error
        results.append(item)
    return results


def load_all(tasks: Iterable[LoadTask]) -> Iterator[LoadResult | _Failed]:
    """Carry out loads."""
    for task in tasks:
        yield from load_one(task)


def load_one(
    task: LoadTask, winners: Winners | None = None, given: GivenUnits | None = None
) -> Iterator[LoadResult | _Failed]:
    """Carry out a load. `winners`, `given`: see `load_partition`."""
    try:
        yield load.load_partition(task, winners, given)
    except FencedError:
        raise  # fenced by a later attempt of this task, or by another run: the next attempt finds out which
    except (PermanentError, TimedOutError) as error:
        yield _Failed(error=error)


def load_given(task: LoadTask, given: GivenUnits) -> Iterator[LoadResult | _Failed]:
    """Load units that were read elsewhere."""
    yield from load_one(task, given=given)


def load_small(given: tuple[MergeTopic, MergePlan, Sequence[LoadTask]]) -> Iterator[LoadResult | _Failed]:
    """Load target partitions of a small topic that is merged, one after the other."""
    from tandem.spark_jobs.restore import sorted_load  # noqa: PLC0415 - NumPy, which most restores never need

    topic, plan, tasks = given
    for task in tasks:
        try:
            yield from sorted_load.load_small(topic, plan, task, load_given)
        except FencedError:
            raise  # as in `load_one`
        except (PermanentError, TimedOutError) as error:
            yield _Failed(error=error)


def failed(error: PermanentError | TimedOutError) -> _Failed:
    """Return a permanent failure as a result."""
    return _Failed(error=error)


def survey_all(tasks: Iterable[SurveyTask]) -> Iterator[StrayKey | _Failed]:
    """Look for keys that lie in other partitions than the partitioner would choose."""
    for task in tasks:
        try:
            yield stray_keys.find_stray_key(task)
        except PermanentError as error:
            yield _Failed(error=error)


def read_times(sources: Iterable[MergeSource]) -> Iterator[SourceTimes | _Failed]:
    """Read the timestamps of partitions that are to be merged."""
    for source in sources:
        try:
            yield source.times()
        except PermanentError as error:
            yield _Failed(error=error)


def plan_merges(topics: Iterable[MergeTopic]) -> Iterator[tuple[str, MergePlan] | _Failed]:
    """Plan merges of small topics, each with its id."""
    from tandem.spark_jobs.restore.ambiguous_keys import plan_small_merge  # noqa: PLC0415 - as above

    for topic in topics:
        try:
            yield topic.topic_id, plan_small_merge(topic)
        except PermanentError as error:
            yield _Failed(error=error)


def count_keyless(tasks: Iterable[CheckTask]) -> Iterator[int | _Failed]:
    """Count the records without key of each partition."""
    for task in tasks:
        try:
            yield check_partition.count_keyless(task)
        except (PermanentError, TimedOutError) as error:
            yield _Failed(error=error)


def keyless_on(context: SparkContext, cluster: ClusterAddress, partitions: Iterable[CleanedPartition]) -> list[int]:
    """Return the number of records without key of each partition, which Spark's workers read."""
    tasks = [
        CheckTask(**one._asdict(), expected=(), shared=False, among_others=False, cluster=cluster) for one in partitions
    ]
    return results_of(context.parallelize(tasks, len(tasks)).mapPartitions(logged(count_keyless)).collect())


def check_on(
    context: SparkContext, tasks: Sequence[CheckTask], cluster: ClusterAddress, maps: MapsAddress
) -> list[CheckResult]:
    """Return the results of checks by Spark's workers, in the order of `tasks`; the largest begin first.

    Raises the first failure.
    """
    order = {(task.target, task.partition): number for number, task in enumerate(tasks)}
    tasks = sorted(tasks, key=lambda task: task.start - task.end)
    found = _checked(context, tasks, cluster, maps)
    return sorted(results_of(found), key=lambda item: order[item.target, item.partition])


def _checked(
    context: SparkContext, tasks: Sequence[CheckTask], cluster: ClusterAddress, of: MapsAddress
) -> list[CheckResult | _Failed]:
    maps = check_partition.map_tasks(tasks, of.store, pair=of.pair, restore=of.restore)
    if not maps:
        return context.parallelize(tasks, len(tasks)).mapPartitions(logged(check_all)).collect()
    # One task's rows belong to many checks. Spark shuffles rows and checks by the check's number. The checks are
    # sent without credentials, since Spark may write shuffled data to disks.
    bare = [replace(task, cluster=ClusterAddress(props={})) for task in tasks]
    given: list[MapTask | tuple[int, CheckTask]] = [*maps, *enumerate(bare)]
    slices = min(len(maps), _SLICES * context.defaultParallelism)
    sent = context.parallelize(given, slices).mapPartitions(logged(scatter)).partitionBy(len(tasks), int).values()
    return sent.mapPartitions(logged(partial(check_shared, cluster))).collect()


def scatter(
    given: Iterable[MapTask | tuple[int, CheckTask]],
) -> Iterator[tuple[int, CheckTask | WrittenRange | _Failed]]:
    """Yield the checks and the rows of their offset maps, each with the number of its check."""
    for item in given:
        if not isinstance(item, MapTask):
            yield item
            continue
        try:
            yield from check_partition.stretches(item)
        except (PermanentError, TimedOutError) as error:
            yield min(item.shares.values())[0], _Failed(error=error)


def check_shared(
    cluster: ClusterAddress, found: Iterable[CheckTask | WrittenRange | _Failed]
) -> Iterator[CheckResult | _Failed]:
    """Carry out the one check of a partition."""
    tasks: list[CheckTask] = []
    failed: list[_Failed] = []
    written = WrittenRanges()
    for item in found:
        if isinstance(item, CheckTask):
            tasks.append(replace(item, cluster=cluster))
        elif isinstance(item, WrittenRange):
            written.add(item)
        else:
            failed.append(item)
    yield from failed or check_all(tasks, written)


def check_all(tasks: Iterable[CheckTask], written: Iterable[WrittenRange] = ()) -> Iterator[CheckResult | _Failed]:
    """Carry out checks. `written`: see `check_partition`."""
    for task in tasks:
        try:
            yield from check_partition.check_partition(task, written)
        except (PermanentError, TimedOutError) as error:
            yield _Failed(error=error)
