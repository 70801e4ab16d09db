"""Consumer groups go on after a restore at exactly the next record, on other offsets than before; real broker."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from support.backups.build_backup import PAIR, Backup, TopicSpec, records
from support.clusters.topics import TopicMaker
from support.restores.cases import Case, Row, ends_of, read_with_offsets, rows_of
from support.restores.random_logs import random_log

from tandem.backup_avro.errors import ExitCode
from tandem.backup_avro.record.current import Record
from tandem.controller.cli.main import run
from tandem.controller.sandbox.kafka import KafkaServer
from tandem.spark_jobs.restore.plan.offset_mode import OffsetMode
from tandem.spark_jobs.restore.plan.options import RestoreOptions
from tandem.spark_jobs.restore.plan.plan import TopicNaming
from tandem.spark_jobs.restore.records.load_task import LoadPace

pytestmark = [pytest.mark.integration, pytest.mark.spark]


def _consumer(kafka: KafkaServer, group: str) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": kafka.bootstrap,
            "group.id": group,
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
        }
    )


def _goes_on(kafka: KafkaServer, group: str, topic: str, partition: int) -> bytes | None:
    """Return the value of the record that a member of the group gets first."""
    consumer = _consumer(kafka, group)
    try:
        [place] = consumer.committed([TopicPartition(topic, partition)], timeout=30)
        consumer.assign([place])
        message = consumer.poll(30)
        assert message is not None
        assert message.error() is None, message.error()
        value = message.value()
        assert value is None or isinstance(value, bytes)
        return value
    finally:
        consumer.close()


def _committed(kafka: KafkaServer, group: str, topic: str, *partitions: int) -> list[int]:
    consumer = _consumer(kafka, group)
    try:
        found = consumer.committed([TopicPartition(topic, number) for number in partitions], timeout=30)
        return [place.offset for place in found]
    finally:
        consumer.close()


def _groups(case: Case, capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    capsys.readouterr()
    cluster = ("--target-bootstrap-servers", case.kafka.bootstrap)
    code = run(["restore", "groups", "--root", case.root, "--pair", PAIR, "-o", "json", *cluster, *arguments])
    text = capsys.readouterr().out
    return code, json.loads(text) if text else {}


def test_groups_go_on_at_the_next_record(case: Case, topic_name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """In the middle of a batch, in a gap that compaction left, at the end; then taken back."""
    backup = Backup.claim(case.store, topics=[TopicSpec(topic_name, partitions=3)], block_records=50)
    dense = records(topic_name, 0, range(500))
    sparse = records(topic_name, 1, range(1000, 4000, 7))
    first = f"{topic_name}.a"
    second = f"{topic_name}.b"
    backup.commit(
        [*dense, *sparse],
        groups={
            first: {(topic_name, 0): 123, (topic_name, 1): 2002, (topic_name, 2): 5},
            second: {(topic_name, 0): 500},
        },
    )
    backup.complete()
    target = f"{topic_name}.restored"
    # Small transactions: their markers move the target's offsets.
    report = case.restore(
        RestoreOptions(naming=TopicNaming(only=target), pace=LoadPace(batch_bytes=3000, commit_seconds=0.0))
    )
    assert report.mismatches == ()

    code, planned = _groups(case, capsys, "--restore", report.id)
    assert code == ExitCode.OK
    assert planned["executed"] is False
    assert all(move["note"] is None and move["before"] is None for move in planned["offsets"])
    assert _committed(case.kafka, first, target, 0, 1, 2) == [-1001, -1001, -1001]

    code, done = _groups(case, capsys, "--execute")
    assert (code, done["executed"]) == (ExitCode.OK, True)
    assert _goes_on(case.kafka, first, target, 0) == b"value-123"
    # 2002 had been compacted away: the next that there is.
    wanted = next(item.value for item in sparse if item.offset >= 2002)
    assert _goes_on(case.kafka, first, target, 1) == wanted
    assert _committed(case.kafka, first, target, 2) == [0]
    [at_end] = _committed(case.kafka, second, target, 0)
    assert at_end == _end_of(case, target, 0)
    assert at_end != 500

    code, _ = _groups(case, capsys, "--groups", first, "--map-group", f"{first}={second}", "--execute")
    assert code == ExitCode.OK
    assert _goes_on(case.kafka, second, target, 0) == b"value-123"
    assert _groups(case, capsys, "--rollback", "--groups", "nobody")[0] == ExitCode.USAGE
    code, back = _groups(case, capsys, "--rollback", "--groups", second)
    assert (code, back["rolledBack"]) == (ExitCode.OK, True)
    assert {item["group"] for item in back["offsets"]} == {second}
    assert _goes_on(case.kafka, first, target, 0) == b"value-123"
    assert _committed(case.kafka, second, target, 0, 1) == [at_end, -1001]
    assert _groups(case, capsys, "--rollback")[0] == ExitCode.OK
    assert _committed(case.kafka, first, target, 0, 1, 2) == [-1001, -1001, -1001]
    assert _committed(case.kafka, second, target, 0) == [-1001]
    assert _groups(case, capsys, "--rollback")[0] == ExitCode.USAGE


@pytest.mark.parametrize("mode", list(OffsetMode))
def test_two_hundred_positions(
    case: Case, topic_name: str, mode: OffsetMode, capsys: pytest.CaptureFixture[str]
) -> None:
    """Random logs, positions and cuts: each group reads on with the first record that it had not read."""
    dice = random.Random(f"{topic_name}{mode}")

    def gap() -> int:
        return dice.choice([1, 1, 1, 2, 30, 900])

    logs = [random_log(dice, topic_name, number, gap) for number in range(10)]
    config = {"cleanup.policy": "compact", "min.compaction.lag.ms": str(10**15)}
    backup = Backup.claim(case.store, topics=[TopicSpec(topic_name, partitions=10, config=config)], block_records=50)
    committed = {
        f"{topic_name}.{group}": {(topic_name, number): _position(dice, items) for number, items in enumerate(logs)}
        for group in range(20)
    }
    backup.commit([item for items in logs for item in items], groups=committed)
    backup.complete()
    cuts = {
        (topic_name, number): dice.choice(items).offset + dice.choice([0, 1])
        for number, items in enumerate(logs)
        if items and dice.random() < 0.5
    }
    target = f"{topic_name}.restored"
    pace = LoadPace(batch_records=40, commit_bytes=4_000)
    report = case.restore(RestoreOptions(naming=TopicNaming(only=target), pace=pace, until=cuts, offsets=mode))
    assert report.mismatches == ()
    assert _groups(case, capsys, "--restore", report.id, "--execute")[0] == ExitCode.OK

    there = [_records_of(case, target, number) for number in range(10)]
    ends = ends_of(case.kafka.bootstrap, target)
    for group, positions in committed.items():
        for number, at in enumerate(_committed(case.kafka, group, target, *range(10))):
            wanted = [item for item in logs[number] if item.offset < cuts.get((topic_name, number), 10**9)]
            left = [item for item in wanted if item.offset >= positions[topic_name, number]]
            place = (group, number, positions[topic_name, number], at)
            assert [row for offset, row in there[number] if offset >= at] == rows_of(left), place
            assert at <= ends[number], place  # a group that has read all of it has no lag
            if mode is OffsetMode.EXACT and left:  # but below the log's start no broker serves
                assert at == max(positions[topic_name, number], wanted[0].offset), place
            if mode is OffsetMode.FLOOR and left:
                assert at >= positions[topic_name, number], place


def _position(dice: random.Random, items: list[Record]) -> int:
    """Return an offset that a group may have committed: in the log, in a gap, before its start or at its end."""
    if not items:
        return 0
    return dice.choice([0, items[0].offset, items[-1].offset + 1, dice.randint(0, items[-1].offset + 1)])


def _records_of(case: Case, target: str, number: int) -> list[tuple[int, Row]]:
    """Return what a reader gets of a partition, without the fillers of exact offsets."""
    found = read_with_offsets(case.kafka.bootstrap, target, number)
    return [(offset, row) for offset, row in found if row[1] is not None]


def _end_of(case: Case, topic: str, partition: int) -> int:
    """The offset after the last record: nothing lies behind it, so a group that has read it has a lag of 0."""
    consumer = _consumer(case.kafka, "nobody")
    try:
        _, high = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=30)
    finally:
        consumer.close()
    return high


def test_a_group_with_members_is_refused(case: Case, topic_name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Its consumers would go on where they are, and write that over."""
    backup = Backup.claim(case.store, topics=[TopicSpec(topic_name)])
    group = f"{topic_name}.g"
    backup.commit(records(topic_name, 0, range(20)), groups={group: {(topic_name, 0): 7}})
    backup.complete()
    target = f"{topic_name}.restored"
    report = case.restore(RestoreOptions(naming=TopicNaming(only=target)))
    consumer = Consumer({"bootstrap.servers": case.kafka.bootstrap, "group.id": group, "auto.offset.reset": "latest"})
    consumer.subscribe([target])
    try:
        while not consumer.assignment():
            consumer.poll(0.2)
        assert _groups(case, capsys, "--restore", report.id, "--execute")[0] == ExitCode.REFUSED
    finally:
        consumer.close()


def test_groups_after_an_append_are_refused(
    case: Case, topic_name: str, make_topic: TopicMaker, capsys: pytest.CaptureFixture[str]
) -> None:
    """A group that has read 3 of the 10 records that were there would pass over the others."""
    backup = Backup.claim(case.store, topics=[TopicSpec(topic_name)])
    group = f"{topic_name}.g"
    backup.commit(records(topic_name, 0, range(20)), groups={group: {(topic_name, 0): 20}})
    backup.complete()
    target = make_topic(partitions=1)
    producer = Producer({"bootstrap.servers": case.kafka.bootstrap})
    for number in range(10):
        producer.produce(target, key=b"theirs-%d" % number, value=b"x")
    assert producer.flush(30) == 0
    consumer = _consumer(case.kafka, group)
    try:
        consumer.commit(offsets=[TopicPartition(target, 0, 3)], asynchronous=False)
    finally:
        consumer.close()
    report = case.restore(RestoreOptions(naming=TopicNaming(only=target), append=True))
    assert report.mismatches == ()
    assert _groups(case, capsys, "--restore", report.id, "--execute")[0] == ExitCode.REFUSED
    assert _committed(case.kafka, group, target, 0) == [3]


def test_a_target_that_is_gone_is_refused(case: Case, topic_name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Offsets of one topic mean nothing in another of its name; and names that are not known are told."""
    backup = Backup.claim(case.store, topics=[TopicSpec(topic_name)])
    backup.commit(records(topic_name, 0, range(20)), groups={"g": {(topic_name, 0): 7}})
    backup.complete()
    target = f"{topic_name}.restored"
    report = case.restore(RestoreOptions(naming=TopicNaming(only=target)))
    assert _groups(case, capsys, "--restore", "nonsense")[0] == ExitCode.USAGE
    assert _groups(case, capsys, "--groups", "other")[0] == ExitCode.USAGE
    case.admin.delete_topic(target)
    assert _groups(case, capsys, "--restore", report.id)[0] == ExitCode.REFUSED
