"""What restores write about themselves: forms that later releases must read."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from backup_avro.errors import DamagedError
from spark_jobs import progress as marks
from spark_jobs.progress import PartitionProgress, PlanState, Progress, State

_STATE = PlanState(
    plan="abc",
    run="run-1",
    state=State.LOADING,
    generation=7,
    basis={6: 40, 7: 12},
    targets={"orders.restored": "id-2"},
    sources={"id-1": 3},
    at=1_700_000_000_000,
)
_PARTITION = PartitionProgress(
    plan="abc",
    topic_id="id-1",
    partition=2,
    target="orders.restored",
    target_topic_id="id-2",
    next_offset=2**40,
    records=1000,
    tombstones=7,
    null_keys=1,
    hash="00" * 32,
    first_target_offset=0,
    last_target_offset=1003,
)


@pytest.mark.parametrize("state", list(State))
def test_a_plan_comes_back(state: State) -> None:
    """What is written about a plan is read as it was."""
    wanted = replace(_STATE, state=state)
    assert marks.decode_state(marks.encode_state(wanted), "here") == wanted


def test_a_partition_comes_back() -> None:
    """What is written about a partition is read as it was, under a key that names plan, topic id and partition."""
    assert marks.decode_progress(marks.encode_progress(_PARTITION), "here") == _PARTITION
    assert _PARTITION.key == "abc/id-1/2"


def test_the_forms_are_fixed() -> None:
    """These bytes were written by the first release; every later one must read them."""
    state = (
        b'{"at":1700000000000,"basis":{"6":40,"7":12},"generation":7,"plan":"abc","run":"run-1",'
        b'"sources":{"id-1":3},"state":"loading","targets":{"orders.restored":"id-2"},"v":1}'
    )
    partition = (
        b'{"first_target_offset":0,"hash":"' + b"00" * 32 + b'","last_target_offset":1003,"next_offset":1099511627776,'
        b'"null_keys":1,"partition":2,"plan":"abc","records":1000,"target":"orders.restored","target_topic_id":"id-2",'
        b'"tombstones":7,"topic_id":"id-1","v":1}'
    )
    assert marks.decode_state(state, "here") == _STATE
    assert marks.decode_progress(partition, "here") == _PARTITION


@pytest.mark.parametrize(
    "change",
    [{"v": 2}, {"state": "resting"}, {"basis": {"six": 1}}, {"run": 5}, {"more": 1}, {"targets": None}],
)
def test_what_is_not_understood_is_refused(change: dict[str, object]) -> None:
    """Another version, an unknown field or a wrong type is an error that names the place, never a guess."""
    document = {**json.loads(marks.encode_state(_STATE)), **change}
    with pytest.raises(DamagedError, match="here"):
        marks.decode_state(json.dumps(document).encode(), "here")


def test_the_last_word_per_key_counts() -> None:
    """Later records replace earlier ones; a null value removes."""
    progress = Progress()
    progress.take("abc", marks.encode_state(_STATE))
    progress.take("abc", marks.encode_state(replace(_STATE, state=State.FINISHED)))
    for records in (10, 20):
        progress.take(_PARTITION.key, marks.encode_progress(replace(_PARTITION, records=records)))
    progress.take("abc/id-1/0", marks.encode_progress(replace(_PARTITION, partition=0)))
    progress.take("abc/id-1/0", None)
    assert progress.plans["abc"].state is State.FINISHED
    assert [item.records for item in progress.of_plan("abc")] == [20]
    progress.take("abc", None)
    assert progress.plans == {}
