"""View of a sweep of compacted topics: the records that it removes, or would remove, per generation and topic."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from tandem.backup_avro.chain.entries import iso
from tandem.backup_avro.json_fields import UNLESS_NONE
from tandem.controller.cli.output import output
from tandem.controller.cli.output.output import Table
from tandem.spark_jobs.retention.retention_job import StepOutcome
from tandem.spark_jobs.retention.retention_steps import KeptItem, RetentionStep
from tandem.spark_jobs.retention.sweep import SweepOutcome, SweepPlan
from tandem.spark_jobs.retention.sweep_plan import NotSwept


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepHorizon:
    """The oldest moment of a generation after a sweep."""

    generation: int
    entry: int
    at: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SweptTopic:
    """What a sweep takes out of a topic."""

    generation: int
    topic: str
    partitions: int
    records: int
    tombstones: int
    objects: int
    bytes: int
    read: int
    forgotten: int
    dropped: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepNote:
    """What is to be said of a partition."""

    generation: int
    topic: str
    partition: int
    note: str
    failed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweeps:
    """What `--horizon` adds."""

    at: str
    horizons: Sequence[SweepHorizon]
    topics: Sequence[SweptTopic]
    left: Sequence[NotSwept]
    notes: Sequence[SweepNote]


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionDocument:
    """`tandem retention`. `outcomes` with --execute, `sweeps` with --horizon."""

    pair: str
    root: str
    at: str
    executed: bool
    bytes: int
    steps: Sequence[RetentionStep]
    kept: Sequence[KeptItem]
    outcomes: Sequence[StepOutcome] | None = field(default=None, metadata=UNLESS_NONE)
    sweeps: Sweeps | None = field(default=None, metadata=UNLESS_NONE)


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepView:
    """The plan and the outcomes of a sweep. Unless `executed`, the sweep only measured and changed nothing."""

    plan: SweepPlan
    outcomes: Sequence[SweepOutcome]
    executed: bool

    def document(self) -> Sweeps:
        """Return the part of the JSON document."""
        return Sweeps(
            at=iso(self.plan.at),
            horizons=[
                SweepHorizon(generation=one.generation, entry=one.seq, at=iso(one.at)) for one in self.plan.sweeps
            ],
            topics=list(self._rows()),
            left=self.plan.left,
            notes=[
                SweepNote(
                    generation=outcome.generation,
                    topic=outcome.swept.topic,
                    partition=outcome.swept.key.partition,
                    note=outcome.note,
                    failed=outcome.failed,
                )
                for outcome in self.outcomes
                if outcome.note is not None
            ],
        )

    def _rows(self) -> Iterator[SweptTopic]:
        by_topic: dict[tuple[int, str], list[SweepOutcome]] = {}
        for outcome in self.outcomes:
            by_topic.setdefault((outcome.generation, outcome.swept.topic), []).append(outcome)
        for (generation, topic), found in sorted(by_topic.items()):
            done = [outcome.swept for outcome in found if outcome.note is None]
            last = {swept.key: swept for swept in done}
            yield SweptTopic(
                generation=generation,
                topic=topic,
                partitions=len({outcome.swept.key for outcome in found}),
                records=sum(swept.records for swept in done),
                tombstones=sum(swept.tombstones for swept in done),
                objects=sum(len(swept.replaced) for swept in done),
                bytes=sum(swept.before - swept.after for swept in done),
                read=sum(swept.read for swept in done),
                forgotten=sum(swept.forgot for swept in last.values()),
                dropped=len(found) - len(done),
            )

    def tables(self) -> Iterator[Table | str]:
        """Yield tables and lines for people."""
        rewritten = {outcome.generation for outcome in self.outcomes if outcome.note is None and outcome.swept.replaced}
        for sweep in (sweep for sweep in self.plan.sweeps if sweep.generation in rewritten):
            where = f"generation {sweep.generation}: horizon at {iso(sweep.at)}, entry {sweep.seq}"
            yield f"{where}; {'no earlier moment' if self.executed else 'then no earlier moment'} can be restored"
        rows = list(self._rows())
        if rows:
            columns = ("generation", "topic", "partitions", "records", "tombstones", "objects", "bytes", "dropped")
            shown = [
                tuple(output.size(row.bytes) if name == "bytes" else getattr(row, name) for name in columns)
                for row in rows
            ]
            yield Table(
                title="superseded before the horizon" + ("" if self.executed else ", nothing was changed"),
                columns=columns,
                rows=shown,
                right=frozenset(columns) - {"topic"},
                extra=("dropped", "partitions", "objects", "tombstones"),
            )
        if self.plan.left:
            yield Table(
                title="compacted topics that stay as they are",
                columns=("generation", "topics", "why"),
                rows=[(left.generation, ", ".join(left.topics) or None, left.reason) for left in self.plan.left],
                right=frozenset({"generation"}),
            )


def tell(outcome: SweepOutcome) -> None:
    """Print on stderr what one pass over a partition replaced, its note, and what it left for want of room."""
    swept = outcome.swept
    where = f"generation {outcome.generation}, {swept.topic}-{swept.key.partition}"
    if outcome.note is not None:
        output.note(f"{where}: {outcome.note}")
    elif swept.replaced:
        gain = output.size(swept.before - swept.after)
        output.note(f"{where}: {swept.records:,} records of {len(swept.replaced)} objects, {gain}")
    if swept.forgot:
        output.note(f"{where}: more tombstones than one pass remembers; the others wait for the next pass")
    if swept.full:
        output.note(f"{where}: more objects than one pass rewrites; the others wait for the next pass")
