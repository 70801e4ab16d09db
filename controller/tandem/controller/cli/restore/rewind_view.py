"""The output of `tandem rewind`: the plan, and what was written."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from tandem.controller.cli.output import output
from tandem.controller.cli.output.output import OutputFormat, Table
from tandem.controller.cli.output.topic_rows import TopicRows

if TYPE_CHECKING:
    from tandem.spark_jobs.rewind.rewind_plan import ChangeFigures, RewindPlan, RewindReport

_SHOWN = 50
_HASHES = 5
_OFFSETS: Final = ("first offset", "last offset")


def show_rewind_plan(plan: RewindPlan, form: OutputFormat, *, wide: bool = False) -> None:
    """Print the plan on stdout: a row for each kind of change, or with `wide` one for each partition too."""
    output.show(kind="Rewind", body=plan, output=form, tables=plan_tables(plan, wide=wide), wide=wide)


def describe_rewind_plan(plan: RewindPlan, form: OutputFormat, *, wide: bool = False) -> None:
    """Print the plan before a question: on stdout as a table, otherwise in short on stderr, as a document follows."""
    if form is OutputFormat.TABLE:
        show_rewind_plan(plan, form, wide=wide)
    else:
        found = ", ".join(f"{count:,} {kind}" for kind, count in plan.changes.items())
        output.note(f"{plan.topic}: {plan.planned:,} keys are to be written back: {found}")


def show_rewind_report(report: RewindReport, form: OutputFormat) -> None:
    """Print what was written on stdout."""
    output.show(kind="Rewind", body=report, output=form, tables=_report_lines(report))


def _report_lines(report: RewindReport) -> Iterator[str]:
    yield f"{report.written:,} of {report.planned:,} keys of {report.topic} were written back"
    if report.left_alone:
        sample = [one for part in report.partitions for one in part.left_alone_sample][:_HASHES]
        yield (
            f"{report.left_alone:,} were left alone: others wrote them meanwhile (hashes of their keys: "
            f"{', '.join(sample)}{', …' if report.left_alone > len(sample) else ''}). "
            "Run it again to bring them back too"
        )
    if report.errors:
        yield "\n".join(report.errors)
        yield "run the same command again: what is written already is found to be no difference"
    if report.checkpoint is not None:
        yield f"`tandem rewind {report.topic} --undo {report.id}` brings back what was there before"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Change:
    """The keys of one partition that one kind of change befell."""

    partition: int
    found: ChangeFigures


def plan_tables(plan: RewindPlan, *, wide: bool = False) -> Iterator[Table | str]:
    """Yield tables and lines for a plan: its changes by kind, and with `wide` by partition, and a sample of keys."""
    state = f"checkpoint {plan.checkpoint}" if plan.checkpoint else plan.as_of or "the newest stored state"
    yield (
        f"{plan.topic} compared with {state} (generation {plan.generation}, entry {plan.seq}): "
        f"{sum(one.keys for one in plan.partitions):,} keys in {len(plan.partitions)} partitions, "
        f"{plan.planned:,} to be written back"
        + (f"; only keys with {' and '.join(plan.key_choice)}" if plan.key_choice else "")
    )
    changes: dict[str, list[_Change]] = {}
    for part in plan.partitions:
        for kind, found in part.changes.items():
            if found.keys:
                changes.setdefault(kind.value, []).append(_Change(partition=part.partition, found=found))
    if changes:
        yield TopicRows(
            title="since then: " + ", ".join(f"{count:,} {kind}" for kind, count in plan.changes.items()),
            names=("keys were",),
            groups=[((kind,), found) for kind, found in changes.items()],
            figures=("keys", *(_OFFSETS if wide else ()), "first written", "last written", "no record"),
            sums=partial(_sums, wide=wide),
            left=frozenset({"first written", "last written"}),
            extra=("no record",),
        ).table(wide=wide)
    notes = list(_notes(plan))
    if notes:
        yield "\n".join(notes)
    if plan.sample:
        yield Table(
            title="some of these keys",
            columns=(
                "partition",
                "was",
                "key" if plan.sample[0].key is not None else "hash of the key",
                "offset then",
                "offset now",
            ),
            rows=[
                (
                    one.partition,
                    one.kind.value,
                    one.hash if one.key is None else f"base64:{one.key}" if one.encoding == "base64" else one.key,
                    one.old_offset,
                    one.live_offset,
                )
                for one in plan.sample[:_SHOWN]
            ],
            right=frozenset({"partition", "offset then", "offset now"}),
        )
        if plan.sample[0].key is None:
            yield "a hash is BLAKE2b of the key, with 128 bits; --show-keys shows the keys themselves"


def _sums(changes: Sequence[_Change], *, wide: bool) -> tuple[object, ...]:
    found = [one.found for one in changes]
    return (
        sum(one.keys for one in found),
        *((found[0].first_offset, found[0].last_offset) if wide else ()),
        min((one.first_at for one in found if one.first_at is not None), default=None),
        max((one.last_at for one in found if one.last_at is not None), default=None),
        sum(one.without_record for one in found) or None,
    )


def _notes(plan: RewindPlan) -> Iterator[str]:
    parts = plan.partitions
    left_out = sum(one.left_out for one in parts)
    if left_out:
        yield f"{left_out:,} more keys differ, which the options leave as they are"
        from tandem.spark_jobs.rewind.rewind_plan import BY_REWIND  # noqa: PLC0415 - loaded when the command runs

        if any(text.startswith(BY_REWIND) for text in plan.key_choice):
            yield (
                "a key that the rewind deleted is one of them once the broker has removed its tombstone "
                f"(delete.retention.ms): `tandem rewind {plan.topic} --checkpoint {plan.checkpoint}` takes all keys"
            )
    expired = sum(one.expired for one in parts)
    if expired:
        yield f"{expired:,} keys have expired since by the topic's retention: they are left as they are"
    without = sum(one.without_key for one in parts)
    if without:
        yield f"{without:,} records of the topic have no key: they are left as they are"
    yield from plan.errors
