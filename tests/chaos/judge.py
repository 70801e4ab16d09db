"""Whether what came back from S3 is right: a pure comparison with the facts and with the live topics.

The cut of a restore is an offset vector. Below it, per partition:

    lost         a key whose latest record is a value does not have exactly that record; or the live topic still has a
                 record that did not come back; or the cut lies below what was confirmed before
    resurrected  a key whose latest record is a tombstone comes back with a value, or one that the live topic has
                 dropped for good
    twice        a (partition, offset) came back more than once
    aborted      a record of an aborted transaction came back
    foreign      a record came back that neither a writer nor a consumer knows, or with another content
    held         the pair keeps a partition of a superseded copy because its log lost records. Here no log ever does,
                 so the shrink guard raised a false alarm

A tombstone may be missing together with all of its key: compaction does the same. What lies below the log's start (as
the backup recorded it) is gone by the topic's own retention, and is not asked for.

That no guard raised an alarm says little of a guard that never ran, so `judge_guard` also tells what it compared.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from chaos.facts import Ends, Facts, Latest, Place, Seen
from tandem.backup_avro.chain.generation import Generation
from tandem.backup_avro.selection.losses import kept_losses

_COMPARED: Final = "compared keys before clearing"
_VANISHED: Final = "keys vanished from the log without a tombstone"


class Fault(StrEnum):
    """What can be wrong with a restore."""

    LOST = "lost"
    TWICE = "twice"
    RESURRECTED = "resurrected"
    ABORTED = "aborted"
    FOREIGN = "foreign"
    HELD = "held"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that is wrong."""

    fault: Fault
    place: Place
    offset: int
    message: str

    def __str__(self) -> str:
        return f"{self.fault.value}: {self.place[0]}-{self.place[1]} offset {self.offset}: {self.message}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """What came back: records in the order in which they came, the cut, and where the logs started by the backup."""

    generation: int
    rows: tuple[Seen, ...]
    ends: Ends
    log_starts: Ends


@dataclass(slots=True)
class _Partition:
    rows: list[Seen] = field(default_factory=list)
    latest: dict[bytes | None, Seen] = field(default_factory=dict)


def judge(
    restored: Restored,
    facts: Facts,
    *,
    confirmed: Ends,
    live: Mapping[Place, Iterable[Seen]] | None = None,
) -> list[Finding]:
    """Return all that is wrong. The facts must reach the cut; `confirmed` is what was in the backup before.

    `live` is what the topics hold after the restore was read, for places where nothing but compaction removes records.
    """
    partitions = {place: _Partition() for place in restored.ends}
    findings: list[Finding] = []
    for row in restored.rows:
        partition = partitions.setdefault(row.place, _Partition())
        partition.rows.append(row)
        last = partition.latest.get(row.key)
        if last is None or last.offset < row.offset:
            partition.latest[row.key] = row
    for place, end in confirmed.items():
        if restored.ends.get(place, 0) < end:
            message = f"the restore ends at {restored.ends.get(place, 0)}, {end} was confirmed before"
            findings.append(Finding(fault=Fault.LOST, place=place, offset=end, message=message))
    for place, partition in partitions.items():
        end, start = restored.ends.get(place, 0), restored.log_starts.get(place, 0)
        findings.extend(_records(partition.rows, end, facts))
        findings.extend(_keys(place, partition.latest, facts.latest(place, end), start))
        if live is not None and place in live:
            findings.extend(_against_live(partition, list(live[place]), facts, start, end))
    return findings


def _records(rows: list[Seen], end: int, facts: Facts) -> Iterator[Finding]:
    for (place, offset), count in Counter((row.place, row.offset) for row in rows).items():
        if count > 1:
            yield Finding(fault=Fault.TWICE, place=place, offset=offset, message=f"came back {count} times")
    for row in rows:
        known = facts.committed(row.place, row.offset)
        if row.offset >= end:
            message = f"lies above the cut at {end}"
        elif known == row.digest:
            continue
        elif facts.was_aborted(row.place, row.offset):
            message = f"key {row.key!r} was written by a transaction that was aborted"
            yield Finding(fault=Fault.ABORTED, place=row.place, offset=row.offset, message=message)
            continue
        else:
            message = f"key {row.key!r} {'has another content' if known else 'was never written there'}"
        yield Finding(fault=Fault.FOREIGN, place=row.place, offset=row.offset, message=message)


def _keys(
    place: Place, back: Mapping[bytes | None, Seen], written: Mapping[bytes | None, Latest], start: int
) -> Iterator[Finding]:
    for key, last in written.items():
        row = back.get(key)
        if row is not None and row.offset >= last.offset:
            continue  # what lies above the last known record is found by its place
        came = "nothing" if row is None else f"offset {row.offset}"
        if last.tombstone and row is not None and not row.tombstone:
            message = f"key {key!r} was deleted at offset {last.offset}, {came} came back"
            yield Finding(fault=Fault.RESURRECTED, place=place, offset=row.offset, message=message)
        elif not last.tombstone and last.offset >= start:
            message = f"key {key!r} has its latest value there, {came} came back"
            yield Finding(fault=Fault.LOST, place=place, offset=last.offset, message=message)


def _against_live(partition: _Partition, live: list[Seen], facts: Facts, start: int, end: int) -> Iterator[Finding]:
    have = {row.offset: row.digest for row in partition.rows}
    for row in live:
        if start <= row.offset < end and have.get(row.offset) != row.digest:
            message = f"key {row.key!r}: the live topic still has this record, the restore does not"
            yield Finding(fault=Fault.LOST, place=row.place, offset=row.offset, message=message)
    alive = {row.key for row in live}
    for key, row in partition.latest.items():
        if not row.tombstone and key not in alive and not facts.written_since(row.place, key, row.offset):
            message = f"key {key!r} came back, but the live topic has dropped it"
            yield Finding(fault=Fault.RESURRECTED, place=row.place, offset=row.offset, message=message)


def counts(findings: Iterable[Finding]) -> dict[Fault, int]:
    """Return how many there are of each kind, zeros included."""
    found = Counter(finding.fault for finding in findings)
    return {fault: found[fault] for fault in Fault}


@dataclass(frozen=True, slots=True, kw_only=True)
class Guarded:
    """What the shrink guard did. `compared`: generation -> the partitions whose keys it compared, the most at once.

    `cleared` are the generations that were complete and are cleared now, or begun to be.
    """

    findings: tuple[Finding, ...]
    compared: Mapping[int, int]
    cleared: frozenset[int]

    @property
    def turns(self) -> int:
        """How many turns were guarded: keys were compared before the superseded generation was cleared."""
        return sum(count > 0 for count in self.compared.values())

    @property
    def partitions(self) -> int:
        """The partitions compared in all turns."""
        return sum(self.compared.values())

    @property
    def trouble(self) -> str | None:
        """Why the guard proves nothing: it passed a generation over, or could compare no partition of any."""
        if passed_over := sorted(self.cleared.difference(self.compared)):
            return f"cleared, though the guard never looked at their keys: generations {passed_over}"
        return "the guard compared no partition of what was cleared" if self.cleared and not self.turns else None


def judge_guard(states: Iterable[Generation], logs: Iterable[str]) -> Guarded:
    """Return what the chains say that is held for lost records, and what the instances logged of their guards.

    The logs count too, because a chain tells what is held now. An alarm that was raised by a process that was killed
    then, or that was over when somebody looked, is no less false. A process writes a line before it goes on, so what
    it cleared without a line was not compared; the logs must be read after the chains.
    """
    lines = [
        json.loads(line)
        for text in logs
        for line in text.splitlines()
        if (_COMPARED in line or _VANISHED in line) and line.endswith("}")
    ]
    compared: dict[int, int] = {}
    findings = []
    for line in lines:
        number = int(line["generation"])
        if line["event"].startswith(_VANISHED):
            topic, _, partition = line["topic"].rpartition("-")
            message = f"generation {number}: {line['keys']} keys are said to lack in generation {line['missing_in']}"
            place = (topic, int(partition))
            findings.append(Finding(fault=Fault.HELD, place=place, offset=line["offsets"][0], message=message))
        else:
            compared[number] = max(compared.get(number, 0), line["partitions"])
    cleared = set()
    for state in states:
        findings += held(state)
        if state.complete and not state.whole:
            cleared.add(state.number)
    return Guarded(findings=tuple(findings), compared=compared, cleared=frozenset(cleared))


def held(state: Generation) -> list[Finding]:
    """Return the partitions that a generation keeps because its log lost records."""
    return [
        Finding(
            fault=Fault.HELD,
            place=(state.topics[loss.key.topic_id].name, loss.key.partition),
            offset=state.sound_offset(loss.key),
            message=f"generation {state.number} is kept: {loss.reason}",
        )
        for loss in kept_losses(state)
    ]


def overdue(states: Sequence[Generation], sound: int) -> list[int]:
    """Return the generations before the `sound` one that are not wholly cleared yet.

    By a `recovery.window` of 0 each has to go once that one is COMPLETE, whether it was complete or given up. A claim
    whose owner died before OPEN has nothing to clear.
    """
    return [state.number for state in states if state.number < sound and state.seq and not state.gone]
