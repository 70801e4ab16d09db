"""The output of `tandem erase`: what was found, what it means, and what became of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tandem.controller.cli.output import output
from tandem.controller.cli.output.output import OutputFormat, Table
from tandem.sink.process.safe_text import enumerated

if TYPE_CHECKING:
    from tandem.spark_jobs.erasure.eraser import ErasedGeneration
    from tandem.spark_jobs.erasure.erasure_job import ErasureReport, ErasureResult

_SHOWN = 20


def show(report: ErasureReport, form: OutputFormat) -> None:
    """Print a plan, or a report, on stdout. A table of a report is what `describe` has not printed before."""
    plan = () if report.result is not None else _plan_tables(report)
    output.show(kind="Erasure", body=report, output=form, tables=(*plan, *_end_lines(report)))


def describe(report: ErasureReport, form: OutputFormat, *, purge: bool) -> None:
    """Print the plan and what it means before a question: a table on stdout; else on stderr, as a document follows."""
    if form is OutputFormat.TABLE:
        output.show(kind="Erasure", body=report, output=form, tables=_plan_tables(report))
    else:
        output.note(_found(report))
    lines = [
        *_left_lines(report),
        *([f"{report.pending}; it is not over with this run"] if report.pending is not None else []),
        "every moment and checkpoint stays restorable, but without these keys",
        "`tandem rewind` to an earlier moment takes them for keys that did not exist then",
        "plans of restores that have begun must be made anew; this can't be taken back",
    ]
    if purge:
        lines.append(
            f"{report.versions.versions:,} former versions of deleted objects go for good, whatever is in them: the "
            "bucket's versions will not bring back what was cleared of this topic, nor cleared journals"
        )
    output.note("\n".join(lines))


def tell(one: ErasedGeneration) -> None:
    """Print on stderr what became of one generation."""
    output.note(
        f"generation {one.generation}: {one.records:,} records out of {one.rewritten:,} objects, "
        f"{one.deleted:,} objects deleted" + (f"; {_waits(one)}" if one.waiting else "")
    )


def _waits(one: ErasedGeneration) -> str:
    return f"the deletion of {one.waiting:,} objects waits for pins of {', '.join(one.waits_for)}; run again then"


def _found(report: ErasureReport) -> str:
    plan = report.plan
    return (
        f"{plan.topic}: {plan.records:,} records of {plan.found:,} of {plan.keys:,} keys in "
        f"{sum(one.objects for one in plan.generations):,} of {sum(one.searched for one in plan.generations):,} objects"
    )


def _plan_tables(report: ErasureReport) -> Iterator[Table | str]:
    yield _found(report)
    figures = ("generation", "searched", "objects", "bytes", "records", "tombstones", "replaced")
    if report.plan.generations:
        yield Table(
            columns=(*figures, "checkpoints"),
            rows=[
                (
                    one.generation,
                    one.searched,
                    one.objects,
                    output.size(one.bytes),
                    one.records,
                    one.tombstones,
                    one.replaced,
                    ", ".join(one.checkpoints) or None,
                )
                for one in report.plan.generations
            ],
            right=frozenset(figures),
            extra=("replaced", "searched"),
        )


def _end_lines(report: ErasureReport) -> Iterator[str]:
    """Yield what was done, what is left, what is proven of the copies, and what is not over."""
    plan, result, live = report.plan, report.result, report.live
    yield from _left_lines(report)
    if result is not None:
        yield from _result_lines(result)
    yield from _version_lines(report)
    if live is not None and (live.tombstones or live.shadowed):
        yield (
            f"the live log has tombstones of {live.tombstones + live.shadowed:,} of the keys: a generation that is "
            "built before delete.retention.ms is over reads those: the key, and no value"
        )
    yield _elsewhere(report)
    left = bool(plan.left or plan.errors)
    if result is not None:
        left = not result.clean
        proven = result.searched if result.clean else None
    else:
        proven = None if left or plan.due else sum(one.searched for one in plan.generations)
    if proven is not None:
        yield f"proven: 0 records are left in the {proven:,} objects of {plan.topic} that chains and checkpoints name"
    if report.pending is not None:
        yield f"not over: {report.pending}; give the same command again when it has"
    elif left:
        yield "not over: give the same command again"


def _left_lines(report: ErasureReport) -> Iterator[str]:
    for left in report.plan.left:
        yield f"generation {left.generation} is left alone: {left.reason}"
    for name, why in list(report.plan.errors.items())[:_SHOWN]:
        yield f"{name}: {why}"


def _elsewhere(report: ErasureReport) -> str:
    """Return where records of the keys may be that the command does not look at."""
    if report.restored is None:
        return "not searched: the live topic, whose values may come back; restored topics, exports, replicas"
    known = report.restored
    if not known:
        return "not searched: exports, replicas, and topics that were restored elsewhere or were adopted"
    shown = enumerated(known, _SHOWN)
    return (
        f"not searched: topics that restores created in this cluster, which keep what they were given: {shown}; "
        "topics restored elsewhere or adopted, exports, replicas"
    )


def _result_lines(result: ErasureResult) -> Iterator[str]:
    records, objects = (sum(getattr(one, name) for one in result.generations) for name in ("records", "rewritten"))
    deleted = sum(one.deleted for one in result.generations)
    yield f"{records:,} records were erased from {objects:,} objects; {deleted:,} objects were deleted"
    if result.orphans or result.uncommitted:
        yield (
            f"of objects and uploads in no chain {result.orphans:,} were deleted, {result.uncommitted:,} stay, whose "
            "writer may commit them and may have read the keys before their tombstones: a later run searches those"
        )
    for one in result.generations:
        if one.waiting:
            yield f"generation {one.generation}: {_waits(one)}"
    if result.remains:
        yield f"{result.remains:,} records of the keys came in meanwhile: run it again"


def _version_lines(report: ErasureReport) -> Iterator[str]:
    found = report.versions
    if found.deleted:
        yield f"{found.deleted:,} former versions of deleted objects are gone for good"
    if found.versions:
        yield (
            f"the bucket is versioned, and holds {found.versions:,} former versions ({output.size(found.bytes)}) of "
            "deleted objects that may have the keys: --purge-versions deletes them, or a lifecycle rule for noncurrent "
            "versions"
        )
    if found.error is not None:
        yield (
            f"former versions are not known, or are kept: {found.error} (listing and deleting them takes "
            "s3:ListBucketVersions and s3:DeleteObjectVersion; a bucket without versioning has none)"
        )
