"""Buffers segments of many partitions in compressed blocks until a commit cuts them into objects.

Buffers are kept per partition and per lane (the tail, or one attempt at a scan range), because an attempt may turn out
not to count. A cut empties all buffers into objects, one for each partition or, if these are too many, for each large
one; the others share a journal. All objects of a generation have the same header and sync marker, so that blocks can be
copied between them.

The reading thread does not wait for compression: other threads compress the blocks, and the thread that stores an
object puts it together.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from typing import Protocol

from tandem.backup_avro.chain.entries import Part, PartitionKey, StoredObject
from tandem.backup_avro.record.container import Codec, encode_block, encode_header
from tandem.sink.encryption.key_ring import ObjectSeal
from tandem.sink.store.encrypted_objects import ObjectBytes, stored_object
from tandem.sink.transcode.transcoder_result import Segment

LaneKey = tuple[PartitionKey, int | None]
_MOST_COMPRESSING = 32
"""Most blocks that are being compressed or wait for it. Each is held uncompressed, so they must be few."""
OWN_BYTES = 1 << 20
"""Bytes in a commit below which partitions share the journal, if not each can have an object of its own."""


class ObjectNames(Protocol):
    """Makes the keys of new objects; every call returns a new one."""

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
    """Records of one partition and lane since the last cut: closed blocks and the block being filled.

    `blocks` are compressed or being compressed, in order. `held` are the bytes of all of them: a block counts with its
    uncompressed size until it is compressed.
    """

    __slots__ = (
        "blocks",
        "codecs",
        "count",
        "first",
        "held",
        "largest",
        "last",
        "max_timestamp",
        "min_timestamp",
        "open_bytes",
        "open_count",
        "pending",
        "tombstones",
        "uncompressed",
    )

    def __init__(self) -> None:
        self.blocks: deque[bytes | Future[bytes]] = deque()
        self.held = 0
        self.pending: list[bytes] = []
        self.open_bytes = 0
        self.open_count = 0
        self.count = 0
        self.tombstones = 0
        self.largest = 0
        self.codecs = 0
        self.uncompressed = 0
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
        self.largest = max(self.largest, segment.largest)
        self.codecs |= segment.codecs
        self.uncompressed += len(segment.body)
        self.pending.append(segment.body)
        self.open_bytes += len(segment.body)
        self.open_count += segment.records
        self.held += len(segment.body)

    def finish(self) -> int:
        """Wait until all blocks are compressed, and return their bytes."""
        done = [block.result() if isinstance(block, Future) else block for block in self.blocks]
        self.blocks = deque(done)
        return sum(len(block) for block in done)

    def move_to(self, canvas: ObjectBytes) -> None:
        """Write all blocks to `canvas` and release each. Call `finish` first."""
        while self.blocks:
            block = self.blocks.popleft()
            assert isinstance(block, bytes)
            canvas.write(block)


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectAssembly:
    """An object that is not built yet. `held` are about the bytes that it takes in memory."""

    key: str
    journal: bool
    header: bytes
    groups: tuple[tuple[PartitionKey, tuple[tuple[int | None, _Lane], ...]], ...]

    @property
    def held(self) -> int:
        """Bytes held, by the sizes of the blocks known at the cut."""
        return len(self.header) + sum(lane.held for _, lanes in self.groups for _, lane in lanes)

    def build(self, seal: ObjectSeal | None = None) -> BuiltObject:
        """Put the object together once all of its blocks are compressed. Any thread may call it, once: it frees them.

        With a `seal` it is encrypted.
        """
        size = len(self.header) + sum(lane.finish() for _, lanes in self.groups for _, lane in lanes)
        canvas = ObjectBytes(seal, key=self.key, size=size)
        canvas.write(self.header)
        parts = []
        for key, lanes in self.groups:
            for scan, lane in lanes:
                start = canvas.at
                lane.move_to(canvas)
                parts.append(
                    Part(
                        key=key,
                        first=lane.first,
                        last=lane.last,
                        records=lane.count,
                        tombstones=lane.tombstones,
                        min_timestamp=lane.min_timestamp,
                        max_timestamp=lane.max_timestamp,
                        start=start,
                        end=canvas.at,
                        scan=scan,
                        largest=lane.largest,
                        uncompressed=lane.uncompressed,
                        codecs=lane.codecs,
                    )
                )
        data = canvas.finish()
        item = stored_object(data, key=self.key, journal=self.journal, parts=tuple(parts), seal=seal)
        return BuiltObject(item=item, data=data)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Compressing:
    key: PartitionKey
    lane: _Lane
    block: Future[bytes]
    size: int


class ObjectBuffer:
    """Buffers segments and cuts them into objects. Used by one thread. `bytes` counts all blocks, compressed or not.

    `level` is the codec's compression level, None for its default. It may differ between processes of one generation.
    `pool` compresses the blocks; without one, the thread that calls `add` does.
    """

    def __init__(
        self, *, codec: Codec, sync: bytes, block_size: int, level: int | None = None, pool: Executor | None = None
    ) -> None:
        self._codec = codec
        self._level = level
        self._sync = sync
        self._block_size = block_size
        self._pool = None if codec is Codec.NULL else pool
        self._header = encode_header(codec=codec, sync=sync)
        self._lanes: dict[LaneKey, _Lane] = {}
        self._bytes_by_key: dict[PartitionKey, int] = {}
        self._compressing: deque[_Compressing] = deque()
        self.bytes = 0

    @property
    def largest(self) -> int:
        """Bytes held for the partition that has the most."""
        return max(self._bytes_by_key.values(), default=0)

    def holds(self, key: PartitionKey) -> bool:
        """Return whether records of a partition wait for the next cut."""
        return key in self._bytes_by_key

    def add(self, key: PartitionKey, scan: int | None, segments: Iterable[Segment]) -> None:
        """Add segments of one partition and lane; their offsets are above those of earlier segments."""
        self._settle()
        lane = self._lanes.get((key, scan))
        for segment in segments:
            if lane is None:
                lane = self._lanes.setdefault((key, scan), _Lane())
            lane.add(segment)
            self._account(key, len(segment.body))
            if lane.open_bytes >= self._block_size:
                self._close_block(key, lane)

    def _close_block(self, key: PartitionKey, lane: _Lane) -> None:
        if not lane.open_count:
            return
        bodies, count, size = lane.pending, lane.open_count, lane.open_bytes
        lane.pending, lane.open_bytes, lane.open_count = [], 0, 0
        if self._pool is None:
            block = self._encode(bodies, count)
            lane.blocks.append(block)
            self._compressed(key, lane, len(block) - size)
            return
        future = self._pool.submit(self._encode, bodies, count)
        lane.blocks.append(future)
        self._compressing.append(_Compressing(key=key, lane=lane, block=future, size=size))
        if len(self._compressing) > _MOST_COMPRESSING:
            self._compressing[0].block.result()

    def _encode(self, bodies: list[bytes], count: int) -> bytes:
        body = bodies[0] if len(bodies) == 1 else b"".join(bodies)
        return encode_block(body, count, codec=self._codec, sync=self._sync, level=self._level)

    def _settle(self) -> None:
        """Account for blocks that were compressed since the last call."""
        while self._compressing and self._compressing[0].block.done():
            found = self._compressing.popleft()
            self._compressed(found.key, found.lane, len(found.block.result()) - found.size)

    def _compressed(self, key: PartitionKey, lane: _Lane, delta: int) -> None:
        lane.held += delta
        self._account(key, delta)

    def _account(self, key: PartitionKey, delta: int) -> None:
        self.bytes += delta
        left = self._bytes_by_key.get(key, 0) + delta
        if left:
            self._bytes_by_key[key] = left
        else:
            self._bytes_by_key.pop(key, None)

    def discard(self, key: PartitionKey, scan: int) -> None:
        """Drop the records that an attempt has read since the last cut."""
        self._forget({(key, scan)} & self._lanes.keys())

    def drop(self, key: PartitionKey) -> None:
        """Drop all records of a partition since the last cut."""
        self._forget({lane_key for lane_key in self._lanes if lane_key[0] == key})

    def _forget(self, lane_keys: Iterable[LaneKey]) -> None:
        for lane_key in lane_keys:
            lane = self._lanes.pop(lane_key)
            self._compressing = deque(found for found in self._compressing if found.lane is not lane)
            self._account(lane_key[0], -lane.held)

    def cut(self, names: ObjectNames, *, max_objects: int) -> list[ObjectAssembly]:
        """Turn all buffers into at most `max_objects` objects (at least 2), and empty them."""
        by_key: dict[PartitionKey, list[tuple[int | None, _Lane]]] = {}
        for (key, scan), lane in self._lanes.items():
            self._close_block(key, lane)
            by_key.setdefault(key, []).append((scan, lane))
        for lanes in by_key.values():
            lanes.sort(key=lambda item: item[1].first)
        self._lanes = {}
        self._bytes_by_key = {}
        self._compressing.clear()
        self.bytes = 0
        own = sorted(by_key, key=lambda key: -sum(lane.held for _, lane in by_key[key]))
        shared: list[PartitionKey] = []
        if len(own) > max_objects:
            large = [key for key in own[: max_objects - 1] if sum(lane.held for _, lane in by_key[key]) >= OWN_BYTES]
            own, shared = large, sorted(own[len(large) :])
        cut = []
        for key in own:
            lanes = by_key[key]
            first, last = min(lane.first for _, lane in lanes), max(lane.last for _, lane in lanes)
            groups = ((key, tuple(lanes)),)
            cut.append(
                ObjectAssembly(key=names.data(key, first, last), journal=False, header=self._header, groups=groups)
            )
        if shared:
            rest = tuple((key, tuple(by_key[key])) for key in shared)
            cut.append(ObjectAssembly(key=names.journal(), journal=True, header=self._header, groups=rest))
        return cut
