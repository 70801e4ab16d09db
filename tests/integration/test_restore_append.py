"""Restores into topics that hold something and that others write to, on a real broker."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from build_backup import Backup, TopicSpec, records
from confluent_kafka import Producer
from test_restore import Case, CrashAt, CrashError, Do, read_all, rows_of

from backup_avro.errors import RefusedError
from backup_avro.record import Record
from controller.sandbox.kafka import KafkaServer
from spark_jobs.progress import State
from spark_jobs.restore_choice import Options
from spark_jobs.restore_plan import Naming
from spark_jobs.restore_shape import Shape
from spark_jobs.restore_task import Pace

if TYPE_CHECKING:
    from conftest import TopicMaker
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.integration, pytest.mark.spark]

_OWN = {"retention.ms": "86400000", "max.compaction.lag.ms": "1000", "max.message.bytes": "500000"}
_LOST = Shape(keys=frozenset({b"key-7"}), latest=True)


@pytest.fixture
def case(tmp_path: Path, kafka: KafkaServer, spark: SparkSession) -> Case:
    """A folder for a backup, the shared broker, the shared Spark session."""
    return Case(tmp_path, kafka, spark)


@pytest.fixture
def live(case: Case, make_topic: TopicMaker) -> str:
    """A compacted topic with two partitions, a config of its own, and records."""
    topic = make_topic(partitions=2, config=_OWN)
    _write(case, topic, range(50))
    return topic


def _write(case: Case, topic: str, numbers: range) -> None:
    producer = Producer({"bootstrap.servers": case.kafka.bootstrap})
    for number in numbers:
        producer.produce(topic, key=b"other-%d" % number, value=b"theirs", partition=number % 2)
    assert producer.flush(30) == 0


def _backup(case: Case, topic: str) -> list[Record]:
    items = [item for number in (0, 1) for item in records(topic, number, range(300))]
    backup = Backup.claim(case.store, topics=[TopicSpec(topic, partitions=2)], block_records=50)
    backup.commit(items)
    backup.complete()
    return items


def _restored(case: Case, topic: str, number: int) -> list[tuple[object, ...]]:
    return [row for row in read_all(case.kafka.bootstrap, topic, number) if row[2] != b"theirs"]


def test_a_lost_key_comes_back_into_a_live_topic(case: Case, live: str) -> None:
    """Beside a writer; what the topic held stays, its config is put back, and the report names what was written."""
    items = _backup(case, live)
    config = case.target.set_on([live])[live]
    meanwhile: list[dict[str, str]] = []

    def interfere() -> None:
        meanwhile.append(case.target.set_on([live])[live])
        _write(case, live, range(50, 80))

    report = case.restore(Options(shape=_LOST, append=True), Do("verifying", interfere))
    assert report.mismatches == ()
    assert report.records == 2
    for number in (0, 1):
        last = [item for item in items if item.partition == number and item.key == b"key-7"][-1]
        assert _restored(case, live, number) == rows_of([last])
        assert len(read_all(case.kafka.bootstrap, live, number)) == 41
    [during] = meanwhile
    assert (during["retention.ms"], during["cleanup.policy"]) == ("-1", "compact")
    assert int(during["min.compaction.lag.ms"]) > 10**18
    assert case.target.set_on([live])[live] == config
    [topic] = report.topics
    assert topic.config["retention.ms"] == _OWN["retention.ms"]
    assert "min.compaction.lag.ms" not in topic.config


@pytest.mark.parametrize("phase", ["loading", "verifying", "putting"])
def test_a_run_that_ended_is_resumed(case: Case, live: str, phase: str) -> None:
    """Wherever the driver dies: nothing twice, and the config that was there before the first try is put back."""
    items = _backup(case, live)
    config = case.target.set_on([live])[live]
    options = Options(append=True, pace=Pace(batch_bytes=2000, commit_seconds=0.0))
    with pytest.raises(CrashError):
        case.restore(options, CrashAt(phase))
    assert case.target.set_on([live])[live] != config
    _write(case, live, range(50, 60))
    report = case.restore(options)
    assert report.mismatches == ()
    assert report.resumed == (0 if phase == "loading" else 600)
    assert case.target.set_on([live])[live] == config
    for number in (0, 1):
        expected = rows_of([item for item in items if item.partition == number])
        there = _restored(case, live, number)
        # The topic is compacted again since its config was put back: of each key the newest, in order, nothing twice.
        assert [row for row in expected if row in there] == there
        assert {row[1]: row for row in there} == {row[1]: row for row in expected}
    with pytest.raises(RefusedError, match="was appended to these topics before"):
        case.restore(options)


def test_another_plan_takes_the_place_and_knows_the_config(case: Case, live: str) -> None:
    """A run that never ended is given up by another one, which puts back what was there before both."""
    _backup(case, live)
    config = case.target.set_on([live])[live]
    with pytest.raises(CrashError):
        case.restore(Options(append=True), CrashAt("verifying"))
    case.restore(Options(shape=_LOST, append=True))
    assert case.target.set_on([live])[live] == config
    mine = [state for state in case.states() if live in state.targets]
    assert sorted(state.state for state in mine) == [State.ABANDONED, State.FINISHED]


def test_what_cannot_be_appended_is_refused(case: Case, live: str, topic_name: str, make_topic: TopicMaker) -> None:
    """A topic that is missing, that stamps records, or that a plain restore is in the middle of."""
    _backup(case, live)
    with pytest.raises(RefusedError, match="and nowhere is not"):
        case.restore(Options(naming=Naming(only="nowhere"), append=True))
    stamped = make_topic(partitions=2, config={"message.timestamp.type": "LogAppendTime"})
    with pytest.raises(RefusedError, match="stamps its records itself"):
        case.restore(Options(naming=Naming(only=stamped), append=True))
    with pytest.raises(RefusedError, match="--append"):
        case.restore(Options())
    with pytest.raises(CrashError):
        case.restore(Options(naming=Naming(only=topic_name)), CrashAt("verifying"))
    with pytest.raises(RefusedError, match="did not end"):
        case.restore(Options(naming=Naming(only=topic_name), append=True))
