"""The output of `tandem restore`: the plan, the progress, the report."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from tandem.controller.cli.output import output
from tandem.controller.cli.output.output import OutputFormat, Table
from tandem.controller.cli.output.topic_rows import TopicRows
from tandem.sink.process.safe_text import enumerated

if TYPE_CHECKING:
    from tandem.backup_avro.documents.outcome import JobOutcome
    from tandem.spark_jobs.restore.load.load import LoadResult
    from tandem.spark_jobs.restore.plan.plan import RestorePlan
    from tandem.spark_jobs.restore.plan.plan_document import PlannedPartition, PlannedTopic
    from tandem.spark_jobs.restore.prepare.prepare import PreparedRestore, RestorePlanDocument
    from tandem.spark_jobs.restore.report import RestoreListener, RestoreReport

_RESTORE = "Restore"
_NAMES: Final = ("topic", "target")
_SHOWN = 50
_EVERY_S = 5.0


def show_plan(
    prepared: PreparedRestore, form: OutputFormat, *, now: int, drill: JobOutcome | None, wide: bool = False
) -> None:
    """Print the plan of a dry run: a row for each topic and their sum, or with `wide` one for each partition.

    `drill` is the outcome of the pair's last drill, the basis of the time estimate.
    """
    from tandem.spark_jobs.restore.plan.duration import estimate  # noqa: PLC0415 - loaded when the command runs, not for --help
    from tandem.spark_jobs.restore.prepare.prepare import describe  # noqa: PLC0415 - likewise

    plan = prepared.plan
    took = estimate(plan.records, plan.bytes, drill, rate=prepared.options.bytes_per_second)
    document = describe(prepared, now=now, took=took)
    output.show(
        kind=_RESTORE, body=document, output=form, tables=_plan_tables(document, prepared, wide=wide), wide=wide
    )


def _plan_tables(document: RestorePlanDocument, prepared: PreparedRestore, *, wide: bool) -> Iterator[Table | str]:
    figures = ("objects", "records", "tombstones", "bytes")
    topics = [((topic.source, topic.target), topic.partitions) for topic in document.topics]
    rows = TopicRows(
        names=_NAMES, groups=topics, figures=figures, sums=_figures, extra=("tombstones", "objects", "topic")
    )
    yield rows.table(wide=wide)
    rests = f"generation {document.generation}, entry {document.seq}" if document.recorded else "the files alone"
    lines = [f"rests on {rests}; plan {document.hash[:16]}"]
    if document.at is not None:
        lines.append(f"as of {document.at}")
    took = document.estimate
    how = "by what the last drill took" if took.measured else "a guess; `tandem drill` measures it"
    lines.append(f"takes about {output.duration(took.seconds)} ({how})")
    if document.resumes:
        lines.append(f"resumes a run that did not end: {document.present:,} records are there already")
    for topic in document.topics:
        lines.extend(_plan_lines(topic, prepared))
    lines.extend(f"warning: {text}" for text in document.warnings)
    yield "\n".join(lines)


def _figures(items: Sequence[PlannedPartition]) -> tuple[int, int | str, int, str]:
    """Return the sums of some planned partitions: objects, records, tombstones, size."""
    records = sum(item.records for item in items)
    return (
        sum(item.objects for item in items),
        records if all(item.exact for item in items) else f"up to {records:,}",
        sum(item.tombstones for item in items),
        output.size(sum(item.bytes for item in items)),
    )


def _plan_lines(topic: PlannedTopic, prepared: PreparedRestore) -> Iterator[str]:
    from tandem.spark_jobs.restore.plan.offset_mode import BYTES_PER_MILLION, FILLER_BYTES, FILLERS_PER_SECOND  # noqa: PLC0415 - loaded when the command runs, not for --help

    options, recorded = prepared.options, prepared.plan.recorded
    name = topic.target
    config = (
        "recorded config" if recorded else "its own config" if topic.target_exists else "config, as none was recorded"
    )
    if options.append:
        yield f"{name}: is added to; its config, during the restore changed so that nothing is compacted or deleted:"
    else:
        yield f"{name}: {'exists and is prepared' if topic.target_exists else 'is created'}; {config}:"
    yield "  " + (", ".join(f"{key}={value}" for key, value in topic.config.items()) or "none")
    for key, values in topic.config_differences.items():
        yield f"  {key} is {values.present} now, recorded is {values.recorded}"
    had = f"the topic's had {', '.join(topic.codecs)}" if topic.codecs else "what the topic's had was not recorded"
    yield f"  codec of batches: {topic.compression}; {had}"
    if topic.largest_record is not None:
        yield f"  the largest record has up to {output.size(topic.largest_record)}, uncompressed"
    count = sum(item.fillers for item in topic.partitions)
    cost = ""
    if count:
        exact = all(item.exact for item in topic.partitions)
        what = f"{'' if exact else 'up to '}{count:,} fillers are written"
        cost = (
            f"; {what}, those below the first record are deleted, the others lie between the records and take up to "
            f"{output.size(round(count * FILLER_BYTES[topic.compression]))} of log until the cleaner has removed them"
            if topic.offsets == "exact"
            else f"; {what} first and deleted: about {output.duration(count / FILLERS_PER_SECOND)} and, for a while, "
            f"{output.size(round(count / 1e6 * BYTES_PER_MILLION))} of log"
        )
    yield f"  offsets: {topic.offsets}, {topic.offsets_why}{cost}"
    expire = topic.expire_at_once
    if (expire.at_most or expire.held_at_most) and not options.keep_load_config:
        held = f" and up to {expire.held_at_most} that it holds" if expire.held_at_most else ""
        yield (
            f"  {' and '.join(expire.settings)} would delete {expire.surely} to {expire.at_most} records at "
            f"once{held}: agree with --yes{'' if options.append else ', or add --keep-load-config'}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownStrand:
    """What went from one source partition into one of the target."""

    partition: int
    records: int
    sha256: str
    first_offset: int | None
    last_offset: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoredPartition:
    """One source partition."""

    partition: int
    end: int
    records: int
    tombstones: int
    null_keys: int
    left_out: int
    resumed: int
    into: Sequence[ShownStrand]
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoredTopic:
    """One topic that was restored."""

    source: str
    target: str
    records: int
    config: Mapping[str, str]
    notes: Sequence[str]
    unset: Mapping[str, str]
    partitions: Sequence[RestoredPartition]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mismatch:
    """Where a target is not what the backup is.

    `marker_last`: its log ends in a transaction's marker. `shifted`: records lie at other offsets than was planned.
    """

    target: str
    partition: int
    source: str | None
    records: int
    expected_records: int
    sha256: str
    expected_sha256: str
    marker_last: bool
    shifted: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreReportDocument:
    """`tandem restore`. `left_out`: records that were read and, as was chosen, not written."""

    dry_run: Literal[False] = False
    id: str
    pair: str
    generation: int
    seq: int
    at: str | None
    hash: str
    verified: bool
    records: int
    left_out: int
    resumed: int
    seconds: float
    load_seconds: float
    check_seconds: float
    records_per_second: int
    topics: Sequence[RestoredTopic]
    warnings: Sequence[str]
    mismatches: Sequence[Mismatch]


def _partition(item: LoadResult, end: int) -> RestoredPartition:
    return RestoredPartition(
        partition=item.partition,
        end=end,
        records=item.records,
        tombstones=item.tombstones,
        null_keys=item.null_keys,
        left_out=item.left_out,
        resumed=item.resumed,
        into=[
            ShownStrand(
                partition=number,
                records=strand.records,
                sha256=strand.hash,
                first_offset=strand.first,
                last_offset=strand.last,
            )
            for number, strand in sorted(item.strands.items())
        ],
        seconds=round(item.seconds, 1),
    )


def show_report(report: RestoreReport, seconds: float, form: OutputFormat, *, wide: bool = False) -> None:
    """Print the report of a restore: a row for each topic and their sum, or with `wide` one for each partition."""
    loaded = report.records - report.resumed
    ends = {(topic.target, item.key.partition): item.end for topic in report.plan.topics for item in topic.partitions}
    body = RestoreReportDocument(
        id=report.id,
        pair=report.plan.pair,
        generation=report.plan.generation,
        seq=report.plan.seq,
        at=report.plan.as_of,
        hash=report.plan.hash,
        verified=not report.mismatches,
        records=report.records,
        left_out=report.left_out,
        resumed=report.resumed,
        seconds=round(seconds, 1),
        load_seconds=round(report.load_seconds, 1),
        check_seconds=round(report.check_seconds, 1),
        records_per_second=round(loaded / report.load_seconds) if report.load_seconds else 0,
        topics=[
            RestoredTopic(
                source=topic.source,
                target=topic.target,
                records=topic.records,
                config=topic.config,
                notes=topic.notes,
                unset=topic.unset,
                partitions=[_partition(item, ends[topic.target, item.partition]) for item in topic.partitions],
            )
            for topic in report.topics
        ],
        warnings=report.plan.warnings() + report.in_vain(),
        mismatches=[
            Mismatch(
                target=item.target,
                partition=item.partition,
                source=item.what,
                records=item.records,
                expected_records=item.expected_records,
                sha256=item.hash,
                expected_sha256=item.expected_hash,
                marker_last=item.marker_last,
                shifted=item.shifted,
            )
            for item in report.mismatches
        ],
    )
    output.show(kind=_RESTORE, body=body, output=form, tables=_report_tables(report, seconds, wide=wide), wide=wide)


def _report_tables(report: RestoreReport, seconds: float, *, wide: bool) -> Iterator[Table | str]:
    figures = ("records", "left out", "tombstones", "no key", "resumed")
    topics = [((topic.source, topic.target), topic.partitions) for topic in report.topics]
    extra = ("no key", "tombstones", "resumed", "topic", "left out")
    yield TopicRows(names=_NAMES, groups=topics, figures=figures, sums=_loaded, extra=extra).table(wide=wide)
    notes = [f"{topic.target}: {note}" for topic in report.topics for note in topic.notes]
    notes += [f"warning: {text}" for text in report.in_vain()]
    if notes:
        yield "\n".join(notes)
    if report.mismatches:
        yield Table(
            title="The target is not what the backup is; it keeps its loading config",
            columns=("target", "partition", "records", "expected", "hash", "expected hash", "wrong"),
            rows=[
                (
                    item.target,
                    item.partition,
                    item.records,
                    item.expected_records,
                    item.hash[:16],
                    item.expected_hash[:16],
                    ", ".join(item.differences),
                )
                for item in report.mismatches[:_SHOWN]
            ],
            right=frozenset({"partition", "records", "expected"}),
        )
        return
    rate = (report.records - report.resumed) / report.load_seconds if report.load_seconds else 0.0
    without = f" (left out: {report.left_out:,})" if report.left_out or report.plan.shape.selects else ""
    yield from (
        f"{topic.target} did not get {', '.join(sorted(topic.unset))}" for topic in report.topics if topic.unset
    )
    yield (
        f"restored and verified {report.records:,} records{without} in {output.duration(seconds)} "
        f"(load {output.duration(report.load_seconds)}, {rate:,.0f} records/s; "
        f"verify {output.duration(report.check_seconds)}); its id is {report.id}"
    )


def _loaded(items: Sequence[LoadResult]) -> tuple[int, int, int, int, int]:
    """Return the sums of some loaded partitions: records, left out, tombstones, without a key, resumed."""
    return (
        sum(item.records for item in items),
        sum(item.left_out for item in items),
        sum(item.tombstones for item in items),
        sum(item.null_keys for item in items),
        sum(item.resumed for item in items),
    )


def _unfinished(plan: RestorePlan, *, wrong: bool) -> str:
    from tandem.spark_jobs.restore.lease.other_restores import short  # noqa: PLC0415 - loaded when the command runs, not for --help

    held = ""
    if plan.append:
        held = f"; until then nothing in {enumerated([topic.target for topic in plan.topics])} is compacted or deleted"
    goes_on = "" if wrong else "the same command, given again, goes on from here, "
    return f"this restore did not end: {goes_on}`tandem restore abandon {short(plan.hash)}` gives it up{held}"


def progress_line(done: int, of: int, *, since: int, seconds: float, each_bytes: float) -> str:
    """Return a line of progress: `done` of `of` records, and, once some were seen to arrive, their rate and the rest.

    `since` is the number of records at the start of the `seconds`: a resumed restore does not begin at 0.
    `each_bytes`: see `record_bytes`.
    """
    line = f"{done} of {of} records"
    rate = (done - since) / seconds if seconds > 0 else 0.0
    if rate <= 0:
        return line
    left = output.duration((of - done) / rate)
    return f"{line}, {rate:,.0f} records/s, {_megabytes(rate * each_bytes)} stored, about {left} left"


def _megabytes(bytes_per_s: float) -> str:
    return f"{bytes_per_s / 1e6:,.1f} MB/s"


def record_bytes(plan: RestorePlan) -> float:
    """Return what a record of the plan takes in the store on average, in bytes."""
    return plan.bytes / max(plan.records, 1)


def telling(each_bytes: float) -> Any:  # noqa: ANN401 - a context manager of a class that is defined when the command runs
    """Show the progress of a restore on stderr: a bar on a terminal, else lines at intervals.

    `each_bytes`: see `record_bytes`.
    """
    import sys  # noqa: PLC0415 - only needed here

    return _bar(each_bytes) if output.is_fancy(sys.stderr) else _lines(each_bytes)


def _lines(each_bytes: float) -> Any:  # noqa: ANN401 - as above
    from contextlib import nullcontext  # noqa: PLC0415 - only needed here

    from tandem.spark_jobs.restore.report import RestoreListener  # noqa: PLC0415 - loaded when the command runs, not for --help

    class Lines(RestoreListener):
        """Prints the progress as lines at intervals."""

        def __init__(self) -> None:
            self._last = 0.0
            self._first: tuple[float, int] | None = None

        def phase(self, text: str) -> None:
            output.note(text)
            self._first = None

        def records(self, done: int, of: int) -> None:
            now = time.monotonic()
            began, before = self._first = self._first or (now, done)
            if now - self._last >= _EVERY_S:
                self._last = now
                seconds = now - began
                output.note(progress_line(done, of, since=before, seconds=seconds, each_bytes=each_bytes))

        def unfinished(self, plan: RestorePlan, *, wrong: bool = False) -> None:
            output.note(_unfinished(plan, wrong=wrong))

    return nullcontext(Lines())


def _bar(each_bytes: float) -> Any:  # noqa: ANN401 - as above
    from contextlib import contextmanager  # noqa: PLC0415 - only needed here

    import rich.console  # noqa: PLC0415 - only needed on a terminal
    import rich.progress  # noqa: PLC0415 - likewise
    import rich.text  # noqa: PLC0415 - likewise

    from tandem.spark_jobs.restore.report import RestoreListener  # noqa: PLC0415 - loaded when the command runs, not for --help

    class Rate(rich.progress.ProgressColumn):
        """The stored bytes per second, as the last half minute has it."""

        def render(self, task: rich.progress.Task) -> rich.text.Text:
            return rich.text.Text(_megabytes(task.speed * each_bytes) if task.speed else "")

    class Bar(RestoreListener):
        """Shows the progress as a bar."""

        def __init__(self, progress: rich.progress.Progress, last: list[str]) -> None:
            self._last = last
            self._progress = progress
            self._task = progress.add_task("starting", total=None)

        def phase(self, text: str) -> None:
            before, self._task = self._task, self._progress.add_task(text, total=None)
            self._progress.remove_task(before)  # a task that has been full stays full and stands still

        def records(self, done: int, of: int) -> None:
            self._progress.update(self._task, completed=done, total=of)

        def unfinished(self, plan: RestorePlan, *, wrong: bool = False) -> None:
            self._last.append(_unfinished(plan, wrong=wrong))

    @contextmanager
    def shown() -> Iterator[RestoreListener]:
        columns: Iterable[Any] = (
            rich.progress.TextColumn("{task.description}"),
            rich.progress.BarColumn(bar_width=16),
            rich.progress.MofNCompleteColumn(),
            Rate(),
            rich.progress.TimeElapsedColumn(),
            rich.progress.TextColumn("left"),
            rich.progress.TimeRemainingColumn(compact=True),
        )
        console = rich.console.Console(stderr=True)
        last: list[str] = []
        try:
            with rich.progress.Progress(*columns, console=console, transient=True) as progress:
                yield Bar(progress, last)
        finally:  # after the bar is removed
            for text in last:
                output.note(text)

    return shown()
