"""A handover on a person's request: whether it is allowed, its cost, and its progress. Pure.

A request endangers no backup: the Active goes on until the new generation covers it by the chains in S3. Requests are
refused that would have no effect, or would leave the pair with an unfinished generation and no instance to build it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from tandem.backup_avro.chain.generation import Generation
from tandem.backup_avro.chain.integers import utc_time
from tandem.backup_avro.errors import ConfigError, RefusedError
from tandem.backup_avro.selection import completion, coverage, moments
from tandem.backup_avro.selection.coverage import GuardedPartitions
from tandem.controller.cli.output.output import duration
from tandem.controller.status.health import chosen, paused, problems, progress, rolled_back, silence
from tandem.controller.status.pair_view import PairView


@dataclass(frozen=True, slots=True, kw_only=True)
class HandoverPlan:
    """A handover to request. `generation` is the number that `target` shall build beside `former`.

    `records` and `bytes` are the present contents of the former generation: about so much is read again, and stored
    twice for a while. `scan_s` is the time from claim to COMPLETE of the newest complete generation. Moments from
    `window_start` on (ms; None: none) can be restored now, and for `window_s` after the old generation was sealed.
    """

    pair: str
    cluster_id: str
    target: str
    generation: int
    active: str | None
    former: int | None
    records: int
    bytes: int
    scan_s: float | None
    window_s: float
    window_start: int | None
    warnings: tuple[str, ...]
    paused_at: int | None = None
    """When the pair was paused (ms); None if it is not."""
    kept_for: tuple[str, ...] = ()
    """What keeps the former generation when the new one is complete, such as checkpoints."""

    @property
    def beside_itself(self) -> bool:
        """Whether the Active itself builds the next generation."""
        return self.target == self.active


def plan(seen: PairView, *, to: str | None, force: bool) -> HandoverPlan:
    """Return the handover to request. Raises RefusedError if it is not allowed, ConfigError for an unknown instance."""
    if to is not None and to not in seen.instances:
        raise ConfigError(
            f"--to {to}: the pair {seen.pair} has no such instance",
            code="TDM-I007",
            remedy=f"choose {' or '.join(seen.instances)}",
        )
    base = seen.active or chosen(seen)
    _refuse_paused(seen, force=force)
    _refuse_unready(seen, base, force=force)
    assert base is not None
    target = to or next(name for name in seen.instances if name != base.instance)
    kept_for = _kept_for(seen, base)
    warnings = _warnings(seen, base, target, kept_for, force=force)
    return HandoverPlan(
        pair=seen.pair,
        cluster_id=base.claim.cluster_id,
        target=target,
        generation=seen.newest + 1,
        active=None if seen.active is None else seen.active.instance,
        former=None if seen.active is None else seen.active.number,
        records=sum(part.records for _, part in base.live_parts()),
        bytes=sum(item.bytes for item in base.objects.values()),
        scan_s=_scan_s(seen),
        window_s=seen.policy.recovery_window_s,
        window_start=moments.unbroken_from(seen.generations),
        warnings=warnings,
        paused_at=None if seen.pause is None else seen.pause.at,
        kept_for=kept_for,
    )


def _kept_for(seen: PairView, base: Generation) -> tuple[str, ...]:
    if seen.active is None:
        return ()
    return tuple(sorted({pin.owner for pin in seen.pins if pin.lasting and pin.holds(base.number, seen.at)}))


def _refuse_paused(seen: PairView, *, force: bool) -> None:
    pause = paused(seen)
    if pause is not None and not force:
        raise RefusedError(
            pause, code="TDM-I008", remedy="`tandem resume` ends the pause; --force asks for a turn in spite of it"
        )


def _refuse_unready(seen: PairView, base: Generation | None, *, force: bool) -> None:
    if base is None:
        worst = next(iter(problems(seen)), None)
        raise RefusedError(
            worst.message if worst is not None else "there is no complete backup",
            code="TDM-I009",
            remedy=worst.remedy if worst is not None else "`tandem status` shows what there is",
        )
    if seen.brokers is not None and seen.brokers.guarded.cluster_id != base.claim.cluster_id:
        raise RefusedError(
            f"the backup is of cluster {base.claim.cluster_id}, but the brokers belong to cluster "
            f"{seen.brokers.guarded.cluster_id}",
            code="TDM-I010",
            remedy="check kafka.bootstrap.servers, pair and store.root of this configuration",
        )
    for building in _under_construction(seen):
        if not force:
            raise RefusedError(
                f"{_how_far(seen, building)} ({building.claim.reason})",
                code="TDM-I011",
                remedy="wait for it: it is the handover; `tandem status` shows how far it is. "
                "If it never ends, --force has another one built beside it",
            )


def _under_construction(seen: PairView) -> list[Generation]:
    return [building for building in seen.building if seen.alive(building.instance)]


def _how_far(seen: PairView, building: Generation) -> str:
    done, total = progress(seen, building)
    return (
        f"generation {building.number} is already being built by {building.instance}, which is alive: "
        f"{done} of {total} partitions are read through"
    )


def _warnings(
    seen: PairView, base: Generation, target: str, kept_for: tuple[str, ...], *, force: bool
) -> tuple[str, ...]:
    pause = paused(seen)
    found = [problem.message for problem in rolled_back(seen)]
    found += [] if pause is None else [f"{pause}; this turn is taken in spite of it"]
    found += [
        f"{asked.instance} asked {asked.target} for generation {asked.generation} "
        f"{duration(seen.since_s(asked.at))} ago, and nobody has claimed it yet: who is asked now goes by this request"
        for asked in seen.pending
    ]
    found += [f"generation {number} can't be read and is left behind" for number in sorted(seen.damaged)]
    found += [
        f"{_how_far(seen, building)}; the new one is built beside it, and it is given up when that is complete"
        for building in _under_construction(seen)
    ]
    if not seen.alive(target):
        if not force:
            others = [name for name in seen.instances if seen.alive(name)]
            instead = f", or choose {others[0]} with --to, which is alive" if others else ""
            raise RefusedError(
                f"{target} {silence(seen, target)}: no process would act on the request",
                code="TDM-I012",
                remedy=f"start it (`tandem run`){instead}; with --force the request is left for when it starts",
            )
        found.append(
            f"{target} {silence(seen, target)}: the request stays in force until it starts, or until another "
            "generation is claimed"
        )
    if seen.active is not None and target != base.instance and not seen.alive(base.instance):
        found.append(
            f"{base.instance}, the Active, {silence(seen, base.instance)}: it may not be appending; it seals and "
            "clears its generation only when it runs again"
        )
    if kept_for:
        found.append(
            f"generation {base.number} is kept for {', '.join(kept_for)}: it stays when the new one is complete"
        )
    if seen.active is not None and target == base.instance:
        found.append(
            f"{target} is the Active itself: it builds the next generation beside the present one, and reads and "
            "writes twice as much meanwhile"
        )
    if seen.active is None:
        found.append("nobody appends at the moment: new records are stored only when the new generation is claimed")
    return tuple(found)


def _scan_s(seen: PairView) -> float | None:
    found = [g for g in seen.generations if g.completed_at is not None]
    newest = max(found, key=lambda g: g.number, default=None)
    if newest is None or newest.completed_at is None:
        return None
    return max(0.0, (newest.completed_at - newest.claim.at) / 1000)


class Stage(StrEnum):
    """How far a handover has come."""

    REQUESTED = "requested"
    BUILDING = "building"
    COMPLETE = "complete"
    SEALED = "sealed"
    DONE = "done"
    GIVEN_UP = "given up"


@dataclass(frozen=True, slots=True, kw_only=True)
class HandoverStep:
    """One step that was taken: when, and how many seconds after the one before (the first: after the request)."""

    step: str
    at: datetime
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class HandoverStanding:
    """The progress of a handover by the chains. `builder` is the instance that claimed the number, asked or not."""

    stage: Stage
    builder: str | None
    steps: tuple[HandoverStep, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """At most about so much is read again, and stored beside the present generation."""

    records: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """What the new generation holds."""

    records: int
    bytes: int
    objects: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Failover:
    """`tandem rotate`, `failover`, `switchover` and `reinit`. `built` is there when the command saw it done."""

    pair: str
    request_id: str
    reason: str | None
    requested_at: datetime
    from_instance: str | None
    from_generation: int | None
    to_instance: str
    to_generation: int
    stage: Stage
    timed_out: bool
    steps: tuple[HandoverStep, ...]
    seconds: float
    cost: Cost
    built: Built | None


def handover_standing(
    asked: HandoverPlan,
    requested_at: int,
    states: Mapping[int, Generation],
    guarded: GuardedPartitions,
    *,
    held: Collection[int] = (),
) -> HandoverStanding:
    """Return the progress of a handover. `states` are all generations, cleared ones too, by number.

    `held` are those that a checkpoint keeps: a handover from one of these is done when it is sealed.
    """
    new = states.get(asked.generation)
    old = None if asked.former is None else states.get(asked.former)
    times = [
        ("claimed", None if new is None else new.claim.at),
        ("complete", None if new is None else new.completed_at),
    ]
    if old is not None:
        times.append(("sealed", old.sealed_at))
        times.append(("cleared", old.at if old.cleared is not None and old.clearing is None else None))
    return HandoverStanding(
        stage=_stage(asked, new, old, states, guarded=guarded, held=held),
        builder=None if new is None else new.instance,
        steps=_steps(requested_at, times),
    )


def _stage(
    asked: HandoverPlan,
    new: Generation | None,
    old: Generation | None,
    states: Mapping[int, Generation],
    *,
    guarded: GuardedPartitions,
    held: Collection[int],
) -> Stage:
    if new is None:
        return Stage.REQUESTED
    if not new.complete:
        over = completion.is_spoilt(new) or new.clearing is not None or new.gone
        return Stage.GIVEN_UP if over or coverage.successor(new, states.values()) is not None else Stage.BUILDING
    if old is None:
        return Stage.DONE
    if not old.sealed:
        return Stage.COMPLETE
    if asked.window_s or (old.cleared is not None and old.clearing is None):
        return Stage.DONE
    if old.clearing is None:
        if old.number in held:
            return Stage.DONE
        goes = coverage.clearing(old, list(states.values()), guarded)
        if goes is not None and not goes.goes:
            return Stage.DONE  # All of it is kept: no clearing is to be waited for.
    return Stage.SEALED


def _steps(requested_at: int, times: list[tuple[str, int | None]]) -> tuple[HandoverStep, ...]:
    found = []
    before = requested_at
    for name, at in times:
        if at is not None:
            found.append(HandoverStep(step=name, at=utc_time(at), seconds=max(0, at - before) / 1000))
            before = max(before, at)
    return tuple(found)
