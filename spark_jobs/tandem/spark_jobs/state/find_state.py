"""Find the requested state in the store: the newest, a named cut, or a moment."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from tandem.backup_avro.chain.entries import Mark, iso
from tandem.backup_avro.chain.erasure import without_erased
from tandem.backup_avro.chain.generation import Generation, Moment
from tandem.backup_avro.chain.signatures import SignatureError
from tandem.backup_avro.documents.checkpoint import Checkpoint, why_unrestorable
from tandem.backup_avro.errors import ConfigError, DamagedError, NewerFormatError, RefusedError, bare
from tandem.backup_avro.selection import moments
from tandem.backup_avro.selection.moments import PastState
from tandem.backup_avro.selection.restorable_state import choose_generation
from tandem.backup_avro.selection.state_as_of import GenerationAsOf, as_of
from tandem.sink.store.chain import checkpoints
from tandem.sink.store.chain.chain_reader import ChainReader
from tandem.sink.store.chain.chain_writer import now_ms
from tandem.spark_jobs.connector.connector_reader import ConnectorReader
from tandem.spark_jobs.reading.newest_first import newest_first
from tandem.spark_jobs.reading.wanted_state import FoundState, StateRequest

_PARALLEL: Final = 16
_AT_ONCE: Final = 160
_SKEW_MS: Final = 5_000
"""The most ms by which a requested moment may lie ahead of the store's clock."""


def find_state(
    reader: ChainReader | ConnectorReader, state_request: StateRequest, *, tolerant: bool = True, merge: bool = True
) -> FoundState:
    """Find the requested state in the store. A connector's files hold exactly one, see `ConnectorReader.find`.

    With `merge`, the state includes records that other generations hold beyond the generation that the selection rests
    on. Raises ConfigError for an absent state, RefusedError for one that can't be restored, DamagedError if no complete
    generation can be read. Unless `tolerant`, one damaged chain raises DamagedError: a caller that can't show warnings
    must not read an older state. A forged chain raises SignatureError for every caller, unless a generation or a cut is
    named. A named commit is found as long as the chain can be read up to it.
    """
    if isinstance(reader, ConnectorReader):
        return reader.find(state_request)
    generations = reader.refresh(tolerant=tolerant)
    lost = reader.lost_generations(generations)
    if lost and not tolerant:
        raise lost[max(lost)]
    generations = [state for state in generations if state.number not in lost]
    if state_request.generation is None and state_request.checkpoint is None:
        refuse_forged(reader)
    known = {*reader.damaged, *lost, *(state.number for state in reader.history())}
    if state_request.generation is not None and state_request.generation not in known:
        numbers = ", ".join(str(state.number) for state in generations)
        raise ConfigError(
            f"pair {reader.pair} has no generation {state_request.generation}",
            code="TDM-P074",
            remedy=f"there are {numbers}; `tandem status` shows more of them"
            if numbers
            else "`tandem status` shows what there is",
        )
    unreadable = {**reader.damaged, **lost}
    if state_request.generation in unreadable:
        if state_request.commit is None:
            raise bare(unreadable[state_request.generation])
        generations = [reader.load(state_request.generation, upto=state_request.commit)]
    damaged = {number: str(error) for number, error in unreadable.items()}
    if state_request.checkpoint is not None:
        return named_cut(reader, state_request.checkpoint)
    if damaged and not any(state.complete for state in generations):
        number, why = max(damaged.items())
        raise DamagedError(
            f"no complete generation can be read; generation {number}: {why}",
            code="TDM-P075",
            remedy="bring the object back from the bucket's versions; if that can't be, `tandem verify` names the "
            "newest entry up to which all is there",
        )
    if state_request.at is not None or state_request.commit is not None:
        return moment(reader, generations, state_request, damaged=damaged, tolerant=tolerant, merge=merge)
    return FoundState(
        generations=generations,
        number=state_request.generation,
        damaged=damaged,
        merge=merge,
        records=newest_first(reader.store),
    )


def refuse_forged(reader: ChainReader) -> None:
    """Raise SignatureError for the newest forged generation, if any: the others may be what the attacker wants read."""
    forged = {number: error for number, error in reader.damaged.items() if isinstance(error, SignatureError)}
    if forged:
        number, error = max(forged.items())
        raise SignatureError(
            f"generation {number}: {error.args[0]}",
            code="TDM-P076",
            remedy=f"{error.remedy}; to take another generation all the same, name it",
        )


def moment(
    reader: ChainReader,
    generations: Sequence[Generation],
    state_request: StateRequest,
    *,
    damaged: Mapping[int, str] | None = None,
    tolerant: bool = True,
    merge: bool = True,
) -> FoundState:
    """Find the requested moment; its records are read from the objects that exist now.

    With `merge`, the state includes records that other generations held by a time (see `select_as_of`). A `commit` is
    resolved in its own chain only, and read from the objects of then if one that has replaced some of them is missing,
    as in an incomplete copy of a bucket. With `tolerant`, another generation whose chain can't be read
    any more is left out and named.
    """
    present, seq = _entry(reader, generations, state_request)
    then = reader.load(present.number, upto=seq)
    if state_request.commit is not None and _lacks_replacement(reader, then, present):
        present = then
    past = [_picture(reader, present, then, state_request.at)]
    basis, unreadable = {present.number: present.seq}, dict(damaged or {})
    if merge and state_request.at is not None:
        for other, last in moments.moments_beside(generations, present.number, state_request.at):
            try:
                past.append(_picture(reader, other, _past(reader, other, last, state_request.at), state_request.at))
            except (NewerFormatError, SignatureError):
                raise
            except DamagedError as error:
                if not tolerant:
                    raise
                unreadable[other.number] = str(error)
            else:
                basis[other.number] = other.seq
    return FoundState(
        generations=[item.generation for item in past],
        number=state_request.generation,
        past=past,
        asked=state_request.at,
        basis=basis,
        damaged=unreadable,
        merge=merge,
        records=newest_first(reader.store),
    )


def _lacks_replacement(reader: ChainReader, then: Generation, present: Generation) -> bool:
    """Return whether an object is missing that has replaced others since an earlier state."""
    ends = {key: position.offset for key, position in then.positions.items()}
    later = (item for item in present.objects.values() if item.key not in then.objects)
    needed = [item.key for item in later if any(part.first < ends.get(part.key, 0) for part in item.parts)]
    with ThreadPoolExecutor(_PARALLEL, thread_name_prefix="replacements") as pool:
        return any(
            None in pool.map(reader.store.head, needed[first : first + _AT_ONCE])
            for first in range(0, len(needed), _AT_ONCE)
        )


def _past(reader: ChainReader, present: Generation, last: Moment, at: int) -> Generation:
    """Return a chain up to its last moment by `at`; a sealed chain without a later moment is not read again."""
    ended = present.sealed_at is not None and present.sealed_at <= at and last.seq == present.moments[-1].seq
    return present if ended else reader.load(present.number, upto=last.seq)


def _picture(reader: ChainReader, present: Generation, past: Generation, at: int | None) -> GenerationAsOf:
    """Return a generation as of its last entry in `past`, or as of a later mark with a time up to `at`."""
    marked = None if at is None else _between(reader, present, past, at)
    then, state = marked or (past, moments.past_state(past))
    return as_of(then, state, present)


def _between(
    reader: ChainReader, present: Generation, past: Generation, at: int
) -> tuple[Generation, PastState] | None:
    """Return the state at the last mark up to `at` in the two commits after `past`, or None.

    A commit is in the chain, and has its time, when all of its objects are stored: hours after it was cut, if the store
    was unavailable. Records that arrived meanwhile are in the next commit, and so are their marks. The commit after
    that one was cut later than the first one was in the chain.
    """
    following = list(_commits_after(reader, present, past, at))
    for before, seq, marks in reversed(following):
        then = past if before == past.seq else reader.load(present.number, upto=before)
        found = moments.marked(then, reader.load(present.number, upto=seq), marks, at)
        if found is not None:
            return found
    return None


def _commits_after(
    reader: ChainReader, present: Generation, past: Generation, at: int
) -> Iterator[tuple[int, int, Sequence[Mark]]]:
    """Yield those of the two commits after `past` that have a mark up to `at`: previous entry, entry, and marks."""
    before = past.seq
    for _ in range(2):
        seq = moments.commit_after(present, before)
        if seq is None:
            return
        [(entry, _hash)] = reader.entries(present.number, seq, seq)
        if any(mark.at <= at for mark in entry.marks):
            yield before, seq, entry.marks
        before = seq


def _entry(
    reader: ChainReader, generations: Sequence[Generation], state_request: StateRequest
) -> tuple[Generation, int]:
    """Return the generation that a moment is read from, and the number of the moment's entry."""
    there = [state for state in generations if state_request.generation in {None, state.number}]
    if state_request.commit is not None:
        state = choose_generation(there, state_request.generation)
        return state, moments.moment_of(state, state_request.commit).seq
    assert state_request.at is not None
    now = now_ms(reader.store)
    if state_request.at > now + _SKEW_MS:
        raise ConfigError(
            f"the moment {iso(state_request.at)} lies in the future: the store's clock says {iso(now)}",
            code="TDM-P077",
            remedy="leave it out for the newest state",
        )
    state, found = moments.moment_at(there, state_request.at)
    return state, found.seq


def named_cut(reader: ChainReader, checkpoint_id: str, *, upto: int | None = None) -> FoundState:
    """Find a checkpoint in its generation as of the entry that completed it, without any later entry but erasures.

    The checkpoint's objects are kept until its `keep_until`. After that merging no longer spares them, and its records
    are read from the objects that exist now, or as of entry `upto` if a run rests on that entry. The reader must have
    been refreshed. Raises ConfigError, RefusedError.
    """
    found = _checkpoint(reader, checkpoint_id)
    outcome = found.outcome
    assert outcome is not None
    assert outcome.generation is not None
    past = reader.load(outcome.generation, upto=outcome.seq)
    present = reader.load(outcome.generation, upto=upto)
    keep_until = found.request.keep_until
    basis = None
    if keep_until is not None and now_ms(reader.store) >= keep_until:
        past, basis = moments.with_objects_of(past, present), {present.number: present.seq}
    elif present.erased:
        past, basis = without_erased(past, present), {present.number: present.seq}
    return FoundState(generations=[past], basis=basis, cut=found.request.cut)


def _checkpoint(reader: ChainReader, checkpoint_id: str) -> Checkpoint:
    """Return a checkpoint that can be restored from the chains as last read. Raises ConfigError, RefusedError."""
    found = checkpoints.find_checkpoint(reader.store, reader.pair, checkpoint_id)
    if found is None:
        raise ConfigError(
            f"pair {reader.pair} has no checkpoint {checkpoint_id}",
            code="TDM-P078",
            remedy="`tandem checkpoint list` shows those there are",
        )
    states = {state.number: state for state in reader.history() if state.number not in reader.damaged}
    why_not = why_unrestorable(found, states, now_ms(reader.store))
    if why_not is not None:
        raise RefusedError(
            f"checkpoint {checkpoint_id} can't be restored: {why_not}",
            code="TDM-P079",
            remedy="choose another one (`tandem checkpoint list`), or restore the newest state without --checkpoint",
        )
    return found
