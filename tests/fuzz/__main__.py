"""Hold the compiled twins against plain Python on damaged, twisted and hostile bytes: `make fuzz`.

Inputs are made from sound fetches by a seed: bits flipped, numbers replaced by the worst ones, pieces cut out, doubled
and swapped; most get a right CRC again, or nothing behind it would ever be reached. Every other input is the body of a
block, for what restores and verifications do with it, some of them of version 1. Both must give the same or refuse in
the same words, and neither may die. Exit code 0: so it was. 3: an input is printed on which it was not.
"""

from __future__ import annotations

import argparse
import collections
import multiprocessing
import random
import struct
import sys
import time

import google_crc32c
from support.lines import say
from support.records.odd_batches import odd
from support.records.strategies import (
    ABORT,
    CODECS,
    COMMIT,
    CONTROL,
    PARTITION,
    TOPIC,
    TRANSACTIONAL,
    batch,
    kafka_record,
    marker,
    raw_batch,
)

from fuzz import bodies
from fuzz.twins import Fetch, outcome
from tandem.backup_avro.record.current import Record, TimestampType
from tandem.backup_avro.record.version_1 import LayoutV1
from tandem.sink.transcode.compiled import CompiledTranscoder
from tandem.sink.transcode.compiled_bodies import CompiledBodies
from tandem.sink.transcode.plain_bodies import PlainBodies
from tandem.sink.transcode.plain_transcoder import ReferenceTranscoder

_HEADER, _COVERED_AT, _CRC_AT = 61, 21, 17
_WORST = (
    b"\x00",
    b"\x01",
    b"\x7f",
    b"\x80",
    b"\xff",
    b"\x80\x00",
    b"\xff\xff\xff\xff\x0f",
    b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
    b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01",
    b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02",
    b"\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x00",
    struct.pack(">q", -1),
    struct.pack(">q", 2**63 - 1),
    struct.pack(">q", -(2**63)),
    struct.pack(">i", 2**31 - 1),
)
_LIMIT = 1 << 20
_LAYOUTS = (
    LayoutV1(),
    LayoutV1(key_null=0, value_null=None, headers_null=0),
    LayoutV1(key_null=None, value_null=1, headers_null=None),
)
_SHARE = 20_000


def main() -> int:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(prog="fuzz", description=__doc__)
    parser.add_argument("--inputs", type=int, default=1_000_000)
    parser.add_argument("--first", type=int, default=1, help="the first seed; each stands for many inputs")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    arguments = parser.parse_args()
    began = time.perf_counter()
    totals: collections.Counter[str] = collections.Counter()
    seeds = range(arguments.first, arguments.first + max(1, arguments.inputs // _SHARE))
    size = min(_SHARE, arguments.inputs)
    with multiprocessing.get_context("fork").Pool(arguments.jobs) as pool:
        for seed, counts, trouble in pool.imap_unordered(_play, [(seed, size) for seed in seeds]):
            totals.update(counts)
            if trouble:
                say(f"seed {seed}: {trouble}")
                return 3
    done = sum(totals.values())
    say(
        f"{done} inputs in {time.perf_counter() - began:.0f} s: {totals['read']} were read and {totals['damaged']} "
        "refused, by both alike, in the same words; 0 crashes"
    )
    return 0


def _play(share: tuple[int, int]) -> tuple[int, collections.Counter[str], str | None]:
    seed, count = share
    rng = random.Random(seed)
    pairs = [
        (
            ReferenceTranscoder(batch_limit=_LIMIT, output_limit=output_limit),
            CompiledTranscoder(batch_limit=_LIMIT, output_limit=output_limit),
        )
        for output_limit in (_LIMIT, _LIMIT, 1, 150)
    ]
    pool = [sound(rng) for _ in range(200)]
    plain, fast = PlainBodies(), CompiledBodies()
    blocks = [bodies.sound(rng) for _ in range(200)]
    old_blocks = [(layout, [bodies.old(rng, layout) for _ in range(60)]) for layout in _LAYOUTS]
    counts: collections.Counter[str] = collections.Counter()
    for number in range(count):
        if number % 8 == 5:
            layout, olds = rng.choice(old_blocks)
            job, null = bodies.twisted(rng, olds), rng.random() < 0.5
            expected = bodies.turned(plain, job, layout, empty_as_null=null)
            got = bodies.turned(fast, job, layout, empty_as_null=null)
            counts[str(expected[0])] += 1
            if expected != got:
                return seed, counts, f"{layout}, {job}\nplain:    {expected}\ncompiled: {got}"
            continue
        if number % 2:
            job = bodies.twisted(rng, blocks)
            expected, got = bodies.built(plain, job), bodies.built(fast, job)
            state = rng.randbytes(32)
            hashes = bodies.advanced(plain, job, state), bodies.advanced(fast, job, state)
            spans = bodies.spanned(plain, job), bodies.spanned(fast, job)
            keys = bodies.keyed(plain, job), bodies.keyed(fast, job)
            counts[str(expected[0])] += 1
            one, other = (expected, hashes[0], spans[0], keys[0]), (got, hashes[1], spans[1], keys[1])
            if one != other:
                return seed, counts, f"{job}\nplain:    {one}\ncompiled: {other}"
            continue
        fetch = twisted(rng, pool)
        reference, compiled = rng.choice(pairs)
        expected, got = outcome(reference, fetch), outcome(compiled, fetch)
        counts[str(expected[0])] += 1
        if expected != got:
            return seed, counts, f"{fetch}\nreference: {expected}\ncompiled:  {got}"
    return seed, counts, None


def sound(rng: random.Random) -> bytes:
    """Return a few batches as a broker would hand them out."""
    out = []
    offset = rng.choice((0, 60, 1 << 20, (1 << 62) - 40))
    for _ in range(rng.randint(1, 4)):
        kind = rng.random()
        producer = rng.choice((7, 8))
        if kind < 0.1:
            out.append(marker(offset, producer, rng.choice((ABORT, COMMIT))))
            offset += 1
            continue
        if kind < 0.15:
            out.append(raw_batch(b"", base_offset=offset, last_delta=3, count=0))
            offset += 4
            continue
        records = _records(rng, offset)
        if kind < 0.3:
            codec, payload = rng.choice(
                list(odd(b"".join(kafka_record(record, offset, 0) for record in records)).values())
            )
            last = records[-1].offset - offset
            out.append(raw_batch(payload, base_offset=offset, last_delta=last, count=len(records), attributes=codec))
            offset += last + 3
            continue
        transactional = rng.random() < 0.3
        out.append(
            batch(
                records,
                codec=rng.choice(("none", "none", "none", *CODECS)),
                producer_id=producer if transactional else -1,
                attributes=TRANSACTIONAL if transactional else 0,
                leader_epoch=rng.choice((0, 5)),
                last_offset=records[-1].offset + rng.choice((0, 0, 2)),
            )
        )
        offset = records[-1].offset + 3
    return b"".join(out)


def _records(rng: random.Random, offset: int) -> list[Record]:
    append = rng.random() < 0.2
    timestamp = rng.choice((-1, 0, 5, 8191, 8192, 1_700_000_000_000))
    records = []
    for _ in range(rng.randint(1, 5)):
        offset += rng.choice((0, 1, 70))
        kind = TimestampType.LOG_APPEND_TIME if append else TimestampType.CREATE_TIME
        records.append(
            Record(
                topic=TOPIC,
                partition=PARTITION,
                offset=offset,
                timestamp=timestamp,
                timestamp_type=TimestampType.NONE if timestamp == -1 else kind,
                key=rng.choice((None, b"", b"key", rng.randbytes(70))),
                value=rng.choice((None, b"", b"value", rng.randbytes(130))),
                headers=tuple(
                    ("h" * rng.randint(0, 3), rng.choice((None, b"", b"x"))) for _ in range(rng.choice((0, 0, 1, 3)))
                ),
            )
        )
        offset += 1
        if not append:
            timestamp += rng.choice((0, 1, -3, 100_000))
    return records


def twisted(rng: random.Random, pool: list[bytes]) -> Fetch:
    """Return a fetch of which something may be wrong."""
    data = bytearray(rng.choice(pool))
    for _ in range(rng.choice((0, 1, 1, 1, 2, 4))):
        _hurt(rng, data, pool)
    if rng.random() < 0.9:
        _mend(data)
    begin = struct.unpack_from(">q", data)[0] if len(data) >= 8 else 0
    start = max(0, min(begin + rng.choice((0, 0, 0, 1, 3, 100)), 2**63 - 1))
    return Fetch(
        data=bytes(data),
        start=start,
        until=rng.choice((None, None, None, start, min(start + 2, 2**63 - 1), min(start + 90, 2**63 - 1))),
        aborted=tuple((rng.choice((7, 8)), begin + rng.choice((-5, 0, 2, 80))) for _ in range(rng.choice((0, 0, 1, 3))))
        if -(2**62) < begin < 2**62
        else (),
        read_committed=rng.random() < 0.8,
    )


def _hurt(rng: random.Random, data: bytearray, pool: list[bytes]) -> None:
    if not data:
        return
    at = rng.randrange(len(data))
    match rng.randrange(7):
        case 0:
            data[at] ^= 1 << rng.randrange(8)
        case 1:
            data[at] = rng.choice((0, 1, 2, 0x7F, 0x80, 0xFF, rng.randrange(256)))
        case 2:
            worst = rng.choice(_WORST)
            data[at : at + len(worst)] = worst
        case 3:
            data[at:at] = rng.choice(_WORST)
        case 4:
            del data[at : at + rng.choice((1, 2, 8, 40, 1 << 20))]
        case 5:
            other = rng.choice(pool)
            data[at:at] = other[rng.randrange(len(other)) :]
        case _:
            field = rng.choice(((8, 4), (21, 2), (23, 4), (27, 8), (35, 8), (43, 8), (57, 4), (0, 8), (12, 5)))
            if len(data) >= _HEADER:
                worst = rng.choice((*_WORST, rng.randbytes(8), CONTROL.to_bytes(2, "big"), b"\x00\x00\x00\x01"))
                worst = worst[: field[1]].rjust(field[1], b"\x00")
                data[field[0] : field[0] + field[1]] = worst


def _mend(data: bytearray) -> None:
    """Give whole batches the length that they have now where that was lost, and all a right CRC."""
    at = 0
    while len(data) - at >= _HEADER:
        (length,) = struct.unpack_from(">i", data, at + 8)
        end = at + 12 + length
        if not at + _HEADER <= end <= len(data):
            end = len(data)
            struct.pack_into(">i", data, at + 8, end - at - 12)
        struct.pack_into(">I", data, at + _CRC_AT, google_crc32c.value(bytes(data[at + _COVERED_AT : end])))
        at = end


if __name__ == "__main__":
    sys.exit(main())
