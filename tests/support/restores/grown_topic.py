"""A topic whose number of partitions grew while it was written, so that its keys lie in several, and its merge."""

from __future__ import annotations

from collections.abc import Sequence

from support.restores.cases import read_all
from tandem.backup_avro.record.current import Record
from tandem.spark_jobs.restore.records.partitioner import Partitioner, chooser

PARTITIONS = 4
_KEYS = [b"key-%d" % number for number in range(50)]
_YEAR_MS = 365 * 86_400_000


def grown_topic(topic: str, *, rounds: int = 6) -> list[Record]:
    """Each key once a round, in the order of writing: at first in two partitions, then in four; a clock is wrong once.

    Rounds are a second apart, records a millisecond. The tenth record's timestamp is a year ahead.
    """
    found: list[Record] = []
    ends = [0] * PARTITIONS
    for number in range(rounds):
        choose = chooser(Partitioner.MURMUR2, PARTITIONS // 2 if number < rounds // 2 else PARTITIONS)
        for at, key in enumerate(_KEYS):
            partition = choose(key)
            found.append(
                Record(
                    topic=topic,
                    partition=partition,
                    offset=ends[partition],
                    timestamp=1_700_000_000_000 + 1000 * number + at + (_YEAR_MS if len(found) == 10 else 0),
                    key=key,
                    value=b"%s-%d" % (key, number),
                )
            )
            ends[partition] += 1
    return found


def assert_merged(written: Sequence[Record], bootstrap: str, target: str, *, partitions: int) -> None:
    """Assert that each key is in its partition alone, with all its values in the order in which they were written."""
    choose = chooser(Partitioner.MURMUR2, partitions)
    for number in range(partitions):
        wanted: dict[bytes | None, list[bytes | None]] = {}
        for record in written:
            if record.key is not None and choose(record.key) == number:
                wanted.setdefault(record.key, []).append(record.value)
        found: dict[bytes | None, list[bytes | None]] = {}
        for _, key, value, _ in read_all(bootstrap, target, number):
            found.setdefault(key, []).append(value)
        assert found == wanted
