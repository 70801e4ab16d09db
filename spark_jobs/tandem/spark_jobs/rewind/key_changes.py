"""Compare a partition's state at a moment with its live log, key by key. Pure: records in, changes out.

A key is changed if its value or its headers differ, whatever the offsets and timestamps of the two records are: a
record that was written again with the same contents is no change, so a rewind that is repeated finds nothing to do.

Memory: a key costs one entry of a dictionary, two where both sides differ: a hash of 128 bits, and 33 bytes. Measured:
170 MB per million keys that are the same on both sides, and 415 MB where all differ. Larger partitions are divided by
hash, and are read once for each bucket.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from hashlib import blake2b
from typing import Final, NamedTuple

from tandem.backup_avro.record.current import NOT_UTF8, decode_headers
from tandem.backup_avro.record.record_spans import Span
from tandem.spark_jobs.restore.live_write.offset_ranges import OffsetRange, in_ranges

#: Records of the state that one bucket is planned for: see the module's docstring for the memory.
BUCKET_RECORDS: Final = 1_000_000
_DIGEST: Final = 16
_TOMBSTONE: Final = bytes(_DIGEST)
_PACKED: Final = struct.Struct(f">qq?{_DIGEST}s")


class ChangeKind(StrEnum):
    """What became of a key since the moment."""

    CHANGED = "changed"
    CREATED = "created"
    DELETED = "deleted"


class SeenKey(NamedTuple):
    """A record with a key: `key` and `content` (value and headers) are hashes of 128 bits, zeros for a tombstone.

    `matches`: whether the record has the header that the choice asks for. `timestamp` in ms, -1 for none.
    """

    key: int
    offset: int
    timestamp: int
    matches: bool
    content: bytes

    @property
    def tombstone(self) -> bool:
        """Whether the record deletes its key."""
        return self.content == _TOMBSTONE


class KeyChange(NamedTuple):
    """One key that differs. `old` is its newest record at the moment, `live` that of the log; None: there is none."""

    kind: ChangeKind
    key: int
    old: SeenKey | None
    live: SeenKey | None

    @property
    def offset(self) -> int:
        """The offset of the newest record: of the live one, or of the old one where the log has none."""
        return (self.live or self.old).offset  # type: ignore[union-attr]  # one of them is there


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyChoice:
    """Which of the changed keys are rewound: those for which all of the given conditions hold; nothing given: all.

    `keys`: hashes as `hash_key` returns them. `since` and `until`: partition -> offset; the live record lies at or
    above the one and below the other. `header`: name and value that the live record has. `within`: partition -> ranges
    of offsets, one of which holds the live record. All but `keys` are about the newest live record, so
    they leave out a key without one, and partitions that they don't name.
    """

    keys: frozenset[int] | None = None
    since: Mapping[int, int] | None = None
    until: Mapping[int, int] | None = None
    header: tuple[str, bytes] | None = None
    within: Mapping[int, Sequence[OffsetRange]] | None = None

    def includes(self, partition: int, change: KeyChange) -> bool:
        """Return whether a change is rewound."""
        if self.keys is not None and change.key not in self.keys:
            return False
        live = change.live
        if live is None:
            return self.since is None and self.until is None and self.header is None and self.within is None
        return (
            (self.since is None or live.offset >= self.since.get(partition, live.offset + 1))
            and (self.until is None or live.offset < self.until.get(partition, 0))
            and (self.header is None or live.matches)
            and (self.within is None or in_ranges(live.offset, self.within.get(partition, ())))
        )


EVERY_KEY: Final = KeyChoice()


def hash_key(key: bytes) -> int:
    """Return the hash by which a key is remembered: the 128 bits of BLAKE2b."""
    return int.from_bytes(blake2b(key, digest_size=_DIGEST).digest())


def shown_hash(key: int) -> str:
    """Return a key's hash in hex, as samples show it."""
    return f"{key:032x}"


def bucket_count(records: int) -> int:
    """Return into how many buckets the keys of so many records are divided."""
    return max(1, -(-records // BUCKET_RECORDS))


@dataclass(slots=True)
class KeyReader:
    """Turns bodies into `SeenKey`s of one of `buckets` buckets, and counts the records without a key that it drops."""

    bucket: int = 0
    buckets: int = 1
    header: tuple[str, bytes] | None = None
    without_key: int = field(default=0, init=False)

    def of(self, body: bytes, spans: Iterable[Span]) -> Iterator[SeenKey]:
        """Yield the records of a body, whose places are in `spans`. Raises the errors of iterating over `spans`."""
        for _, _, offset, timestamp, _, key_at, key_from, key_to, value_at, _, _, headers_at, end in spans:
            if key_at < 0:
                self.without_key += self.bucket == 0
                continue
            key = hash_key(body[key_from:key_to])
            if key % self.buckets != self.bucket:
                continue
            content = _TOMBSTONE if value_at < 0 else blake2b(body[value_at:end], digest_size=_DIGEST).digest()
            matches = self.header is not None and _has_header(body, headers_at, end, self.header)
            yield SeenKey(key, offset, timestamp, matches, content)


def _has_header(body: bytes, at: int, end: int, wanted: tuple[str, bytes]) -> bool:
    if end - at == 1:
        return False
    name, value = wanted
    return any(value == found and name == key for key, found in decode_headers(body, at))


def header_choice(name: str, value: str) -> tuple[str, bytes]:
    """Return the header that a choice asks for; bytes that are not UTF-8 are kept as the shell passes them."""
    return name, value.encode("utf-8", NOT_UTF8)


class KeyStates:
    """Folds both sides, each in ascending order of offsets, into the newest record of each key.

    At an offset where both sides have the same record, older records of its key are dropped, so a key that both sides
    end with is kept once.
    """

    def __init__(self) -> None:
        self._same: dict[int, bytes] = {}
        self._old: dict[int, bytes] = {}
        self._live: dict[int, bytes] = {}

    @property
    def full(self) -> bool:
        """Whether these are more entries than one bucket may have."""
        return len(self._same) + len(self._old) + len(self._live) > BUCKET_RECORDS + BUCKET_RECORDS // 8

    def merge(self, old: Iterable[SeenKey], live: Iterable[SeenKey]) -> None:
        """Read all records of both sides."""
        olds = iter(old)
        one = next(olds, None)
        for other in live:
            while one is not None and one.offset < other.offset:
                self._old[one.key] = _packed(one)
                one = next(olds, None)
            if one is not None and one.offset == other.offset and (one.key, one.content) == (other.key, other.content):
                self._old.pop(one.key, None)
                self._live.pop(one.key, None)
                self._same[one.key] = _packed(other)
                one = next(olds, None)
            else:
                self._live[other.key] = _packed(other)
        while one is not None:
            self._old[one.key] = _packed(one)
            one = next(olds, None)

    @property
    def keys(self) -> int:
        """The number of keys that at least one side has, including deleted ones that still have a tombstone."""
        return len(self._same) + len((self._old.keys() | self._live.keys()) - self._same.keys())

    def changes(self) -> Iterator[KeyChange]:
        """Yield the keys on which the two sides differ, in no order."""
        for key in self._old.keys() | self._live.keys():
            same = self._same.get(key)
            change = judge_key(key, _unpacked(key, self._old.get(key, same)), _unpacked(key, self._live.get(key, same)))
            if change is not None:
                yield change


def judge_key(key: int, old: SeenKey | None, live: SeenKey | None) -> KeyChange | None:
    """Return what became of a key; None if it has the same contents on both sides, or no value on either."""
    here = old is not None and not old.tombstone
    there = live is not None and not live.tombstone
    if here and there:
        assert old is not None
        assert live is not None
        return None if old.content == live.content else KeyChange(ChangeKind.CHANGED, key, old, live)
    if here:
        return KeyChange(ChangeKind.DELETED, key, old, live)
    return KeyChange(ChangeKind.CREATED, key, old, live) if there else None


def _packed(one: SeenKey) -> bytes:
    return _PACKED.pack(one.offset, one.timestamp, one.matches, one.content)


def _unpacked(key: int, packed: bytes | None) -> SeenKey | None:
    return None if packed is None else SeenKey(key, *_PACKED.unpack(packed))
