"""What `--latest-per-key` costs before a load: `python -m bench.cases.newest MILLIONS`.

Finds the newest records of a partition of so many million records of 130 bytes, each key twice, in one process, without
a store: the records of a million are read again and again under other offsets and keys. `reading` is one reading
without anything else. Memory is what is resident beyond what was before.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace

from bench.measured import measured, report
from tandem.backup_avro.record.current import Record, TimestampType, encode
from tandem.spark_jobs.reading.object_reader import Body
from tandem.spark_jobs.restore.records.newest_records import newest_offsets
from tandem.spark_jobs.restore.records.record_changes import RecordChanges
from tandem.spark_jobs.restore.records.record_stream import RecordShaper

_MILLION = 1_000_000
_BLOCK = 2000


def main() -> None:
    """Run once."""
    millions = int(sys.argv[1])
    bodies = [_block(first) for first in range(0, _MILLION, _BLOCK)]

    def keyed() -> Iterator[tuple[int, bytes]]:
        for number in range(millions):
            salt, begin = b"%d" % (number // 2), number * _MILLION
            for offset, key in RecordShaper(shape=RecordChanges(), choose=None, count=0).keyed(0, bodies):
                yield begin + offset, key + salt

    def read() -> tuple[int, int]:
        return sum(1 for _ in keyed()), 0

    def find() -> tuple[int, int]:
        found = newest_offsets(keyed, millions * _MILLION)
        if len(found) != (millions + 1) // 2 * _MILLION:
            raise RuntimeError(f"{len(found)} newest records of {millions} million, each key twice")
        return millions * _MILLION, 0

    before = measured(lambda: (1, 0)).peak_mb
    report(measured(read), what="reading")
    run = measured(find)
    report(replace(run, peak_mb=run.peak_mb - before), what="newest")


def _block(first: int) -> Body:
    records = (
        Record(
            topic="customers",
            partition=0,
            offset=offset,
            timestamp=1_700_000_000_000 + offset,
            timestamp_type=TimestampType.CREATE_TIME,
            key=b"customer-%011d" % offset,
            value=b"v" * 80,
        )
        for offset in range(first, first + _BLOCK)
    )
    return Body(body=b"".join(map(encode, records)), records=_BLOCK, first=first)


if __name__ == "__main__":
    main()
