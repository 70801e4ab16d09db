"""Compare two copies of a partition key by key, and judge the differences. Pure: records in, findings out.

The two sides are the backup and the live topic, or two generations. Both are read in offset order up to a common end,
the cut. A record that compaction has removed from one side is no difference: compared are the latest record of each
key, and the contents of records at one offset.

A record that one side lacks although it is the latest of its key on the other side has been compacted away if the first
side has a newer record of the key beyond the cut. So that side is read on, to its own end, for the keys in doubt.

Memory: a key costs two integers in a dictionary, 16 bytes of hash and an offset, whatever its size: measured 120 MB per
million keys on which both sides agree, and 400 MB where they do not. One task compares one partition.
"""

from __future__ import annotations

import base64
import hashlib
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple

from tandem.backup_avro.json_fields import NOT_IN_JSON
from tandem.backup_avro.record.record_spans import Span

#: The most findings that are reported in full per partition; the counts include all.
NAMED: Final = 1000
_LONGEST_KEY: Final = 120
_OFFSET: Final = struct.Struct(">q")


class KeyFault(StrEnum):
    """What is wrong with a key, from the first side's point of view: the backup, or the first generation."""

    MISSING = "missing"  # only the other side has the key
    STALE = "stale"  # the other side has a newer record of the key
    GONE = "should-be-gone"  # this side has a value, the other side has no record, a tombstone, or an older value
    RETURNED = "returned"  # this side has a tombstone, and the other side has an older value
    DIFFERENT = "different"  # different contents at the same offset


class SeenRecord(NamedTuple):
    """A record: `key` is a hash of 128 bits, `content` a hash of all but key and offset, valid in this process only.

    For a record without a key, `key` is negative and different at each offset, so that such a record is compared alone.
    """

    offset: int
    key: int
    tombstone: bool
    content: int


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyFinding:
    """One key. Offsets are those of the latest records up to the cut, None where there is none.

    `key` is text or base64, as `encoding` says, cut off after 120 characters. `none`: the record has no key, `unknown`:
    it is in neither side any more.
    """

    kind: KeyFault
    topic: str
    partition: int
    key: str
    encoding: str
    first_offset: int | None
    second_offset: int | None
    cause: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionResult:
    """What comparing one partition, between `start` and `cut`, showed. `counts` are of all findings by kind.

    `cut` is the common end (exclusive), `start` what both sides could still have. `records` are those of both sides. Of
    all findings, `findings` are at most NAMED. `lost` counts the findings of which
    only the first side has the record (`only_in_first`). `not_judged` says what could not be decided, `error` why the
    partition could not be read at all. `seconds` is how long it took.
    """

    topic: str
    partition: int
    start: int
    cut: int
    records: tuple[int, int] = (0, 0)
    keys: int = 0
    counts: Mapping[KeyFault, int] = field(default_factory=dict)
    lost: int = field(default=0, metadata=NOT_IN_JSON)
    findings: tuple[KeyFinding, ...] = field(default=(), metadata=NOT_IN_JSON)
    explained: int = 0
    not_judged: Mapping[str, int] = field(default_factory=dict)
    error: str | None = None
    seconds: float = 0.0

    @property
    def clean(self) -> bool:
        """Whether both sides were read, and do not differ."""
        return self.error is None and not self.counts


def iter_seen_records(body: bytes, spans: Iterable[Span]) -> Iterator[SeenRecord]:
    """Yield the records of a body, whose places are in `spans`. Raises the errors of iterating over `spans`."""
    blake, number = hashlib.blake2b, int.from_bytes
    for _, _, offset, timestamp, kind, key_at, key_from, key_to, value_at, _, _, headers_at, end in spans:
        if key_at >= 0:
            key = number(blake(body[key_from:key_to], digest_size=16).digest())
        else:
            key = ~number(blake(_OFFSET.pack(offset), digest_size=16).digest())
        content = hash((timestamp, kind, body[value_at if value_at >= 0 else headers_at : end]))
        yield SeenRecord(offset, key, value_at < 0, content)


def shown(key: bytes | None) -> tuple[str, str]:
    """Return a key as text, and the encoding of the text: `utf8`, `base64` or `none`."""
    if key is None:
        return "", "none"
    try:
        text, encoding = key.decode(), "utf8"
    except UnicodeDecodeError:
        text, encoding = base64.b64encode(key[:_LONGEST_KEY]).decode(), "base64"
    return (text if len(text) <= _LONGEST_KEY else f"{text[: _LONGEST_KEY - 1]}…"), encoding


class LatestRecord(NamedTuple):
    """The latest record of a key on one side."""

    offset: int
    tombstone: bool


class Suspect(NamedTuple):
    """A key whose latest records differ. `lacking` is the side, 0 or 1, that lacks the newest one."""

    kind: KeyFault
    first: LatestRecord | None
    second: LatestRecord | None
    lacking: int


class Comparison:
    """Folds both sides, in offset order, into the latest record of each key.

    At an offset where both sides have a record, older records of its key are dropped, so a key that both sides agree on
    is kept once.
    """

    def __init__(self) -> None:
        self.different: dict[int, int] = {}
        self.records = [0, 0]
        self._agreed: dict[int, int] = {}
        self._own: tuple[dict[int, int], dict[int, int]] = ({}, {})

    def merge(self, first: Iterable[SeenRecord], second: Iterable[SeenRecord]) -> None:
        """Read all records of both sides below the cut; each side is in ascending order of offsets."""
        rights = iter(second)
        right = next(rights, None)
        for left in first:
            while right is not None and right.offset < left.offset:
                self._add_record(1, right)
                right = next(rights, None)
            if right is not None and right.offset == left.offset:
                self._take_both(left, right)
                right = next(rights, None)
            else:
                self._add_record(0, left)
        while right is not None:
            self._add_record(1, right)
            right = next(rights, None)

    def _add_record(self, side: int, one: SeenRecord) -> None:
        self.records[side] += 1
        self._own[side][one.key] = one.offset << 1 | one.tombstone

    def _take_both(self, left: SeenRecord, right: SeenRecord) -> None:
        self.records[0] += 1
        self.records[1] += 1
        if left[1:] != right[1:]:
            self.different[left.offset] = left.key
        for own in self._own:
            own.pop(left.key, None)
        self._agreed[left.key] = left.offset << 1 | left.tombstone
        if right.key != left.key:
            self._own[1][right.key] = right.offset << 1 | right.tombstone

    @property
    def keys(self) -> int:
        """The number of keys that at least one side has, including keys with a tombstone."""
        return len(self._agreed) + len((self._own[0].keys() | self._own[1].keys()) - self._agreed.keys())

    def suspects(self) -> dict[int, Suspect]:
        """Return the keys on which the two sides differ, by hash."""
        found = {}
        for key in self._own[0].keys() | self._own[1].keys():
            agreed = self._agreed.get(key)
            suspect = suspect_of(*(own.get(key, agreed) for own in self._own))
            if suspect is not None:
                found[key] = suspect
        return found


def _latest(packed: int | None) -> LatestRecord | None:
    return None if packed is None else LatestRecord(packed >> 1, bool(packed & 1))


def suspect_of(latest: int | None, other: int | None) -> Suspect | None:
    """Return how the latest records of a key differ; None if they are equal or the key is deleted on both sides.

    A record is twice its offset, and 1 more for a tombstone; None if the side has none.
    """
    first, second = _latest(latest), _latest(other)
    here = first is not None and not first.tombstone
    there = second is not None and not second.tombstone
    if first == second or not (here or there):
        return None
    if first is None:
        return Suspect(KeyFault.MISSING, first, second, 0)
    if second is None:
        return Suspect(KeyFault.GONE, first, second, 1)
    if first.offset < second.offset:
        return Suspect(KeyFault.STALE if there else KeyFault.GONE, first, second, 0)
    return Suspect(KeyFault.GONE if here else KeyFault.RETURNED, first, second, 1)


def only_in_first(one: Suspect) -> bool:
    """Return whether only the first side has the record, and no newer record or tombstone on the second explains it.

    A copy of the second side lacks the record too: if the first side is deleted in favour of such a copy, the record is
    lost.
    """
    return one.kind is KeyFault.DIFFERENT or (one.kind is KeyFault.GONE and one.lacking == 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareFacts:
    """Facts about the two sides that their records do not show.

    Below the offsets `starts` a side has no records because they were deleted; below `let_go`, `tandem retention` may
    have removed records of a topic with policy `delete` from a side. `expired` says why a key may have been deleted
    beyond the cut, with its tombstone already expired, None if that is impossible; `slow` why a tombstone may have
    expired while the second side was read; `behind` why that side was not read to its end. From offset `sound` on,
    `doubt` says what is wrong with the first side; `short` says that the second side ends below the cut. `compacted`: a
    cleaner may have dropped records without a key. `only_compacts`: nothing moves the start of such a log, so a record
    below it is lost.
    """

    topic: str
    partition: int
    names: tuple[str, str]
    starts: tuple[int, int]
    let_go: tuple[int, int] = (0, 0)
    compacted: bool = True
    only_compacts: bool = False
    expired: str | None = None
    slow: str | None = None
    behind: str | None = None
    doubt: str | None = None
    sound: int = 0
    short: str | None = None

    @property
    def start(self) -> int:
        """The offset from which on both sides could still have records."""
        return min(self.starts) if self.only_compacts else max(self.starts)


class CompareVerdict(NamedTuple):
    """The judged suspects: findings by hash, in offset order, and the number of undecided ones by reason.

    `explained` counts the suspects that a newer record beyond the cut explains.
    """

    findings: dict[int, Suspect]
    explained: int
    not_judged: dict[str, int]

    @property
    def counts(self) -> dict[KeyFault, int]:
        """The number of findings of each kind."""
        found: dict[KeyFault, int] = {}
        for one in self.findings.values():
            found[one.kind] = found.get(one.kind, 0) + 1
        return found

    @property
    def lost(self) -> int:
        """The number of findings whose record only the first side has."""
        return sum(map(only_in_first, self.findings.values()))


def judge_suspects(
    suspects: Mapping[int, Suspect], different: Mapping[int, int], newer: tuple[set[int], set[int]], facts: CompareFacts
) -> CompareVerdict:
    """Judge the suspects.

    `newer` are the keys that each side has beyond the cut. `different` maps each offset with different contents to its
    key.
    """
    findings: dict[int, Suspect] = {}
    not_judged: dict[str, int] = {}
    explained = 0
    for key, one in suspects.items():
        why = _why_not(key, one, facts)
        if key in newer[one.lacking]:
            explained += 1
        elif why is not None:
            not_judged[why] = not_judged.get(why, 0) + 1
        else:
            findings[key] = one
    for offset, key in different.items():
        latest = LatestRecord(offset, tombstone=False)
        findings[key] = Suspect(KeyFault.DIFFERENT, latest, latest, 0)
    return CompareVerdict(
        dict(sorted(findings.items(), key=lambda item: newest_offset(item[1]))), explained, not_judged
    )


def newest_offset(one: Suspect) -> int:
    """Return the offset of the newest record of a suspect."""
    return max(latest.offset for latest in (one.first, one.second) if latest is not None)


def _why_not(key: int, one: Suspect, facts: CompareFacts) -> str | None:
    """Return why a suspect can't be judged; None if it can."""
    if newest_offset(one) < facts.starts[one.lacking] and not facts.only_compacts:
        return f"deleted below the log start of the {facts.names[one.lacking]}"
    if newest_offset(one) < facts.let_go[one.lacking]:
        return f"past the time or size that `tandem retention` keeps in the {facts.names[one.lacking]}"
    if key < 0 and facts.compacted:
        return "without a key, which a cleaner drops"
    if one.lacking == 1 and facts.behind is not None:
        return facts.behind
    if one.kind is KeyFault.GONE and one.second is None:
        return facts.expired
    return facts.slow if one.kind is KeyFault.RETURNED else None


def with_key(one: Suspect, key: bytes | None, facts: CompareFacts, *, known: bool = True) -> KeyFinding:
    """Return a finding with its key; `known` is False if neither side has the key's bytes any more."""
    text, encoding = shown(key) if known else ("", "unknown")
    return KeyFinding(
        kind=one.kind,
        topic=facts.topic,
        partition=facts.partition,
        key=text,
        encoding=encoding,
        first_offset=None if one.first is None else one.first.offset,
        second_offset=None if one.second is None else one.second.offset,
        cause=_cause(one, facts),
    )


def _known_cause(one: Suspect, facts: CompareFacts) -> str | None:
    """Return the known fault of the partition at a finding's offset; None if there is none."""
    if facts.short is not None:
        return facts.short
    if facts.doubt is not None and newest_offset(one) >= facts.sound:
        return facts.doubt
    lacking, start = facts.names[one.lacking], facts.starts[one.lacking]
    if newest_offset(one) >= start:
        return None
    return (
        f"the log start of the {lacking} is {start} though the policy is compact alone: disks were lost, or another "
        "policy was set for a while; a restore brings the key back"
    )


def _cause(one: Suspect, facts: CompareFacts) -> str:
    """Return the likely cause of a finding; a known fault of the partition comes first."""
    known = _known_cause(one, facts)
    if known is not None:
        return known
    first, other = facts.names
    match one.kind:
        case KeyFault.MISSING | KeyFault.STALE:
            return f"the record did not get into the {first}, or the {first} has lost it: `tandem verify` tells"
        case KeyFault.GONE if one.second is not None and one.second.offset > _offset_of(one.first):
            return f"the {first} has missed the tombstone: nobody read the log for longer than delete.retention.ms"
        case KeyFault.GONE if one.second is not None:
            return f"the {other} has lost a newer record: an unclean election, or damage"
        case KeyFault.GONE:
            return (
                f"the {first} has missed a tombstone that has expired since, or the {other} has lost the record: an "
                "election, or a replica that was away for longer than delete.retention.ms"
            )
        case KeyFault.RETURNED:
            return (
                f"the key has come back in the {other}: a replica that was away for longer than delete.retention.ms "
                "has lost the tombstone"
            )
        case _:
            return "an unclean election cut the log and it has grown again, or one of the two is damaged"


def _offset_of(latest: LatestRecord | None) -> int:
    return -1 if latest is None else latest.offset
