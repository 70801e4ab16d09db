"""What the levels of zstandard save and cost on blocks as they are stored: `python -m bench.alone.levels`.

Blocks of 256 KiB and one record, distinct values, one core; stored is in hundredths of the records' bytes, MB are of
records, before compression. `1, own`: the library's own parameters for level 1, `1`: those that are used.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterable
from functools import partial

import zstandard

from bench.load import Load, value_of
from bench.measured import rates
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
    decompress = partial(unzstd, limit=2 * _BLOCK)
    sys.stdout.write("| values | level | stored, % | MB/s | MB/s read |\n|---|---|--:|--:|--:|\n")
    for kind, size in _VALUES:
        blocks = _blocks(Load(records=_BYTES // size, size=size, kind=kind, distinct=True))
        plain = sum(map(len, blocks))
        stored = {name: list(map(compress, blocks)) for name, compress in ways.items()}
        written = rates({name: partial(_all, compress, blocks) for name, compress in ways.items()}, plain)
        read = rates({name: partial(_all, decompress, several) for name, several in stored.items()}, plain)
        for name, several in stored.items():
            share = 100 * sum(map(len, several)) / plain
            sys.stdout.write(
                f"| {kind}, {size:,} B | {name} | {share:.1f} | {written[name]:.0f} | {read[name]:.0f} |\n"
            )


def _all(work: Callable[[bytes], bytes], blocks: Iterable[bytes]) -> None:
    for block in blocks:
        work(block)


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
