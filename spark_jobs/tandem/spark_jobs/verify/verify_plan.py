"""The checks of `tandem verify`, and their findings. Pure: states and bytes in, findings out.

A finding is a mismatch between the backup and its chain, or between the chain and its rules. Other facts that are worth
knowing (orphans, partitions that are not complete yet) are counted in the figures, and are not findings.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import repeat
from typing import Final

from tandem.backup_avro.chain.entries import Base, Opening, Part, PartitionKey, StoredObject
from tandem.backup_avro.chain.generation import Generation
from tandem.backup_avro.errors import DamagedError, TandemError
from tandem.backup_avro.json_fields import UNLESS_NONE, in_json
from tandem.backup_avro.record.container import ContainerHeader, decompress, iter_blocks
from tandem.sink.encryption.key_ring import NO_KEYS, KeyRing
from tandem.sink.store.chain.intact_state import IntactState
from tandem.sink.store.encrypted_objects import open_object, part_hashes
from tandem.spark_jobs.reading.object_figures import ObjectFigures
from tandem.spark_jobs.reading.object_reader import check_bytes, open_container

#: Bytes of objects that one task reads. Smaller tasks report progress earlier; each costs some 50 ms.
TASK_BYTES: Final = 64 * 1024 * 1024
_MIN_TASK_BYTES: Final = 1024 * 1024


class VerifyFault(StrEnum):
    """What is wrong."""

    CHAIN = "chain"  # an entry is missing, damaged, not signed as it must be, or breaks a rule
    HEAD = "head"  # an entry that is known to have been written is not in the store
    MISSING = "missing"  # an object that the chain lists is not in the store
    UNREADABLE = "unreadable"  # the store fails to return it at three attempts some time apart, but returns others
    CHECKSUM = "checksum"  # its size or SHA-256 differs from the chain's
    CONTAINER = "container"  # the Avro file can't be read, or has another codec or sync marker than its generation
    FOREIGN = "foreign"  # records of another topic or partition
    ORDER = "order"  # offsets do not ascend
    COUNTS = "counts"  # records, tombstones, first, last, timestamps differ from the chain's
    TWICE = "twice"  # two live parts hold the same offsets
    OUTSIDE = "outside"  # a live part lies outside of the offsets that were read
    COVERAGE = "coverage"  # a scan is recorded as complete and is not


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyFinding:
    """One mismatch. `where` is an object's key, a chain entry, or topic-partition."""

    generation: int
    fault: VerifyFault
    where: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectCheck:
    """An object to read, and its chain entry; `topics` maps the topic ids of its parts to names."""

    generation: int
    item: StoredObject
    opening: Opening
    topics: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectResult:
    """The result of reading objects of a generation. Figures count the records that could be read, despite findings."""

    generation: int
    objects: int = 1
    bytes: int = 0
    records: int = 0
    tombstones: int = 0
    findings: tuple[VerifyFinding, ...] = ()


def add_results(results: Iterable[ObjectResult], generation: int) -> ObjectResult:
    """Return the results of a generation's objects as one, with all findings in their order."""
    objects = size = records = tombstones = 0
    findings: list[VerifyFinding] = []
    for result in (result for result in results if result.generation == generation):
        objects += result.objects
        size += result.bytes
        records += result.records
        tombstones += result.tombstones
        findings += result.findings
    return ObjectResult(
        generation=generation,
        objects=objects,
        bytes=size,
        records=records,
        tombstones=tombstones,
        findings=tuple(findings),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationResult:
    """Figures of one generation. `incomplete` and `tainted` name partitions; bytes are those of stored objects.

    `replaced` and `orphans` are in the store, but not, or no longer, in the chain. What a running instance has uploaded
    and not committed yet is among the orphans.
    """

    generation: int
    instance: str
    state: str
    seq: int
    objects: int
    bytes: int
    records: int
    tombstones: int
    partitions: int
    incomplete: tuple[str, ...]
    tainted: tuple[str, ...]
    replaced: int
    replaced_bytes: int
    orphans: tuple[str, ...]
    orphans_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """Read a random share of the objects: at least `percent` of their bytes (more than 0, at most 100)."""

    percent: float
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleFigures:
    """What a sampling left out: of the other objects only presence and size were looked at."""

    percent: float
    seed: int
    objects: int
    of_objects: int
    bytes: int
    of_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Repair:
    """What `--repair` came to."""

    asked: bool
    message: str
    request_id: str | None = field(default=None, metadata=UNLESS_NONE)
    generation: int | None = field(default=None, metadata=UNLESS_NONE)
    target: str | None = field(default=None, metadata=UNLESS_NONE)


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyResult:
    """`tandem verify`. `skipped`: generation -> why it was not read. `sample` is None if everything was read.

    `intact`: of each generation that lacks entries or objects, the newest moment of which nothing is missing.
    """

    pair: str
    root: str
    seconds: float = 0.0
    generations: tuple[GenerationResult, ...]
    skipped: Mapping[int, str] = field(default_factory=dict)
    sample: SampleFigures | None = None
    findings: tuple[VerifyFinding, ...]
    intact: tuple[IntactState, ...] = ()
    repair: Repair | None = field(default=None, metadata=UNLESS_NONE)

    @property
    @in_json
    def clean(self) -> bool:
        """Whether there are no findings."""
        return not self.findings


def state_name(state: Generation) -> str:
    """Return one word for the state of a generation."""
    if state.cleared is not None:
        return "cleared" if state.gone else "kept in part"
    if state.clearing is not None:
        return "clearing"
    if state.sealed:
        return "sealed"
    return "complete" if state.complete else "building"


def plan_objects(states: Iterable[Generation]) -> list[ObjectCheck]:
    """Return every object that the chains list."""
    return [
        ObjectCheck(
            generation=state.number,
            item=item,
            opening=state.opening,
            topics={part.key.topic_id: _topic(state, part.key.topic_id) for part in item.parts},
        )
        for state in states
        if state.opening is not None
        for item in state.objects.values()
    ]


def _topic(state: Generation, topic_id: str) -> str:
    topic = state.topics.get(topic_id)
    return topic.name if topic is not None else topic_id


def sample(checks: Iterable[ObjectCheck], sampling: Sampling) -> tuple[list[ObjectCheck], list[ObjectCheck]]:
    """Choose a random sample; return the objects to read, and the others. Equal objects and seed give the same choice.

    Each object is as likely to be read as any other of its size, and counts for its bytes.
    """
    ordered = sorted(checks, key=lambda check: check.item.key)
    random.Random(sampling.seed).shuffle(ordered)  # noqa: S311 - nothing is secret about it
    wanted = sum(check.item.bytes for check in ordered) * sampling.percent / 100
    taken: list[ObjectCheck] = []
    size = 0
    while ordered and size < wanted:
        taken.append(ordered.pop())
        size += taken[-1].item.bytes
    return taken, ordered


def sampled(sampling: Sampling, taken: Collection[ObjectCheck], left: Collection[ObjectCheck]) -> SampleFigures:
    """Return the figures of a sampling."""
    size = sum(check.item.bytes for check in taken)
    return SampleFigures(
        percent=sampling.percent,
        seed=sampling.seed,
        objects=len(taken),
        of_objects=len(taken) + len(left),
        bytes=size,
        of_bytes=size + sum(check.item.bytes for check in left),
    )


def check_listed(check: ObjectCheck, listed: Mapping[str, int]) -> list[VerifyFinding]:
    """Return the findings from a listing (key to bytes) for an object that is not read."""
    size = listed.get(check.item.key)
    if size is None:
        return [_of(check, VerifyFault.MISSING, _NOT_THERE)]
    if size != check.item.bytes:
        return [_of(check, VerifyFault.CHECKSUM, f"has {size} bytes, the chain says {check.item.bytes}")]
    return []


def group(checks: Sequence[ObjectCheck], *, parallelism: int) -> list[list[ObjectCheck]]:
    """Group the checks into tasks of about equal bytes: at least two per core if there is enough to do."""
    total = sum(check.item.bytes for check in checks)
    limit = min(TASK_BYTES, max(_MIN_TASK_BYTES, total // max(1, 2 * parallelism)))
    tasks: list[list[ObjectCheck]] = []
    room = 0
    for check in checks:
        if not tasks or room < check.item.bytes:
            tasks.append([])
            room = limit
        tasks[-1].append(check)
        room -= check.item.bytes
    return tasks


def check_state(state: Generation) -> list[VerifyFinding]:
    """Return the findings that a generation's chain shows by itself, without reading an object."""
    findings = []
    for key, position in sorted(state.positions.items()):
        if position.base.complete and not _is_whole(position.base):
            message = (
                f"the base [{position.base.start}, {position.base.end}) is said to be done, {position.base.done} is"
            )
            findings.append(_finding(state, VerifyFault.COVERAGE, state.name_of(key), message))
    by_key: dict[PartitionKey, list[tuple[Part, str]]] = {}
    for item, part in state.live_parts():
        by_key.setdefault(part.key, []).append((part, item.key))
    for key, parts in sorted(by_key.items()):
        for part, where in parts:
            problem = _outside(state, part)
            if problem:
                findings.append(_finding(state, VerifyFault.OUTSIDE, where, f"{state.name_of(key)}: {problem}"))
        findings.extend(_twice(state, key, parts))
    return findings


def check_length(state: Generation, known: Mapping[int, int]) -> list[VerifyFinding]:
    """Return a finding if a chain ends before the entry that it was `known` to have."""
    before = known.get(state.number, 0)
    if state.seq >= before:
        return []
    message = f"it was read up to entry {before} before, and ends at entry {state.seq} now"
    return [_finding(state, VerifyFault.CHAIN, f"generation {state.number}", message)]


def _is_whole(base: Base) -> bool:
    return base.start >= base.end or base.done == ((base.start, base.end),)


def _outside(state: Generation, part: Part) -> str | None:
    """Return why no valid read can have produced `part`; None if one can."""
    position = state.positions.get(part.key)
    what = f"offsets {part.first} to {part.last}"
    if position is None:
        return f"{what}, but the chain has no position"
    base = position.base
    if part.scan is None:
        if base.end <= part.first and part.last < position.offset:
            return None
        return f"{what} of the tail lie outside [{base.end}, {position.offset})"
    ranges = [*base.done, *((low, high) for low, high, attempt in base.open if attempt == part.scan)]
    if any(low <= part.first and part.last < high for low, high in ranges):
        return None
    return f"{what} of base attempt {part.scan} lie outside what was read, {ranges}"


def _twice(state: Generation, key: PartitionKey, parts: Iterable[tuple[Part, str]]) -> Iterator[VerifyFinding]:
    ordered = sorted(parts, key=lambda item: (item[0].first, item[0].last))
    reach: tuple[Part, str] | None = None
    for part, where in ordered:
        if reach is not None and part.first <= reach[0].last:
            message = f"{state.name_of(key)}: offsets {part.first} to {part.last} overlap with {reach[1]}"
            yield _finding(state, VerifyFault.TWICE, where, message)
        if reach is None or part.last > reach[0].last:
            reach = (part, where)


def _finding(state: Generation, fault: VerifyFault, where: str, message: str) -> VerifyFinding:
    return VerifyFinding(generation=state.number, fault=fault, where=where, message=message)


_NOT_THERE: Final = "it is in the chain, but not in the store"


def missing(check: ObjectCheck) -> ObjectResult:
    """Return the result for an object that is not in the store."""
    return _failed(check, VerifyFault.MISSING, _NOT_THERE, 0)


def unreadable(check: ObjectCheck, error: DamagedError) -> ObjectResult:
    """Return the result for an object that is not read: its size differs, or the store reports it as damaged."""
    return _failed(check, VerifyFault.CHECKSUM, error.text_about(check.item.key), 0)


def not_given(check: ObjectCheck, error: TandemError) -> ObjectResult:
    """Return the result for an object that the store fails to return."""
    return _failed(check, VerifyFault.UNREADABLE, str(error), 0)


def check_object(check: ObjectCheck, stored: bytes, keys: KeyRing = NO_KEYS) -> ObjectResult:
    """Check an object's bytes: checksum, encryption, the container, then every record; return figures and findings.

    Raises MissingKeyError and errors of the KMS: those say nothing about the object.
    """
    try:
        check_bytes(check.item, stored)
        data = open_object(keys, check.item, stored)
    except DamagedError as error:
        return _failed(check, VerifyFault.CHECKSUM, error.text_about(check.item.key), len(stored))
    try:
        header = open_container(data)
        _check_header(header, check.opening)
    except DamagedError as error:
        return _failed(check, VerifyFault.CONTAINER, str(error), len(stored))
    records = tombstones = 0
    findings: list[VerifyFinding] = []
    parts = check.item.parts
    hashes = part_hashes(check.item, parts, stored) if check.item.separable else repeat(None, len(parts))
    for part, sha256 in zip(parts, hashes, strict=True):
        seen = ObjectFigures()
        name = f"{check.topics[part.key.topic_id]}-{part.key.partition}"
        try:
            for block in iter_blocks(data, header, part.start, part.end):
                seen.add(decompress(block, header.codec), block.count)
        except DamagedError as error:
            findings.append(_of(check, VerifyFault.CONTAINER, f"{name}: {error}"))
        else:
            problems = list(_problems(seen, part, check.topics[part.key.topic_id]))
            # A reader of a single part, such as a restore that reads from a journal, relies on this checksum.
            if sha256 is not None and sha256 != part.sha256:
                problems.append((VerifyFault.CHECKSUM, "its bytes are not what the chain says of this part"))
            findings.extend(_of(check, fault, f"{name}: {message}") for fault, message in problems)
        records += seen.records
        tombstones += seen.tombstones
    return ObjectResult(
        generation=check.generation,
        bytes=len(stored),
        records=records,
        tombstones=tombstones,
        findings=tuple(findings),
    )


def _check_header(header: ContainerHeader, opening: Opening) -> None:
    if header.codec.value != opening.codec:
        raise DamagedError(f"its codec is {header.codec}, that of its generation {opening.codec}", code="TDM-V006")
    if header.sync.hex() != opening.sync:
        raise DamagedError("its sync marker is not that of its generation", code="TDM-V007")


def _problems(seen: ObjectFigures, part: Part, topic: str) -> Iterator[tuple[VerifyFault, str]]:
    foreign = sorted(seen.places - {(topic, part.key.partition)})
    if foreign:
        yield VerifyFault.FOREIGN, f"it holds records of {foreign[0][0]}-{foreign[0][1]}"
    if seen.disorder is not None:
        yield VerifyFault.ORDER, seen.disorder
    differ = [
        f"{name} {getattr(seen, name)} instead of {getattr(part, name)}"
        for name in ("records", "tombstones", "first", "last", "min_timestamp", "max_timestamp")
        if getattr(seen, name) != getattr(part, name)
    ]
    if differ:
        yield VerifyFault.COUNTS, ", ".join(differ)


def _of(check: ObjectCheck, fault: VerifyFault, message: str) -> VerifyFinding:
    return VerifyFinding(generation=check.generation, fault=fault, where=check.item.key, message=message)


def _failed(check: ObjectCheck, fault: VerifyFault, message: str, size: int) -> ObjectResult:
    return ObjectResult(generation=check.generation, bytes=size, findings=(_of(check, fault, message),))


def summarize(
    state: Generation, results: Iterable[ObjectResult], listed: Mapping[str, int], entries: Collection[VerifyFinding]
) -> tuple[GenerationResult, list[VerifyFinding]]:
    """Return the figures of a generation and its findings.

    `listed` are the objects in the store (key to bytes), `entries` are the findings of its chain. Replaced objects may
    still exist or may already be deleted.
    """
    total = add_results(results, state.number)
    replaced = {key: size for key, size in listed.items() if key in state.replaced}
    orphans = {key: size for key, size in listed.items() if key not in state.objects and key not in state.replaced}
    summary = GenerationResult(
        generation=state.number,
        instance=state.instance,
        state=state_name(state),
        seq=state.seq,
        objects=total.objects,
        bytes=total.bytes,
        records=total.records,
        tombstones=total.tombstones,
        partitions=len(state.positions),
        incomplete=tuple(sorted(state.name_of(key) for key in state.positions if not state.read_through(key))),
        tainted=tuple(sorted(state.name_of(key) for key in state.taints)),
        replaced=len(replaced),
        replaced_bytes=sum(replaced.values()),
        orphans=tuple(sorted(orphans)),
        orphans_bytes=sum(orphans.values()),
    )
    return summary, [*entries, *total.findings]
