"""What was written, as the writers' ledger and an independent consumer know it. Pure; thread-safe.

A record is known by its place (topic, partition), its offset and a digest of key, value, headers and timestamp. Digests
are kept in arrays by offset, eight bytes each, so that a campaign of millions of records fits in memory. For each key
the newest records are kept too, back to the last cut that was judged.
"""

from __future__ import annotations

import hashlib
import struct
import threading
from array import array
from bisect import insort
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

Place = tuple[str, int]
Headers = tuple[tuple[str, bytes | None], ...]
Ends = Mapping[Place, int]


class Seen(NamedTuple):
    """One record, wherever it was seen. `digest` is never 0."""

    place: Place
    offset: int
    key: bytes | None
    digest: int
    tombstone: bool


def digest_of(key: bytes | None, value: bytes | None, headers: Headers, timestamp: int) -> int:
    """Return 64 bits of a hash over all that a record carries. Null and empty differ; `timestamp` in ms."""
    state = hashlib.blake2b(struct.pack(">q", timestamp), digest_size=8)
    for name, part in (("key", key), ("value", value), *headers):
        name_bytes = name.encode()
        state.update(struct.pack(">iq", len(name_bytes), -1 if part is None else len(part)))
        state.update(name_bytes)
        state.update(part or b"")
    return int.from_bytes(state.digest(), "big") or 1


class Latest(NamedTuple):
    """A record of one key, ordered by offset."""

    offset: int
    digest: int
    tombstone: bool


@dataclass(slots=True)
class _Partition:
    committed: array[int] = field(default_factory=lambda: array("Q"))
    aborted: array[int] = field(default_factory=lambda: array("Q"))
    read: array[int] = field(default_factory=lambda: array("Q"))
    by_key: dict[bytes | None, list[Latest]] = field(default_factory=dict)
    acknowledged: int = 0
    followed: int = 0


class Facts:
    """All that is known to be committed, all that is known to be aborted, and how far each witness has come."""

    def __init__(self, places: Iterable[Place]) -> None:
        self._partitions = {place: _Partition() for place in places}
        self._lock = threading.Lock()
        self.contradictions: list[str] = []
        self.records = 0
        self.aborted = 0

    def acknowledge(self, seen: Seen) -> None:
        """Take a record that the broker confirmed to its writer, and that is committed."""
        with self._lock:
            self._add(seen)
            partition = self._partitions[seen.place]
            partition.acknowledged = max(partition.acknowledged, seen.offset + 1)

    def abort(self, seen: Seen) -> None:
        """Take a record whose transaction was aborted: nobody may ever see it."""
        with self._lock:
            partition = self._partitions[seen.place]
            if _at(partition.committed, seen.offset):
                self._contradict(f"{_name(seen)} was read although its transaction was aborted")
            _set(partition.aborted, seen.offset, seen.digest)
            self.aborted += 1

    def doubt(self, seen: Seen) -> None:
        """Take back that a record must come back, unless the consumer has read it: the broker confirmed and lost it.

        It may still come back, as part of the transaction that its writer began next. The consumer must have passed it.
        """
        with self._lock:
            partition = self._partitions[seen.place]
            if not _at(partition.read, seen.offset):
                known = partition.by_key.get(seen.key, [])
                partition.by_key[seen.key] = [record for record in known if record.offset != seen.offset]

    def follow(self, seen: Seen) -> None:
        """Take a record that the independent consumer read."""
        with self._lock:
            self._add(seen)
            _set(self._partitions[seen.place].read, seen.offset, seen.digest)
            self._reach(seen.place, seen.offset + 1)

    def reach(self, place: Place, position: int) -> None:
        """Note that the independent consumer has read all below `position`."""
        with self._lock:
            self._reach(place, position)

    def _reach(self, place: Place, position: int) -> None:
        partition = self._partitions[place]
        partition.followed = max(partition.followed, position)

    def _add(self, seen: Seen) -> None:
        partition = self._partitions[seen.place]
        before = _at(partition.committed, seen.offset)
        if before == seen.digest:
            return
        if before:
            self._contradict(f"{_name(seen)} is one record for its writer and another one for a consumer")
            return
        if _at(partition.aborted, seen.offset):
            self._contradict(f"{_name(seen)} was read although its transaction was aborted")
        _set(partition.committed, seen.offset, seen.digest)
        self.records += 1
        insort(partition.by_key.setdefault(seen.key, []), Latest(seen.offset, seen.digest, seen.tombstone))

    def _contradict(self, what: str) -> None:
        self.contradictions.append(what)

    # --- questions --------------------------------------------------------------------------------------------------

    def acknowledged(self) -> dict[Place, int]:
        """Return the ends (exclusive) of what the writers know to be committed."""
        with self._lock:
            return {place: partition.acknowledged for place, partition in self._partitions.items()}

    def behind(self, ends: Ends) -> list[Place]:
        """Return the places where the independent consumer has not come to `ends` yet."""
        with self._lock:
            return [place for place, end in ends.items() if self._partitions[place].followed < end]

    def committed(self, place: Place, offset: int) -> int:
        """Return the digest of the committed record there, 0 if none is known."""
        return _at(self._partitions[place].committed, offset)

    def was_aborted(self, place: Place, offset: int) -> bool:
        """Whether an aborted record is known to have had this offset."""
        return _at(self._partitions[place].aborted, offset) != 0

    def latest(self, place: Place, end: int) -> dict[bytes | None, Latest]:
        """Return the last record of each key below `end`, which must not lie below what was forgotten."""
        with self._lock:
            found = {}
            for key, records in self._partitions[place].by_key.items():
                below = [record for record in records if record.offset < end]
                if below:
                    found[key] = below[-1]
            return found

    def written_since(self, place: Place, key: bytes | None, offset: int) -> bool:
        """Whether the key was written again above `offset`."""
        with self._lock:
            return any(record.offset > offset for record in self._partitions[place].by_key.get(key, ()))

    def offsets_of(self, place: Place, end: int) -> dict[int, list[int]]:
        """Return digest → offsets of all committed records below `end`: the way back from records without offsets."""
        found: dict[int, list[int]] = {}
        for offset, digest in enumerate(self._partitions[place].committed[:end]):
            if digest:
                found.setdefault(digest, []).append(offset)
        return found

    def forget(self, ends: Ends) -> None:
        """Forget, for each key, what was superseded below `ends`; no earlier cut can be judged from then on."""
        with self._lock:
            for place, end in ends.items():
                by_key = self._partitions[place].by_key
                for key, records in by_key.items():
                    below = sum(record.offset < end for record in records)
                    if below > 1:
                        by_key[key] = records[below - 1 :]


def _at(digests: array[int], offset: int) -> int:
    return digests[offset] if 0 <= offset < len(digests) else 0


def _set(digests: array[int], offset: int, digest: int) -> None:
    if offset >= len(digests):
        digests.frombytes(bytes(8 * (offset + 1 - len(digests))))
    digests[offset] = digest


def _name(seen: Seen) -> str:
    return f"{seen.place[0]}-{seen.place[1]} offset {seen.offset}"
