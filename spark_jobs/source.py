"""The `kafka_backup` data source: `spark.dataSource.register(KafkaBackup)`, then `spark.read.format("kafka_backup")`.

It reads the explicit object list of the chain, never a listing, and checks each object's SHA-256 before decoding it. It
holds no pin: if a generation is cleared while it is read, the job fails with missing objects, and never reads less in
silence. A Python Data Source (PySpark 4.0 and newer), so it needs no jars.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from backup_avro.errors import ConfigError
from backup_avro.selection import select
from sink.chain.reader import ChainReader
from spark_jobs.arrow import ARROW_SCHEMA, SPARK_SCHEMA, batches
from spark_jobs.read import ObjectReader
from spark_jobs.source_plan import ReadTask, SourceOptions, parse_options, plan_tasks

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

FORMAT = "kafka_backup"


def register(spark: SparkSession) -> None:
    """Make `spark.read.format("kafka_backup")` known to a session."""
    spark.dataSource.register(KafkaBackup)


class KafkaBackup(DataSource):
    """The data source. Options: see `source_plan.parse_options`. Columns: those of Spark's Kafka source."""

    @classmethod
    def name(cls) -> str:
        """The name after `format`."""
        return FORMAT

    def schema(self) -> str:
        """The columns, always the same."""
        parse_options(self.options)  # a wrong option is told at once, not when the first action runs
        return SPARK_SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return what plans and reads. ConfigError for columns of the user's own."""
        if schema.names != ARROW_SCHEMA.names:
            raise ConfigError("kafka_backup: its columns are fixed", remedy="leave .schema(…) out, select afterwards")
        return KafkaBackupReader(parse_options(self.options))

    def __repr__(self) -> str:
        """Without options, some of which are secret."""
        return f"{type(self).__name__}()"


class _Partition(InputPartition):
    """Carries a ReadTask, None if there is nothing to read."""

    def __init__(self, task: ReadTask | None) -> None:
        super().__init__(task)


class KafkaBackupReader(DataSourceReader):
    """Plans on the driver and reads in the tasks."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    def partitions(self) -> Sequence[Any]:
        """Read the chain and cut its selection into tasks. RefusedError if nothing is complete."""
        options = self._options
        generations = ChainReader(options.address.open(), options.pair).refresh()
        selection = select(generations, number=options.generation, wanted=options.wants)
        missing = options.topics - {partition.topic.name for partition in selection.partitions}
        if missing:
            raise ConfigError(
                f"kafka_backup: generation {selection.generation} holds no topic {min(missing)!r}",
                remedy="`tandem status` lists the topics of each generation",
            )
        return [_Partition(task) for task in plan_tasks(selection)] or [_Partition(None)]

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:  # noqa: ANN401 - PySpark hands back what it was given
        """Yield the batches of one task."""
        task: ReadTask | None = partition.value
        if task is None:
            return
        reader = ObjectReader(self._options.address.open())
        yield from batches(body for piece in task.slices for body in reader.bodies(piece))
