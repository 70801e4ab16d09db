"""`--offsets exact`: each record at its source offset, for random logs, before and after the cleaner."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from support.backups.build_backup import Backup, TopicSpec, records
from support.restores.cases import Case, ends_of, last_offset, read_with_offsets, rows_of, starts_of
from support.restores.random_logs import MANY, MANY_LOGS, random_log

from tandem.backup_avro.errors import RefusedError
from tandem.backup_avro.record.current import Record
from tandem.spark_jobs.restore.plan.offset_mode import OffsetMode
from tandem.spark_jobs.restore.plan.options import RestoreOptions
from tandem.spark_jobs.restore.plan.plan import TopicNaming
from tandem.spark_jobs.restore.records.load_task import LoadPace

pytestmark = [pytest.mark.integration, pytest.mark.spark]

_CLEANED = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"}
#: A filler without its headers: the last one of a partition has a padding there.
_FILLER = (-1, None, None)


def _backup(case: Case, topic: str, logs: list[list[Record]], config: dict[str, str] = _CLEANED) -> None:
    dice = random.Random(topic)
    spec = TopicSpec(topic, partitions=len(logs), config=config)
    backup = Backup.claim(case.store, topics=[spec], block_records=50)
    for items in logs:
        cut = dice.randint(0, len(items))
        for some in (items[:cut], items[cut:]):
            if some:
                backup.commit(some)
    backup.complete()


def _restored(case: Case, target: str, **options: Any) -> None:
    pace = LoadPace(batch_records=40, commit_bytes=4_000)
    options = {"offsets": OffsetMode.EXACT, "pace": pace, **options}
    report = case.restore(RestoreOptions(naming=TopicNaming(only=target), **options))
    assert report.mismatches == ()


@pytest.mark.parametrize("partitions", [6, MANY_LOGS])
def test_each_record_lies_at_its_source_offset(case: Case, topic_name: str, partitions: int) -> None:
    """A filler at each offset between them, nothing below the first and nothing behind the last."""
    _judge_random_logs(case, topic_name, partitions)


@pytest.mark.slow
def test_each_record_lies_at_its_source_offset_on_each_release(case_of_each_release: Case, topic_name: str) -> None:
    """Brokers assign the offsets of idempotent batches in the same way from 2.8 on."""
    _judge_random_logs(case_of_each_release, topic_name, 6)


def _random_logs(topic: str, partitions: int) -> list[list[Record]]:
    dice = random.Random(topic)
    widest = 250_000 if partitions < MANY else 20_000  # a plain consumer reads each filler

    def gap() -> int:
        return dice.choice([1, 1, 1, 1, 2, 2, 30, 4_000, widest] if dice.random() < 0.1 else [1, 1, 2])

    return [random_log(dice, topic, number, gap) for number in range(partitions)]


def _judge_random_logs(case: Case, topic_name: str, partitions: int) -> None:
    logs = _random_logs(topic_name, partitions)
    _backup(case, topic_name, logs, {"cleanup.policy": "compact", "min.compaction.lag.ms": str(10**15)})
    target = f"{topic_name}.restored"
    _restored(case, target)
    bootstrap = case.kafka.bootstrap
    starts, ends = starts_of(bootstrap, target), ends_of(bootstrap, target)
    for number, items in enumerate(logs):
        if not items:
            assert (starts[number], ends[number]) == (0, 0)
            continue
        found = read_with_offsets(bootstrap, target, number)
        wanted = list(zip((item.offset for item in items), rows_of(items), strict=True))
        assert [one for one in found if one[1][:3] != _FILLER] == wanted
        assert [offset for offset, _ in found] == list(range(items[0].offset, items[-1].offset + 1))
        assert (starts[number], ends[number]) == (items[0].offset, items[-1].offset + 1)
        assert last_offset(bootstrap, target, number) == ends[number] - 1


def test_what_can_not_be_exact_is_refused(case: Case, topic_name: str) -> None:
    """A topic that is not compacted in the end, and one whose offsets do not begin at 0."""
    _backup(case, topic_name, [records(topic_name, 0, range(0, 50, 2))])
    target = f"{topic_name}.restored"
    with pytest.raises(RefusedError) as refused:
        _restored(case, target, topic_config={"cleanup.policy": "delete"})
    assert refused.value.code == "TDM-R157"
    with pytest.raises(RefusedError) as refused:
        _restored(case, target, append=True)
    assert refused.value.code == "TDM-R118"
    assert not case.target.look([target])


def test_the_cleaner_removes_the_fillers(case: Case, topic_name: str) -> None:
    """Nothing else is written: what is left is what compaction leaves of the source, at its offsets."""
    _restored_and_cleaned(case, topic_name)


@pytest.mark.slow
def test_the_cleaner_of_each_release_removes_the_fillers(case_of_each_release: Case, topic_name: str) -> None:
    """Segments are ended in the same way from 2.8 on."""
    _restored_and_cleaned(case_of_each_release, topic_name)


@pytest.mark.slow
def test_the_cleaner_leaves_random_logs_right(case: Case, topic_name: str) -> None:
    """Each filler goes and each newest record stays, whatever lies between them; keys come again in each log."""
    dice = random.Random(topic_name)
    logs = [
        [replace(item, key=b"k%d" % dice.randint(0, 80)) for item in items]
        for items in _random_logs(topic_name, min(MANY, 100))
    ]
    _judge_cleaned(case, topic_name, logs)


def _restored_and_cleaned(case: Case, topic_name: str) -> None:
    dice = random.Random(topic_name)
    offsets = sorted(dice.sample(range(3_000, 9_000), 400))
    items = [
        replace(item, key=b"k%d" % dice.randint(0, 150))
        for item in records(topic_name, 0, offsets, tombstones=offsets[::9])
    ]
    _judge_cleaned(case, topic_name, [items])


def _judge_cleaned(case: Case, topic_name: str, logs: list[list[Record]]) -> None:
    _backup(case, topic_name, logs, {**_CLEANED, "max.message.bytes": "100000"})
    target = f"{topic_name}.restored"
    _restored(case, target, wait_cleaned=True)
    for number, items in enumerate(logs):
        wanted = list(zip((item.offset for item in items), rows_of(items), strict=True))
        # The active segment begins behind the last filler; where there is none, nothing is cleaned yet.
        last = max((after.offset - 1 for at, after in pairwise(items) if after.offset > at.offset + 1), default=-1)
        newest = {item.key: item.offset for item in items if item.offset < last}
        left = [one for one in wanted if one[0] > last or newest[one[1][1]] == one[0]]
        assert read_with_offsets(case.kafka.bootstrap, target, number) == left
