"""Moments: the state of a generation as of an earlier entry of its chain, restored from the objects that it has now.

A moment is a vector of offsets: the committed offset of each partition at that time, or, between two commits, the log
ends that a mark records. From COMPLETE on a chain has every record as it was read, so the records below the vector are
the state as of that time; merged objects hold the same records.
Below a horizon that retention has set only the newest record of each key is left: no earlier moment is offered.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from tandem.backup_avro.chain.entries import EntryKind, Mark, PartitionKey, Topic, iso
from tandem.backup_avro.chain.generation import Generation, Moment
from tandem.backup_avro.errors import ConfigError, RefusedError
from tandem.backup_avro.selection.restorable_state import restorable


@dataclass(frozen=True, slots=True, kw_only=True)
class PastState:
    """The offsets held as of `at` (ms by the store's clock); `incomplete` had not been read through by then.

    `seq` is the entry of the last moment up to `at`.
    """

    at: int
    seq: int
    offsets: Mapping[PartitionKey, int]
    incomplete: tuple[PartitionKey, ...]


def moment_at(generations: Iterable[Generation], at: int) -> tuple[Generation, Moment]:
    """Return the last moment at or before `at`, of the newest generation that was COMPLETE by then.

    If retention has swept that generation beyond `at`, an older one is used that still took records at that time.
    RefusedError if there is none: the restorable window begins later.
    """
    there = sorted((g for g in generations if _restorable(g)), key=lambda g: g.number)
    candidates = [g for g in there if g.completed_at is not None and g.completed_at <= at]
    for state in reversed(candidates):
        moments = _moments(state)
        found = [moment for moment in moments if moment.at <= at]
        # An older one that was sealed by then has a last moment too, but that is not the state as of `at`.
        if found and (state is candidates[-1] or moments[-1].at >= at):
            return state, found[-1]
    begins = min((_moments(g)[0].at for g in there if _moments(g)), default=None)
    raise RefusedError(
        f"nothing in the store can be restored as of {iso(at)}",
        code="TDM-A125",
        remedy="no generation is complete"
        if begins is None
        else f"the restorable window begins at {iso(begins)}; a longer recovery.window keeps older moments from "
        "now on, and so does a longer --horizon of `tandem retention`",
    )


def moments_beside(generations: Iterable[Generation], number: int, at: int) -> list[tuple[Generation, Moment]]:
    """Return the other generations besides `number` that were COMPLETE at `at`, each with its last moment by then.

    Generations that were swept beyond that moment are left out.
    """
    return [
        (state, found)
        for state in restorable(generations)
        if state.number != number
        and state.completed_at is not None
        and state.completed_at <= at
        and (found := horizon_at(state, at)) is not None
    ]


def commit_after(state: Generation, seq: int) -> int | None:
    """Return the first commit above entry `seq`, which has the marks between the two; None if there is none yet."""
    commits = (EntryKind.COMMIT, EntryKind.CONFIRM)
    return next((moment.seq for moment in state.moments if moment.seq > seq and moment.kind in commits), None)


def horizon_at(state: Generation, at: int) -> Moment | None:
    """Return a generation's last restorable moment at or before `at`, None if all its moments are later."""
    return next((moment for moment in reversed(_moments(state)) if moment.at <= at), None)


def window_from(state: Generation) -> int | None:
    """Return the time of the first moment that can be restored, None if there is none."""
    moments = _moments(state)
    return moments[0].at if moments else None


def unbroken_from(generations: Iterable[Generation]) -> int | None:
    """Return the time (ms) from which on every moment can be restored; None if none can.

    Before it there may be others, of older generations that something else keeps. A generation that was sealed was
    covered by newer complete ones at that time, so no moment is missing between the two.
    """
    start: int | None = None
    for state in sorted((g for g in generations if _restorable(g)), key=lambda g: -g.number):
        begins = window_from(state)
        if begins is None or (start is not None and state.sealed_at is not None and state.sealed_at < start):
            continue
        start = begins if start is None else min(start, begins)
    return start


def moment_of(state: Generation, seq: int) -> Moment:
    """Return the moment of chain entry `seq`. ConfigError if it is none, RefusedError if it is below the horizon."""
    moments = _moments(state)
    found = next((moment for moment in moments if moment.seq == seq), None)
    if found is None and any(moment.seq == seq for moment in state.moments) and seq < state.horizon_seq:
        raise RefusedError(
            f"entry {seq} of generation {state.number} lies before the horizon: superseded "
            f"records from before it were swept",
            code="TDM-A126",
            remedy=f"the restorable window begins with entry {moments[0].seq}, at {iso(moments[0].at)}",
        )
    if found is None:
        raise ConfigError(
            f"entry {seq} of generation {state.number} is not a restorable moment",
            code="TDM-A127",
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
        raise ConfigError(
            f"{option} {text!r} is no moment", code="TDM-A128", remedy="write it like 2026-05-04T10:00:00Z"
        ) from None
    if at.tzinfo is None:
        raise ConfigError(
            f"{option} {text!r} says no zone", code="TDM-A129", remedy="add Z for UTC, or an offset like +02:00"
        )
    return round(at.timestamp() * 1000)


def _restorable(state: Generation) -> bool:
    return state.complete and state.whole


def _moments(state: Generation) -> list[Moment]:
    if state.completed_seq is None:
        return []
    first = max(state.completed_seq, state.horizon_seq)
    return [moment for moment in state.moments if moment.seq >= first]


def past_state(past: Generation) -> PastState:
    """Return the state as of the last moment of a chain that was read up to some entry."""
    at = past.moments[-1].at if past.moments else past.at
    alive = living(past.topics)
    offsets = {
        key: position.offset
        for key, position in past.positions.items()
        if key.topic_id in alive and past.read_through(key)
    }
    return PastState(
        at=at,
        seq=past.moments[-1].seq if past.moments else past.seq,
        offsets=offsets,
        incomplete=tuple(sorted(key for key in past.positions if key.topic_id in alive and key not in offsets)),
    )


def marked(past: Generation, later: Generation, marks: Iterable[Mark], at: int) -> tuple[Generation, PastState] | None:
    """Return the generation and the state as of the last of the `marks` at or before `at`, None if they add nothing.

    `past` is the chain up to a commit that precedes all of them, `later` up to the commit that has the marks.
    Topics' configs, groups' offsets and log starts are those of `past`: when they changed is not known.
    """
    before = past_state(past)
    ends = dict(before.offsets)
    reached = None
    for mark in marks:
        if mark.at <= at:
            reached = mark.at
            ends |= {key: max(end, ends[key]) for key, end in mark.offsets.items() if key in ends}
    if reached is None or (reached <= before.at and ends == before.offsets):
        return None
    state = PastState(at=reached, seq=before.seq, offsets=ends, incomplete=before.incomplete)
    positions = {
        key: replace(position, log_start=past.positions[key].log_start)
        for key, position in later.positions.items()
        if key in past.positions
    }
    return replace(later, positions=positions, topics=past.topics, groups=past.groups), state


def living(topics: Mapping[str, Topic]) -> frozenset[str]:
    """Return the ids of the topics that existed; of several topic ids with one name the latest."""
    by_name = {topic.name: topic_id for topic_id, topic in topics.items() if not topic.removed}
    return frozenset(by_name.values())


def with_objects_of(past: Generation, now: Generation, *, since: int | None = None) -> Generation:
    """Return `past` with the objects that hold its records now, and with the horizons, expiry and clearing of `now`.

    Records that expired after entry `since` (None: after the last entry of `past`) may have existed at that time.
    """
    last = past.seq if since is None else since
    return replace(
        past,
        objects=now.objects,
        replaced=now.replaced,
        erased=now.erased,
        horizons=now.horizons,
        horizon_seq=now.horizon_seq,
        expired=now.expired,
        missing={key: item.offset for key, item in now.expired.items() if item.seq > last},
        clearing=now.clearing,
        clearing_by=now.clearing_by,
        cleared=now.cleared,
        going=now.going,
    )
