"""Bodies of which something may be wrong, and what two workers make of the same one, in a form that can be compared."""

from __future__ import annotations

import random
import struct
from dataclasses import dataclass

from support.records.strategies import PARTITION, TOPIC, zigzag

from tandem.backup_avro.errors import DamagedError
from tandem.backup_avro.record.current import Record, TimestampType, encode, encode_prefix
from tandem.backup_avro.record.version_1 import LayoutV1
from tandem.sink.transcode.batch import Compression
from tandem.sink.transcode.body_operations import BodyWorker

Outcome = tuple[object, ...]

_WORST = (
    b"\x00",
    b"\x01",
    b"\x04",
    b"\x7f",
    b"\x80",
    b"\xff",
    b"\x80\x00",
    b"\x82\x00",
    b"\xff\xff\xff\xff\x0f",
    b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
    b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01",
    b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02",
    b"\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x00",
    struct.pack(">q", -1),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One body and what is asked of it."""

    body: bytes
    count: int
    start: int = 0
    until: int | None = None
    max_bytes: int = 1 << 20
    max_records: int = 1 << 20
    compression: Compression = Compression.NONE


def built(worker: BodyWorker, job: Job) -> Outcome:
    """Return the batches that were built, and the words in which the rest was refused, if it was."""
    found: list[object] = []
    try:
        found.extend(
            worker.build_batches(
                job.body,
                job.count,
                max_batch_bytes=job.max_bytes,
                max_batch_records=job.max_records,
                compression=job.compression,
                start=job.start,
                until=job.until,
            )
        )
    except DamagedError as error:
        return ("damaged", *found, *error.args, error.remedy)
    return ("read", *found)


def advanced(worker: BodyWorker, job: Job, state: bytes) -> Outcome:
    """Return the state of the hash after a body, or the words in which it was refused."""
    try:
        return ("read", worker.advance(state, job.body, job.count))
    except DamagedError as error:
        return ("damaged", *error.args, error.remedy)


def spanned(worker: BodyWorker, job: Job) -> Outcome:
    """Return where the records of a body are, as far as they were found, and in which words the rest was refused."""
    found: list[object] = []
    try:
        found.extend(worker.spans(job.body, job.count))
    except DamagedError as error:
        return ("damaged", *found, *error.args, error.remedy)
    return ("read", *found)


def keyed(worker: BodyWorker, job: Job) -> Outcome:
    """Return the records with keys of a body below the end of the job, or the words in which it was refused."""
    below = (1 << 63) - 1 if job.until is None else job.until
    try:
        return ("read", *worker.keyed_records(job.body, job.count, below=below))
    except DamagedError as error:
        return ("damaged", *error.args, error.remedy)


def turned(worker: BodyWorker, job: Job, layout: LayoutV1, *, empty_as_null: bool) -> Outcome:
    """Return what becomes of a body of version 1, or the words in which it was refused."""
    try:
        return ("read", worker.modern(job.body, job.count, layout, empty_as_null=empty_as_null))
    except DamagedError as error:
        return ("damaged", *error.args, error.remedy)


def old(rng: random.Random, layout: LayoutV1) -> tuple[bytes, int]:
    """Return a few records of version 1 as a block has them, and how many they are."""

    def union(null: int | None, data: bytes | None) -> bytes:
        if null is None:
            return data or b"\x00"
        return zigzag(null) if data is None else zigzag(1 - null) + data

    def sized(data: bytes) -> bytes:
        return zigzag(len(data)) + data

    out = []
    offset = rng.choice((0, 60, 8190, (1 << 62) - 40))
    for _ in range(rng.randint(1, 6)):
        offset += rng.choice((1, 1, 70))
        key, value = (rng.choice((None, sized(b""), sized(b"part"), sized(rng.randbytes(70)))) for _ in range(2))
        entries = b""
        for _ in range(rng.choice((0, 0, 1, 2))):
            block = b"".join(sized(b"h" * rng.randrange(3)) + sized(rng.choice((b"", b"x" * 70))) for _ in range(2))
            entries += (zigzag(-2) + zigzag(len(block)) if rng.random() < 0.3 else zigzag(2)) + block
        out += (
            encode_prefix(TOPIC, PARTITION),
            zigzag(offset),
            zigzag(rng.choice((-1, 0, 8192, 1_700_000_000_000))),
            union(layout.key_null, key),
            union(layout.value_null, value),
            union(layout.headers_null, rng.choice((None, entries + b"\x00"))),
        )
    return b"".join(out), len(out) // 6


def sound(rng: random.Random) -> tuple[bytes, int]:
    """Return a few records as a block has them, and how many they are."""
    offset = rng.choice((0, 60, 8190, 1 << 20, (1 << 62) - 40))
    timestamp = rng.choice((-1, 0, 5, 8191, 8192, 1_700_000_000_000, -(1 << 63), (1 << 63) - 1))
    records = []
    for _ in range(rng.randint(1, 6)):
        offset += rng.choice((0, 0, 1, 70))
        record = encode(
            Record(
                topic=TOPIC,
                partition=PARTITION,
                offset=offset,
                timestamp=timestamp,
                timestamp_type=rng.choice(tuple(TimestampType)),
                key=rng.choice((None, b"", b"key", rng.randbytes(70))),
                value=rng.choice((None, b"", b"value", rng.randbytes(rng.choice((60, 130))))),
            )
        )
        records.append(record[:-1] + _headers(rng))
        offset += 1
        moved = timestamp + rng.choice((0, 1, -3, 100_000, 1 << 63, -(1 << 63)))
        timestamp = moved if -(1 << 63) <= moved < 1 << 63 else timestamp
    return b"".join(records), len(records)


def _headers(rng: random.Random) -> bytes:
    """Return headers in some of the ways that Avro allows."""
    out = b""
    for _ in range(rng.choice((0, 0, 0, 1, 2))):
        items = []
        for _ in range(rng.choice((1, 1, 3))):
            value = rng.choice((b"\x00", b"\x02\x00", b"\x02\x02x", b"\x82\x00\x02x", b"\x80\x00"))
            items.append(rng.choice((b"\x00", b"\x02h", b"\x82\x00h", b"\x02\xff")) + value)
        block = b"".join(items)
        many = zigzag(-len(items)) + zigzag(len(block)) if rng.random() < 0.3 else zigzag(len(items))
        out += many + block
    return out + rng.choice((b"\x00", b"\x00", b"\x00", b"\x80\x00"))


def twisted(rng: random.Random, pool: list[tuple[bytes, int]]) -> Job:
    """Return a body of which something may be wrong."""
    body, count = rng.choice(pool)
    data = bytearray(body)
    for _ in range(rng.choice((0, 1, 1, 1, 2, 4))):
        if data:
            _hurt(rng, data, pool)
    edges = (0, 0, 1, 61, 8191, (1 << 20) + 2, (1 << 62) - 38)
    return Job(
        body=bytes(data),
        count=max(0, count + rng.choice((0, 0, 0, 0, 1, -1))),
        start=rng.choice(edges),
        until=rng.choice((None, None, *edges)),
        max_bytes=rng.choice((1, 90, 200, 1 << 20)),
        max_records=rng.choice((1, 2, 1 << 20)),
        compression=rng.choice((Compression.NONE, Compression.NONE, Compression.ZSTD, Compression.LZ4)),
    )


def _hurt(rng: random.Random, data: bytearray, pool: list[tuple[bytes, int]]) -> None:
    at = rng.randrange(len(data))
    worst = rng.choice(_WORST)
    match rng.randrange(8):
        case 0:
            data[at] ^= 1 << rng.randrange(8)
        case 1:
            data[at] = rng.choice((0, 1, 2, 3, 4, 6, 0x7F, 0x80, 0xFF, rng.randrange(256)))
        case 2:
            data[at : at + len(worst)] = worst
        case 3:
            data[at:at] = worst
        case 4:
            del data[at : at + rng.choice((1, 2, 8, 40, 1 << 20))]
        case 5:
            data[at:at] = rng.choice(pool)[0][rng.randrange(9) :]
        case 6:
            data[0:0] = encode_prefix(rng.choice((TOPIC, "o", "ü" * 100, "x" * 400)), rng.choice((PARTITION, 1 << 30)))
        case _:
            data += rng.choice(pool)[0]
