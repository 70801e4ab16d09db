"""Other restores into the same topics: what stands in the way, what is given up, who meets whom."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.backups.build_backup import PAIR, Backup, records
from support.pipeline.doubles import MemoryStore
from support.restores.records import plan_state, task_progress

from tandem.backup_avro.errors import ConfigError, RefusedError
from tandem.sink.store.chain.chain_reader import ChainReader
from tandem.spark_jobs.restore import abandon
from tandem.spark_jobs.restore.lease import other_restores
from tandem.spark_jobs.restore.plan.options import RestoreOptions, plan_of
from tandem.spark_jobs.restore.plan.plan import RestorePlan, TargetTopic, own_again, shaped
from tandem.spark_jobs.restore.progress.task_progress import PlanPhase, PlanState, RestoreProgress, TargetStrand
from tandem.spark_jobs.restore.records.record_changes import NOTHING

_TARGET = TargetTopic(name="t", topic_id="id-t", replication_factor=1, config={}, starts={0: 0}, ends={0: 0})
_STATE = plan_state(run="r", generation=4, basis={4: 3}, targets={"t": "id-t"}, sources={"id-s": 1}, at=1)
_APPENDS = replace(_STATE, before={"t": {}})
_TASK = task_progress(
    plan=_STATE.plan,
    topic_id="id-s",
    target_topic_id="id-t",
    next_offsets={0: 5},
    strands={0: TargetStrand(records=5, hash="", first=0, last=4)},
)


@pytest.fixture
def plain() -> RestorePlan:
    """Of one topic, `t`."""
    store = MemoryStore()
    Backup.completed(store, records("t", 0, range(4)))
    return plan_of(ChainReader(store, PAIR), RestoreOptions())


def _known(*states: PlanState) -> RestoreProgress:
    return RestoreProgress(plans={state.plan: state for state in states})


def test_the_newest_unfinished_one_comes_first() -> None:
    """Those that ended are none."""
    states = [replace(_STATE, plan=name, at=at) for at, name in enumerate(("a", "b", "c"))]
    ended = [
        replace(_STATE, plan=state.value, state=state, at=9) for state in (PlanPhase.FINISHED, PlanPhase.ABANDONED)
    ]
    verified = replace(states[1], state=PlanPhase.VERIFIED)
    found = _known(states[0], verified, states[2], *ended)
    assert [state.plan for state in other_restores.unfinished(found)] == ["c", "b", "a"]


def test_what_can_be_given_up_for_another_one(plain: RestorePlan) -> None:
    """A restore into topics that are still empty. Not one that appends, nor any for one that appends."""
    appended = shaped(plain, NOTHING, {"t": _TARGET}, append=True)
    there = {"t": _TARGET}
    other_restores.refuse([_STATE], plain, there)
    with pytest.raises(RefusedError, match=r"into t, from generation 4, did not end.*abandon abababababababab`"):
        other_restores.refuse([_STATE], appended, there)
    for plan in (plain, appended):
        with pytest.raises(RefusedError, match="into t, from generation 4, did not end"):
            other_restores.refuse([_APPENDS], plan, there)
    elsewhere = replace(_STATE, targets={"t": "an earlier life"})
    other_restores.refuse([elsewhere], appended, there)
    with_settings = replace(_STATE, configs={"t": {}})
    other_restores.refuse([with_settings], plain, there)  # the other one takes these over
    with pytest.raises(RefusedError, match="TDM-R027"):
        other_restores.refuse([replace(with_settings, configs={"t": {}, "u": {}})], plain, there)
    several = replace(_APPENDS, targets={"t": "an earlier life", "u": "id-u"})
    with pytest.raises(RefusedError, match="into t, u, from"):
        other_restores.refuse([several], plain, there)


def test_what_has_put_records_there_is_not_given_up_for_one_that_goes_on() -> None:
    """Both would be in one topic."""
    there = {"t": _TARGET}
    found = RestoreProgress(tasks={_TASK.key: _TASK})
    with pytest.raises(RefusedError, match="another restore, abababababababab, has put records into t meanwhile"):
        other_restores.refuse_if_mixed(found, [_STATE], there)
    other_restores.refuse_if_mixed(found, [replace(_STATE, plan="another")], there)
    other_restores.refuse_if_mixed(found, [_STATE], {"t": replace(_TARGET, topic_id="another life")})
    nothing = replace(_TASK, strands={})
    other_restores.refuse_if_mixed(RestoreProgress(tasks={nothing.key: nothing}), [_STATE], there)


@pytest.mark.parametrize("state", [PlanPhase.LOADING, PlanPhase.VERIFIED, PlanPhase.FINISHED])
def test_who_came_since_it_was_planned_is_met(state: PlanPhase) -> None:
    """Whatever it has come to, even its end; and what went on since then."""
    other = replace(_STATE, state=state)
    with pytest.raises(RefusedError, match="another restore, abababababababab, into t began at the same time"):
        other_restores.refuse_if_met(_known(), _known(other), {"id-t"})
    with pytest.raises(RefusedError, match="TDM-R029"):
        other_restores.refuse_if_met(_known(replace(other, run="before")), _known(other), {"id-t"})
    other_restores.refuse_if_met(_known(other), _known(other), {"id-t"})
    other_restores.refuse_if_met(_known(), _known(other), {"id-u"})
    other_restores.refuse_if_met(_known(), _known(replace(other, state=PlanPhase.ABANDONED)), {"id-t"})


def test_people_are_told_what_is_given_up(plain: RestorePlan) -> None:
    """And which topics stay as it has left them."""
    (told,) = other_restores.warnings(plain, [_STATE])
    assert told == "restore abababababababab did not end and is given up"
    (told,) = other_restores.warnings(plain, [replace(_STATE, targets={"t": "id-t", "v": "1", "u": "2"})])
    assert told.endswith("given up; what it has put into u, v stays there, unfinished")


def test_a_restore_is_found_by_the_beginning_of_its_name() -> None:
    """By one that fits one only; one that ended can't be given up."""
    other = replace(_STATE, plan="ab" * 31 + "ac", state=PlanPhase.FINISHED)
    found = _known(_STATE, other)
    assert abandon.find_in(found, _STATE.plan) == _STATE
    for name, what in (("abababab", "2 restores that begin with 'abababab'"), ("b" * 8, "no restore 'bbbbbbbb'")):
        with pytest.raises(ConfigError, match=f"the target knows {what}"):
            abandon.find_in(found, name)
    with pytest.raises(ConfigError, match="'ababab' is too short"):
        abandon.find_in(_known(_STATE), "ababab")
    with pytest.raises(RefusedError, match="abababababababab is finished"):
        abandon.find_in(found, other.plan)


def test_settings_of_its_own_take_the_place_of_the_loading_config() -> None:
    """What the topic had is set, the rest of what loading had set is dropped."""
    changes = own_again({"cleanup.policy": "compact", "min.insync.replicas": "2"})
    assert changes["cleanup.policy"] == "compact"
    assert changes["min.insync.replicas"] == "2"
    assert changes["retention.ms"] is None
    assert changes["max.message.bytes"] is None
