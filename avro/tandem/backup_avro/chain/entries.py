"""Claims and chain entries: their fields. `json_codec` has their JSON form.

A generation is what its chain records. The first entry links to the claim by the hash of the claim's bytes, every other
one to its predecessor's. Bytes are canonical (sorted keys, no spaces, UTF-8), so equal entries are equal bytes.
Times named `at` and `*_at` are milliseconds since the epoch by the store's clock; in JSON `at` is written as ISO 8601.
Unknown fields are refused: a reader that doesn't know one can't know whether leaving it out is safe (`v` moves then).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, make_dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final, NamedTuple

from msgspec import Struct

from tandem.backup_avro.chain.integers import number_in
from tandem.backup_avro.record.envelope import ChunkRange, Envelope

JsonObject = dict[str, Any]


class EntryKind(StrEnum):
    """The kind of a chain entry: its effect on the generation."""

    OPEN = "OPEN"
    COMMIT = "COMMIT"
    CONFIRM = "CONFIRM"
    COMPLETE = "COMPLETE"
    TAINTED = "TAINTED"
    CHECKPOINT = "CHECKPOINT"
    REWRITE = "REWRITE"
    TAKEOVER = "TAKEOVER"
    SEALED = "SEALED"
    CLEARING = "CLEARING"
    CLEARED = "CLEARED"
    SNAPSHOT = "SNAPSHOT"


class CompactValue(Struct, frozen=True, kw_only=True, gc=False):
    """A frozen value of which a chain has millions: a msgspec Struct, which `dataclasses` takes for a dataclass.

    It is made several times as fast as a frozen dataclass, and the garbage collector does not track it: 16 bytes less,
    and nothing to traverse. So its fields hold immutable values alone, which can't refer back to it.
    """

    def __init_subclass__(cls) -> None:
        """Describe the fields for `dataclasses.replace` and `fields`."""
        super().__init_subclass__()
        hints = cls.__annotations__
        described = make_dataclass(cls.__name__, [(name, hint, field(kw_only=True)) for name, hint in hints.items()])
        cls.__dataclass_fields__ = {one.name: one for one in fields(described)}


class PartitionKey(NamedTuple):
    """A partition of one topic id: a topic that is deleted and created anew has another. The claim names the cluster.

    A tuple, because it is hashed and compared more often than any other value.
    """

    topic_id: str
    partition: int


class Part(CompactValue, frozen=True, kw_only=True, gc=False):
    """One partition's records in a data object: bytes [start, end) are whole Avro blocks of this partition alone.

    `scan` is the number of the scan attempt that read them (see `Base`), None if the tail did. `sha256` is the hash of
    the stored bytes of the part (see `StoredObject.stretch`): a journal's parts have one, so that one can be read and
    checked without the others. No record is larger than `largest` bytes, as a batch has it uncompressed; `uncompressed`
    is the size in bytes of all records, as the blocks have them before they are compressed. None: not known. `codecs`
    are the compression codecs of the record batches that the records came in: bit n for number n of the batches'
    attributes (KIP-98: none, gzip, snappy, lz4, zstd), 0 where they were not recorded, as by earlier releases. Of an
    encrypted object `start` and `end` count plain bytes; the hash is always of encrypted bytes, as a hash of plain
    bytes would confirm a guess.
    """

    key: PartitionKey
    first: int
    last: int
    records: int
    tombstones: int
    min_timestamp: int
    max_timestamp: int
    start: int
    end: int
    scan: int | None = None
    sha256: str | None = None
    largest: int | None = None
    uncompressed: int | None = None
    codecs: int = 0


def largest_of(parts: Iterable[Part]) -> int | None:
    """Return the most bytes that a record of these parts may have, None if one of the parts does not record it."""
    largest = 0
    for part in parts:
        if part.largest is None:
            return None
        largest = max(largest, part.largest)
    return largest


def uncompressed_of(parts: Iterable[Part]) -> int | None:
    """Return the uncompressed size in bytes of the records of these parts, None if one part does not record it."""
    total = 0
    for part in parts:
        if part.uncompressed is None:
            return None
        total += part.uncompressed
    return total


def codecs_of(parts: Iterable[Part]) -> int:
    """Return the codecs that batches of these parts are known to have had, as `Part.codecs`; 0 if none is known."""
    found = 0
    for part in parts:
        found |= part.codecs
    return found


class StoredObject(CompactValue, frozen=True, kw_only=True, gc=False):
    """A data object; `parts` are in (topic, partition, offset) order. A journal holds many partitions, others one.

    `bytes` and `sha256` are of the stored bytes, which are encrypted if there is an `envelope`.
    """

    key: str
    journal: bool
    bytes: int
    sha256: str
    parts: tuple[Part, ...]
    envelope: Envelope | None = None

    @property
    def records(self) -> int:
        """Number of records in all parts, live or not."""
        return sum(part.records for part in self.parts)

    @property
    def plain_bytes(self) -> int:
        """Bytes of the Avro file. DamagedError: no encrypted object can have the recorded size."""
        return self.bytes if self.envelope is None else self.envelope.plain_size(self.bytes)

    @property
    def separable(self) -> bool:
        """Whether each part can be read and checked without the others, as the parts of journals can."""
        return self.journal and all(part.sha256 is not None for part in self.parts)

    def chunk_range(self, start: int, end: int) -> ChunkRange:
        """Return the stored bytes that hold bytes [start, end) of the Avro file: whole chunks if it is encrypted.

        Raises DamagedError if there are no such bytes.
        """
        if self.envelope is None:
            return ChunkRange(first=0, start=start, end=end, plain=start)
        return self.envelope.chunk_range(self.bytes, start, end)


class Base(CompactValue, frozen=True, kw_only=True, gc=False):
    """The progress of a generation's scan (its first reading of a log) of one partition: the offsets [start, end).

    Ranges are read from high to low, each by a numbered attempt. `done` are the ranges whose attempt succeeded,
    ascending and merged; `open` are attempts under way at this entry as (from, to, attempt). A part counts only if its
    attempt is at least `floor` (raised when the leader moved and the scan restarts) and not in `void`.
    `leader` is the broker that the scan reads from, `epoch` the leader epoch in which it was last seen to lead (-1:
    not known), `done_at` the store's time when the last range was done.
    """

    start: int
    end: int
    leader: int
    attempts: int = 0
    floor: int = 1
    done: tuple[tuple[int, int], ...] = ()
    open: tuple[tuple[int, int, int], ...] = ()
    void: tuple[int, ...] = ()
    done_at: int | None = None
    epoch: int = -1

    @property
    def complete(self) -> bool:
        """Whether all of [start, end) has been read."""
        return self.done_at is not None

    def counts(self, attempt: int) -> bool:
        """Whether the objects that `attempt` stored belong to the backup."""
        return attempt >= self.floor and attempt not in self.void


class RecordHash(NamedTuple):
    """One record of a log: its offset, and the first 12 hex digits of the SHA-256 of its Avro encoding.

    The encoding is `AvroKafkaRecord` as data objects have it, which holds the offset, too. Whatever a broker does to a
    batch (it compacts it, compresses it again, moves it to another replica), a record that stays in the log keeps its
    hash.

    Where data objects are encrypted it is an HMAC of the encoding, because a plain hash would confirm a guess. `key` is
    then the id of the HMAC's key (8 hex digits), else empty.
    """

    offset: int
    sha256: str
    key: str = ""


class Position(CompactValue, frozen=True, kw_only=True, gc=False):
    """How far a partition has been read: `offset` is the next one to read (tail), `epoch` that of the last batch read.

    `head_at` is the last moment at which the position was the log's end, as of the entry that names the position
    (`Generation.head_at` knows later ones); `log_start` is as of the last response. `skew` is that of the entry from
    which `head_at` was taken over, None if `head_at` is the naming entry's own (`Generation.skew` selects the right
    one). `hashes` are those of some records below `offset` as they were read, ascending, the last one of the last
    record that the tail read: offsets and epochs can be used again for other records, their contents can't. Empty in
    entries of the first releases.
    """

    offset: int
    epoch: int
    head_at: int
    log_start: int
    base: Base
    skew: int | None = None
    hashes: tuple[RecordHash, ...] = ()


def policies_in(config: Mapping[str, str], *, unsaid: str = "") -> frozenset[str]:
    """Return the policies that `cleanup.policy` names; those that `unsaid` names if the key is absent."""
    return frozenset(name.strip() for name in config.get("cleanup.policy", unsaid).split(",") if name.strip())


def number_setting(config: Mapping[str, str], name: str, *, unsaid: int, unclear: int) -> int:
    """Return a number of a topic's configuration; `unsaid` if it is absent, `unclear` if it is no 64-bit number.

    Kafka's brokers validate configurations, but not every implementation of their protocol does, and one topic's
    invalid value must not end an operation on many topics.
    """
    text = config.get(name)
    if text is None:
        return unsaid
    digits = text.strip()
    found = number_in(digits.removeprefix("-"))
    return unclear if found is None else -found if digits.startswith("-") else found


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """A topic as it was described: `config` holds the topic's own settings, and the effective retention settings."""

    name: str
    topic_id: str
    partitions: int
    replication_factor: int
    config: dict[str, str]
    removed: bool = False

    @property
    def policies(self) -> frozenset[str]:
        """The policies that `cleanup.policy` names; empty if it was not recorded."""
        return policies_in(self.config)

    @property
    def compacted(self) -> bool:
        """Whether the broker compacts the topic, by its recorded configuration."""
        return "compact" in self.policies


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupOffset:
    """A consumer group's committed offset on one partition."""

    key: PartitionKey
    offset: int
    epoch: int = -1
    metadata: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A moment between commits: the positions that changed since the previous mark or commit, all at head at `at`."""

    at: int
    offsets: dict[PartitionKey, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Taint:
    """Why a partition's records from `offset` on may lack tombstones or records. The records below are sound.

    `cut_at` is where the log was truncated below the position: the records from there on are in this generation only,
    whatever the log holds under their offsets now. `epoch` is the leader epoch of the last position before the taint:
    it identifies the history of the log that the sound part belongs to. No record is sound where `offset` is the scan's
    start.
    """

    key: PartitionKey
    offset: int
    reason: str
    cut_at: int | None = None
    epoch: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Clearing:
    """The partitions that a CLEARING or CLEARED entry deletes, and those that stay, each with the reason."""

    goes: tuple[PartitionKey, ...]
    stays: dict[PartitionKey, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Horizon:
    """The offsets below which a REWRITE left only the newest record of each key: `offsets`, by partition, exclusive.

    `seq` is the chain entry whose moment it is. Earlier moments can't be restored any more.
    """

    seq: int
    offsets: dict[PartitionKey, int]


class Expired(NamedTuple):
    """Expiry of a partition whose topic's policy is `delete`: a janitor removed records below `offset`, exclusive.

    Some records below it may still be there: expiry removes whole objects, by the times in them. `seq` is the last
    REWRITE that removed some: earlier moments may have held them.
    """

    offset: int
    seq: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """The values that OPEN fixes for a generation. `sync` is the sync marker of all its objects (32 hex digits).

    `compacted_from` is what earlier generations tell: of each partition the log start when the policy was first
    `compact` alone, and the number of the last generation that has seen such a policy itself. A `Generation` keeps it
    apart: its opening travels with each piece of work on its objects.
    """

    isolation_level: str
    codec: str
    sync: str
    compacted_from: Mapping[PartitionKey, tuple[int, int]] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """The object that assigns a generation number to one instance."""

    generation: int
    pair: str
    instance: str
    incarnation: str
    cluster_id: str
    nonce: str
    at: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One link of a chain. Only the fields of its kind are set; positions, topics and groups name changes only.

    `head_at`: the moment at which every partition whose position the entry does not name was at head, so that a
    thousand idle partitions cost one number. `skew` is by how many ms the writer's local clock was ahead of the store's
    time that the entry's `head_at`s are in (negative: behind); None in entries of the first releases. `replaced` are
    the keys of objects that a REWRITE supersedes by `objects`, `deleted` those that an earlier one superseded and that
    are no longer in the store. `checkpoint` is the id of a named cut.

    `unrecorded` are all groups that read the cluster's topics, maybe, and whose positions are not recorded, each with
    the reason; None: as before.

    A REWRITE that leaves records out names its `horizon`. One that adds objects and is not the holder's names `since`,
    the last entry of the chain when its writer began to store them (none: the first). A `fence` is a REWRITE after
    which objects that a janitor stored before it, and has not committed, can't be committed any more. `erased` maps
    objects to what holds their records without those of the keys that were erased; None if nothing is left.
    """

    kind: EntryKind
    seq: int
    prev_sha256: str
    incarnation: str
    at: int
    snapshot: int = 0
    objects: tuple[StoredObject, ...] = ()
    replaced: tuple[str, ...] = ()
    deleted: tuple[str, ...] = ()
    horizon: Horizon | None = None
    since: int | None = None
    fence: bool = False
    erased: dict[str, StoredObject | None] = field(default_factory=dict)
    positions: dict[PartitionKey, Position] = field(default_factory=dict)
    head_at: int | None = None
    skew: int | None = None
    topics: tuple[Topic, ...] = ()
    groups: dict[str, tuple[GroupOffset, ...]] = field(default_factory=dict)
    unrecorded: dict[str, str] | None = None
    marks: tuple[Mark, ...] = ()
    taints: tuple[Taint, ...] = ()
    opening: Opening | None = None
    clearing: Clearing | None = None
    checkpoint: str | None = None
    reason: str | None = None
    folded: JsonObject | None = None

    @property
    def tells_of_cluster(self) -> bool:
        """Whether the entry names what was read of the cluster: positions, topics, groups, times at head."""
        told = self.positions or self.topics or self.groups or self.taints
        return bool(told) or self.head_at is not None or self.unrecorded is not None


def is_sha256_hex(value: object) -> bool:
    """Return whether an external value has the form of a result of `sha256_hex`."""
    return isinstance(value, str) and _SHA256_HEX.fullmatch(value) is not None


def sha256_hex(data: bytes | bytearray | memoryview) -> str:
    """Return the SHA-256 of `data` in hex."""
    return hashlib.sha256(data).hexdigest()


def iso(at: int) -> str:
    """Return ms since the epoch as ISO 8601 in UTC with milliseconds."""
    return f"{datetime.fromtimestamp(at // 1000, UTC).isoformat()[:-6]}.{at % 1000:03d}Z"


_SHA256_HEX: Final = re.compile(r"[0-9a-f]{64}", re.ASCII)
_WRITTEN: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", re.ASCII)


def from_iso(text: str) -> int:
    """Return ms since the epoch for a text that `iso` wrote; ValueError otherwise."""
    if _WRITTEN.fullmatch(text) is None:
        raise ValueError(f"not a moment as ISO 8601 in UTC with milliseconds: {text!r}")
    return round(datetime.fromisoformat(text).timestamp() * 1000)
