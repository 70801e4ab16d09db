"""Giving up a restore that did not end: nobody goes on with it, and topics that it appended to get their config back.

What it has put into topics stays there. Topics that it was restoring as a whole stay as they are loaded, unless
they had settings of their own: half of a backup, in which nothing is compacted or deleted, is to be deleted by whoever
knows that nobody needs it.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from queue import Empty, SimpleQueue
from typing import Final

from tandem.backup_avro.errors import ConfigError, RefusedError
from tandem.sink.kafka.auth.client_config import Value
from tandem.spark_jobs.restore.lease import lease_record
from tandem.spark_jobs.restore.lease import progress as marks
from tandem.spark_jobs.restore.lease.other_restores import short, unfinished
from tandem.spark_jobs.restore.lease.progress import LostEndError, PlanPhase, PlanState, RestoreProgress
from tandem.spark_jobs.restore.load.batch_producer import fence
from tandem.spark_jobs.restore.plan import plan as restore_plan
from tandem.spark_jobs.restore.prepare import append
from tandem.spark_jobs.restore.prepare.target_cluster import TargetCluster

_FENCES_AT_ONCE: Final = 8
_LOOK_S: Final = 0.5
_SHORTEST: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class AbandonResult:
    """What became of it. `put_back`: topics whose config is as it was before. `stay`: topics that are left as loaded.

    `gone`: topics that are not there any more. `refused`: topic -> setting -> why the cluster refuses it; then it is
    not given up yet, and `own` is how these topics were configured.
    """

    state: PlanState
    records: int
    put_back: tuple[str, ...]
    stay: tuple[str, ...]
    gone: tuple[str, ...]
    refused: Mapping[str, Mapping[str, str]]
    own: Mapping[str, Mapping[str, str]]


def find(found: RestoreProgress, name: str) -> PlanState:
    """Return the restore whose plan's hash begins with `name`.

    Raises ConfigError unless there is exactly one, or if fewer than eight digits are given, RefusedError if it ended.
    """
    if len(name) < _SHORTEST:
        raise ConfigError(f"{name!r} is too short for a restore", remedy="`tandem restore list` shows whole names")
    states = [state for plan, state in sorted(found.plans.items()) if plan.startswith(name)]
    if len(states) != 1:
        what = f"{len(states)} restores that begin with" if states else "no restore"
        raise ConfigError(f"the target knows {what} {name!r}", remedy="`tandem restore list` shows those there are")
    [state] = states
    if not state.unfinished:
        raise RefusedError(
            f"restore {short(state.plan)} is {state.state}: there is nothing to give up",
            remedy="`tandem restore list` shows those that did not end",
        )
    return state


def abandon(target: TargetCluster, name: str, tell: Callable[[str], None] = lambda _: None) -> AbandonResult:
    """Give up the restore whose plan's hash begins with `name`. Raises as `find`, and what the cluster says.

    A run of it that is still at work is ended. Ended in mid-way, or if the cluster refuses some of the config, this is
    to be done again. `tell` takes what is being done, for people who wait.
    """
    begun = find(target.plans() if marks.partitions(target.admin) else RestoreProgress(), name)
    # Whoever is at work finds out at its next word, its tasks when they look who is in charge.
    state = replace(begun, run=str(uuid.uuid4()))
    lease_record.write_phase(target, begun, state)
    tell(f"restore {short(state.plan)}: ending what up to {sum(1 for _ in state.tasks)} tasks may have open")
    try:
        fence_all(target.props, [state])
    except BaseException:
        tell(f"restore {short(state.plan)} is not given up yet; the same command, given again, goes on with that")
        raise
    found = _what_is_known(target, tell)
    # One without an id was about to be made.
    looked = target.look(state.targets)
    there = {name for name, item in looked.items() if state.targets[name] in {item.topic_id, ""}}
    before = {name: own for name, own in state.before.items() if name in there}
    configs = {name: own for name, own in state.configs.items() if name in there}
    refused = put_back(target, before)
    again = {topic: target.set_config(topic, restore_plan.own_again(own)) for topic, own in configs.items()}
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
    """Return all progress; if a transaction stays open, what there is before it: it is only told."""
    try:
        return target.progress(settled=True)
    except LostEndError as error:
        tell(f"{error.args[0]}; what comes after that is not counted")
        return target.progress(settled=False)


def put_back(target: TargetCluster, before: Mapping[str, Mapping[str, str]]) -> dict[str, Mapping[str, str]]:
    """Set topics that were appended to as they were `before`; return by topic what the cluster refuses, and why.

    What somebody has set otherwise since, because the cluster refused it, is left as it is.
    """
    refused = {name: target.set_config(name, append.put_back(own)) for name, own in before.items()}
    return _still(target, refused, append.HELD)


def _still(
    target: TargetCluster, refused: Mapping[str, Mapping[str, str]], ours: Mapping[str, str]
) -> dict[str, Mapping[str, str]]:
    """Return what was refused of settings that are as a restore has set them, `ours`."""
    names = [name for name, why in refused.items() if why]
    now_set = target.set_on(names) if names else {}
    return {
        name: {key: reason for key, reason in why.items() if now_set[name].get(key) == ours.get(key)}
        for name, why in refused.items()
    }


def put_back_again(target: TargetCluster, before: Mapping[str, Mapping[str, str]]) -> None:
    """Do it once more where a run has held a topic off that did not know yet that it was not in charge any more.

    After the word that ends the restore: whoever does so later finds that word, and takes it back himself. What another
    restore holds off by now is left to that one.
    """
    now_set = target.set_on(before) if before else {}
    held = {name: before[name] for name, config in now_set.items() if append.held(config)}
    if not held:
        return
    ids = {name: topic.topic_id for name, topic in target.look(held).items()}
    wanted = {topic for state in unfinished(target.plans()) for topic in state.targets.values()}
    put_back(target, {name: held[name] for name, topic_id in ids.items() if topic_id not in wanted})


def fence_all(props: Mapping[str, Value], states: Iterable[PlanState]) -> None:
    """Fence all producers of these plans' tasks, and end their transactions.

    Raises as `produce.fence`, with the first that fails, and KeyboardInterrupt, and waits then for none that is under
    way: each may take minutes where a broker is away, and there may be thousands. None is begun or tried again after
    that, but up to eight that are under way may still come to their end: if such a plan is gone on with at once, they
    may fence new tasks of it. Those then fail with FencedError, and the plan can be gone on with again.
    """
    ids = [
        restore_plan.transactional_id(state.plan, topic_id, number)
        for state in states
        for topic_id, number in state.tasks
    ]
    left: SimpleQueue[str] = SimpleQueue()
    for name in ids:
        left.put(name)
    ended: SimpleQueue[Exception | None] = SimpleQueue()
    stop = threading.Event()

    def work() -> None:
        with suppress(Empty):
            while not stop.is_set():
                name = left.get_nowait()
                try:
                    fence(props, name, given_up=stop.is_set)
                except Exception as error:  # noqa: BLE001 - raised where they are waited for
                    stop.set()
                    ended.put(error)
                else:
                    ended.put(None)

    for number in range(min(_FENCES_AT_ONCE, len(ids))):
        threading.Thread(target=work, name=f"fence-{number}", daemon=True).start()
    try:
        for _ in ids:
            error = _next(ended)
            if error is not None:
                raise error
    finally:
        stop.set()


def _next(ended: SimpleQueue[Exception | None]) -> Exception | None:
    """Wait for the next; a signal that another thread gets is noticed only between two looks."""
    while True:
        with suppress(Empty):
            return ended.get(timeout=_LOOK_S)
