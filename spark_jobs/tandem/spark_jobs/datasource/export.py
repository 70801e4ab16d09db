"""`tandem export`: write a state of the backup as Parquet or JSON lines, through Spark's own writers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from tandem.backup_avro.errors import ConfigError, PermanentError, RefusedError
from tandem.sink.store.chain import pins
from tandem.sink.store.encrypted_objects import require_keys
from tandem.spark_jobs.compaction.newest_per_key import latest_per_key
from tandem.spark_jobs.datasource import plan
from tandem.spark_jobs.datasource.source import FORMAT, register
from tandem.spark_jobs.reading.wanted_state import FoundState
from tandem.spark_jobs.spark.job_progress import thread_beside
from tandem.spark_jobs.state import find_state
from tandem.spark_jobs.state.read_options import parse_options, referenced

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tandem.backup_avro.selection.restorable_state import Selection

_PROGRESS_S: Final = 2.0
_GROUP: Final = "tandem export"
_LOCAL: Final = frozenset({"", "file"})

Tell = Callable[[int, int], None]
"""Called with the number of completed Spark tasks, and the number of tasks that are known so far."""


class ExportFormat(StrEnum):
    """The file format that is written."""

    PARQUET = "parquet"
    JSONL = "jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedExport:
    """The input of an export: the data source's `options`, the state that they name, and the selection of records."""

    options: Mapping[str, str]
    found: FoundState
    selection: Selection


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportReport:
    """The records that were written; `to` is the URL that Spark was given."""

    to: str
    records: int
    tombstones: int


def prepare(options: Mapping[str, str]) -> PlannedExport:
    """Find the state and the records that the options name; invalid options are refused before Spark starts."""
    parsed = parse_options(options)
    reader = parsed.reader()
    found = find_state.find_state(reader, parsed.state_request, tolerant=parsed.state_request.generation is not None)
    selection = found.select(wanted=parsed.wants, removed=bool(parsed.named))
    plan.plan(selection, replace(parsed, latest_per_key=False))
    require_keys(parsed.address.open(), selection.partitions)
    return PlannedExport(options=options, found=found, selection=selection)


def target_url(to: str) -> str:
    """Return the URL that Spark writes to: a URL unchanged, a path of this machine as `file:`.

    Raises RefusedError if a local path exists, because existing files are never overwritten, and ConfigError if the URL
    contains credentials.
    """
    url = urlsplit(to)
    if "@" in url.netloc:
        raise ConfigError(
            "--to must not hold credentials",
            code="TDM-P022",
            remedy="give Spark's file system its own, e.g. AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
        )
    if url.scheme not in _LOCAL:
        return to
    path = Path(to if not url.scheme else to.removeprefix("file:")).absolute()
    if path.exists():
        raise RefusedError(
            f"{path} exists", code="TDM-P023", remedy="name another folder, or remove it; nothing is written over"
        )
    return f"file://{path}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportRequest:
    """An export to a new folder `to`, a `target_url`. `latest`: write only the newest record of each key."""

    planned: PlannedExport
    form: ExportFormat
    to: str
    latest: bool = False
    tombstones: bool = True


def export(spark: SparkSession, request: ExportRequest, *, tell: Tell | None = None) -> ExportReport:
    """Write the planned export.

    The folder holds one file per task, and `_SUCCESS` as soon as all are complete. Pins keep the objects that are read.
    The newest state is the newest when Spark plans, not when `planned` was made. Raises RefusedError if the folder
    exists, ConfigError if Spark can't write to this kind of URL, else the errors of `plain_errors`.
    """
    from py4j.protocol import Py4JError  # noqa: PLC0415 (comes with PySpark)
    from pyspark.errors import PySparkException  # noqa: PLC0415 (PySpark takes a second to load)
    from pyspark.sql import Observation, functions  # noqa: PLC0415 (as above)

    register(spark)
    planned, to = request.planned, request.to
    parsed = parse_options(planned.options)
    with pins.hold_pins(
        parsed.address.open(), parsed.pair, sorted(planned.found.basis_of(planned.selection)), owner="export"
    ):
        frame = spark.read.format(FORMAT).options(**referenced(planned.options)).load()
        if request.latest:
            frame = latest_per_key(frame)
        if not request.tombstones:
            frame = frame.where("value is not null")
        seen = Observation()
        frame = frame.observe(
            seen,
            functions.count(functions.lit(1)).alias("records"),
            functions.count_if(functions.col("value").isNull()).alias("tombstones"),
        )
        try:
            with _reporting_tasks(spark, tell):
                _write(frame, request.form, to)
        except (PySparkException, Py4JError) as error:
            raise _plainer(error, to) from error
        figures = seen.get
    return ExportReport(to=to, records=figures["records"], tombstones=figures["tombstones"])


def _write(frame: DataFrame, form: ExportFormat, to: str) -> None:
    writer = frame.write.mode("errorifexists")
    match form:
        case ExportFormat.PARQUET:
            writer.parquet(to)
        case ExportFormat.JSONL:
            # Spark writes binary as base64. A null field is written, so that it differs from an empty one.
            writer.option("ignoreNullFields", "false").json(to)


def _plainer(error: Exception, to: str) -> Exception:
    text = str(error)
    if "PATH_ALREADY_EXISTS" in text:
        return RefusedError(
            f"{to} exists", code="TDM-P024", remedy="name another folder, or remove it; nothing is written over"
        )
    if "No FileSystem for scheme" in text or "ClassNotFoundException: Class org.apache.hadoop.fs" in text:
        return ConfigError(
            f"this Spark can't write to {urlsplit(to).scheme}: URLs",
            code="TDM-P025",
            remedy="name a folder, or add Spark's connector for that store (hadoop-aws and s3a:// for S3)",
        )
    if "No space left on device" in text:
        return PermanentError(
            f"no space is left where {to} is, or in Spark's folder for temporary files",
            code="TDM-P026",
            remedy="make room, remove the folder, which is not complete, and begin again",
        )
    return error


@contextmanager
def _reporting_tasks(spark: SparkSession, tell: Tell | None) -> Iterator[None]:
    """Report the number of completed tasks of this thread's jobs every two seconds while the block runs."""
    if tell is None:
        yield
        return
    context = spark.sparkContext
    context.setJobGroup(_GROUP, "writing an export")
    tracker = context.statusTracker()

    def run(stop: threading.Event) -> None:
        while not stop.wait(_PROGRESS_S):
            jobs = [job for number in tracker.getJobIdsForGroup(_GROUP) if (job := tracker.getJobInfo(number))]
            stages = [stage for job in jobs for number in job.stageIds if (stage := tracker.getStageInfo(number))]
            tell(sum(stage.numCompletedTasks for stage in stages), sum(stage.numTasks for stage in stages))

    try:
        with thread_beside(run, "export-progress"):
            yield
    finally:
        context.setLocalProperty("spark.jobGroup.id", None)  # type: ignore[arg-type]  # None takes it away again
