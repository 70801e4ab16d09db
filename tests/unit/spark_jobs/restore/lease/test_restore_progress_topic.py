"""The topic that restores write their progress to: it may not forget, and has room for what they say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatchBuilder
from support.backups.build_backup import PAIR, Backup, TopicSpec, records
from support.pipeline.doubles import MemoryStore
from support.restores.records import load_task

from tandem.backup_avro.errors import RefusedError, TandemError
from tandem.backup_avro.record.varint import LONG_MAX
from tandem.sink.kafka.cluster.admin import TopicInfo
from tandem.sink.kafka.errors.cluster_errors import (
    ClusterDeniedError,
    ClusterRequestError,
    TopicExistsError,
    UnknownTopicError,
)
from tandem.sink.store.chain.chain_reader import ChainReader
from tandem.spark_jobs.restore.lease import progress_topic
from tandem.spark_jobs.restore.load.load import nothing_yet
from tandem.spark_jobs.restore.load.transaction import Transaction
from tandem.spark_jobs.restore.plan.options import RestoreOptions, plan_of
from tandem.spark_jobs.restore.plan.plan import RestorePlan, shaped
from tandem.spark_jobs.restore.prepare import prepare
from tandem.spark_jobs.restore.prepare.prepare import PreparedRestore
from tandem.spark_jobs.restore.progress import batch_producer
from tandem.spark_jobs.restore.progress import task_progress as marks
from tandem.spark_jobs.restore.progress.offset_map import PAGE_ROWS, OffsetRow
from tandem.spark_jobs.restore.progress.task_progress import TargetStrand
from tandem.spark_jobs.restore.records.load_task import SourcePartition
from tandem.spark_jobs.restore.records.partitioner import Partitioner
from tandem.spark_jobs.restore.records.record_changes import NOTHING, RecordChanges
from tandem.spark_jobs.restore.target.target_cluster import TargetCluster

_USUAL = {"cleanup.policy": "compact", "max.message.bytes": "1048588", "segment.bytes": "8388608"}


@dataclass(slots=True)
class Admin:
    """A cluster as far as the topic goes. `settings`: those in force, None if it is not there.

    `altered` are changes that were made, `asked` those that were asked for only. `objection` is raised instead.
    """

    settings: dict[str, str] | None = None
    objection: TandemError | None = None
    altered: list[Mapping[str, str]] = field(default_factory=list)
    asked: list[Mapping[str, str]] = field(default_factory=list)

    def topics(self, names: Sequence[str]) -> list[TopicInfo]:
        """The topic, if it is there."""
        assert list(names) == [marks.TOPIC]
        numbers = dict.fromkeys(range(progress_topic.PARTITIONS), (1, 0))
        found = TopicInfo(name=marks.TOPIC, topic_id="x", partitions=numbers, replication_factor=1, internal=False)
        return [] if self.settings is None else [found]

    def config(self, names: Sequence[str], *, defaults: Sequence[str]) -> dict[str, Mapping[str, str]]:
        """What takes effect, of what is asked for."""
        assert list(names) == [marks.TOPIC]
        if self.settings is None:
            raise UnknownTopicError("it does not exist", code="TDM-X001")
        return {marks.TOPIC: {key: value for key, value in self.settings.items() if key in defaults}}

    def create_topic(self, name: str, *, partitions: int, replication_factor: int, config: Mapping[str, str]) -> None:
        assert (name, partitions, replication_factor) == (marks.TOPIC, progress_topic.PARTITIONS, 1)
        if self.objection is not None:
            raise self.objection
        self.settings = {**_USUAL, **config}

    def alter_config(self, name: str, changes: Mapping[str, str], *, only_ask: bool) -> None:
        """Set it, or not."""
        assert name == marks.TOPIC
        if self.objection is not None:
            raise self.objection
        (self.asked if only_ask else self.altered).append(changes)


class Broker:
    """A producer that keeps what is said of progress, as `written`."""

    written = b""

    def begin(self) -> None:
        """Do nothing."""

    def send(self, topic: str, partition: int, *, key: bytes, value: bytes) -> None:
        assert (topic, partition > 0) == (marks.TOPIC, True)
        self.written = key + value

    def commit(self) -> None:
        """Do nothing."""


@cache
def _backed_up() -> RestorePlan:
    store = MemoryStore()
    Backup.completed(store, records("t", 0, range(5)) + records("t", 1, range(5)), topics=[TopicSpec("t", 2)])
    return plan_of(ChainReader(store, PAIR), RestoreOptions())


def _plan(count: int | None = None) -> RestorePlan:
    """Of a topic of two partitions, into one of `count`."""
    shape = NOTHING if count is None else RecordChanges(partitioner=Partitioner.MURMUR2)
    return shaped(_backed_up(), shape, {}, count=count)


def _committed(plan: RestorePlan, count: int, *, number: int = 2**40) -> int:
    """Commit what a merged task has put into all partitions of its target; return the bytes of the record."""
    topic = plan.topics[0]
    task = load_task(
        plan=plan.hash,
        pair=plan.pair,
        restore="0" * 16,
        topic_id=topic.source.topic_id,
        sources=tuple(SourcePartition(partition=number, slices=()) for number in range(topic.source.partitions)),
        target_topic_id=topic.source.topic_id,
        count=count,
    )
    before = replace(
        nothing_yet(task),
        next_offsets={0: number, 1: number},
        strands={
            part: TargetStrand(records=number, hash="ab" * 32, first=number, last=number) for part in range(count)
        },
        rows=(OffsetRow(1, number, number, count, number, number, LONG_MAX),) * (PAGE_ROWS - 1),
    )
    broker = Broker()
    Transaction(broker, task, before).commit()  # type: ignore[arg-type]  # stands in for a producer
    return DefaultRecordBatchBuilder.estimate_size_in_bytes(b"", broker.written, [])


@pytest.mark.parametrize("there", [None, _USUAL], ids=["new", "of an earlier release"])
def test_the_first_commit_into_very_many_partitions_fits(there: dict[str, str] | None) -> None:
    """With 12,000 of them the record is larger than brokers take unless they are told otherwise."""
    plan, admin = _plan(12_000), Admin(there)
    largest = progress_topic.record_bytes(plan)
    assert progress_topic.ensure_topic(admin, brokers=1, largest=largest) == 16  # type: ignore[arg-type]  # a double
    [config] = admin.altered or [admin.settings or {}]
    size = _committed(plan, 12_000)
    assert 1_048_588 < size <= int(config["max.message.bytes"])
    assert int({**_USUAL, **config}["segment.bytes"]) >= size


@given(st.integers(3, 300), st.sampled_from([0, 7, 2**31, LONG_MAX]))
def test_no_record_is_larger_than_what_is_asked_for(count: int, number: int) -> None:
    """However long the numbers become."""
    plan = _plan(count)
    assert _committed(plan, count, number=number) <= progress_topic.record_bytes(plan)


@pytest.mark.parametrize("count", [None, 2, 3000])
def test_usual_restores_leave_the_limit_alone(count: int | None) -> None:
    """Neither is it set on a new topic, nor changed on one that is there."""
    largest = progress_topic.record_bytes(_plan(count))
    new, there = Admin(), Admin(dict(_USUAL))
    for admin in (new, there):
        progress_topic.ensure_topic(admin, brokers=1, largest=largest)  # type: ignore[arg-type]  # a double
    assert new.settings == {**_USUAL, "min.cleanable.dirty.ratio": "0.1"}
    assert (there.settings, there.altered) == (_USUAL, [])


def test_a_segment_has_room_for_it_too() -> None:
    """Brokers refuse a batch that is larger than one."""
    admin = Admin()
    progress_topic.ensure_topic(admin, brokers=1, largest=9_000_000)  # type: ignore[arg-type]  # a double
    assert admin.settings is not None
    assert (admin.settings["max.message.bytes"], admin.settings["segment.bytes"]) == ("9000000", "9000000")
    there = Admin(dict(_USUAL))
    progress_topic.make_room(there, 9_000_000)  # type: ignore[arg-type]  # a double
    assert there.altered == [{"max.message.bytes": "9000000", "segment.bytes": "9000000"}]


@pytest.mark.parametrize(
    "error",
    [ClusterDeniedError("not allowed", code="TDM-X001"), ClusterRequestError("a policy forbids it", code="TDM-X001")],
)
def test_a_plan_without_room_is_refused_before_anything_is_made(error: TandemError) -> None:
    """With the figure and what makes room; looking at it changes nothing, and a dry run has the reason."""
    plan = _plan(12_000)
    target = TargetCluster.__new__(TargetCluster)
    target.props = {}
    admin = Admin(dict(_USUAL), objection=error)
    target.admin = admin  # type: ignore[assignment]  # a double
    prepared = PreparedRestore(
        options=RestoreOptions(),
        plan=plan,
        targets={},
        found=marks.RestoreProgress(),
        resumes=None,
        displaces=(),
        present=0,
    )
    largest = progress_topic.record_bytes(plan)
    wanted = (
        rf"may take {largest:,} bytes.*max\.message\.bytes=1048588.*{error}.*--add-config max\.message\.bytes={largest}"
    )
    with pytest.raises(RefusedError, match=wanted):
        prepare._ask(target, prepared)
    looked = prepare._asked(target, prepared, lambda: None, only_look=True)
    assert isinstance(looked.refused, RefusedError)
    with pytest.raises(RefusedError, match=wanted):
        progress_topic.ensure_topic(admin, brokers=1, largest=largest)  # type: ignore[arg-type]  # a double


def test_looking_changes_nothing() -> None:
    """The brokers are asked whether they would."""
    admin = Admin(dict(_USUAL))
    progress_topic.make_room(admin, 2_000_000, only_ask=True)  # type: ignore[arg-type]  # a double
    assert (admin.asked, admin.altered) == ([{"max.message.bytes": "2000000"}], [])


def test_a_cluster_that_does_not_create_it_with_room() -> None:
    """The figure is named where it is the reason, and what the cluster says where it is not."""
    admin = Admin(objection=ClusterRequestError("a policy forbids it", code="TDM-X001"))
    with pytest.raises(RefusedError, match=r"may take 2,000,000 bytes.*could not be created.*a policy forbids it"):
        progress_topic.ensure_topic(admin, brokers=1, largest=2_000_000)  # type: ignore[arg-type]  # a double
    with pytest.raises(ClusterRequestError, match="a policy forbids it"):
        progress_topic.ensure_topic(admin, brokers=1, largest=1000)  # type: ignore[arg-type]  # a double


def test_a_topic_that_another_restore_has_just_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """It gets the room all the same."""
    admin = Admin(dict(_USUAL))
    monkeypatch.setattr(progress_topic, "partitions", lambda _: ())

    def taken(*_: object, **__: object) -> None:
        raise TopicExistsError("it is there", code="TDM-X001")

    monkeypatch.setattr(Admin, "create_topic", taken)
    progress_topic.ensure_topic(admin, brokers=1, largest=2_000_000)  # type: ignore[arg-type]  # a double
    assert admin.altered == [{"max.message.bytes": "2000000"}]


def test_more_than_a_request_has_room_for() -> None:
    """No topic's config helps; and what is just not refused is taken by the producer."""
    largest = progress_topic.record_bytes(_plan(300_000))
    with pytest.raises(RefusedError, match=rf"may take {largest:,} bytes.*no more than .* fit in a request"):
        progress_topic.make_room(Admin(dict(_USUAL)), largest, only_ask=True)  # type: ignore[arg-type]  # a double
    value = bytes(batch_producer.LARGEST_RECORD - 1024)
    assert DefaultRecordBatchBuilder.estimate_size_in_bytes(b"k" * 600, value, []) <= batch_producer._REQUEST_BYTES


class Policies:
    """A cluster as far as its topics' policies are asked for."""

    def __init__(self, answer: Mapping[str, str] | Exception) -> None:
        self._answer = answer

    def config(self, names: list[str], *, defaults: Sequence[str]) -> dict[str, Mapping[str, str]]:
        assert (names, list(defaults)) == ([marks.TOPIC], ["cleanup.policy"])
        if isinstance(self._answer, Exception):
            raise self._answer
        return {marks.TOPIC: self._answer}


@pytest.mark.parametrize("policy", ["delete", "compact,delete"])
def test_progress_that_would_expire_is_refused(policy: str) -> None:
    """The topic is named, and what mends it."""
    with pytest.raises(RefusedError, match=rf"{marks.TOPIC}.*cleanup.policy={policy}.*kafka-configs"):
        progress_topic.refuse_unless_kept(Policies({"cleanup.policy": policy}))  # type: ignore[arg-type]  # a double


@pytest.mark.parametrize(
    "answer",
    [{"cleanup.policy": "compact"}, UnknownTopicError("x", code="TDM-X001"), ClusterDeniedError("x", code="TDM-X001")],
)
def test_progress_that_stays_is_taken(answer: Mapping[str, str] | Exception) -> None:
    """As is what is still to be made, and what may not be asked for."""
    progress_topic.refuse_unless_kept(Policies(answer))  # type: ignore[arg-type]  # a double
