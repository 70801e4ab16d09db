"""The `kafka_backup` data source: `register(spark)`, then `spark.read.format("kafka_backup")`.

It reads the explicit object list of the chain, never a listing, and checks each object's SHA-256 before decoding it. It
holds no pin: if a generation is cleared while it is read, the job fails with missing objects instead of silently
reading fewer records. It is a Python Data Source (PySpark 4.0 and newer), so it needs no jars. docs/data-source.md is
its manual.

Spark decides how often a frame is planned: 4.0 plans each action anew, 4.3 plans once per `load()`. So a frame of the
newest state may or may not include later commits; with `at`, `commit` or `checkpoint` it reads one fixed state.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from tandem.backup_avro.errors import ConfigError
from tandem.sink.process import log
from tandem.sink.store.encrypted_objects import require_keys
from tandem.spark_jobs.compaction.newest_per_key import newest_records
from tandem.spark_jobs.datasource.plan import EVERYTHING, FilterScope, LatestTask, ReadTask, plan
from tandem.spark_jobs.datasource.pushed_filters import scope_of
from tandem.spark_jobs.reading import arrow
from tandem.spark_jobs.reading.arrow import RecordRun
from tandem.spark_jobs.reading.object_reader import ObjectReader
from tandem.spark_jobs.state import find_state
from tandem.spark_jobs.state.read_options import SourceOptions, parse_options

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

FORMAT: Final = "kafka_backup"


def register(spark: SparkSession) -> None:
    """Register `spark.read.format("kafka_backup")` in a session."""
    spark.dataSource.register(KafkaBackup)


class KafkaBackup(DataSource):
    """The data source. Options: see SourceOptions. Columns: those of Spark's Kafka source, and two on demand."""

    @classmethod
    def name(cls) -> str:
        """The format's name for Spark."""
        return FORMAT

    def schema(self) -> str:
        """The columns as Spark DDL; `includeSource` adds two."""
        options = parse_options(self.options)  # a wrong option is reported at once, not when the first action runs
        return arrow.SPARK_SCHEMA_WITH_SOURCE if options.include_source else arrow.SPARK_SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader that plans and reads. Raises ConfigError if the user gave a schema with other columns."""
        options = parse_options(self.options)
        fixed = arrow.ARROW_SCHEMA_WITH_SOURCE if options.include_source else arrow.ARROW_SCHEMA
        if schema.names != fixed.names:
            raise ConfigError(
                "kafka_backup: its columns are fixed", code="TDM-P051", remedy="leave .schema(…) out, select afterwards"
            )
        if not options.push_filters:
            return KafkaBackupReader(options)
        if not hasattr(DataSourceReader, "pushFilters"):
            raise ConfigError(
                "kafka_backup: pushFilters needs PySpark 4.1 or newer", code="TDM-P052", remedy="leave the option out"
            )
        return PushingReader(options)

    def __repr__(self) -> str:
        """Return a text without the options, some of which are secret."""
        return f"{type(self).__name__}()"


class _Partition(InputPartition):
    """Carries a task; None if there is nothing to read."""

    def __init__(self, task: ReadTask | LatestTask | None) -> None:
        super().__init__(task)


class KafkaBackupReader(DataSourceReader):
    """Plans tasks on the driver and reads them on the workers."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._scope: FilterScope = EVERYTHING

    def partitions(self) -> Sequence[Any]:
        """Read the chain and cut the selected records into tasks. RefusedError if no generation is complete."""
        log.configure_unless_done()
        options = self._options
        reader = options.reader()
        # Warnings of the planning process are not shown to the user: an unreadable newer state is an error, unless a
        # generation is named.
        found = find_state.find_state(
            reader, options.state_request, tolerant=options.state_request.generation is not None
        )
        selection = found.select(wanted=options.wants, removed=bool(options.named))
        require_keys(options.address.open(), selection.partitions)
        return [_Partition(task) for task in plan(selection, options, self._scope)] or [_Partition(None)]

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:  # noqa: ANN401 - PySpark hands back what it was given
        """Yield the batches of one task."""
        log.configure_unless_done()
        options = self._options
        task: ReadTask | LatestTask | None = partition.value
        match task:
            case None:
                return
            case ReadTask():
                runs = _all(options.address.reader(apart=task.apart), task)
            case LatestTask():
                runs = _latest(options.address.reader(apart=task.apart), task, options)
        yield from arrow.filtered(
            arrow.batches_of(runs, with_source=options.include_source),
            since=options.times.low,
            until=options.times.high,
            tombstones=options.tombstones,
        )


def _all(reader: ObjectReader, task: ReadTask) -> Iterator[RecordRun]:
    for piece in task.slices:
        for body in reader.bodies(piece, share=task.share):
            yield RecordRun(
                data=body.body,
                spans=body.spans(),
                generation=piece.generation,
                item=piece.item.key,
            )


def _latest(reader: ObjectReader, task: LatestTask, options: SourceOptions) -> Iterator[RecordRun]:
    for slices in task.partitions:
        seen: set[bytes] = set()
        for piece in slices:
            bodies = reader.bodies(piece, newest_first=True)
            yield from newest_records(
                bodies,
                seen,
                bucket=task.bucket,
                times=options.times,
                generation=piece.generation,
                item=piece.item.key,
            )


class PushingReader(KafkaBackupReader):
    """Narrows the tasks by Spark's filters, for frames that only one scan reads (docs/decisions/0021).

    It is a class of its own because Spark refuses a reader with `pushFilters` if
    spark.sql.python.filterPushdown.enabled is off.
    """

    def pushFilters(self, filters: list[Any]) -> Iterable[Any]:  # noqa: N802 - PySpark's name
        """Narrow the scope by filters on topic, partition, offset and timestamp; return all filters to Spark.

        Spark applies each of them to the rows once more.
        """
        self._scope = scope_of(filters)
        return filters
