"""Any moment of random histories: what several generations held is put together to a state that the log was in."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator

from support.backups.moment_histories import START_MS, History, K, state_of

from tandem.backup_avro.errors import RefusedError
from tandem.backup_avro.selection.restorable_state import select
from tandem.backup_avro.selection.state_as_of import known, select_as_of

_SEEDS = 500
_STEPS = 70
_MOMENTS = 12


def judge(history: History, at: int, seen: Counter[str]) -> str | None:
    """Say what is wrong with a restore as of a time, None if nothing is."""
    try:
        chosen, *others = history.pictures(at)
    except RefusedError:
        return None
    (alone,) = select_as_of(chosen).partitions
    selection = select_as_of(chosen, others, freely=True)
    (found,) = selection.partitions
    seen["moments"] += 1
    seen["united"] += found.generations != alone.generations
    seen["joined"] += len(found.generations) > 1
    rows = history.rows(found, below=found.sound)
    possible = [one.state(found.sound) for one in history.written if one.since <= at]
    if state_of(rows) not in possible:
        return f"{state_of(rows)} from {found.generations} up to {found.sound} was never the state: {possible[-1]}"
    reach = max(history.reached(number, at) for number in found.generations)
    if found.end > reach:
        return f"it ends at {found.end}, nobody had read beyond {reach}"
    own = chosen.generation
    if found.end < alone.end and K not in own.taints:
        return f"it ends at {found.end}, generation {own.number} alone at {alone.end}"
    if history.disturbed_at <= at and not any(item.cut for item in (chosen, *others)):
        # Nothing was taken away since: it is what the newest state was then.
        then = select([item.generation for item in (chosen, *others)])
        if then.generation == own.number and then.partitions != selection.partitions:
            return f"{then.partitions} was the newest state then"
        seen["as then"] += len(others) > 0
    how = known(selection, (chosen, *others))
    if not how.at <= at:
        return f"it is said to be as of {how.at}"
    return None


def histories() -> Iterator[tuple[int, History, list[int]]]:
    """Histories, and moments of each."""
    for seed in range(_SEEDS):
        rng = random.Random(seed)
        history = History(rng).run(_STEPS)
        yield seed, history, [rng.randint(START_MS, history.now) for _ in range(_MOMENTS)]


def test_any_moment_is_a_state_that_the_log_was_in() -> None:
    """Whatever has happened since: sweeps, cuts, clearings; and no less than one generation alone would give."""
    seen: Counter[str] = Counter()
    for seed, history, moments in histories():
        for at in moments:
            problem = judge(history, at, seen)
            assert problem is None, f"seed {seed} as of {at}: {problem}; {history.events}"
    assert seen["joined"] > 100, seen
    assert seen["united"] > 140, seen
    assert seen["as then"] > 600, seen
