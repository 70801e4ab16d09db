"""At a task's last tries what can't be read is told with its place, and ends no job."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyspark import TaskContext
from support.backups.build_backup import PAIR, Backup, TopicSpec, records
from support.clusters.here import Here
from support.pipeline.doubles import MemoryStore

from tandem.backup_avro.errors import RefusedError, TandemError, TimedOutError
from tandem.sink.kafka.errors.cluster_errors import ClusterTransientError
from tandem.sink.store import StoreDeniedError, StoreTransientError
from tandem.sink.store.chain.chain_reader import ChainReader
from tandem.spark_jobs.spark import task_attempts
from tandem.spark_jobs.verify import compare_keys, verify_objects
from tandem.spark_jobs.verify.verify_plan import ObjectCheck, VerifyFault, plan_objects

_IGNORED = SimpleNamespace(add=lambda _: None)


@pytest.mark.parametrize(("attempt", "last"), [(None, False), (0, False), (1, False), (2, True), (3, True)])
def test_the_third_try_is_a_last_one(monkeypatch: pytest.MonkeyPatch, attempt: int | None, last: bool) -> None:
    """Two failures may be an outage of seconds."""
    context = None if attempt is None else SimpleNamespace(attemptNumber=lambda: attempt)
    monkeypatch.setattr(TaskContext, "get", lambda: context)
    assert task_attempts.is_last() is last


def stored(count: int) -> tuple[MemoryStore, list[ObjectCheck]]:
    """A backup of so many objects, and the checks of them."""
    store = MemoryStore()
    backup = Backup.claim(store, topics=[TopicSpec("t")])
    for number in range(count):
        backup.commit(records("t", 0, [number]))
    backup.complete()
    return store, plan_objects([ChainReader(store, PAIR).load(1)])


def checked(store: MemoryStore, checks: list[ObjectCheck]) -> list[list[VerifyFault]]:
    """What one task finds in each object."""
    address = cast("Any", SimpleNamespace(open=lambda: store))
    found = verify_objects._check_all(address, _IGNORED, _IGNORED, checks)
    return [[finding.fault for finding in result.findings] for result in found]


@pytest.mark.parametrize(
    "error", [StoreTransientError("500", code="TDM-X001"), StoreDeniedError("it was archived", code="TDM-X001")]
)
def test_an_object_that_is_not_given_keeps_no_other_from_being_looked_at(
    monkeypatch: pytest.MonkeyPatch, error: TandemError
) -> None:
    """A lost volume, or objects that a lifecycle rule has archived."""
    store, checks = stored(14)
    bad = {check.item.key for check in checks[1:11]}
    store.before = lambda operation, key: error if operation == "get" and key in bad else None
    with pytest.raises(type(error)):
        checked(store, checks)
    monkeypatch.setattr(verify_objects, "is_last", lambda: True)
    assert checked(store, checks) == [[], *[[VerifyFault.UNREADABLE]] * 10, [], [], []]
    bad.add(checks[12].item.key)
    with pytest.raises(type(error)):
        checked(store, checks)


def test_the_driver_gets_one_result_of_a_task_for_each_generation() -> None:
    """The objects of two generations alternate, as those of a sample do. All findings are there, in their order."""
    store, checks = stored(40)
    gone = [check.item.key for check in checks[5:20]]
    store.delete(gone)
    mixed = [one for check in checks for one in (check, replace(check, generation=2))]
    here: Any = Here()
    address = cast("Any", SimpleNamespace(open=lambda: store))
    found = verify_objects._read_all(here, address, mixed, None)
    assert [len(tasks) for tasks in here.given] == [1]
    assert here.results == [2]
    assert [(one.generation, one.objects, one.records) for one in found] == [(1, 40, 25), (2, 40, 25)]
    assert [[finding.where for finding in one.findings] for one in found] == [gone, gone]


@pytest.mark.parametrize(
    ("error", "tried_again"),
    [
        (ClusterTransientError("no leader", code="TDM-X001"), True),
        (TimedOutError("too slow", code="TDM-X001"), False),
        (RefusedError("no", code="TDM-X001"), False),
    ],
)
def test_a_partition_that_can_not_be_read_is_told_with_its_place(
    monkeypatch: pytest.MonkeyPatch, error: TandemError, tried_again: bool
) -> None:
    """What would be the same again at once, the rest at the last tries."""
    task = cast("Any", SimpleNamespace(name="t", key=SimpleNamespace(partition=3), cut=9))

    def fails(_: object) -> Any:
        raise error

    if tried_again:
        with pytest.raises(type(error)):
            compare_keys._guarded(fails, task)
        monkeypatch.setattr(task_attempts, "is_last", lambda: True)
    found = compare_keys._guarded(fails, task)
    assert (found.topic, found.partition, found.cut, found.error) == ("t", 3, 9, str(error))
    assert not found.clean
