"""The newest record of each key, as Kafka's own compaction would leave it: within a partition the highest offset wins.

There are two implementations. `newest_records` serves the option `latestPerKey` within one task: it reads a partition
from its end and remembers the keys that it has seen. `latest_per_key` has Spark aggregate any frame that has the
source's columns: it shuffles, so only the disks limit it. docs/decisions/0020 says when to use which.

A key that occurs in several partitions has a newest record in each of them, because only the clocks of producers relate
the offsets of two partitions. A record without a key supersedes nothing and is superseded by nothing.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from tandem.backup_avro.record.current import NO_TIMESTAMP
from tandem.backup_avro.record.record_spans import Span
from tandem.spark_jobs.compaction.key_hash import key_fingerprint
from tandem.spark_jobs.reading.arrow import RecordRun
from tandem.spark_jobs.reading.object_reader import Body
from tandem.spark_jobs.state.read_options import ALL, NumberRange

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def newest_records(
    bodies: Iterable[Body],
    seen: set[bytes],
    *,
    bucket: tuple[int, int] = (0, 1),
    times: NumberRange = ALL,
    generation: int = 0,
    item: str = "",
) -> Iterator[RecordRun]:
    """Yield the records of a partition whose keys are not in `seen`, and add their keys to `seen`.

    The bodies come from the newest to the oldest, each with its records in ascending order of offset. Records outside
    the wanted times are ignored: they supersede nothing. `bucket` (i, n) is described at LatestTask. `seen` holds the
    `key_fingerprint` of each key. `generation` and `item` are where the bodies are stored.
    """
    number, of = bucket
    for body in bodies:
        data = body.body
        newest: dict[bytes, Span] = {}
        without: list[Span] = []
        for span in body.spans():
            if times.bounded and not _timely(span[3], times):
                continue
            if span[5] < 0:
                if number == 0:
                    without.append(span)
                continue
            key = data[span[6] : span[7]]
            if of > 1 and zlib.crc32(key) % of != number:
                continue
            newest[key_fingerprint(key)] = span
        kept = [span for key, span in newest.items() if key not in seen]
        seen.update(newest)
        if kept or without:
            yield RecordRun(data=data, spans=sorted(kept + without, key=_offset), generation=generation, item=item)


def _timely(timestamp: int, times: NumberRange) -> bool:
    return timestamp != NO_TIMESTAMP and times.meets(timestamp, timestamp)


def _offset(span: Span) -> int:
    return span[2]


def latest_per_key(frame: DataFrame, *, across_partitions: bool = False) -> DataFrame:
    """Return the rows of `frame` (with the source's columns) that are the newest of topic, partition and key.

    A tombstone that is the newest record of its key stays; filter tombstones out afterwards with
    `where("value is not null")`. With `across_partitions` there is one row per topic and key: of the newest records in
    several partitions, the one with the latest timestamp, then the one in the highest partition. That relies on
    producers' clocks; use it where a topic got more partitions.
    """
    from pyspark.sql import functions  # noqa: PLC0415 (PySpark takes a second to load)

    column = functions.col
    # Each record without a key is a group of its own.
    alone = functions.when(column("key").isNull(), functions.struct("partition", "offset"))
    within = functions.max_by(functions.struct(*frame.columns), column("offset"))
    found = frame.groupBy("topic", "partition", "key", alone.alias("alone")).agg(within.alias("row"))
    if across_partitions:
        age = functions.struct(column("row.timestamp"), column("row.partition"))
        found = found.groupBy("topic", "key", "alone").agg(functions.max_by("row", age).alias("row"))
    return found.select("row.*")
