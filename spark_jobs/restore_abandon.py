"""Giving up a restore that did not end: nobody goes on with it, and topics that it appended to get their config back.

What it has put into topics stays there. Topics that it was restoring as a whole stay as they are loaded: half of a
backup, in which nothing is compacted or deleted, is to be deleted by whoever knows that nobody needs it.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Final

from backup_avro.errors import ConfigError, RefusedError
from sink.source.client_config import Value
from spark_jobs import progress as marks
from spark_jobs import restore_append, restore_plan
from spark_jobs.produce import fence
from spark_jobs.progress import PlanState, Progress, State
from spark_jobs.restore_rivals import short
from spark_jobs.restore_target import Target

_FENCES_AT_ONCE: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Abandoned:
    """What became of it. `put_back`: topics whose config is as it was before. `stay`: topics that are left as loaded.

    `gone`: topics that are not there any more. `refused`: topic -> setting -> why the cluster refuses it.
    """

    state: PlanState
    records: int
    put_back: tuple[str, ...]
    stay: tuple[str, ...]
    gone: tuple[str, ...]
    refused: Mapping[str, Mapping[str, str]]


def find(found: Progress, name: str) -> PlanState:
    """Return the restore whose plan's hash begins with `name`.

    Raises ConfigError unless there is exactly one, RefusedError if it ended.
    """
    states = [state for plan, state in sorted(found.plans.items()) if name and plan.startswith(name)]
    if len(states) != 1:
        what = f"{len(states)} restores that begin with" if states else "no restore"
        raise ConfigError(f"the target knows {what} {name!r}", remedy="`tandem restore list` shows those there are")
    [state] = states
    if not state.unfinished:
        raise RefusedError(f"restore {short(state.plan)} is {state.state}: there is nothing to give up")
    return state


def abandon(target: Target, name: str) -> Abandoned:
    """Give up the restore whose plan's hash begins with `name`. Raises as `find`, and what the cluster says.

    A run of it that is still at work is ended. Ended in mid-way, this can be done again.
    """
    state = find(target.progress(settled=False), name)
    # Its tasks go on only as long as their own run is named here.
    state = replace(state, run=str(uuid.uuid4()))
    marks.write_states(target.props, [state])
    fence_all(target.props, [state])
    found = target.progress(settled=True)
    there = {name: item for name, item in target.look(state.targets).items() if item.topic_id == state.targets[name]}
    changes = {
        **{name: restore_append.put_back(own) for name, own in state.before.items() if name in there},
        **{name: restore_plan.own_again(own) for name, own in state.configs.items() if name in there},
    }
    refused = {name: target.set_config(name, change) for name, change in changes.items()}
    marks.write_states(target.props, [replace(state, state=State.ABANDONED)])
    return Abandoned(
        state=state,
        records=sum(item.records for item in found.of_plan(state.plan) if item.target_topic_id in _ids(state)),
        put_back=tuple(sorted(changes)),
        stay=tuple(sorted(there.keys() - changes.keys())),
        gone=tuple(sorted(state.targets.keys() - there.keys())),
        refused={name: why for name, why in refused.items() if why},
    )


def _ids(state: PlanState) -> set[str]:
    return set(state.targets.values())


def fence_all(props: Mapping[str, Value], states: Iterable[PlanState]) -> None:
    """Fence all producers of these plans' tasks, and end their transactions. Raises as `produce.fence`."""
    ids = [
        restore_plan.transactional_id(state.plan, topic_id, number)
        for state in states
        for topic_id, count in state.sources.items()
        for number in range(count)
    ]
    with ThreadPoolExecutor(_FENCES_AT_ONCE, thread_name_prefix="fence") as pool:
        for done in [pool.submit(fence, props, name) for name in ids]:
            done.result()
