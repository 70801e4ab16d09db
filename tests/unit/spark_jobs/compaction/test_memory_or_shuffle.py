"""The choice between memory and shuffle."""

from __future__ import annotations

from dataclasses import dataclass

from tandem.spark_jobs.compaction.memory_or_shuffle import choose_way


@dataclass(frozen=True)
class Task:
    """Work on so many records."""

    records: int
    latest: bool = True


def test_more_records_than_the_limit_go_through_a_shuffle() -> None:
    """The limit itself is done in memory, and so is what can't be shuffled; the order stays."""
    tasks = [Task(11), Task(10), Task(12, latest=False), Task(12)]
    assert choose_way(tasks, 10) == ([Task(10)], [Task(11), Task(12, latest=False), Task(12)])
    assert choose_way(tasks, 10, can_shuffle=lambda task: task.latest) == (
        [Task(10), Task(12, latest=False)],
        [Task(11), Task(12)],
    )
