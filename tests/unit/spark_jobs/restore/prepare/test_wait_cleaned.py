"""The wait ends when a reading finds no record without key, and gives up when nothing changes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tandem.backup_avro.errors import TimedOutError
from tandem.spark_jobs.restore.prepare import wait_cleaned
from tandem.spark_jobs.restore.prepare.wait_cleaned import CleanedPartition


def _partitions(count: int) -> list[CleanedPartition]:
    return [CleanedPartition("t", "id", number, 0, 9) for number in range(count)]


def _answers(given: Iterator[list[int]], asked: list[list[int]]) -> wait_cleaned.ReadAll:
    def read(tasks: list[CleanedPartition]) -> list[int]:
        asked.append([task.partition for task in tasks])
        return next(given)

    return read


def test_only_partitions_with_fillers_are_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """And the number that is left is told."""
    monkeypatch.setattr(wait_cleaned, "_PAUSE_S", 0.0)
    asked: list[list[int]] = []
    told: list[str] = []
    wait_cleaned.wait_cleaned(_partitions(3), _answers(iter([[0, 4, 3], [4, 0], [0]]), asked), told.append)
    assert asked == [[0, 1, 2], [1, 2], [1]]
    assert [text.split(": ")[1] for text in told] == [
        "7 fillers are left in 2 partitions",
        "4 fillers are left in 1 partitions",
    ]


def test_a_cleaner_that_does_nothing_ends_the_wait() -> None:
    """The message has the number of fillers, and where they are."""
    with pytest.raises(TimedOutError) as late:
        wait_cleaned.wait_cleaned(_partitions(2), lambda tasks: [5] * len(tasks), lambda _: None, patience_s=0.01)
    assert late.value.code == "TDM-R156"
    assert "10 fillers" in str(late.value)
    assert "t-0, t-1" in str(late.value)
