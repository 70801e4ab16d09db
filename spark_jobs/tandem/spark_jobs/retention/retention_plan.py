"""Plan what retention deletes by age and size. Pure: an observation and the store's time in, steps with reasons out.

These are the steps, and the rules that keep each of them safe whenever it is carried out:

* expire: whole objects of topics whose policy is `delete`, if all their records, and all before them in their
  partition, are past the limit, or lie beyond the bytes that a topic may have, oldest first; never the newest object of
  a partition. A REWRITE removes them from the chain; their bytes stay for the grace time.
* replaced: objects that a REWRITE removed from the chain longer than the grace time ago. Readers hold pins.
* orphans: objects that are in no chain and whose writer can no longer commit them: nothing can follow SEALED, and an
  incarnation that lost the chain can't append. An object's name identifies its writer. Age never decides: objects that
  a live writer uploads are left alone, and so are objects with names of an older release. Objects that a janitor stored
  and did not commit are deleted after a fence: a REWRITE after which the chain accepts nothing that was stored before
  it. Objects that workers and catch-up jobs store belong to no incarnation: any later incarnation may commit them. So
  while a generation takes records, these objects stay, and so do offers, whether the offer of an object can be read or
  not, or is still to come.
* abandoned: generations that never became COMPLETE and that a newer COMPLETE one has made useless. CLEARING is written
  to the chain first, so that a holder that is still alive fails at its next entry.
* leftovers: objects under the prefix of a generation that is cleared.
* uploads: unfinished multipart uploads, by the same rules as orphans; pins that ended long ago.

`sweep_plan` decides which records of compacted topics are removed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from tandem.backup_avro.chain import layout
from tandem.backup_avro.chain.entries import Part, PartitionKey, StoredObject, Topic, iso
from tandem.backup_avro.chain.generation import Generation
from tandem.backup_avro.selection.coverage import successor
from tandem.sink.process.safe_text import enumerated
from tandem.sink.store import ObjectInfo, UploadInfo
from tandem.sink.store.chain.pins import pins_on
from tandem.spark_jobs.retention.retention_steps import (
    DoomedObject,
    KeptItem,
    RetentionAction,
    RetentionPlan,
    RetentionRules,
    RetentionStep,
    StoreObservation,
    steps_still_due,
)

JANITOR: Final = "janitor-"
#: The owner name of the pins that a sweep puts.
PIN_OWNER: Final = "retention"
_DELETE: Final = "delete"


def make_plan(seen: StoreObservation, rules: RetentionRules) -> RetentionPlan:
    """Return the steps that are due now, and what stays with its reason."""
    steps: list[RetentionStep] = []
    kept: list[KeptItem] = []
    for state in seen.states:
        for found in _generation(seen, state, rules):
            (steps if isinstance(found, RetentionStep) else kept).append(found)  # type: ignore[arg-type]  # one of the two
    steps.extend(_ended_pins(seen, rules))
    kept.extend(
        KeptItem(what="folder", generation=None, reason=f"{name}: no claim explains it; look at it yourself")
        for name in seen.strange
    )
    kept.extend(
        KeptItem(
            what="pin", generation=None, reason=f"{pin.id}: can't be read and keeps everything; remove it if unused"
        )
        for pin in seen.pins
        if pin.until is None
    )
    order = list(RetentionAction)
    steps.sort(key=lambda step: (order.index(step.action), step.generation or 0))
    return RetentionPlan(pair=seen.pair, at=seen.at, steps=tuple(steps), kept=tuple(kept))


def narrow_step(step: RetentionStep, seen: StoreObservation, rules: RetentionRules) -> RetentionStep | None:
    """Return the part of an earlier plan's step that a plan made now would contain; None if nothing is left.

    Only what the step depends on is examined again: a listed object is judged by itself, whatever else was listed; an
    object in the chain is judged by the topics of its parts. So this takes one pass over one generation's objects, not
    a whole plan.
    """
    if step.generation is None:
        return steps_still_due(step, list(_ended_pins(seen, rules)))
    number = step.generation
    state = next(state for state in seen.states if state.number == number)
    if step.action is RetentionAction.EXPIRE:
        found = _expired(seen, _of_topics(state, frozenset(step.topics)), rules)
    elif step.action is RetentionAction.CLEAR:
        found = _listed(seen, state, rules)
    else:
        keys = frozenset(step.keys)
        mine = tuple(info for info in seen.objects.get(number, ()) if info.key in keys)
        found = _listed(replace(seen, objects={number: mine}, uploads={number: step.uploads}), state, rules)
    return steps_still_due(step, [one for one in found if isinstance(one, RetentionStep)])


def _of_topics(state: Generation, names: frozenset[str]) -> Generation:
    """Return a generation reduced to the named topics, and to the objects that hold a part of one of them."""
    topics = {topic_id: topic for topic_id, topic in state.topics.items() if topic.name in names}
    objects = {}
    for key, item in state.objects.items():
        for part in item.parts:
            if part.key.topic_id in topics:
                objects[key] = item
                break
    return replace(state, topics=topics, objects=objects)


def _generation(seen: StoreObservation, state: Generation, rules: RetentionRules) -> Iterator[RetentionStep | KeptItem]:
    yield from _listed(seen, state, rules)
    yield from _expired(seen, state, rules)


def _listed(seen: StoreObservation, state: Generation, rules: RetentionRules) -> Iterator[RetentionStep | KeptItem]:
    """Yield steps and kept items for listed objects: all of them for a cleared, clearing or abandoned generation.

    A cleared generation of which something is kept is treated like a sealed one: an erasure may rewrite what is kept.
    """
    if state.gone and state.clearing is None:
        objects = seen.objects.get(state.number, ())
        if objects:
            yield _step(RetentionAction.LEFTOVERS, state, "the generation is cleared", objects)
        yield from _uploads(seen, state, rules)
        return
    if state.clearing is not None:
        yield from _clearing(seen, state)
        return
    reason = _abandoned(seen, state, rules)
    if reason is not None:
        yield from _clear(seen, state, reason)
        return
    yield from _orphans(seen, state)
    yield from _uploads(seen, state, rules)
    yield from _replaced(seen, state, rules)


def _step(action: RetentionAction, state: Generation, reason: str, objects: Sequence[ObjectInfo]) -> RetentionStep:
    return RetentionStep(
        action=action,
        generation=state.number,
        instance=state.instance,
        reason=reason,
        objects=tuple(DoomedObject(key=info.key, bytes=info.size) for info in objects),
    )


def _kept(what: str, state: Generation, reason: str, objects: Sequence[ObjectInfo] = ()) -> KeptItem:
    return KeptItem(
        what=what,
        generation=state.number,
        reason=reason,
        count=len(objects),
        bytes=sum(info.size for info in objects),
    )


# --- generations that are not needed any more


def _abandoned(seen: StoreObservation, state: Generation, rules: RetentionRules) -> str | None:
    """Return why a generation is abandoned; None if it is not, or not known to be."""
    if state.complete or state.seq == 0:
        return None
    newer = successor(state, seen.states)
    if newer is None:
        return None
    later = [g.number for g in seen.states if g.instance == state.instance and g.number > state.number]
    if later:
        return (
            f"never complete; generation {newer.number} is, and {state.instance} has gone on to generation {max(later)}"
        )
    if seen.at - state.at > rules.abandoned_after:
        return f"never complete; generation {newer.number} is, and it got no entry since {iso(state.at)}"
    return None


def _clear(seen: StoreObservation, state: Generation, reason: str) -> Iterator[RetentionStep | KeptItem]:
    objects = seen.objects.get(state.number, ())
    pinned = _pinned(seen, state)
    if pinned:
        yield _kept("abandoned generation", state, pinned, objects)
        return
    yield replace(_step(RetentionAction.CLEAR, state, reason, objects), uploads=seen.uploads.get(state.number, ()))


def _clearing(seen: StoreObservation, state: Generation) -> Iterator[RetentionStep | KeptItem]:
    objects = seen.objects.get(state.number, ())
    if (state.clearing_by or "").startswith(JANITOR) and not state.complete:
        yield from _clear(seen, state, "a janitor began to clear it and did not finish")
    else:
        yield _kept("generation being cleared", state, f"its owner, {state.instance}, clears it", objects)


# --- objects that are in no chain


def _done(state: Generation) -> frozenset[tuple[str, int]]:
    """Return the topic name and partition of the scans that are complete: their catch-up offers are not taken any more.

    Names identify topics here, because object keys hold names; if two topic ids have one name, both scans must be
    complete.
    """
    places: dict[tuple[str, int], bool] = {}
    for key, position in state.positions.items():
        place = (state.topics[key.topic_id].name, key.partition)
        places[place] = places.get(place, True) and position.base.complete
    return frozenset(place for place, done in places.items() if done)


def _writer_gone(state: Generation, key: str, done: frozenset[tuple[str, int]]) -> tuple[bool, str]:
    """Return whether no writer can commit the object or upload under this key any more, and the reason either way.

    No clock decides: once the store's clock was set back, objects of the present holder look older than its TAKEOVER.
    """
    if state.sealed:
        return True, "the generation is sealed"
    place, mark = layout.partition_of(key), layout.mark_in(key)
    # However far a scan is: a worker may read for a partition that the chain does not know yet, or knows only with an
    # earlier topic id.
    if layout.is_offer(key) or mark == layout.NOBODY or (place is not None and place not in done):
        return False, "a worker or a catch-up job may have stored them, and whoever holds the chain may take them"
    if mark is None:
        return False, "their names don't say whose they are, so their writer may still commit them"
    if mark == layout.mark_of(state.holder):
        return False, "their writer may still commit them"
    return True, "written by an incarnation that lost the chain"


def _janitor_at_work(seen: StoreObservation, state: Generation) -> bool:
    """Return whether a janitor seems to sweep. Safety does not depend on it: a fence would only cost it its work."""
    return any(pin.owner == PIN_OWNER for pin in pins_on(seen.pins, state.number, seen.at))


def _orphans(seen: StoreObservation, state: Generation) -> Iterator[RetentionStep | KeptItem]:
    groups: dict[tuple[bool, str], list[ObjectInfo]] = {}
    done = _done(state)
    for info in seen.objects.get(state.number, ()):
        if info.key not in state.objects and info.key not in state.replaced:
            if not layout.by_janitor(info.key):
                found = _writer_gone(state, info.key, done)
            elif state.cleared is not None:
                # No entry may fence others off behind CLEARED.
                found = False, "an erasure may still commit them; they go with what is kept of the generation"
            elif _janitor_at_work(seen, state):
                found = False, "a janitor is at work and may still commit them"
            else:
                found = True, "stored by a janitor that did not commit them"
            groups.setdefault(found, []).append(info)
    for (goes, reason), objects in groups.items():
        if goes:
            yield _step(RetentionAction.ORPHANS, state, reason, objects)
        else:
            yield _kept("objects in no chain", state, reason, objects)


def _uploads(seen: StoreObservation, state: Generation, rules: RetentionRules) -> Iterator[RetentionStep | KeptItem]:
    groups: dict[tuple[bool, str], list[UploadInfo]] = {}
    done = _done(state)
    for upload in seen.uploads.get(state.number, ()):
        initiated = round(upload.initiated.timestamp() * 1000)
        if state.gone:
            found = True, "the generation is cleared"
        elif layout.by_janitor(upload.key):
            over = seen.at - initiated > rules.grace
            found = over, f"begun by a janitor {'longer' if over else 'less'} than the grace time ago"
        else:
            found = _writer_gone(state, upload.key, done)
        groups.setdefault(found, []).append(upload)
    for (goes, reason), uploads in groups.items():
        if goes:
            yield RetentionStep(
                action=RetentionAction.UPLOADS,
                generation=state.number,
                instance=state.instance,
                reason=reason,
                uploads=tuple(uploads),
            )
        else:
            yield KeptItem(what="unfinished uploads", generation=state.number, reason=reason, count=len(uploads))


def _replaced(seen: StoreObservation, state: Generation, rules: RetentionRules) -> Iterator[RetentionStep | KeptItem]:
    old: list[ObjectInfo] = []
    fresh: list[ObjectInfo] = []
    for info in seen.objects.get(state.number, ()):
        if info.key in state.replaced:
            (old if seen.at - state.replaced[info.key] > rules.grace else fresh).append(info)
    if fresh:
        ready = max(state.replaced[info.key] for info in fresh) + rules.grace
        yield _kept("replaced objects", state, f"the grace time of the last of them ends at {iso(ready)}", fresh)
    pinned = _pinned(seen, state)
    if old and pinned:
        yield _kept("replaced objects", state, pinned, old)
    elif old:
        yield _step(RetentionAction.REPLACED, state, "a rewrite replaced them longer than the grace time ago", old)


def _pinned(seen: StoreObservation, state: Generation) -> str | None:
    found = pins_on(seen.pins, state.number, seen.at)
    if not found:
        return None
    names = ", ".join(f"{pin.owner} {'for ever' if pin.until is None else 'until ' + iso(pin.until)}" for pin in found)
    return f"pinned by {names}"


def _ended_pins(seen: StoreObservation, rules: RetentionRules) -> Iterator[RetentionStep]:
    ended = [pin for pin in seen.pins if pin.until is not None and seen.at > pin.until + rules.slack]
    if ended:
        yield RetentionStep(
            action=RetentionAction.PINS,
            generation=None,
            instance=None,
            reason="their owners are gone; the pins have ended",
            pins=tuple(ended),
        )


# --- topics whose policy is `delete`


def _expired(seen: StoreObservation, state: Generation, rules: RetentionRules) -> Iterator[RetentionStep | KeptItem]:
    if not (state.complete and state.whole):
        return
    policies = {topic_id: _policy(topic, rules) for topic_id, topic in state.topics.items()}
    compacted = sorted(state.topics[topic_id].name for topic_id, found in policies.items() if found is None)
    if compacted and not rules.sweeps:
        yield KeptItem(
            what="compacted topics",
            generation=state.number,
            reason=f"without --horizon nothing of them goes that is in the chain: {enumerated(sorted(compacted))}",
        )
    for reason, topics in _unlimited(state, policies).items():
        yield KeptItem(what="topics", generation=state.number, reason=f"{reason}: {enumerated(sorted(topics))}")
    guarded = sorted({state.topics[key.topic_id].name for key in _compacted_before(state, policies)})
    if guarded:
        yield KeptItem(
            what="topics",
            generation=state.number,
            reason="their policy was `compact` before, so that what expires may be lost by accident; once a turn has "
            f"told of it, `tandem release` lets later generations expire: {enumerated(sorted(guarded))}",
        )
    limits = {topic_id: found for topic_id, found in policies.items() if isinstance(found, int)}
    too_much = _too_much(state, rules)
    if not limits and not too_much:
        return
    newest = _newest(state)

    def goes(item: StoredObject, part: Part) -> bool:
        return (item.key, part.start) in too_much or _is_past(
            state, part, limits, min(seen.at, state.head_at(part.key))
        )

    stays = _first_to_stay(state, goes)
    groups: dict[tuple[str, ...], list[StoredObject]] = {}
    for item in state.objects.values():
        if item.key not in newest and all(
            not _was_compacted(state, part) and part.first < stays.get(part.key, part.last + 1) and goes(item, part)
            for part in item.parts
        ):
            names = tuple(sorted({state.topics[part.key.topic_id].name for part in item.parts}))
            groups.setdefault(names, []).append(item)
    what = "past the topic's retention.ms" if rules.older_than is None else f"older than {rules.older_than} ms"
    if rules.max_bytes is not None:
        what += f", or beyond {rules.max_bytes} bytes of their topic"
    for names, items in sorted(groups.items()):
        objects = tuple(DoomedObject(key=item.key, bytes=item.bytes) for item in items)
        if state.sealed:
            yield KeptItem(
                what="expired objects",
                generation=state.number,
                reason=f"{enumerated(sorted(names))}: a sealed generation takes no rewrite; "
                "it goes as a whole when it is cleared",
                count=len(objects),
                bytes=sum(item.bytes for item in items),
            )
            continue
        yield RetentionStep(
            action=RetentionAction.EXPIRE,
            generation=state.number,
            instance=state.instance,
            reason=f"policy delete, and all records are {what}",
            objects=objects,
            topics=names,
        )


def _first_to_stay(state: Generation, goes: Callable[[StoredObject, Part], bool]) -> dict[PartitionKey, int]:
    """Return where the first part of each partition begins that has to stay; a partition without one is left out.

    Brokers delete a log from its start, so what follows is in the log, however old its timestamps are. Parts below the
    recorded start of the log are not in it, and keep nothing; nor do records without a timestamp, which never expire.
    """
    found: dict[PartitionKey, int] = {}
    for item, part in state.live_parts():
        position = state.positions.get(part.key)
        in_log = position is None or part.last >= position.log_start
        if in_log and part.min_timestamp >= 0 and not goes(item, part):
            found[part.key] = min(part.first, found.get(part.key, part.first))
    return found


def _was_compacted(state: Generation, part: Part) -> bool:
    """Whether nothing but compaction was to remove some of these records, whatever the policy became later.

    The comparison of the copies at a turn finds what the log lost of them, and needs them for that (decision 122).
    """
    since = state.compacted_since(part.key)
    return since is not None and part.last >= since[0]


def _compacted_before(state: Generation, policies: Mapping[str, int | str | None]) -> Iterator[PartitionKey]:
    """Yield the partitions whose policy deletes now, and was `compact` alone before."""
    for key in state.positions:
        if isinstance(policies.get(key.topic_id), int) and state.compacted_since(key) is not None:
            yield key


def _policy(topic: Topic, rules: RetentionRules) -> int | str | None:
    """Return the limit in ms of a topic whose policy is `delete`, None if it is compacted, else why nothing expires."""
    if topic.compacted:
        return None
    if topic.removed:
        return "deleted or no longer guarded, so this is their last backup"
    if topic.policies != {_DELETE}:
        return "their cleanup.policy is not recorded"
    if rules.older_than is not None:
        return rules.older_than
    try:
        limit = int(topic.config["retention.ms"])
    except (KeyError, ValueError):
        return "their retention.ms is not recorded"
    return limit if limit >= 0 else "their retention.ms is unlimited"


def _too_much(state: Generation, rules: RetentionRules) -> set[tuple[str, int]]:
    """Return the oldest parts, as (object, first byte), that lie beyond the bytes that a topic may have.

    Within a partition they are chosen in offset order, whatever timestamps producers set.
    """
    sized = [topic_id for topic_id, topic in state.topics.items() if _deletes(topic) and not topic.removed]
    if rules.max_bytes is None or not sized:
        return set()
    parts: dict[str, list[tuple[StoredObject, Part]]] = {topic_id: [] for topic_id in sized}
    for item, part in sorted(state.live_parts(), key=lambda place: place[1].first):
        if part.key.topic_id in parts and state.read_through(part.key):
            parts[part.key.topic_id].append((item, part))
    found: set[tuple[str, int]] = set()
    for mine in parts.values():
        excess = sum(part.end - part.start for _, part in mine) - rules.max_bytes
        latest: dict[PartitionKey, int] = {}
        ages = []
        for item, part in mine:
            latest[part.key] = max(part.max_timestamp, latest.get(part.key, part.max_timestamp))
            ages.append((latest[part.key], part.first, item, part))
        for _, _, item, part in sorted(ages, key=lambda age: age[:2]):
            if excess <= 0:
                break
            found.add((item.key, part.start))
            excess -= part.end - part.start
    return found


def _deletes(topic: Topic) -> bool:
    return topic.policies == {_DELETE}


def _unlimited(state: Generation, policies: Mapping[str, int | str | None]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for topic_id, policy in policies.items():
        if isinstance(policy, str):
            found.setdefault(policy, []).append(state.topics[topic_id].name)
    return found


def _newest(state: Generation) -> set[str]:
    """Return the keys of the objects that hold the newest part of at least one partition."""
    newest: dict[PartitionKey, tuple[int, str]] = {}
    for item, part in state.live_parts():
        if part.key not in newest or part.last > newest[part.key][0]:
            newest[part.key] = (part.last, item.key)
    return {key for _, key in newest.values()}


def _is_past(state: Generation, part: Part, limits: Mapping[str, int], now: int) -> bool:
    """Return whether all records of a part are past their topic's limit at `now`; never if a record has no timestamp.

    `now` must not be later than the time at which the partition was last read to its end: while the cluster is lost, or
    no reader runs, this time does not advance, and the last backup of a topic does not expire night by night.
    """
    limit = limits.get(part.key.topic_id)
    if limit is None or not state.read_through(part.key):
        return False
    return part.min_timestamp >= 0 and part.max_timestamp < now - limit
