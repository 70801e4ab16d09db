"""Moments: what a generation held as of an earlier entry of its chain, restored from the objects that it has now.

A moment is a vector of offsets: what had been committed of each partition by then, or, between two commits, where the
logs ended as a mark says. From COMPLETE on a chain has every record as it was read, so what lies below the vector is
the state as of then; merged objects hold the same records.
Below a horizon that retention has put there only the newest record of each key is left: no earlier moment is offered.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from backup_avro.chain import Kind, Mark, PartitionKey, Topic, iso
from backup_avro.errors import ConfigError, RefusedError
from backup_avro.fold import Generation, Moment
from backup_avro.selection import whole

LAGGING_MS = 60_000
"""A partition that was not known to be at its end for longer than this before a moment is named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PastState:
    """What there was as of `at` (ms by the store's clock).

    `lagging`: by partition, how many ms before `at` it was known to be at its end. `incomplete`: partitions of which
    not all had been read through by then.
    """

    at: int
    offsets: Mapping[PartitionKey, int]
    lagging: Mapping[PartitionKey, int]
    incomplete: tuple[PartitionKey, ...]


def moment_at(generations: Iterable[Generation], at: int) -> tuple[Generation, Moment]:
    """Return the last moment at or before `at`, of the newest generation that was COMPLETE by then.

    Where that was swept beyond it, an older generation stands in that still took records then. RefusedError if there
    is none: the restorable window begins later.
    """
    there = sorted((g for g in generations if _restorable(g)), key=lambda g: g.number)
    candidates = [g for g in there if g.completed_at is not None and g.completed_at <= at]
    for state in reversed(candidates):
        moments = _moments(state)
        found = [moment for moment in moments if moment.at <= at]
        # An older one that had ended by then has a last moment too, but it is not the state of then.
        if found and (state is candidates[-1] or moments[-1].at >= at):
            return state, found[-1]
    begins = min((_moments(g)[0].at for g in there if _moments(g)), default=None)
    raise RefusedError(
        f"nothing in the store can be restored as of {iso(at)}",
        remedy="no generation is complete"
        if begins is None
        else f"the restorable window begins at {iso(begins)}; retain.generations keeps older generations from now on, "
        "and a longer --horizon of `tandem retention` older moments",
    )


def commit_after(state: Generation, seq: int) -> int | None:
    """Return the first commit above entry `seq`, whose marks lie between the two; None if there is none yet."""
    commits = (Kind.COMMIT, Kind.CONFIRM)
    return next((moment.seq for moment in state.moments if moment.seq > seq and moment.kind in commits), None)


def horizon_at(state: Generation, at: int) -> Moment | None:
    """Return the last moment at or before `at` that a generation has, None if it has none as old as that."""
    return next((moment for moment in reversed(_moments(state)) if moment.at <= at), None)


def window_from(state: Generation) -> int | None:
    """Return the time of the first moment that can be restored, None if there is none."""
    moments = _moments(state)
    return moments[0].at if moments else None


def moment_of(state: Generation, seq: int) -> Moment:
    """Return the moment that entry `seq` of a chain is. ConfigError if it is none."""
    moments = _moments(state)
    found = next((moment for moment in moments if moment.seq == seq), None)
    if found is None and any(moment.seq == seq for moment in state.moments) and seq < state.horizon_seq:
        raise RefusedError(
            f"entry {seq} of generation {state.number} lies before the horizon: what was superseded by then is gone",
            remedy=f"the restorable window begins with entry {moments[0].seq}, at {iso(moments[0].at)}",
        )
    if found is None:
        raise ConfigError(
            f"entry {seq} of generation {state.number} is no moment that could be restored",
            remedy=f"entries {moments[0].seq} to {moments[-1].seq} are, those that commit or confirm"
            if moments
            else "the generation is not complete",
        )
    return found


def parse_moment(option: str, text: str) -> int:
    """Return a user's moment, ISO 8601 with a zone, as ms since the epoch. ConfigError names the option."""
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(f"{option} {text!r} is no moment", remedy="write it like 2026-05-04T10:00:00Z") from None
    if at.tzinfo is None:
        raise ConfigError(f"{option} {text!r} says no zone", remedy="add Z for UTC, or an offset like +02:00")
    return round(at.timestamp() * 1000)


def _restorable(state: Generation) -> bool:
    return state.complete and whole(state)


def _moments(state: Generation) -> list[Moment]:
    if state.completed_seq is None:
        return []
    first = max(state.completed_seq, state.horizon_seq)
    return [moment for moment in state.moments if moment.seq >= first]


def past_state(past: Generation) -> PastState:
    """Return what a chain up to some entry held as of its last moment."""
    at = past.moments[-1].at if past.moments else past.at
    alive = frozenset(_alive(past.topics))
    offsets = {
        key: position.offset
        for key, position in past.positions.items()
        if key.topic_id in alive and past.read_through(key)
    }
    behind = {key: at - past.head_at(key) for key in offsets}
    return PastState(
        at=at,
        offsets=offsets,
        lagging={key: ms for key, ms in sorted(behind.items()) if ms > LAGGING_MS},
        incomplete=tuple(sorted(key for key in past.positions if key.topic_id in alive and key not in offsets)),
    )


def marked(past: Generation, later: Generation, marks: Iterable[Mark], at: int) -> tuple[Generation, PastState] | None:
    """Return the generation and the state as of the last of the `marks` at or before `at`, None if there is none.

    `past` is the chain up to the last moment until then, `later` up to the commit that has the marks. Topics' configs
    and groups' offsets are those of `past`: when they changed is not known.
    """
    before = past_state(past)
    ends = dict(before.offsets)
    reached = None
    for mark in marks:
        if before.at < mark.at <= at:
            reached = mark.at
        if mark.at <= at:
            ends |= {key: max(end, ends[key]) for key, end in mark.offsets.items() if key in ends}
    if reached is None:
        return None
    behind = {key: reached - later.head_at(key) for key in ends}
    state = PastState(
        at=reached,
        offsets=ends,
        lagging={key: ms for key, ms in sorted(behind.items()) if ms > LAGGING_MS},
        incomplete=before.incomplete,
    )
    return replace(later, topics=past.topics, groups=past.groups), state


def _alive(topics: Mapping[str, Topic]) -> Iterable[str]:
    """Return the topics that were there; of several lives of one name the one that came last."""
    by_name = {topic.name: topic_id for topic_id, topic in topics.items() if not topic.removed}
    return by_name.values()


def with_objects_of(past: Generation, now: Generation) -> Generation:
    """Return `past` with the objects that hold its records now, and with what can't be read any more."""
    return replace(
        past,
        objects=now.objects,
        replaced=now.replaced,
        horizons=now.horizons,
        horizon_seq=now.horizon_seq,
        clearing=now.clearing,
        clearing_by=now.clearing_by,
        cleared=now.cleared,
        going=now.going,
    )
