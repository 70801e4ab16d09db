"""What a task sends through a shuffle leaves the Python process as soon as it is made, however much that is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from tandem.spark_jobs.spark.shuffle import ShuffleStage, shuffle_on

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MESSAGES = 200
SIZE = 1 << 20
PARTITIONS = 40


@pytest.mark.spark
def test_large_messages_do_not_pile_up_in_python(spark: SparkSession) -> None:
    """200 MB in messages take a few of them at a time; each arrives, where it was sent, in the order of sending."""

    def send(count: int, _number: int, _messages: Iterator[Any]) -> Iterator[tuple[int, Any]]:
        from pathlib import Path  # noqa: PLC0415 - in the worker

        def resident() -> int:
            return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * 4096

        before, most = resident(), 0
        for number in range(count):
            yield number % PARTITIONS, (number, b"%03d" % number * (SIZE // 3))
            most = max(most, resident() - before)
        yield 0, most

    def receive(_own: Any, number: int, messages: Iterator[Any]) -> Iterator[tuple[int, Any]]:
        for one in messages:
            if isinstance(one, int):
                yield 0, ("most", one)
            else:
                assert one[1][:3] == b"%03d" % one[0]
                yield 0, (number, one[0], len(one[1]))

    stages = (
        ShuffleStage(partitions=1, work=send, own_part=lambda shared, _: shared),
        ShuffleStage(partitions=PARTITIONS, work=receive, own_part=lambda _shared, _: None),
    )
    found = shuffle_on(spark.sparkContext)(MESSAGES, stages)
    [most] = [one[1] for one in found if one[0] == "most"]
    arrived = [one for one in found if one[0] != "most"]
    assert sorted(arrived) == sorted((number % PARTITIONS, number, SIZE // 3 * 3) for number in range(MESSAGES))
    assert [one for one in arrived if one[0] == 7] == [(7, number, SIZE // 3 * 3) for number in range(7, MESSAGES, 40)]
    assert most < 32 * SIZE, f"{most >> 20} MiB"
