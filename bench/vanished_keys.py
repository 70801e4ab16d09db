"""What comparing keys costs before a copy is cleared: `python -m bench.vanished_keys MILLIONS EVERY MIB`.

A partition of so many million keys of 20 bytes with values of 80 to 100 bytes, of which every so many-th was written
again after the older copy was sealed (1: all, 0: none, but one record is gone), compared with so many MiB for keys.
Blocks are compressed with zstd and lie in memory. `turn` is what a turn spends on as many records without network and
store: the CRCs, the transcoding, the compression, the SHA-256.
"""

from __future__ import annotations

import hashlib
import random
import sys
from collections.abc import Iterator, Sequence

from bench.cases.transcoder import batches
from bench.measured import measured, report
from tandem.backup_avro.chain.entries import Part, PartitionKey, StoredObject
from tandem.backup_avro.record.compression import unzstd
from tandem.backup_avro.record.container import BLOCK_LIMIT, Codec, compress
from tandem.backup_avro.record.current import Record, encode
from tandem.backup_avro.selection.vanished_keys import CopyRecords, EncodedBlock, find_vanished_keys
from tandem.sink.transcode.implementation_choice import best_bodies, best_transcoder

_MILLION = 1_000_000
_BLOCK = 600
_PART = 500_000


def main() -> None:
    """Run once."""
    millions, every, mib = map(int, sys.argv[1:4])
    count = millions * _MILLION
    rng = random.Random(1)
    values = [rng.randbytes(rng.randint(30, 40)).hex().encode() + b'{"state":"open"}' for _ in range(500)]
    again = range(0, count, every) if every else range(0)
    older = _copied(((n, n) for n in range(count)), values)
    kept = ((n, n) for n in range(1 if not every else 0, count) if not every or n % every)
    newer = _copied((pair for pairs in (kept, ((count + i, n) for i, n in enumerate(again))) for pair in pairs), values)

    def compare() -> tuple[int, int]:
        found = find_vanished_keys(older, newer, table=best_bodies().key_table(), by_counts=True, most_bytes=mib << 20)
        if found.count != (0 if every else 1):
            raise RuntimeError(f"{found.count} keys have vanished")
        return count, 0

    report(measured(compare), what="guard")
    data = batches(90, count=100_000, per_batch=150)

    def turn() -> tuple[int, int]:
        done = 0
        while done < count:
            got = best_transcoder().transcode(
                data, topic="orders", partition=3, start=0, until=None, aborted=(), read_committed=True
            )
            for segment in got.segments:
                hashlib.sha256(compress(bytes(segment.body), Codec.ZSTANDARD)).digest()
                done += segment.records
        return done, 0

    report(measured(turn), what="turn")


def _copied(records: Iterator[tuple[int, int]], values: Sequence[bytes]) -> CopyRecords[EncodedBlock]:
    """Return a copy of these records, each an offset and the number of its key."""
    blocks: dict[str, list[EncodedBlock]] = {}
    parts = []
    held: list[bytes] = []
    first = last = 0
    some: list[EncodedBlock] = []

    def close() -> None:
        nonlocal some
        if some:
            name = str(len(parts))
            blocks[name] = some
            part = _part(first, last, sum(size for _, size in some))
            parts.append((StoredObject(key=name, journal=False, bytes=1, sha256="", parts=(part,)), part))
            some = []

    for offset, key in records:
        if not held and not some:
            first = offset
        held.append(_record(offset, key, values[key % len(values)]))
        last = offset
        if len(held) == _BLOCK:
            some.append((compress(b"".join(held), Codec.ZSTANDARD), len(held)))
            held = []
            if len(some) * _BLOCK >= _PART:
                close()
    if held:
        some.append((compress(b"".join(held), Codec.ZSTANDARD), len(held)))
    close()

    def read(item: StoredObject, part: Part) -> Iterator[EncodedBlock]:
        del part
        for body, size in blocks[item.key]:
            yield unzstd(body, BLOCK_LIMIT), size

    return CopyRecords(parts=parts, read=read)


def _record(offset: int, key: int, value: bytes) -> bytes:
    return encode(
        Record(topic="orders", partition=3, offset=offset, timestamp=offset, key=b"customer-%011d" % key, value=value)
    )


def _part(first: int, last: int, records: int) -> Part:
    return Part(
        key=PartitionKey("t", 3),
        first=first,
        last=last,
        records=records,
        tombstones=0,
        min_timestamp=0,
        max_timestamp=0,
        start=1,
        end=2,
    )


if __name__ == "__main__":
    main()
