"""The output of `tandem erase`: what was found, what it means, and what became of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tandem.controller.cli.output import output
from tandem.controller.cli.output.output import OutputFormat, Table

if TYPE_CHECKING:
    from tandem.spark_jobs.erasure.eraser import ErasedGeneration
    from tandem.spark_jobs.erasure.erasure_job import ErasureReport, ErasureResult

_SHOWN = 20


def show(report: ErasureReport, form: OutputFormat) -> None:
    """Print a plan, or a report, on stdout."""
    output.show(kind="Erasure", body=report, output=form, tables=_tables(report))


def describe(report: ErasureReport, form: OutputFormat, *, purge: bool) -> None:
    """Print the plan and what it means before a question: a table on stdout; else on stderr, as a document follows."""
    if form is OutputFormat.TABLE:
        show(report, form)
    else:
        output.note(_found(report))
    lines = [
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


def _tables(report: ErasureReport) -> Iterator[Table | str]:
    yield _found(report)
    figures = ("generation", "searched", "objects", "bytes", "records", "tombstones", "replaced")
    if report.plan.generations:
        yield Table(
            title="before" if report.result is not None else None,
            columns=(*figures, "checkpoints"),
            rows=[
                (
                    one.generation,
                    f"{one.searched:,}",
                    f"{one.objects:,}",
                    output.size(one.bytes),
                    f"{one.records:,}",
                    f"{one.tombstones:,}",
                    f"{one.replaced:,}",
                    ", ".join(one.checkpoints) or None,
                )
                for one in report.plan.generations
            ],
            right=frozenset(figures),
            extra=("replaced", "searched"),
        )
    yield from _live_lines(report)
    for left in report.plan.left:
        yield f"generation {left.generation} is left alone: {left.reason}"
    for name, why in list(report.plan.errors.items())[:_SHOWN]:
        yield f"{name}: {why}"
    if report.result is not None:
        yield from _result_lines(report.result)
    elif not report.plan.due:
        yield "nothing to erase"
    yield from _version_lines(report)


def _live_lines(report: ErasureReport) -> Iterator[str]:
    live = report.live
    if live is None:
        return
    if live.shadowed:
        yield (
            f"the live log has older values of {live.shadowed:,} of the keys below their tombstones, until its cleaner "
            "passes: a generation that is built before that reads them again; run it again afterwards"
        )
    if live.tombstones or live.shadowed:
        yield (
            f"the live log has tombstones of {live.tombstones + live.shadowed:,} of the keys, for delete.retention.ms: "
            "the next generation reads those, and no value"
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
    elif result.clean:
        yield "proof: no object that a chain or a checkpoint names has a record of the keys"


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
