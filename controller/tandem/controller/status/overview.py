"""The status of a pair as one document: a pure function of one `PairView`. Field names are the public interface.

Times are UTC by the store's clock, names ending in `_s` are seconds, bytes are bytes, offsets and lags are in offsets
(of which a compacted log has fewer records). Unknown values are None.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from tandem.backup_avro.chain.entries import Clearing, PartitionKey, iso
from tandem.backup_avro.chain.generation import Generation
from tandem.backup_avro.chain.heads import Head
from tandem.backup_avro.chain.integers import utc_time
from tandem.backup_avro.chain.layout import pins_prefix
from tandem.backup_avro.documents.coordination_message import CoordinationMessage
from tandem.backup_avro.documents.outcome import JobOutcome
from tandem.backup_avro.documents.pause import Pause
from tandem.backup_avro.documents.release import released
from tandem.backup_avro.selection import completion, coverage, moments, restorable_state
from tandem.backup_avro.selection.losses import KeptLoss, LossCause, is_of_keys
from tandem.controller.cli.output.output import duration
from tandem.controller.coordination.heartbeat import Heartbeat
from tandem.controller.decision.loss_detector import merged
from tandem.controller.decision.loss_sign_format import LossSign, LossSignStatus, sign_status
from tandem.controller.decision.pair_rules import kept_for_window, rotation_due_at
from tandem.controller.decision.recovery_window import RecoveryWindow, recovery_window
from tandem.controller.decision.restore_points import RestorePoint, restore_points
from tandem.controller.status.health import (
    Problem,
    chosen,
    first_names,
    held_note,
    kept_note,
    losses_of,
    paused,
    problems,
    progress,
    troubles_of,
)
from tandem.controller.status.pair_view import LogEnd, PairView, last_activity_at
from tandem.sink.kafka.cluster.guarded_topics import tombstone_guarantee_s
from tandem.sink.read.progress.tombstone_guarantee import longest_gap_s
from tandem.sink.store.chain.pins import Pin


class GenerationState(StrEnum):
    """Where a generation stands in its life."""

    CLAIMED = "CLAIMED"  # its number is taken, its chain is not opened
    OPEN = "OPEN"
    COMPLETE = "COMPLETE"
    SEALED = "SEALED"
    CLEARING = "CLEARING"
    KEPT = "KEPT"  # cleared but for what nothing newer covers
    CLEARED = "CLEARED"  # nothing is left but its chain


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceStatus:
    """One instance by its last heartbeat. `alive` is None if nobody listened. `lag` is the tail's, as it said itself.

    `base_remaining` are offsets of the first reading that are still to be read. `held` are the first partitions that an
    open transaction has held back for more than five flush intervals. `transcoder` is `compiled`, or
    `reference` where the package was installed without a C compiler, which is some fifty times slower.
    """

    instance: str
    alive: bool | None
    left: bool
    role: str | None
    heard_at: datetime | None
    heard_age_s: float | None
    incarnation: str | None
    generation: int | None
    lag: int | None
    phase: str | None
    base_remaining: int | None
    doing: str | None
    held: tuple[str, ...]
    transcoder: str | None
    troubles: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PositionStatus:
    """One partition in one generation: `offset` is the next to be stored. `log_end` and `lag` come from the brokers.

    `log_end` is where a reader of the pair's isolation level gets to; open transactions may hold it below
    `high_watermark`. `complete`: all from the log's start to `offset` is stored (`base_end` is where the tail began).
    `tombstone_margin_s` is how much longer the tail may be away from the log's end before it is tainted; None for what
    is not compacted or not read on. `kept` is why it stays when the rest of its generation is cleared.
    """

    topic: str
    partition: int
    topic_id: str
    offset: int
    leader_epoch: int
    head_at: datetime
    log_start: int
    base_end: int
    complete: bool
    tainted_from: int | None
    tainted_reason: str | None
    log_end: int | None
    high_watermark: int | None
    lag: int | None
    tombstone_margin_s: float | None
    kept: str | None

    @property
    def held_back(self) -> int:
        """Offsets held back by open transactions; 0 if the brokers were not asked."""
        if self.log_end is None or self.high_watermark is None:
            return 0
        return max(0, self.high_watermark - self.log_end)


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowStatus:
    """The moments that a generation can be restored to. `age_s` is how long ago the last one was."""

    start: datetime
    end: datetime
    age_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationStatus:
    """One generation that is not wholly cleared. `missing` is what keeps it from COMPLETE, `kept` what can't go, why.

    `waits_for` is what happens next; `settled`: nothing does by itself. `held_by` who reads it or keeps it by a pin.
    Counts are of what belongs to the backup now; `base_records` those of the first reading, which is what the logs held
    then. `lag` sums up its positions'. `head` is what `tandem verify --expect-head` takes.
    """

    number: int
    instance: str
    incarnation: str
    state: GenerationState
    cluster_id: str
    reason: str
    opened_at: datetime
    completed_at: datetime | None
    sealed_at: datetime | None
    last_commit_at: datetime | None
    last_commit_age_s: float | None
    rotation_due_at: datetime | None
    chain_seq: int
    head: str
    partitions: int
    partitions_complete: int
    missing: tuple[str, ...]
    tainted: tuple[str, ...]
    kept: tuple[str, ...]
    waits_for: str | None
    settled: bool
    held_by: tuple[str, ...]
    records: int
    base_records: int
    tombstones: int
    objects: int
    bytes: int
    lag: int | None
    window: WindowStatus | None
    positions: tuple[PositionStatus, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LossStatus:
    """Records that the log or the cluster has lost, and that `generation` alone still has, until they are released.

    `keys` is the number of keys that vanished without a tombstone, where they were counted: `missing_in` is the
    generation that was compared. The loss came after `after`, when the records were still read or the log was as far,
    and before `before`, when that generation had scanned the log. `commands` bring the records back, and let them go.
    """

    topic: str
    topic_id: str
    partition: int
    generation: int
    cause: LossCause
    keys: int | None
    missing_in: int | None
    after: datetime | None
    before: datetime | None
    reason: str
    commands: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreStatus:
    """What a restore would use now. `lag` is what the log has beyond it; 0: nothing at all is missing."""

    generation: int
    instance: str
    window: WindowStatus
    lag: int | None
    tainted: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestStatus:
    """A request for a generation that nobody has claimed yet: it is in force. `by` is an instance, or `cli`."""

    by: str
    target: str | None
    generation: int | None
    at: datetime
    age_s: float
    reason: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PauseStatus:
    """Who asked that nobody claims a generation by itself, until when. `left_s` is what is left of it."""

    at: datetime
    until: datetime
    left_s: float
    by: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """`tandem status`. `healthy` is the absence of problems. `requests` are those in force, if anybody listened.

    `restore_points` has checkpoints where they were looked up, as the command does and an instance does not.
    `recovery_window` is None, too, if no configuration tells what is promised. `last_verify`, `last_drill` and
    `last_retention` are what was kept of each, where that was looked up.
    """

    pair: str
    root: str
    at: datetime
    healthy: bool
    problems: tuple[Problem, ...]
    notes: tuple[str, ...]
    restore: RestoreStatus | None
    requests: tuple[RequestStatus, ...]
    pause: PauseStatus | None
    recovery_window: RecoveryWindow | None
    restore_points: tuple[RestorePoint, ...]
    loss_signs: tuple[LossSignStatus, ...]
    losses: tuple[LossStatus, ...]
    instances: tuple[InstanceStatus, ...]
    generations: tuple[GenerationStatus, ...]
    last_verify: JobOutcome | None = None
    last_drill: JobOutcome | None = None
    last_retention: JobOutcome | None = None


def overview(seen: PairView) -> Overview:
    """Return the status document of one view."""
    found = problems(seen)
    policy = seen.policy if seen.policy_known else None
    signs = tuple(map(sign_status, merged(_heard_signs(seen))))
    generations = tuple(generation_status(seen, g) for g in seen.generations)
    return Overview(
        pair=seen.pair,
        root=seen.root,
        at=utc_time(seen.at),
        healthy=not found,
        problems=found,
        notes=(*(sign.text for sign in signs), *_notes(seen)),
        restore=_restore(seen),
        requests=tuple(_request(seen, asked) for asked in seen.pending),
        pause=pause_status(seen.pause, seen.at),
        recovery_window=None if policy is None else recovery_window(seen.generations, now=seen.at, policy=policy),
        restore_points=restore_points(
            seen.generations,
            now=seen.at,
            policy=policy,
            pins=seen.pins,
            checkpoints=seen.checkpoints,
            unreadable=seen.damaged_checkpoints,
        ),
        loss_signs=signs,
        losses=tuple(_loss(seen, g, loss) for g in seen.generations for loss in losses_of(seen, g)),
        instances=tuple(_instance(seen, name) for name in seen.instances),
        generations=generations,
    )


def state_of(generation: Generation) -> GenerationState:
    """Return the state of a generation in its life."""
    if generation.gone:
        return GenerationState.CLEARED
    if generation.clearing is not None:
        return GenerationState.CLEARING
    if generation.cleared is not None:
        return GenerationState.KEPT
    if generation.sealed:
        return GenerationState.SEALED
    if generation.complete:
        return GenerationState.COMPLETE
    return GenerationState.OPEN if generation.seq else GenerationState.CLAIMED


# --- instances --------------------------------------------------------------------------------------------------------


def _instance(seen: PairView, name: str) -> InstanceStatus:
    heard = seen.last_heard(name)
    said = (None if heard is None else heard.heartbeat) or Heartbeat()
    return InstanceStatus(
        instance=name,
        alive=seen.alive(name),
        left=heard is not None and heard.left,
        role=said.role,
        heard_at=None if heard is None else utc_time(heard.at),
        heard_age_s=None if heard is None else seen.since_s(heard.at),
        incarnation=None if heard is None else heard.incarnation,
        generation=said.generation,
        lag=said.lag,
        phase=said.phase,
        base_remaining=said.base_remaining,
        doing=said.reason,
        held=said.held,
        transcoder=said.transcoder,
        troubles=troubles_of(said),
    )


# --- generations ------------------------------------------------------------------------------------------------------


def generation_status(seen: PairView, generation: Generation) -> GenerationStatus:
    """Return the status of one generation; a wholly cleared one need not be among those of the view."""
    parts = list(generation.live_parts())
    complete, total = progress(seen, generation)
    last = last_activity_at(generation)
    positions = tuple(
        _position(seen, generation, key) for key in sorted(generation.positions, key=_by_name(generation))
    )
    return GenerationStatus(
        number=generation.number,
        instance=generation.instance,
        incarnation=generation.holder or generation.claim.incarnation,
        state=state_of(generation),
        cluster_id=generation.claim.cluster_id,
        reason=generation.claim.reason,
        opened_at=utc_time(generation.claim.at),
        completed_at=None if generation.completed_at is None else utc_time(generation.completed_at),
        sealed_at=None if generation.sealed_at is None else utc_time(generation.sealed_at),
        last_commit_at=None if last is None else utc_time(last),
        last_commit_age_s=None if last is None else seen.since_s(last),
        rotation_due_at=_rotation_due_at(seen, generation),
        chain_seq=generation.seq,
        head=str(Head.of(generation)),
        partitions=total,
        partitions_complete=complete,
        missing=_missing(seen, generation),
        tainted=tuple(
            f"{generation.name_of(key)} from offset {taint.offset}: {taint.reason}"
            for key, taint in sorted(generation.taints.items())
        ),
        kept=_kept(generation),
        waits_for=_waits_for(seen, generation),
        settled=_settled(seen, generation),
        held_by=tuple(sorted({pin.owner for pin in _holding(seen, generation)})),
        records=sum(part.records for _, part in parts),
        base_records=sum(part.records for _, part in parts if part.scan is not None),
        tombstones=sum(part.tombstones for _, part in parts),
        objects=len(generation.objects),
        bytes=sum(item.bytes for item in generation.objects.values()),
        lag=sum_known(position.lag for position in positions),
        window=window_of(generation, now=seen.at),
        positions=positions,
    )


def _rotation_due_at(seen: PairView, generation: Generation) -> datetime | None:
    if state_of(generation) is not GenerationState.COMPLETE:
        return None
    return utc_time(rotation_due_at(generation, seen.policy))


def _by_name(generation: Generation) -> Callable[[PartitionKey], tuple[str, str, int]]:
    def order(key: PartitionKey) -> tuple[str, str, int]:
        topic = generation.topics.get(key.topic_id)
        return (topic.name if topic else "", key.topic_id, key.partition)

    return order


def _position(seen: PairView, generation: Generation, key: PartitionKey) -> PositionStatus:
    position = generation.positions[key]
    topic = generation.topics.get(key.topic_id)
    name = topic.name if topic is not None else key.topic_id
    taint = generation.taints.get(key)
    end = _end(seen, key, name)
    reads_on = end is not None and not generation.sealed and generation.clearing is None
    return PositionStatus(
        topic=name,
        partition=key.partition,
        topic_id=key.topic_id,
        offset=position.offset,
        leader_epoch=position.epoch,
        head_at=utc_time(generation.head_at(key)),
        log_start=position.log_start,
        base_end=position.base.end,
        complete=generation.read_through(key),
        tainted_from=None if taint is None else taint.offset,
        tainted_reason=None if taint is None else taint.reason,
        log_end=None if end is None else end.stable,
        high_watermark=None if end is None else end.high,
        lag=max(0, end.stable - position.offset) if reads_on and end is not None else None,
        tombstone_margin_s=_margin_s(seen, generation, key),
        kept=_stays(generation).get(key),
    )


def _margin_s(seen: PairView, generation: Generation, key: PartitionKey) -> float | None:
    topic = generation.topics.get(key.topic_id)
    if topic is None or topic.removed or generation.sealed or generation.clearing is not None:
        return None
    guaranteed_s = tombstone_guarantee_s(topic.config)
    return None if guaranteed_s is None else longest_gap_s(guaranteed_s) - seen.since_s(generation.head_at(key))


def _end(seen: PairView, key: PartitionKey, name: str) -> LogEnd | None:
    if seen.brokers is None or not seen.brokers.guarded.has(key):
        return None
    return seen.brokers.ends.get((name, key.partition))


def sum_known(lags: Iterable[int | None]) -> int | None:
    """Return the sum of the lags that are known, None if none is."""
    known = [lag for lag in lags if lag is not None]
    return sum(known) if known else None


def _missing(seen: PairView, generation: Generation) -> tuple[str, ...]:
    guarded = seen.guarded_of(generation)
    match state_of(generation):
        case GenerationState.CLAIMED | GenerationState.OPEN:
            return tuple(completion.obstacles(generation, seen.generations, guarded))
        case GenerationState.COMPLETE:
            return tuple(
                f"{guarded.topics[key.topic_id][0]}-{key.partition} is not read through yet"
                for key in guarded.partitions()
                if not generation.usable(key)
            )
        case _:
            return ()


def _loss(seen: PairView, kept: Generation, loss: KeptLoss) -> LossStatus:
    key, position = loss.key, kept.positions[loss.key]
    topic = kept.topics.get(key.topic_id)
    name = topic.name if topic is not None else key.topic_id
    of_keys = is_of_keys(loss.reason)
    after = position.base.done_at if of_keys else kept.head_at(key)
    other = next((g.positions.get(key) for g in seen.generations if g.number == loss.missing_in), None)
    before = None if other is None else other.base.done_at
    quoted = shlex.quote(name)
    asked = f"--generation {kept.number}"
    back = f"vanished {quoted} {asked}" if of_keys else f"{quoted} {asked} --no-merge --suffix .kept"
    return LossStatus(
        topic=name,
        topic_id=key.topic_id,
        partition=key.partition,
        generation=kept.number,
        cause=loss.cause,
        keys=loss.keys,
        missing_in=loss.missing_in,
        after=None if after is None else utc_time(after),
        before=None if before is None else utc_time(before),
        reason=loss.reason,
        commands=(f"tandem restore {back}", f"tandem release {quoted} --topic-id {shlex.quote(key.topic_id)}"),
    )


def _kept(generation: Generation) -> tuple[str, ...]:
    return tuple(f"{generation.name_of(key)}: {why}" for key, why in sorted(_stays(generation).items()))


def _stays(generation: Generation) -> Mapping[PartitionKey, str]:
    outcome = generation.clearing or generation.cleared
    return {} if outcome is None else outcome.stays


def _waits_for(seen: PairView, generation: Generation) -> str | None:
    owner = generation.instance
    match state_of(generation):
        case GenerationState.CLAIMED:
            return f"{owner} to open it"
        case GenerationState.OPEN if generation not in seen.building:
            why = "it is tainted" if completion.is_spoilt(generation) else "a newer generation is complete"
            return f"{owner} to clear it: {why}"
        case GenerationState.OPEN:
            return _complete_waits_for(seen, generation)
        case GenerationState.COMPLETE:
            successor = coverage.successor(generation, seen.generations)
            if successor is None:
                return None
            behind = coverage.uncovered_partitions(successor, generation, seen.guarded_of(generation))
            if not behind:
                return f"{owner} to seal it: generation {successor.number} covers it"
            return f"generation {successor.number} to cover {first_names(map(generation.name_of, behind))}"
        case GenerationState.SEALED:
            return _clearing_waits_for(seen, generation)
        case GenerationState.CLEARING:
            readers = ", ".join(sorted({pin.owner for pin in _holding(seen, generation)}))
            return f"readers to finish: {readers}" if readers else f"{owner} to delete its objects"
        case GenerationState.KEPT:
            goes = _may_go(seen, generation)
            return f"{owner} to clear more of it" if goes is not None else "a person to let go what is kept"
        case GenerationState.CLEARED:
            return None


def _complete_waits_for(seen: PairView, generation: Generation) -> str:
    owner, missing = generation.instance, len(_missing(seen, generation))
    newer = [g.number for g in seen.building if g.instance == owner and g.number > generation.number]
    if newer:
        return f"generation {newer[-1]}: {owner} builds one at a time"
    if not missing:
        return f"{owner} to append COMPLETE"
    return f"COMPLETE: {missing} things are missing" if missing > 1 else "COMPLETE: one thing is missing"


def _settled(seen: PairView, generation: Generation) -> bool:
    match state_of(generation):
        case GenerationState.COMPLETE:
            return coverage.successor(generation, seen.generations) is None
        case GenerationState.SEALED:
            goes = _may_go(seen, generation)
            return _is_kept(seen, generation) or (goes is not None and not goes.goes)
        case GenerationState.KEPT:
            return _may_go(seen, generation) is None
        case GenerationState.CLEARED:
            return True
        case _:
            return False


def _is_kept(seen: PairView, generation: Generation) -> bool:
    """Return whether a sealed generation is kept for the recovery window or a checkpoint."""
    kept = kept_for_window(seen.generations, now=seen.at, policy=seen.policy)
    return generation.number in kept or any(pin.lasting for pin in _holding(seen, generation))


def _holding(seen: PairView, generation: Generation) -> list[Pin]:
    return [pin for pin in seen.pins if pin.holds(generation.number, seen.at)]


def _may_go(seen: PairView, generation: Generation) -> Clearing | None:
    let_go = released(seen.releases, generation)
    return coverage.clearing(generation, seen.generations, seen.guarded_of(generation), let_go)


def _clearing_waits_for(seen: PairView, generation: Generation) -> str:
    policy = seen.policy
    if generation.number in kept_for_window(seen.generations, now=seen.at, policy=policy):
        return f"its time: recovery.window keeps it for {duration(policy.recovery_window_s)} after it was sealed"
    keeping = sorted({pin.owner for pin in _holding(seen, generation) if pin.lasting})
    if keeping:
        return f"nothing: it is kept for {first_names(keeping)}"
    goes = _may_go(seen, generation)
    if goes is None:
        beyond = coverage.beyond_the_epoch(generation, seen.generations, seen.guarded_of(generation))
        higher = f": {first_names(map(generation.name_of, beyond))} in a higher leader epoch" if beyond else ""
        return f"a newer complete generation that covers it{higher}"
    if not goes.goes:
        return "a person to let go what is kept"
    return f"{generation.instance} to clear it"


def window_of(generation: Generation, *, now: int) -> WindowStatus | None:
    """Return the moments that can be restored, None if there are none; `now` is ms by the store's clock."""
    last = last_activity_at(generation)
    start = moments.window_from(generation)
    if start is None or last is None or not generation.whole:
        return None
    return WindowStatus(start=utc_time(start), end=utc_time(last), age_s=max(0.0, (now - last) / 1000))


# --- restore, notes ---------------------------------------------------------------------------------------------------


def _restore(seen: PairView) -> RestoreStatus | None:
    base = chosen(seen)
    window = None if base is None else window_of(base, now=seen.at)
    if base is None or window is None:
        return None
    lags = []
    if seen.brokers is not None:
        for part in restorable_state.select(seen.generations).partitions:
            end = _end(seen, part.key, part.topic.name)
            lags.append(None if end is None else max(0, end.stable - part.end))
    return RestoreStatus(
        generation=base.number,
        instance=base.instance,
        window=window,
        lag=sum_known(lags),
        tainted=bool(base.taints),
    )


def _heard_signs(seen: PairView) -> Iterator[LossSign]:
    for name in seen.instances:
        said = seen.heartbeat_of_living(name)
        yield from () if said is None else said.loss_signs


def pause_status(pause: Pause | None, now: int) -> PauseStatus | None:
    """Return the pause that is in force at `now`, ms by the store's clock; None if there is none."""
    if pause is None or pause.until is None:
        return None
    return PauseStatus(
        at=utc_time(pause.at),
        until=utc_time(pause.until),
        left_s=max(0.0, (pause.until - now) / 1000),
        by=pause.by,
        reason=pause.reason,
    )


def _request(seen: PairView, asked: CoordinationMessage) -> RequestStatus:
    return RequestStatus(
        by=asked.instance,
        target=asked.target,
        generation=asked.generation,
        at=utc_time(asked.at),
        age_s=seen.since_s(asked.at),
        reason=asked.reason,
    )


def _notes(seen: PairView) -> Iterator[str]:
    base = chosen(seen)
    pause = paused(seen)
    if pause is not None:
        yield f"{pause}: nobody takes a turn, or takes over, by itself; a turn that has begun goes to its end"
    if seen.brokers is not None and seen.brokers.restored:
        yield (
            f"restores created {first_names(seen.brokers.restored)}: not backed up, although a pattern matches, unless "
            "topics.include names it"
        )
    for generation in seen.generations:
        number = generation.number
        if base is not None and generation in seen.building:
            done, total = progress(seen, generation)
            yield (
                f"generation {number} of {generation.instance} is being built ({generation.claim.reason}): "
                f"{done} of {total} partitions are read through"
            )
        if generation.taints and coverage.successor(generation, seen.generations) is not None:
            yield f"generation {number} is tainted, but a newer complete one is not"
        kept = _kept(generation)
        if kept and state_of(generation) is GenerationState.KEPT:
            yield kept_note(number, kept)
        keeping = sorted({pin.owner for pin in _holding(seen, generation) if pin.lasting})
        if keeping and not generation.sealed:
            yield f"generation {number} stays after its turn: it is kept for {first_names(keeping)}"
        yield from _unrecorded(generation)
        gone = [t.name for t in generation.topics.values() if t.removed]
        if gone and not generation.sealed:
            yield f"generation {number} keeps the last of {first_names(sorted(gone))}, which the cluster no longer has"
    yield from _odd_pins(seen)
    for asked in seen.pending:
        yield (
            f"{asked.instance} asked {asked.target} {duration(seen.since_s(asked.at))} ago to build generation "
            f"{asked.generation} ({asked.reason or 'no reason given'}): not claimed yet"
        )
    if seen.brokers is not None:
        held = {f"{topic}-{n}": end.high - end.stable for (topic, n), end in seen.brokers.ends.items()}
        held = {name: count for name, count in held.items() if count > 0}
        if held:
            yield held_note(held)


def _unrecorded(generation: Generation) -> Iterator[str]:
    if generation.unrecorded and not generation.sealed:
        named = first_names(f"{name} ({why})" for name, why in sorted(generation.unrecorded.items()))
        yield f"generation {generation.number} has no positions of these groups, so a restore can't set them: {named}"


def _odd_pins(seen: PairView) -> Iterator[str]:
    for pin in seen.pins:
        if pin.trouble is not None and (pin.until is None or seen.at < pin.until):
            what = "every generation" if pin.generation is None else f"generation {pin.generation}"
            until = "it is deleted" if pin.until is None else iso(pin.until)
            yield (
                f"pin {pin.id}: {pin.trouble}, and it keeps {what} until {until}; if nobody needs it, delete "
                f"{pins_prefix(seen.pair)}{pin.id}.json"
            )
