"""Which records a restore is to write: from what the user chose and what the store holds to a plan.

The newest state, a named cut, or a moment, each of all or some topics, and bounded by offsets where some are given.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from backup_avro import moments
from backup_avro.chain import iso
from backup_avro.checkpoint import Checkpoint, unrestorable
from backup_avro.errors import ConfigError, DamagedError, RefusedError
from backup_avro.fold import Generation
from backup_avro.selection import choose
from sink.chain import checkpoints
from sink.chain.reader import ChainReader
from sink.chain.writer import now_ms
from spark_jobs import restore_plan
from spark_jobs.progress import PlanState
from spark_jobs.restore_load import Pace
from spark_jobs.restore_plan import Naming, RestorePlan

_SKEW_MS: Final = 5_000
"""By how much the store's clock may seem to be behind the user's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What the user chose. `replication_factor` None: as recorded, at most the number of brokers.

    At most one of these says which state it is, else it is the newest: `at` (ms by the store's clock: the last moment
    at or before it), `commit` (a chain entry of `generation`), `checkpoint` (a named cut, which goes with no
    `generation`). `until` bounds partitions, (topic, number) -> the offset that is not restored any more.
    """

    naming: Naming = field(default_factory=Naming)
    topics: tuple[str, ...] | None = None
    generation: int | None = None
    at: int | None = None
    commit: int | None = None
    checkpoint: str | None = None
    until: Mapping[tuple[str, int], int] = field(default_factory=dict)
    keep_load_config: bool = False
    consent: bool = False
    replication_factor: int | None = None
    pace: Pace = field(default_factory=Pace)


def plan_of(reader: ChainReader, options: Options) -> RestorePlan:
    """Plan what the user chose from what the store holds now.

    Raises ConfigError for what is not there, RefusedError for what can't be restored, DamagedError if nothing can be
    read.
    """
    generations = reader.refresh(tolerant=True)
    lost = reader.lost(generations)
    generations = [state for state in generations if state.number not in lost]
    damaged = {number: str(error) for number, error in {**reader.damaged, **lost}.items()}
    if options.checkpoint is not None:
        return _plan_cut(reader, options, _checkpoint(reader, options.checkpoint))
    if damaged and not any(state.complete for state in generations):
        number, why = max(damaged.items())
        raise DamagedError(
            f"no complete generation can be read; generation {number}: {why}",
            remedy="bring the object back from the bucket's versions, then `tandem verify`",
        )
    if options.at is not None or options.commit is not None:
        present, seq = _moment(reader, generations, options)
        return _plan_moment(reader, options, present, seq, damaged)
    return restore_plan.make_plan(
        generations,
        pair=reader.pair,
        naming=options.naming,
        topics=options.topics,
        number=options.generation,
        until=options.until,
        damaged=damaged,
    )


def _moment(reader: ChainReader, generations: list[Generation], options: Options) -> tuple[Generation, int]:
    """Return the generation that a moment is restored from, and the moment's entry."""
    there = [state for state in generations if options.generation in {None, state.number}]
    if options.commit is not None:
        state = choose(there, options.generation)
        return state, moments.moment_of(state, options.commit).seq
    assert options.at is not None
    now = now_ms(reader.store)
    if options.at > now + _SKEW_MS:
        raise ConfigError(
            f"--at {iso(options.at)} lies in the future: the store's clock says {iso(now)}",
            remedy="leave it out for the newest state",
        )
    state, moment = moments.moment_at(there, options.at)
    return state, moment.seq


def _plan_moment(
    reader: ChainReader, options: Options, present: Generation, seq: int, damaged: Mapping[int, str]
) -> RestorePlan:
    past = reader.load(present.number, upto=seq)
    return restore_plan.make_plan(
        [moments.with_objects_of(past, present)],
        pair=reader.pair,
        naming=options.naming,
        topics=options.topics,
        past=moments.past_state(past),
        asked=options.at,
        basis={present.number: present.seq},
        until=options.until,
        damaged=damaged,
    )


def _checkpoint(reader: ChainReader, checkpoint_id: str) -> Checkpoint:
    """Return a checkpoint that can be restored by what the reader saw last. Raises ConfigError, RefusedError."""
    found = checkpoints.find(reader.store, reader.pair, checkpoint_id)
    if found is None:
        raise ConfigError(
            f"pair {reader.pair} has no checkpoint {checkpoint_id}",
            remedy="`tandem checkpoint list` shows those there are",
        )
    states = {state.number: state for state in reader.history() if state.number not in reader.damaged}
    why_not = unrestorable(found, states, now_ms(reader.store))
    if why_not is not None:
        raise RefusedError(
            f"checkpoint {checkpoint_id} can't be restored: {why_not}",
            remedy="choose another one (`tandem checkpoint list`), or restore the newest state without --checkpoint",
        )
    return found


def _plan_cut(reader: ChainReader, options: Options, found: Checkpoint, *, upto: int | None = None) -> RestorePlan:
    """Plan a checkpoint from its generation as of the entry that completed it: what came later is none of it.

    Its objects of then are kept for as long as it is. After that merging goes on without regard to it, and its records
    are in the objects that there are now, as of entry `upto` if a run rests on that.
    """
    outcome = found.outcome
    assert outcome is not None
    assert outcome.generation is not None
    past = reader.load(outcome.generation, upto=outcome.seq)
    keep_until = found.request.keep_until
    basis = None
    if keep_until is not None and now_ms(reader.store) >= keep_until:
        present = reader.load(outcome.generation, upto=upto)
        past, basis = moments.with_objects_of(past, present), {present.number: present.seq}
    return restore_plan.make_plan(
        [past],
        basis=basis,
        pair=reader.pair,
        naming=options.naming,
        topics=options.topics,
        cut=found.request.cut,
        until=options.until,
    )


def plan_again(reader: ChainReader, options: Options, state: PlanState) -> RestorePlan | None:
    """Return the plan of `state`, a run that did not end, if it is what is asked for now.

    It is made from the chain entries that it rested on: the backup may have grown since, and been merged.
    """
    if options.generation not in {None, state.generation}:
        return None
    try:
        if options.checkpoint is not None:
            found = _checkpoint(reader, options.checkpoint)
            plan = _plan_cut(reader, options, found, upto=state.basis.get(state.generation))
            return plan if plan.hash == state.plan else None
        generations = [reader.load(number, upto=seq) for number, seq in sorted(state.basis.items())]
        if options.at is not None or options.commit is not None:
            present, seq = _moment(reader, generations, options)
            plan = _plan_moment(reader, options, present, seq, {})
            return plan if plan.hash == state.plan else None
    except (ConfigError, RefusedError, DamagedError):
        return None
    # With a number named, what others have besides is taken less freely; whether one was is not written down.
    for number in (None, state.generation):
        with suppress(ConfigError, RefusedError):  # of the two, only the one that was asked for need be possible
            plan = restore_plan.make_plan(
                generations,
                pair=reader.pair,
                naming=options.naming,
                topics=options.topics,
                number=number,
                until=options.until,
            )
            if plan.hash == state.plan:
                return plan
    return None
