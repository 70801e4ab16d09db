"""What restores write about themselves: forms that later releases must read."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import NamedTuple

import pytest
from confluent_kafka import TopicPartition

from tandem.backup_avro.errors import DamagedError, ExitCode
from tandem.controller.cli.main import run
from tandem.spark_jobs.restore import forget_restores
from tandem.spark_jobs.restore.lease import lease_record
from tandem.spark_jobs.restore.progress import task_progress as marks
from tandem.spark_jobs.restore.progress.offset_map import OffsetRow
from tandem.spark_jobs.restore.progress.task_progress import (
    PlanPhase,
    PlanState,
    RestoreProgress,
    TargetStrand,
    TaskProgress,
)
from tandem.spark_jobs.restore.target.target_cluster import TargetCluster

_STATE = PlanState(
    plan="abc",
    run="run-1",
    state=PlanPhase.LOADING,
    generation=7,
    basis={6: 40, 7: 12},
    targets={"orders.restored": "id-2"},
    sources={"id-1": 3},
    merged=("id-1",),
    at=1_700_000_000_000,
)
_TASK = TaskProgress(
    plan="abc",
    topic_id="id-1",
    task=2,
    target="orders.restored",
    target_topic_id="id-2",
    next_offsets={2: 2**40},
    strands={2: TargetStrand(records=1000, hash="00" * 32, first=0, last=1003)},
    tombstones=7,
    null_keys=1,
    left_out=3,
    page="orders/restores/x/offsets/id-1+2+aa.json",
    rows=(OffsetRow(2, 5, 2**40 - 1, 2, 4, 1000),),
)


@pytest.mark.parametrize("state", list(PlanPhase))
def test_a_plan_comes_back(state: PlanPhase) -> None:
    """What is written about a plan is read as it was."""
    wanted = replace(_STATE, state=state, before={"orders.restored": {"retention.ms": "5"}}, spread=16)
    assert marks.decode_state(marks.encode_state(wanted), "here") == wanted


def test_a_task_comes_back() -> None:
    """What is written about a task is read as it was, under a key that names plan, topic id and source partition."""
    assert marks.decode_progress(marks.encode_progress(_TASK), "here") == _TASK
    assert _TASK.key == "abc/id-1/2"


def test_the_forms_are_fixed() -> None:
    """These bytes were written by the first release; every later one must read them."""
    state = (
        b'{"at":1700000000000,"basis":{"6":40,"7":12},"generation":7,"merged":["id-1"],"plan":"abc","run":"run-1",'
        b'"sources":{"id-1":3},"state":"loading","targets":{"orders.restored":"id-2"},"v":1}'
    )
    task = (
        b'{"left_out":3,"next_offsets":{"2":1099511627776},"null_keys":1,'
        b'"page":"orders/restores/x/offsets/id-1+2+aa.json","plan":"abc","rows":[[2,5,1099511627775,2,4,1000]],'
        b'"strands":{"2":[1000,"' + b"00" * 32 + b'",0,1003]},"target":"orders.restored","target_topic_id":"id-2",'
        b'"task":2,"tombstones":7,"topic_id":"id-1","v":1}'
    )
    assert marks.decode_state(state, "here") == _STATE
    assert marks.decode_progress(task, "here") == _TASK


@pytest.mark.parametrize(
    "change",
    [
        {"v": 2},
        {"task": "two"},
        {"strands": {"2": [1, "00"]}},
        {"strands": {"x": [1, "00", 0, 0]}},
        {"rows": [[1, 2, 3]]},
        {"rows": [[1, 2, 3, 4, 5, "6"]]},
        {"next_offsets": {"0": "x"}},
        {"more": 1},
    ],
)
def test_a_task_that_is_not_understood_is_refused(change: dict[str, object]) -> None:
    """Another version, an unknown field or a wrong type is an error that names the place, never a guess."""
    document = {**json.loads(marks.encode_progress(_TASK)), **change}
    with pytest.raises(DamagedError, match="here"):
        marks.decode_progress(json.dumps(document).encode(), "here")


@pytest.mark.parametrize(
    "change",
    [
        {"v": 2},
        {"state": "resting"},
        {"basis": {"six": 1}},
        {"run": 5},
        {"more": 1},
        {"targets": None},
        {"before": {"t": 5}},
    ],
)
def test_what_is_not_understood_is_refused(change: dict[str, object]) -> None:
    """Another version, an unknown field or a wrong type is an error that names the place, never a guess."""
    document = {**json.loads(marks.encode_state(_STATE)), **change}
    with pytest.raises(DamagedError, match="here"):
        marks.decode_state(json.dumps(document).encode(), "here")


def test_the_last_word_per_key_counts() -> None:
    """Later records replace earlier ones; a null value removes."""
    progress = RestoreProgress()
    progress.take("abc", marks.encode_state(_STATE))
    progress.take("abc", marks.encode_state(replace(_STATE, state=PlanPhase.FINISHED)))
    for left_out in (10, 20):
        progress.take(_TASK.key, marks.encode_progress(replace(_TASK, left_out=left_out)))
    progress.take("abc/id-1/0", marks.encode_progress(replace(_TASK, task=0)))
    progress.take("abc/id-1/0", None)
    assert progress.plans["abc"].state is PlanPhase.FINISHED
    assert [(item.left_out, item.records) for item in progress.of_plan("abc")] == [(20, 1000)]
    progress.take("abc", None)
    assert progress.plans == {}


def test_tasks_are_spread_over_all_partitions_but_the_first() -> None:
    """Where a plan's tasks are is fixed by its own word, however many partitions the topic gets; 0: with the plans."""
    numbers = {marks.partition_of(marks.task_key("abc", "id-1", task), 16) for task in range(1000)}
    assert numbers == set(range(1, 17))
    assert marks.partition_of(_TASK.key, 0) == marks.PLANS_PARTITION
    assert marks.partition_of(_TASK.key, 1) == 1
    assert marks.partition_of("abc/id-1/2", 16) == 2, "a later release must find it where an earlier one put it"


# --- records that can't be read ---------------------------------------------------------------------------------------

_OTHER = replace(_STATE, plan="def", at=_STATE.at + 1, targets={"payments.restored": "id-3"})
_RECORDS = (
    (0, "abc", marks.encode_state(_STATE)),
    (0, "bad", b"{}"),
    (0, "def", marks.encode_state(_OTHER)),
    (1, _TASK.key, marks.encode_progress(_TASK)),
    (1, "def/id-1/0", b"junk"),
    (1, "def/id-1/1", marks.encode_progress(replace(_TASK, plan="def", task=1))),
)


class _Record(NamedTuple):
    """A record, as confluent-kafka has it."""

    number: int
    at: int
    name: str
    body: bytes

    def error(self) -> None:
        """It came."""

    def partition(self) -> int:
        return self.number

    def offset(self) -> int:
        return self.at

    def key(self) -> bytes:
        return self.name.encode()

    def value(self) -> bytes:
        return self.body


class _Consumer:
    """Reads the records above."""

    def __init__(self, _: object) -> None:
        self._left: list[_Record] = []

    def assign(self, places: list[TopicPartition]) -> None:
        for place in places:
            there = [item for item in _RECORDS if item[0] == place.partition]
            self._left += [_Record(number, at, name, body) for at, (number, name, body) in enumerate(there)]

    def poll(self, _: float) -> _Record | None:
        """Return the next one."""
        return self._left.pop(0) if self._left else None

    def close(self) -> None:
        """Nothing is open."""


class _Admin:
    """Knows that the topic has two partitions."""

    def __init__(self, _: object) -> None:
        """Of whatever cluster."""

    def topics(self, names: list[str]) -> list[SimpleNamespace]:
        return [SimpleNamespace(name=name, partitions=[0, 1]) for name in names]

    def list_offsets(self, asked: Mapping[tuple[str, int], int], *, read_committed: bool) -> dict[object, object]:
        """Where the partitions end."""
        assert read_committed in {True, False}
        return {place: (sum(item[0] == place[1] for item in _RECORDS), -1) for place in asked}


@pytest.fixture
def _read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cluster with the records above."""
    monkeypatch.setattr("tandem.spark_jobs.restore.progress.task_progress.Consumer", _Consumer)
    monkeypatch.setattr("tandem.spark_jobs.restore.progress.task_progress.ClusterAdmin", _Admin)
    monkeypatch.setattr("tandem.spark_jobs.restore.target.target_cluster.ClusterAdmin", _Admin)


_LIST = ["restore", "list", "--target-bootstrap-servers", "nowhere:1", "-o", "json"]


@pytest.mark.usefixtures("_read")
def test_a_damaged_record_is_named_beside_the_others(capsys: pytest.CaptureFixture[str]) -> None:
    """No restore is hidden by what another one's record is; how far one is whose task's record is damaged, is open."""
    assert run(_LIST) == ExitCode.UNHEALTHY
    out, err = capsys.readouterr()
    shown = json.loads(out)
    assert [(item["restore"], item["records"]) for item in shown["restores"]] == [("abc", 1000), ("def", None)]
    assert set(shown["damaged"]) == {"bad", "def/id-1/0"}
    for key in shown["damaged"]:
        assert f"what is known of a restore can't be read: {marks.TOPIC}, key {key}: " in err
    assert run(_LIST[:-2]) == ExitCode.UNHEALTHY
    assert "orders.restored" in capsys.readouterr().out


@pytest.mark.usefixtures("_read")
def test_who_restores_does_not_pass_a_damaged_record_by() -> None:
    """It may be that of a restore into the same topics."""
    with pytest.raises(DamagedError, match=f"{marks.TOPIC}, key bad: "):
        TargetCluster({"bootstrap.servers": "nowhere:1"}).progress(settled=False)


class _Cleaned(_Consumer):
    """Reads a topic in which a word was replaced after its end was asked for, and the one before was removed."""

    def assign(self, places: list[TopicPartition]) -> None:
        """Read the first partition."""
        assert [place.partition for place in places] == [marks.PLANS_PARTITION]
        self._left = [
            _Record(0, 1, "def", marks.encode_state(_OTHER)),
            _Record(0, 2, "abc", marks.encode_state(replace(_STATE, state=PlanPhase.FINISHED))),
        ]


def test_a_word_that_was_replaced_meanwhile_is_not_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither it nor the one in its place lies below the end that was asked for first."""
    ends = [2, 3, 3]

    class Admin(_Admin):
        def list_offsets(self, asked: Mapping[tuple[str, int], int], *, read_committed: bool) -> dict[object, object]:
            assert not read_committed
            end = ends.pop(0)
            return dict.fromkeys(asked, (end, -1))

    monkeypatch.setattr("tandem.spark_jobs.restore.progress.task_progress.Consumer", _Cleaned)
    monkeypatch.setattr("tandem.spark_jobs.restore.progress.task_progress.ClusterAdmin", Admin)
    monkeypatch.setattr("tandem.spark_jobs.restore.target.target_cluster.ClusterAdmin", Admin)
    plans = TargetCluster({"bootstrap.servers": "nowhere:1"}).plans().plans
    assert {plan: state.state for plan, state in plans.items()} == {"abc": PlanPhase.FINISHED, "def": PlanPhase.LOADING}
    assert ends == []


def test_what_is_noted_is_the_last_record() -> None:
    """A later one that can be read, or that removes, ends the damage; a damaged one ends what was known."""
    progress = RestoreProgress()
    for key, good in (("abc", marks.encode_state(_STATE)), (_TASK.key, marks.encode_progress(_TASK))):
        progress.note(key, good)
        progress.note(key, b"{}")
        assert list(progress.damaged) == [key]
        assert not progress.plans
        assert not progress.tasks
        progress.note(key, good)
        assert not progress.damaged
        progress.note(key, b"")
        progress.note(key, None)
        assert progress == RestoreProgress()


def _large(run: str = "run-1") -> PlanState:
    names = [f"a-topic-with-a-name-of-usual-length-{number:05}" for number in range(14_000)]
    return replace(_STATE, run=run, targets=dict.fromkeys(names, "id" * 11), sources=dict.fromkeys(names, 1))


def test_a_word_about_very_many_topics() -> None:
    """It is cut into records that brokers take, and counts when all of it was read, in whatever state of the topic."""
    records = marks.records_of(_large())
    assert len(marks.encode_state(_large())) > 1_048_588
    assert max(len(value) for _, value in records) <= 512 * 1024
    assert records[-1][0] == "abc"
    progress = RestoreProgress()
    for key, value in records:
        progress.put_together()
        assert progress.plans == {}
        progress.take(key, value)
    progress.put_together()
    assert progress.plans == {"abc": _large()}
    later = marks.records_of(_large("run-2"))
    assert not dict(later).keys() & dict(records).keys() - {"abc"}
    for key, value in later:
        progress.take(key, value)
    assert sorted(progress.parts_of("abc")) == sorted(key for key, _ in records + later if key != "abc")
    for key in progress.parts_of("abc"):
        if key not in dict(later):
            progress.take(key, None)
    progress.put_together()
    assert progress.plans == {"abc": _large("run-2")}
    progress.take("abc", marks.encode_state(_STATE))
    progress.put_together()
    assert progress.plans == {"abc": _STATE}
    progress.take(*later[-1])
    progress.take("abc", None)
    progress.put_together()
    assert (progress.plans, progress.parts_of("abd")) == ({}, [])


def test_a_word_that_lacks_a_part_is_not_believed() -> None:
    """Nor one whose parts are not what it names, whatever number of them it says there are."""
    records = marks.records_of(_large())
    named = json.loads(records[-1][1])
    missing = [item for item in records if item is not records[1]]
    changed = [(records[0][0], b"x"), *records[1:]]
    many = [
        *records[:-1],
        ("abc", json.dumps({**named, "parts": 2**62}, sort_keys=True, separators=(",", ":")).encode()),
    ]
    for wrong in (missing, changed, many):
        progress = RestoreProgress()
        for key, value in wrong:
            progress.take(key, value)
        with pytest.raises(
            DamagedError, match=r"key abc: its content lies in.*without a value to _tandem_restore_progress-0;"
        ):
            progress.put_together()
        progress.put_together(strict=False)
        assert (progress.plans, list(progress.damaged)) == ({}, ["abc"]), "who only looks names it"
        progress.take(*wrong[-1])
        progress.take("abc", None)
        progress.put_together()
        assert progress.plans == {}, "it can be forgotten"


def test_a_small_word_is_one_record() -> None:
    """As the first release wrote it."""
    assert marks.records_of(_STATE) == [("abc", marks.encode_state(_STATE))]


class Words:
    """A target of which old restores are known; `topics`: name -> id."""

    props: Mapping[str, str] = {}

    def __init__(self, topics: Mapping[str, str], *states: PlanState) -> None:
        self._topics = topics
        self._states = {state.plan: state for state in states}
        self.admin = self

    def plans(self) -> RestoreProgress:
        return RestoreProgress(plans=dict(self._states))

    def topics(self, names: Iterable[str]) -> list[SimpleNamespace]:
        """Those that there are."""
        there = [
            SimpleNamespace(name=name, topic_id=self._topics[name], partitions=[0])
            for name in names
            if name in self._topics
        ]
        return sorted(there, key=lambda info: info.name)


def test_what_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Restores of days ago whose topics are gone, also those that did not end; those of failed drills at once."""
    gone: list[str] = []
    tasks: list[str] = []
    monkeypatch.setattr(lease_record, "forget_plan", lambda _, state: gone.append(state.plan))
    monkeypatch.setattr(marks, "forget_tasks", lambda *known: tasks.extend(known[-1]))
    day = 86_400_000
    states = [
        replace(_STATE, plan="ended", state=PlanPhase.FINISHED, targets={"a": "1"}),
        replace(_STATE, plan="began", state=PlanPhase.LOADING, targets={"a": "1"}),
        replace(_STATE, plan="about to make it", state=PlanPhase.BEGUN, targets={"c": ""}),
        replace(_STATE, plan="made it, perhaps", state=PlanPhase.BEGUN, targets={"b": ""}),
        replace(_STATE, plan="there", state=PlanPhase.LOADING, targets={"b": "2", "a": "1"}),
        replace(_STATE, plan="young", state=PlanPhase.LOADING, targets={"a": "1"}, at=_STATE.at + day),
    ]
    target = Words({"b": "2", marks.TOPIC: "3"}, *states)
    forget_restores.tidy(target, now=_STATE.at + 7 * day + 1)  # type: ignore[arg-type]  # a double
    assert gone == ["ended", "began", "about to make it"]
    assert tasks == [marks.task_key(plan, "id-1", number) for plan in gone for number in range(3)]
    gone.clear()
    forget_restores.forget_unfinished(target, ["a"])  # type: ignore[arg-type]  # a double
    assert gone == ["began", "young"]
    forget_restores.forget_unfinished(Words({}, *states), ["a"])  # type: ignore[arg-type]  # a double
    assert gone == ["began", "young"]
