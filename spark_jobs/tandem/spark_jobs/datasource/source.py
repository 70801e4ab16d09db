"""The `kafka_backup` data source: `register(spark)`, then `spark.read.format("kafka_backup")`.

It reads the explicit object list of the chain, never a listing, and checks each object's SHA-256 before decoding it. It
holds no pin: if a generation is cleared while it is read, the job fails with missing objects, and never reads less in
silence. A Python Data Source (PySpark 4.0 and newer), so it needs no jars. docs/data-source.md is its manual.

How often a frame is planned is Spark's choice: 4.0 plans each action anew, 4.3 plans once per `load()`. So a frame of
the newest state may or may not see what was committed since; with `at`, `commit` or `checkpoint` it sees one state.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from tandem.backup_avro.errors import ConfigError
from tandem.sink.encryption.objects import require_keys
from tandem.sink.process import log
from tandem.spark_jobs.compaction.newest_per_key import newest_records
from tandem.spark_jobs.datasource.options import SourceOptions, parse_options
from tandem.spark_jobs.datasource.plan import EVERYTHING, FilterScope, LatestTask, ReadTask, plan
from tandem.spark_jobs.datasource.pushed_filters import scope_of
from tandem.spark_jobs.reading import arrow
from tandem.spark_jobs.reading.arrow import RecordRun
from tandem.spark_jobs.reading.object_reader import ObjectReader
from tandem.spark_jobs.state import find_state

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

FORMAT: Final = "kafka_backup"


def register(spark: SparkSession) -> None:
    """Make `spark.read.format("kafka_backup")` known to a session."""
    spark.dataSource.register(KafkaBackup)


class KafkaBackup(DataSource):
    """The data source. Options: see SourceOptions. Columns: those of Spark's Kafka source, and two on demand."""

    @classmethod
    def name(cls) -> str:
        """The name after `format`."""
        return FORMAT

    def schema(self) -> str:
        """The columns: two more with `includeSource`."""
        options = parse_options(self.options)  # a wrong option is told at once, not when the first action runs
        return arrow.SPARK_SCHEMA_WITH_SOURCE if options.include_source else arrow.SPARK_SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return what plans and reads. ConfigError for columns of the user's own."""
        options = parse_options(self.options)
        fixed = arrow.ARROW_SCHEMA_WITH_SOURCE if options.include_source else arrow.ARROW_SCHEMA
        if schema.names != fixed.names:
            raise ConfigError("kafka_backup: its columns are fixed", remedy="leave .schema(…) out, select afterwards")
        if not options.push_filters:
            return KafkaBackupReader(options)
        if not hasattr(DataSourceReader, "pushFilters"):
            raise ConfigError("kafka_backup: pushFilters needs PySpark 4.1 or newer", remedy="leave the option out")
        return PushingReader(options)

    def __repr__(self) -> str:
        """Without options, some of which are secret."""
        return f"{type(self).__name__}()"


class _Partition(InputPartition):
    """Carries a task, None if there is nothing to read."""

    def __init__(self, task: ReadTask | LatestTask | None) -> None:
        super().__init__(task)


class KafkaBackupReader(DataSourceReader):
    """Plans on the driver and reads in the tasks."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._scope: FilterScope = EVERYTHING

    def partitions(self) -> Sequence[Any]:
        """Read the chain and cut what is wanted of it into tasks. RefusedError if nothing is complete."""
        log.configure_unless_done()
        options = self._options
        reader = options.reader()
        # Nobody reads what the planning process prints: a newer state that can't be read is an error, unless named.
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
    """Takes Spark's filters to read less, for frames that are read by one scan only (docs/decisions/0021).

    A class of its own: Spark refuses one that could take filters where spark.sql.python.filterPushdown.enabled is off.
    """

    def pushFilters(self, filters: list[Any]) -> Iterable[Any]:  # noqa: N802 - PySpark's name
        """Take what filters say of topic, partition, offset and timestamp; all of them are Spark's to apply as well."""
        self._scope = scope_of(filters)
        return filters
