"""What the levels of zstandard save and cost on blocks as they are stored: `python -m bench.cases.levels`.

Blocks of 256 KiB and one record, distinct values, one core; stored is in hundredths of the records' bytes, MB are of
records, before compression. `1, own`: the library's own parameters for level 1, `1`: those that are used.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial

import zstandard

from bench.load import Load, value_of
from tandem.backup_avro.record.compression import unzstd, zstd
from tandem.backup_avro.record.current import Record, TimestampType, encode

_BYTES = 24 << 20
_BLOCK = 256 << 10
_VALUES = (("json", 100), ("json", 1000), ("json", 10_000), ("avro", 100), ("avro", 1000), ("random", 1000))


def main() -> None:
    """Print a line for each kind of values and each level."""
    ways: dict[str, Callable[[bytes], bytes]] = {
        "-1": partial(zstd, level=-1),
        "1, own": zstandard.ZstdCompressor(level=1).compress,
        **{str(level): partial(zstd, level=level) for level in (1, 2, 3, 4, 6)},
    }
    sys.stdout.write("| values | level | stored, % | MB/s | MB/s read |\n|---|---|--:|--:|--:|\n")
    for kind, size in _VALUES:
        blocks = _blocks(Load(records=_BYTES // size, size=size, kind=kind, distinct=True))
        plain = sum(map(len, blocks))
        for name, compress in ways.items():
            stored, written = _timed(compress, blocks)
            _, read = _timed(partial(unzstd, limit=2 * _BLOCK), stored)
            share = 100 * sum(map(len, stored)) / plain
            rates = f"{plain / written / 1e6:.0f} | {plain / read / 1e6:.0f}"
            sys.stdout.write(f"| {kind}, {size:,} B | {name} | {share:.1f} | {rates} |\n")


def _timed(work: Callable[[bytes], bytes], blocks: Sequence[bytes]) -> tuple[list[bytes], float]:
    """Return what comes out, and the least processor time of three runs, in s."""
    seconds = []
    done: list[bytes] = []
    for _ in range(3):
        began = time.process_time()
        done = [work(block) for block in blocks]
        seconds.append(time.process_time() - began)
    return done, min(seconds)


def _blocks(load: Load) -> list[bytes]:
    rng = random.Random(load.topic)
    blocks = [bytearray()]
    for number in range(load.records):
        if len(blocks[-1]) >= _BLOCK:
            blocks.append(bytearray())
        blocks[-1] += encode(
            Record(
                topic=load.topic,
                partition=0,
                offset=number,
                timestamp=1_700_000_000_000 + number,
                timestamp_type=TimestampType.CREATE_TIME,
                key=b"%016x" % rng.getrandbits(64),
                value=value_of(rng, load),
            )
        )
    return [bytes(block) for block in blocks]


if __name__ == "__main__":
    main()
