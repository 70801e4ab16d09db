"""The restore points of a pair: to which moments a restore can go back, how long each stays, by which command. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final

from tandem.backup_avro.chain.generation import Generation
from tandem.backup_avro.chain.integers import utc_time
from tandem.backup_avro.documents.checkpoint import Checkpoint, CheckpointState, why_unrestorable
from tandem.backup_avro.errors import RefusedError
from tandem.backup_avro.selection import moments
from tandem.backup_avro.selection.restorable_state import choose_generation
from tandem.controller.cli.output.output import at, duration
from tandem.controller.decision.observation import Policy
from tandem.controller.decision.pair_rules import rotation_due_at
from tandem.sink.store.chain.pins import FOR_EVER, Pin

_MOMENT: Final = "MOMENT"


class PointKind(StrEnum):
    """What a restore point is; part of the public interface."""

    NEWEST = "newest"
    GENERATION = "generation"
    CHECKPOINT = "checkpoint"


@dataclass(frozen=True, slots=True, kw_only=True)
class RestorePoint:
    """The moments from `start` to `end` (equal: only that one), and the `command` that restores them; None: none does.

    `name` is the id of a checkpoint, else the generation's number. The moments of a generation that newer ones have too
    are theirs. `kept_until` is the earliest time at which they go, None if nothing ends them by itself or that is not
    known; `kept_by` says in words what it depends on. `why_not` is why there is no command.
    """

    kind: PointKind
    name: str
    generation: int | None = None
    start: datetime | None = None
    end: datetime | None = None
    kept_until: datetime | None = None
    kept_by: str | None = None
    command: str | None = None
    why_not: str | None = None


def restore_points(
    generations: Collection[Generation],
    *,
    now: int,
    policy: Policy | None,
    pins: Iterable[Pin] = (),
    checkpoints: Iterable[Checkpoint] = (),
    unreadable: Mapping[str, str] | None = None,
) -> tuple[RestorePoint, ...]:
    """Return the newest state, the moments of each generation (newest first), then checkpoints, at `now` (ms).

    Without a `policy` it is not known how long moments of generations stay. `unreadable` are checkpoints whose objects
    can't be read, by id, with the reason.
    """
    points = [*_newest(generations)]
    points += _moments_of_generations(generations, now=now, policy=policy, pins=list(pins))
    states = {generation.number: generation for generation in generations}
    points += (_checkpoint(one, states, now) for one in checkpoints)
    points += (
        RestorePoint(kind=PointKind.CHECKPOINT, name=name, why_not=f"it can't be read: {why}")
        for name, why in (unreadable or {}).items()
    )
    return tuple(points)


def _newest(generations: Iterable[Generation]) -> Iterator[RestorePoint]:
    try:
        base = choose_generation(generations)
    except RefusedError:
        return
    if not base.moments or moments.window_from(base) is None:
        return
    last = utc_time(base.moments[-1].at)
    yield RestorePoint(
        kind=PointKind.NEWEST,
        name=str(base.number),
        generation=base.number,
        start=last,
        end=last,
        command="tandem restore",
    )


def _moments_of_generations(
    generations: Iterable[Generation], *, now: int, policy: Policy | None, pins: Collection[Pin]
) -> Iterator[RestorePoint]:
    newer_from: int | None = None
    for state in sorted((g for g in generations if g.complete and not g.gone), key=lambda g: -g.number):
        if not state.whole:
            yield _kept_part(state)
            continue
        start = moments.window_from(state)
        if start is None:
            continue
        end = state.moments[-1].at
        if newer_from is not None:
            if start >= newer_from:
                continue  # `--at` finds all its moments in newer generations
            end = min(end, newer_from)
        newer_from = start
        until, why = _stays(state, now=now, policy=policy, pins=pins)
        yield RestorePoint(
            kind=PointKind.GENERATION,
            name=str(state.number),
            generation=state.number,
            start=utc_time(start),
            end=utc_time(end),
            kept_until=until,
            kept_by=why,
            command=f"tandem restore --at {_MOMENT}",
        )


def _stays(
    state: Generation, *, now: int, policy: Policy | None, pins: Collection[Pin]
) -> tuple[datetime | None, str | None]:
    """Return when the moments of a whole generation may go at the earliest, and by what."""
    ends: list[tuple[int, str]] = []
    if policy is not None:
        promised_ms = round(policy.recovery_window_s * 1000)
        if state.sealed_at is None:
            due = max(now, rotation_due_at(state, policy))
            kept = f", and {duration(policy.recovery_window_s)} more (recovery.window)" if promised_ms else ""
            ends.append((due + promised_ms, f"the turn due {at(utc_time(due))}{kept}"))
        else:
            ends.append((state.sealed_at + promised_ms, "recovery.window"))
    ends += [
        (FOR_EVER if pin.until is None else pin.until, pin.owner)
        for pin in pins
        if pin.lasting and pin.holds(state.number, now)
    ]
    if not ends:
        return None, None
    last, why = max(ends)
    if last >= FOR_EVER:
        return None, f"{why}, until that is deleted"
    return (utc_time(last), why) if last > now else (utc_time(now), "nothing: it is cleared next")


def _kept_part(state: Generation) -> RestorePoint:
    """Return the partitions that nothing newer covers, or whose keys vanished: in the last state of that generation."""
    outcome = state.clearing or state.cleared
    assert outcome is not None
    last = None if state.sealed_at is None else utc_time(state.sealed_at)
    names = sorted({topic.name for key in outcome.stays if (topic := state.topics.get(key.topic_id)) is not None})
    if not names:
        return RestorePoint(
            kind=PointKind.GENERATION, name=str(state.number), generation=state.number, why_not="it is being cleared"
        )
    return RestorePoint(
        kind=PointKind.GENERATION,
        name=str(state.number),
        generation=state.number,
        start=last,
        end=last,
        kept_by=f"a person, who may `tandem release` {', '.join(names)}",
        command=f"tandem restore {' '.join(names)} --generation {state.number} --no-merge",
    )


def _checkpoint(found: Checkpoint, states: Mapping[int, Generation], now: int) -> RestorePoint:
    request = found.request
    why_not = why_unrestorable(found, states, now)
    if found.status(now) is CheckpointState.ONGOING:
        why_not = "it is being made"
    return RestorePoint(
        kind=PointKind.CHECKPOINT,
        name=request.id,
        generation=None if found.outcome is None else found.outcome.generation,
        start=utc_time(request.at),
        end=utc_time(request.at),
        kept_until=None if request.keep_until is None else utc_time(request.keep_until),
        kept_by=None if request.keep_until is not None else "a person, who may delete it",
        command=None if why_not is not None else f"tandem restore --checkpoint {request.id}",
        why_not=why_not,
    )
