"""The output of `tandem verify`: tables and lines of each kind of comparison."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tandem.controller.cli.output import output
from tandem.controller.cli.output.output import Table
from tandem.sink.process.safe_text import enumerated

if TYPE_CHECKING:
    from tandem.spark_jobs.verify.compare_keys import CompareResult
    from tandem.spark_jobs.verify.compare_plan import PartitionResult
    from tandem.spark_jobs.verify.verify_plan import GenerationResult, SampleFigures, VerifyResult

_SHOWN = 50


def verified_tables(result: VerifyResult, seconds: float) -> Iterator[Table | str]:
    """Yield tables and lines for the result of reading the stored objects."""
    figures = ("objects", "bytes", "records", "tombstones", "partitions", "replaced", "orphans")
    yield Table(
        columns=("generation", "instance", "state", "entries", *figures),
        rows=[_row(found) for found in result.generations],
        right=frozenset({"generation", "entries", *figures}),
        extra=("entries", "tombstones", "partitions", "replaced", "orphans"),
    )
    notes = [line for found in result.generations for line in _notes(found)]
    notes += [f"generation {number} was skipped: {why}" for number, why in result.skipped.items()]
    if result.sample is not None:
        notes.append(_sampled(result.sample))
    if notes:
        yield "\n".join(notes)
    if result.clean:
        what = "everything" if result.sample is None else "what was read"
        yield f"clean: {what} is as the chains say ({output.duration(seconds)})"
        return
    yield Table(
        title=f"mismatches: {len(result.findings)}",
        columns=("generation", "fault", "where", "message"),
        rows=[(found.generation, found.fault.value, found.where, found.message) for found in result.findings[:_SHOWN]],
    )
    if len(result.findings) > _SHOWN:
        yield f"… and {len(result.findings) - _SHOWN} more: -o json lists all"
    yield (
        "what to do: bring the object or entry back from the bucket's versions or a replica. Where only objects are "
        "damaged, `tandem failover` builds a new generation from the topics; `tandem restore --generation` takes one "
        "without mismatches"
    )
    for state in result.intact:
        yield (
            f"generation {state.generation} needs nothing of that up to {output.at(state.at)}: `tandem restore "
            f"--generation {state.generation} --commit {state.entry}`"
        )


def _sampled(found: SampleFigures) -> str:
    left = found.of_objects - found.objects
    return (
        f"a sample: {found.objects:,} of {found.of_objects:,} objects, {output.size(found.bytes)} of "
        f"{output.size(found.of_bytes)}, were read, and all chains; of the other {left:,} only presence and size are "
        f"known. The same again: --sample {found.percent:g}% --seed {found.seed}"
    )


def _row(found: GenerationResult) -> tuple[object, ...]:
    return (
        found.generation,
        found.instance,
        found.state,
        found.seq,
        found.objects,
        output.size(found.bytes),
        found.records,
        found.tombstones,
        found.partitions,
        found.replaced,
        len(found.orphans),
    )


def _notes(found: GenerationResult) -> Iterator[str]:
    if found.incomplete:
        yield f"generation {found.generation}: not read through yet: {enumerated(found.incomplete)}"
    if found.tainted:
        yield f"generation {found.generation}: tainted, sound up to the taint: {enumerated(found.tainted)}"
    if found.orphans:
        yield (
            f"generation {found.generation}: {len(found.orphans)} objects ({output.size(found.orphans_bytes)}) are not "
            "in the chain: uploads under way, or left over; `tandem retention` removes what nobody can commit any more"
        )


def compared_tables(result: CompareResult, seconds: float) -> Iterator[Table | str]:
    """Yield tables and lines for a comparison: at most fifty findings, and all counts."""
    parts = result.partitions
    keys, records = sum(one.keys for one in parts), sum(sum(one.records) for one in parts)
    yield (
        f"compared with the {result.against}: {len(parts)} partitions, {keys:,} keys, {records:,} records of both sides"
        if result.against == "topic"
        else f"compared {result.against}: {len(parts)} partitions, {keys:,} keys, {records:,} records of both sides"
    )
    notes = [f"{name} was not compared: {why}" for name, why in list(result.not_compared.items())[:_SHOWN]]
    if len(result.not_compared) > _SHOWN:
        notes.append(f"… and {len(result.not_compared) - _SHOWN} more: -o json lists all")
    notes += result.warnings
    notes += [f"{count:,} keys were not judged: {why}" for why, count in sorted(_not_judged(parts).items())]
    if notes:
        yield "\n".join(notes)
    if result.clean:
        yield f"clean: the latest record of each key is the same on both sides ({output.duration(seconds)})"
        return
    if not parts:
        yield "nothing could be compared"
        return
    errors = [f"{one.topic}-{one.partition} could not be compared: {one.error}" for one in parts if one.error]
    if errors:
        yield "\n".join([*errors[:_SHOWN], *([f"… and {len(errors) - _SHOWN} more"] if len(errors) > _SHOWN else [])])
    counts = result.counts
    if not counts:
        return
    findings = result.findings
    yield Table(
        title="differences: " + ", ".join(f"{count:,} {kind}" for kind, count in counts.items()),
        columns=("finding", "topic", "partition", "key", *_sides(result), "likely cause"),
        rows=[
            (
                one.kind.value,
                one.topic,
                one.partition,
                f"base64:{one.key}" if one.encoding == "base64" else one.key if one.encoding == "utf8" else None,
                one.first_offset,
                one.second_offset,
                one.cause,
            )
            for one in findings[:_SHOWN]
        ],
        right=frozenset({"partition", *_sides(result)}),
    )
    if sum(counts.values()) > _SHOWN:
        yield f"… and {sum(counts.values()) - _SHOWN:,} more: -o json lists up to a thousand of each partition"
    if result.lost:
        yield f"what to do: {only_copy(result)}"


def only_copy(result: CompareResult) -> str:
    """Return the warning that a new generation would lose records that only the backup holds, and how to keep them."""
    first, other = ("the backup", "the topic") if result.against == "topic" else ("the older", "the newer generation")
    held = f", `tandem checkpoint create` keeps generation {result.generation} through them"
    return (
        f"of {result.lost:,} of these keys {first} has a record that {other} has lost, and no tombstone explains it: "
        "the next generation lacks it too, and then the one that has it is cleared. Keep it: `tandem pause` holds turns"
        f" back{held if result.against == 'topic' else ''}. Bring the keys back with "
        "`tandem restore --append --topics TOPIC --key KEY`, or leave them if they were deleted on purpose; then "
        "verify again"
    )


def _sides(result: CompareResult) -> tuple[str, str]:
    if result.against == "topic":
        return "offset in backup", "offset in topic"
    return "offset in older", "offset in newer"


def _not_judged(parts: tuple[PartitionResult, ...]) -> dict[str, int]:
    found: dict[str, int] = {}
    for one in parts:
        for why, count in one.not_judged.items():
            found[why] = found.get(why, 0) + count
    return found
