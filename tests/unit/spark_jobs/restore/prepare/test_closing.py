"""The stages of a load with padded fillers, and what `segment.bytes` is in each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from support.restores.records import load_task

from tandem.spark_jobs.restore.load import closing
from tandem.spark_jobs.restore.load.load import LoadResult, loaded, nothing_yet
from tandem.spark_jobs.restore.progress.task_progress import TargetStrand
from tandem.spark_jobs.restore.records.load_task import ExactStage, LoadTask, SourcePartition

_SEGMENT = 1 << 20


class _Target:
    """Remembers what is set, and what is loaded."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def alter_config(self, topic: str, changes: Mapping[str, str | None], *, only_ask: bool = False) -> None:
        """Set it."""
        self.seen.append((topic, dict(changes), only_ask))

    def alter_configs(self, changes: Mapping[str, Mapping[str, str | None]]) -> None:
        """Set all of them."""
        for topic, some in changes.items():
            self.alter_config(topic, some)


def _task(number: int, *, last: int, records: int, segment: int = _SEGMENT) -> LoadTask:
    part = SimpleNamespace(first=0, last=last, records=records)
    piece: Any = SimpleNamespace(part=part, whole=True, low=0, high=last + 1)
    return load_task(
        target=f"t{segment}", exact=True, segment=segment, sources=(SourcePartition(partition=number, slices=(piece,)),)
    )


def _result(task: LoadTask, last: int) -> LoadResult:
    strand = TargetStrand(records=1, hash="", first=0, last=last)
    done = replace(nothing_yet(task), strands={task.number: strand})
    return loaded(done, topic="t", sources=task.partitions, resumed=3 if task.stage is ExactStage.HOLD else 9)


@pytest.mark.parametrize("rest", [False, True])
def test_the_size_is_low_only_while_the_last_filler_is_written(monkeypatch: pytest.MonkeyPatch, *, rest: bool) -> None:
    """Partitions that are whole are left out of later stages, and topics without gaps have no stages."""
    monkeypatch.setattr(closing, "_APPLIED_S", 0.0)
    target = _Target()
    tasks = [_task(0, last=9, records=5), _task(1, last=9, records=10), _task(2, last=9, records=5, segment=0)]

    def load(some: Sequence[LoadTask]) -> list[LoadResult]:
        target.seen.append([(task.number, task.stage) for task in some])
        reached = {ExactStage.HOLD: 4, ExactStage.CLOSE: 7 if rest else 9, ExactStage.ALL: 9}
        return [_result(task, reached[task.stage] if task.number == 0 else 9) for task in some]

    found = closing.load_in_stages(tasks, load, target)
    wanted: list[Any] = [
        [(0, ExactStage.HOLD), (1, ExactStage.HOLD), (2, ExactStage.ALL)],
        (f"t{_SEGMENT}", {"segment.bytes": str(_SEGMENT)}, False),
        [(0, ExactStage.CLOSE)],
    ]
    if rest:
        wanted += [(f"t{_SEGMENT}", {"segment.bytes": None}, False), [(0, ExactStage.ALL)]]
    assert target.seen == wanted
    assert [(one.task, one.resumed, one.strands[one.task].last) for one in found] == [(0, 3, 9), (1, 3, 9), (2, 9, 9)]
