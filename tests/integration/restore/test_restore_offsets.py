"""Which offsets restored records have, for random logs: gaps, a log that begins late, tombstones, empty partitions."""

from __future__ import annotations

import random
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType
from support.backups.build_backup import Backup, TopicSpec, records
from support.restores.cases import Case, ends_of, last_offset, read_with_offsets, rows_of, starts_of
from support.restores.random_logs import MANY_LOGS, random_log

from tandem.backup_avro.errors import RefusedError
from tandem.backup_avro.record.current import Record
from tandem.spark_jobs.restore.plan.offset_mode import OffsetMode
from tandem.spark_jobs.restore.plan.options import RestoreOptions
from tandem.spark_jobs.restore.plan.plan import TopicNaming
from tandem.spark_jobs.restore.prepare.prepare import prepare_restore
from tandem.spark_jobs.restore.records.load_task import LoadPace

pytestmark = [pytest.mark.integration, pytest.mark.spark]

_PARTITIONS = 24


def _backup(case: Case, topic: str, partitions: int = _PARTITIONS) -> list[list[Record]]:
    dice = random.Random(topic)
    backup = Backup.claim(case.store, topics=[TopicSpec(topic, partitions=partitions)], block_records=50)

    def gap() -> int:
        return dice.choice([1, 1, 1, 1, 2, 2, 30, 4_000])

    logs = [random_log(dice, topic, number, gap) for number in range(partitions)]
    for items in logs:
        cut = dice.randint(0, len(items))
        for some in (items[:cut], items[cut:]):
            if some:
                backup.commit(some)
    backup.complete()
    return logs


def _restored(case: Case, target: str, **options: Any) -> None:
    # Small batches, and a transaction for each few of them.
    pace = LoadPace(batch_records=40, commit_bytes=4_000)
    report = case.restore(RestoreOptions(naming=TopicNaming(only=target), pace=pace, **options))
    assert report.mismatches == ()
    assert [note for topic in report.topics for note in topic.notes if "offsets" in note] == []


@pytest.mark.parametrize("partitions", [_PARTITIONS, MANY_LOGS])
def test_no_record_lies_below_its_source_offset(case: Case, topic_name: str, partitions: int) -> None:
    """And the last one above it by no more than the markers of the load; nobody sees a filler."""
    _judge_floor(case, topic_name, partitions)


@pytest.mark.slow
def test_no_record_lies_below_its_source_offset_on_each_release(case_of_each_release: Case, topic_name: str) -> None:
    """Fillers are deleted, and the last record follows the transactions, in the same way from 2.8 on."""
    _judge_floor(case_of_each_release, topic_name, _PARTITIONS)


def _judge_floor(case: Case, topic_name: str, partitions: int) -> None:
    logs = _backup(case, topic_name, partitions)
    target = f"{topic_name}.restored"
    _restored(case, target)
    bootstrap = case.kafka.bootstrap
    starts, ends = starts_of(bootstrap, target), ends_of(bootstrap, target)
    for number, items in enumerate(logs):
        found = read_with_offsets(bootstrap, target, number)
        assert [row for _, row in found] == rows_of(items)
        if not items:
            assert (starts[number], ends[number]) == (0, 0)
            continue
        offsets = [offset for offset, _ in found]
        assert all(offset >= item.offset for offset, item in zip(offsets, items, strict=True))
        assert starts[number] == items[-1].offset + 1 - len(items)
        assert last_offset(bootstrap, target, number) == offsets[-1] == ends[number] - 1
        markers = ends[number] - starts[number] - len(items)
        assert offsets[-1] - items[-1].offset == markers <= len(items) // 40 + 1


def test_dense_offsets_begin_with_0(case: Case, topic_name: str) -> None:
    """As before, where the user says so."""
    logs = _backup(case, topic_name)
    target = f"{topic_name}.restored"
    _restored(case, target, offsets=OffsetMode.DENSE)
    assert starts_of(case.kafka.bootstrap, target) == [0] * _PARTITIONS
    for number, items in enumerate(logs):
        found = read_with_offsets(case.kafka.bootstrap, target, number)
        assert [row for _, row in found] == rows_of(items)
        assert [offset for offset, _ in found[:1]] == [0][: len(items)]


def test_a_part_that_is_cut_is_counted(case: Case, topic_name: str) -> None:
    """How many records lie below an offset is known only when they were read."""
    backup = Backup.claim(case.store, topics=[TopicSpec(topic_name)], block_records=50)
    items = records(topic_name, 0, range(1_000, 2_000, 3))
    backup.commit(items)
    backup.complete()
    target = f"{topic_name}.restored"
    _restored(case, target, until={(topic_name, 0): 1_500})
    kept = [item for item in items if item.offset < 1_500]
    found = read_with_offsets(case.kafka.bootstrap, target, 0)
    assert [row for _, row in found] == rows_of(kept)
    assert starts_of(case.kafka.bootstrap, target) == [kept[-1].offset + 1 - len(kept)]
    assert all(offset >= item.offset for (offset, _), item in zip(found, kept, strict=True))


def test_more_fillers_than_agreed_to_are_refused(case: Case, topic_name: str) -> None:
    """Before anything is created, with the number and the way out."""
    backup = Backup.claim(case.store, topics=[TopicSpec(topic_name)])
    backup.commit(records(topic_name, 0, [10**10]))
    backup.complete()
    options = RestoreOptions(naming=TopicNaming(suffix=".restored"))
    with pytest.raises(RefusedError, match="10,000,000,000 fillers") as refused:
        prepare_restore(case.reader, case.target, options)
    assert "--offsets dense" in str(refused.value.remedy)
    assert not case.target.look([f"{topic_name}.restored"])


def test_fillers_of_a_compacted_topic_are_gone(case: Case, topic_name: str) -> None:
    """They have no key, which a compacted topic does not take: the topic becomes one after they were deleted."""
    backup = Backup.claim(
        case.store, topics=[TopicSpec(topic_name, config={"cleanup.policy": "compact"})], block_records=50
    )
    items = records(topic_name, 0, range(5_000, 5_100))
    backup.commit(items)
    backup.complete()
    target = f"{topic_name}.restored"
    _restored(case, target)
    resource = ConfigResource(ResourceType.TOPIC, target)
    admin = AdminClient(case.props)
    [future] = admin.describe_configs([resource]).values()
    assert future.result(30)["cleanup.policy"].value == "compact"
    assert [row for _, row in read_with_offsets(case.kafka.bootstrap, target, 0)] == rows_of(items)
