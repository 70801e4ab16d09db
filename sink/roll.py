"""Rolling: segments of many partitions into compressed blocks, blocks into objects.

Buffers are kept per partition and per lane (the tail, or one attempt at a base chunk), because an attempt may turn out
not to count. A cut empties all buffers into objects: the partitions with most bytes get their own, the others share a
journal. All objects of a generation have the same header and sync marker, so that blocks can be copied between them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from backup_avro.chain import Part, PartitionKey, StoredObject, sha256_hex
from backup_avro.container import Codec, encode_block, encode_header
from sink.transcode.segment import Segment

LaneKey = tuple[PartitionKey, int | None]


class Names(Protocol):
    """Makes the keys of new objects; every call returns another one."""

    def data(self, key: PartitionKey, first: int, last: int) -> str:
        """Return the key of an object of one partition."""
        ...

    def journal(self) -> str:
        """Return the key of an object that partitions share."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltObject:
    """An object ready to be stored."""

    item: StoredObject
    data: bytes


class _Lane:
    """What was read of one partition in one lane since the last cut: closed blocks and the block being filled."""

    __slots__ = (
        "blocks",
        "count",
        "first",
        "last",
        "max_timestamp",
        "min_timestamp",
        "open_bytes",
        "open_count",
        "pending",
        "size",
        "tombstones",
    )

    def __init__(self) -> None:
        self.blocks: list[bytes] = []
        self.size = 0
        self.pending: list[bytes] = []
        self.open_bytes = 0
        self.open_count = 0
        self.count = 0
        self.tombstones = 0
        self.first = -1
        self.last = -1
        self.min_timestamp = 0
        self.max_timestamp = 0

    def add(self, segment: Segment) -> None:
        assert segment.first_offset > self.last, "offsets ascend within a lane"
        if self.count == 0:
            self.first = segment.first_offset
            self.min_timestamp, self.max_timestamp = segment.min_timestamp, segment.max_timestamp
        else:
            self.min_timestamp = min(self.min_timestamp, segment.min_timestamp)
            self.max_timestamp = max(self.max_timestamp, segment.max_timestamp)
        self.last = segment.last_offset
        self.count += segment.records
        self.tombstones += segment.tombstones
        self.pending.append(segment.body)
        self.open_bytes += len(segment.body)
        self.open_count += segment.records

    def close_block(self, codec: Codec, sync: bytes, level: int | None) -> None:
        if self.open_count:
            body = self.pending[0] if len(self.pending) == 1 else b"".join(self.pending)
            block = encode_block(body, self.open_count, codec=codec, sync=sync, level=level)
            self.blocks.append(block)
            self.size += len(block)
            self.pending = []
            self.open_bytes = 0
            self.open_count = 0


class Roller:
    """Buffers segments and cuts them into objects. Not thread-safe. `bytes` is what it holds, compressed or not yet.

    `level` is the codec's compression level, None for its own. It may differ between processes of one generation.
    """

    def __init__(self, *, codec: Codec, sync: bytes, block_size: int, level: int | None = None) -> None:
        self._codec = codec
        self._level = level
        self._sync = sync
        self._block_size = block_size
        self._header = encode_header(codec=codec, sync=sync)
        self._lanes: dict[LaneKey, _Lane] = {}
        self._bytes_by_key: dict[PartitionKey, int] = {}
        self.bytes = 0

    @property
    def largest(self) -> int:
        """Bytes held for the partition with most of them."""
        return max(self._bytes_by_key.values(), default=0)

    def holds(self, key: PartitionKey) -> bool:
        """Whether anything of a partition waits for the next cut."""
        return key in self._bytes_by_key

    def add(self, key: PartitionKey, scan: int | None, segments: Iterable[Segment]) -> None:
        """Take segments of one partition and lane; their offsets go on from the last ones'."""
        lane = self._lanes.get((key, scan))
        for segment in segments:
            if lane is None:
                lane = self._lanes.setdefault((key, scan), _Lane())
            before = lane.size + lane.open_bytes
            lane.add(segment)
            if lane.open_bytes >= self._block_size:
                lane.close_block(self._codec, self._sync, self._level)
            self._account(key, lane.size + lane.open_bytes - before)

    def _account(self, key: PartitionKey, delta: int) -> None:
        self.bytes += delta
        left = self._bytes_by_key.get(key, 0) + delta
        if left:
            self._bytes_by_key[key] = left
        else:
            self._bytes_by_key.pop(key, None)

    def discard(self, key: PartitionKey, scan: int) -> None:
        """Forget what an attempt read since the last cut."""
        lane = self._lanes.pop((key, scan), None)
        if lane is not None:
            self._account(key, -(lane.size + lane.open_bytes))

    def drop(self, key: PartitionKey) -> None:
        """Forget everything of a partition since the last cut."""
        for lane_key in [lane_key for lane_key in self._lanes if lane_key[0] == key]:
            lane = self._lanes.pop(lane_key)
            self._account(key, -(lane.size + lane.open_bytes))

    def cut(self, names: Names, *, max_objects: int) -> list[BuiltObject]:
        """Turn all that is held into at most `max_objects` objects (at least 2) and start afresh."""
        by_key: dict[PartitionKey, list[tuple[int | None, _Lane]]] = {}
        for (key, scan), lane in self._lanes.items():
            lane.close_block(self._codec, self._sync, self._level)
            by_key.setdefault(key, []).append((scan, lane))
        for lanes in by_key.values():
            lanes.sort(key=lambda item: item[1].first)
        self._lanes = {}
        self._bytes_by_key = {}
        self.bytes = 0
        own = sorted(by_key, key=lambda key: -sum(lane.size for _, lane in by_key[key]))
        shared: list[PartitionKey] = []
        if len(own) > max_objects:
            own, shared = own[: max_objects - 1], sorted(own[max_objects - 1 :])
        built = []
        for key in own:
            lanes = by_key[key]
            first, last = min(lane.first for _, lane in lanes), max(lane.last for _, lane in lanes)
            built.append(self._build(names.data(key, first, last), [(key, lanes)], journal=False))
        if shared:
            built.append(self._build(names.journal(), [(key, by_key[key]) for key in shared], journal=True))
        return built

    def _build(
        self, name: str, groups: list[tuple[PartitionKey, list[tuple[int | None, _Lane]]]], *, journal: bool
    ) -> BuiltObject:
        pieces = [self._header]
        at = len(self._header)
        parts = []
        for key, lanes in groups:
            for scan, lane in lanes:
                pieces.extend(lane.blocks)
                parts.append(
                    Part(
                        key=key,
                        first=lane.first,
                        last=lane.last,
                        records=lane.count,
                        tombstones=lane.tombstones,
                        min_timestamp=lane.min_timestamp,
                        max_timestamp=lane.max_timestamp,
                        start=at,
                        end=at + lane.size,
                        scan=scan,
                    )
                )
                at += lane.size
        data = b"".join(pieces)
        item = StoredObject(key=name, journal=journal, bytes=len(data), sha256=sha256_hex(data), parts=tuple(parts))
        return BuiltObject(item=item, data=data)
