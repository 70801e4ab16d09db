"""Giving up an unfinished restore: it can't be resumed any more, and topics that it appended to get their config back.

The records that it has written stay in the topics. Topics that it was restoring as a whole keep the loading config,
unless they had settings of their own: such a topic holds part of a backup, and nothing in it is compacted or deleted;
an operator deletes it when it is not needed.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from tandem.backup_avro.errors import ConfigError, RefusedError
from tandem.spark_jobs.restore.lease import lease_record
from tandem.spark_jobs.restore.lease.fencing import fence_all
from tandem.spark_jobs.restore.lease.other_restores import short, unfinished
from tandem.spark_jobs.restore.plan import plan as restore_plan
from tandem.spark_jobs.restore.progress import task_progress as marks
from tandem.spark_jobs.restore.progress.task_progress import LostEndError, PlanPhase, PlanState, RestoreProgress
from tandem.spark_jobs.restore.target import append
from tandem.spark_jobs.restore.target.target_cluster import TargetCluster

_SHORTEST: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class AbandonResult:
    """The result of `abandon`. `put_back`: topics whose config is as before. `stay`: topics that are left as loaded.

    `gone`: topics that don't exist any more. `refused`: topic -> setting -> why the cluster refuses it; if there are
    any, the restore is not given up yet, and `own` is the config that these topics had. `records`: those that the
    restore has written.
    """

    state: PlanState
    records: int
    put_back: tuple[str, ...]
    stay: tuple[str, ...]
    gone: tuple[str, ...]
    refused: Mapping[str, Mapping[str, str]]
    own: Mapping[str, Mapping[str, str]]


def find(target: TargetCluster, name: str) -> PlanState:
    """Return the unfinished restore whose plan's hash begins with `name`. Raises as `find_in`."""
    return find_in(target.plans() if marks.partitions(target.admin) else RestoreProgress(), name)


def find_in(found: RestoreProgress, name: str) -> PlanState:
    """Return the restore whose plan's hash begins with `name`.

    Raises ConfigError unless exactly one matches, or if `name` has fewer than eight digits, RefusedError if it ended.
    """
    if len(name) < _SHORTEST:
        raise ConfigError(
            f"{name!r} is too short for a restore", code="TDM-R001", remedy="`tandem restore list` shows whole names"
        )
    states = [state for plan, state in sorted(found.plans.items()) if plan.startswith(name)]
    if len(states) != 1:
        what = f"{len(states)} restores that begin with" if states else "no restore"
        raise ConfigError(
            f"the target knows {what} {name!r}", code="TDM-R002", remedy="`tandem restore list` shows those there are"
        )
    [state] = states
    if not state.unfinished:
        raise RefusedError(
            f"restore {short(state.plan)} is {state.state}: there is nothing to abandon",
            code="TDM-R003",
            remedy="`tandem restore list` shows those that did not end",
        )
    return state


def abandon(target: TargetCluster, name: str, tell: Callable[[str], None] = lambda _: None) -> AbandonResult:
    """Give up the restore whose plan's hash begins with `name`. Raises as `find`, and the errors of the cluster.

    A run of it that is still at work is fenced. If this call is interrupted, or if the cluster refuses some of the
    config, it is to be repeated. `tell` receives messages about the current step.
    """
    begun = find(target, name)
    # A run that is at work finds out at its next write of the plan's state, its tasks when they check the run's id.
    state = replace(begun, run=str(uuid.uuid4()))
    lease_record.write_phase(target, begun, state)
    tell(f"restore {short(state.plan)}: ending what up to {sum(1 for _ in state.tasks)} tasks may have open")
    try:
        fence_all(target.props, [state])
    except BaseException:
        tell(f"restore {short(state.plan)} is not given up yet; the same command, given again, goes on with that")
        raise
    found = _what_is_known(target, tell)
    # A topic without an id was about to be created.
    looked = target.look(state.targets)
    there = {name for name, item in looked.items() if state.targets[name] in {item.topic_id, ""}}
    before = {name: own for name, own in state.before.items() if name in there}
    configs = {name: own for name, own in state.configs.items() if name in there}
    refused = put_back(target, before)
    again = target.set_configs({topic: restore_plan.own_again(own) for topic, own in configs.items()})
    refused |= _still(target, again, restore_plan.LOADING)
    refused = {topic: why for topic, why in refused.items() if why}
    if not refused:
        lease_record.write_phase(target, state, replace(state, state=PlanPhase.ABANDONED))
        put_back_again(target, before)
    ids = set(state.targets.values())
    changed = before.keys() | configs.keys()
    return AbandonResult(
        state=state,
        records=sum(item.records for item in found.of_plan(state.plan) if item.target_topic_id in ids),
        put_back=tuple(sorted(changed - refused.keys())),
        stay=tuple(sorted(there - changed)),
        gone=tuple(sorted(state.targets.keys() - there)),
        refused=refused,
        own={topic: {**before, **configs}[topic] for topic in refused},
    )


def _what_is_known(target: TargetCluster, tell: Callable[[str], None]) -> RestoreProgress:
    """Return all progress; if a transaction stays open, the progress before it: the numbers are only displayed."""
    try:
        return target.progress(settled=True)
    except LostEndError as error:
        tell(f"{error.args[0]}; what comes after that is not counted")
        return target.progress(settled=False)


def put_back(target: TargetCluster, before: Mapping[str, Mapping[str, str]]) -> dict[str, Mapping[str, str]]:
    """Set the config of topics that were appended to as it was `before`; return the refused settings by topic.

    A refused setting that was changed by other means since is left as it is, and does not count as refused.
    """
    refused = target.set_configs({name: append.put_back(own) for name, own in before.items()})
    return _still(target, refused, append.HELD)


def _still(
    target: TargetCluster, refused: Mapping[str, Mapping[str, str]], ours: Mapping[str, str]
) -> dict[str, Mapping[str, str]]:
    """Return the refused settings that still have the restore's own value, `ours`."""
    names = [name for name, why in refused.items() if why]
    now_set = target.set_on(names) if names else {}
    return {
        name: {key: reason for key, reason in why.items() if now_set[name].get(key) == ours.get(key)}
        for name, why in refused.items()
    }


def put_back_again(target: TargetCluster, before: Mapping[str, Mapping[str, str]]) -> None:
    """Put the config back once more where a run that had lost the lease has suspended compaction and retention since.

    It is called after the state that ends the restore was written: a run that suspends them later finds that state, and
    puts the config back itself. Topics that another unfinished restore writes to are left to that one.
    """
    now_set = target.set_on(before) if before else {}
    held = {name: before[name] for name, config in now_set.items() if append.held(config)}
    if not held:
        return
    ids = {name: topic.topic_id for name, topic in target.look(held).items()}
    wanted = {topic for state in unfinished(target.plans()) for topic in state.targets.values()}
    put_back(target, {name: held[name] for name, topic_id in ids.items() if topic_id not in wanted})
