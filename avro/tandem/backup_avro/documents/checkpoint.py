"""Named checkpoints: a requested consistent cut, and its outcome.

The request, `<root>/<pair>/checkpoints/<id>.json`, is put if absent: every later request for the same id gets the first
one. It holds the cut, the ends of all guarded logs at that time, by topic id. The outcome is one object too,
`<root>/<pair>/checkpoints/outcomes/<nonce>.json`, put if absent: completed in a chain entry, or failed. So two
processes that decide at once, however late one of them is, agree; and an id that is deleted and used again has another
nonce.

`judge_cut` decides whether a generation holds the cut: every record below it that the log held at the request.
A generation whose scan was read through *before* the log ends were requested does: only records below the cut could
have made a cleaner drop others by then. One that was read later may lack a value that was superseded beyond the cut, so
it counts only if its position is exactly the cut: then no record lay beyond it when the log was read to its end.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum, StrEnum

from tandem.backup_avro.chain import layout
from tandem.backup_avro.chain.document_limits import LISTS
from tandem.backup_avro.chain.entries import Entry, EntryKind, JsonObject, PartitionKey, from_iso, iso
from tandem.backup_avro.chain.generation import Generation
from tandem.backup_avro.chain.integers import is_int64
from tandem.backup_avro.chain.json_codec import VERSION, Fields, canonical, dump_offsets, load_offsets, pack
from tandem.backup_avro.errors import ConfigError, DamagedError
from tandem.backup_avro.selection.coverage import GuardedPartitions

_NONCE = re.compile(r"[0-9a-f]{32}")
_LONGEST_ID = 100
_SHOWN = 3


class CheckpointState(StrEnum):
    """How a checkpoint stands; part of the public interface."""

    DOES_NOT_EXIST = "does-not-exist"
    ONGOING = "ongoing"
    COMPLETED = "completed"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRequest:
    """The request for a checkpoint. Times are ms since the epoch by the store's clock.

    `cut` holds the first offset beyond the cut of each partition, `topics` the names of its topic ids. `witnesses`
    are the generations that were COMPLETE and had read all of it through before the log ends were requested.
    From `deadline` on any process that examines it marks it as failed unless it is completed. A completed one is kept
    until `keep_until`, or, if that is None, until it is deleted.
    """

    id: str
    nonce: str
    pair: str
    cluster_id: str
    at: int
    deadline: int
    keep_until: int | None
    by: str
    reason: str
    topics: dict[str, str]
    cut: dict[PartitionKey, int]
    witnesses: tuple[int, ...]

    def name_of(self, key: PartitionKey) -> str:
        """Return `topic-partition` for messages."""
        return f"{self.topics.get(key.topic_id, key.topic_id)}-{key.partition}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointOutcome:
    """The final outcome of the request with this nonce: the CHECKPOINT entry that holds the cut, or why it failed."""

    id: str
    nonce: str
    at: int
    by: str
    generation: int | None = None
    seq: int | None = None
    reason: str | None = None

    @property
    def completed(self) -> bool:
        """Whether the cut is held by a chain entry."""
        return self.generation is not None and self.seq is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A request, and its outcome if there is one."""

    request: CheckpointRequest
    outcome: CheckpointOutcome | None = None

    def status(self, now: int) -> CheckpointState:
        """Return the checkpoint's state at `now`, ms by the store's clock."""
        if self.outcome is not None:
            return CheckpointState.COMPLETED if self.outcome.completed else CheckpointState.FAILED
        return CheckpointState.ONGOING if now < self.request.deadline else CheckpointState.FAILED


def check_id(name: str) -> str:
    """Return `name` if it is valid as the id of a checkpoint; ConfigError otherwise."""
    if len(name) > _LONGEST_ID:
        raise ConfigError(f"checkpoint {name[:20]!r}… has more than {_LONGEST_ID} characters", code="TDM-A042")
    return layout.check_name(name, "checkpoint")


# --- rules ------------------------------------------------------------------------------------------------------------


class CutStanding(Enum):
    """Whether a generation holds a cut, or can still hold it."""

    REACHED = "reached"
    BEHIND = "behind"  # it may still reach it
    PASSED = "passed"  # it can't hold this cut; another generation may
    LOST = "lost"  # no generation can: records below the cut are gone from the cluster


@dataclass(frozen=True, slots=True, kw_only=True)
class CutJudgement:
    """A standing, and in words why it is not REACHED."""

    standing: CutStanding
    detail: str = ""


def takes_part(state: Generation) -> bool:
    """Whether a CHECKPOINT entry may be appended to the generation: it is COMPLETE and takes records."""
    return state.complete and not state.sealed and state.clearing is None


def judge_cut(request: CheckpointRequest, state: Generation, guarded: GuardedPartitions | None) -> CutJudgement:
    """Return whether `state`, which takes part, holds the cut. `guarded` None: the brokers do not answer."""
    for key, offset in sorted(request.cut.items()):
        taint = state.taints.get(key)
        if taint is not None and taint.cut_at is not None and taint.cut_at < offset:
            return CutJudgement(
                standing=CutStanding.LOST, detail=f"the log of {request.name_of(key)} was truncated below the cut"
            )
    if state.taints:
        names = _some(request.name_of(key) for key in sorted(state.taints))
        return CutJudgement(
            standing=CutStanding.PASSED, detail=f"generation {state.number} is tainted ({names}) since it was asked for"
        )
    swept = [
        request.name_of(key) for key, offset in sorted(request.cut.items()) if not state.keeps_state_at(key, offset)
    ]
    if swept:
        return CutJudgement(
            standing=CutStanding.PASSED,
            detail=f"retention has swept generation {state.number} beyond the cut ({_some(swept)})",
        )
    behind: list[str] = []
    passed: list[str] = []
    for key, offset in sorted(request.cut.items()):
        position = state.positions.get(key)
        if position is not None and state.usable(key) and position.offset >= offset:
            if position.offset > offset and state.number not in request.witnesses:
                passed.append(request.name_of(key))
        elif guarded is not None and guarded.lacks(key, request.topics.get(key.topic_id)):
            return CutJudgement(
                standing=CutStanding.LOST,
                detail=f"{request.name_of(key)} was deleted, created anew or taken out of the configuration before all "
                f"of it up to offset {offset} was stored",
            )
        else:
            stands = "not read through" if position is None or not state.usable(key) else f"at {position.offset}"
            behind.append(f"{request.name_of(key)} is {stands}, the cut is at {offset}")
    if passed:
        return CutJudgement(
            standing=CutStanding.PASSED,
            detail=f"generation {state.number} was read after the request and beyond the cut ({_some(passed)}): it may "
            "lack what was superseded since",
        )
    if behind:
        return CutJudgement(standing=CutStanding.BEHIND, detail=f"generation {state.number}: {_some(behind, '; ')}")
    return CutJudgement(standing=CutStanding.REACHED)


def judge_all(
    request: CheckpointRequest, generations: Iterable[Generation], guarded: GuardedPartitions | None
) -> CutJudgement:
    """Return the standing of a cut in all generations together. LOST is final, however old the states are.

    Where a generation that was read later is beyond the cut, every still later one will be. So when the generations
    that held it from the start take no more records, no generation can reach it.
    """
    newest_first = sorted((state for state in generations if takes_part(state)), key=lambda state: -state.number)
    found = [(state, judge_cut(request, state, guarded)) for state in newest_first]
    for standing in (CutStanding.REACHED, CutStanding.LOST, CutStanding.BEHIND):
        for _, judgement in found:
            if judgement.standing is standing:
                return judgement
    beyond = [judgement for state, judgement in found if not state.taints]
    if beyond:
        return CutJudgement(
            standing=CutStanding.LOST,
            detail=f"what was complete at the request took no more records before it reached the cut, and "
            f"{beyond[0].detail}",
        )
    return CutJudgement(
        standing=CutStanding.BEHIND,
        detail=found[0][1].detail if found else "no complete generation takes records at the moment",
    )


def why_unrestorable(checkpoint: Checkpoint, states: Mapping[int, Generation], now: int) -> str | None:
    """Return why this checkpoint can't be restored, None if it can. `states` are the generations that can be read."""
    request, outcome = checkpoint.request, checkpoint.outcome
    status = checkpoint.status(now)
    if outcome is None or outcome.generation is None or status is not CheckpointState.COMPLETED:
        why = f": {outcome.reason}" if outcome is not None and outcome.reason else ""
        return f"it is {status.value}{why}"
    state = states.get(outcome.generation)
    if state is None or state.gone:
        until = request.keep_until
        ended = f"; it was kept until {iso(until)}" if until is not None and now >= until else ""
        return f"generation {outcome.generation}, which holds it, is cleared or can't be read{ended}"
    until = request.keep_until
    if (
        until is not None
        and now >= until
        and not all(state.keeps_state_at(key, end) for key, end in request.cut.items())
    ):
        return f"it was kept until {iso(until)}, and retention has swept generation {outcome.generation} since"
    going = sorted(key for key in request.cut if not state.usable(key))
    if going:
        names = _some(request.name_of(key) for key in going)
        return f"generation {outcome.generation}, which holds it, is being cleared ({names})"
    return None


def witnesses(cut: Iterable[PartitionKey], generations: Iterable[Generation]) -> tuple[int, ...]:
    """Return the generations that had read all these partitions through, before the log ends were requested."""
    keys = list(cut)
    return tuple(
        state.number
        for state in generations
        if takes_part(state) and not state.taints and all(state.usable(key) for key in keys)
    )


def checkpoint_entry(request: CheckpointRequest) -> Entry:
    """Return the CHECKPOINT entry for a request; the writer fills in number, link, incarnation and time."""
    return Entry(
        kind=EntryKind.CHECKPOINT,
        seq=0,
        prev_sha256="",
        incarnation="",
        at=0,
        checkpoint=request.id,
        reason=request.reason or None,
    )


def _some(names: Iterable[str], between: str = ", ") -> str:
    found = list(names)
    more = len(found) - _SHOWN
    return between.join(found[:_SHOWN]) + (f" and {more} more" if more > 0 else "")


# --- bytes ------------------------------------------------------------------------------------------------------------


def _dump(document: JsonObject) -> bytes:
    whole = {"v": VERSION, "enc": None, **{name: value for name, value in document.items() if value is not None}}
    return pack(canonical(whole))


def encode_request(request: CheckpointRequest) -> bytes:
    """Return the bytes to store: equal ones for equal requests."""
    return _dump(
        {
            "id": request.id,
            "nonce": request.nonce,
            "pair": request.pair,
            "cluster_id": request.cluster_id,
            "at": iso(request.at),
            "deadline": iso(request.deadline),
            "keep_until": None if request.keep_until is None else iso(request.keep_until),
            "by": request.by,
            "reason": request.reason,
            "topics": request.topics,
            "cut": dump_offsets(request.cut),
            "witnesses": list(request.witnesses),
        }
    )


def encode_outcome(outcome: CheckpointOutcome) -> bytes:
    """Return the bytes to store: equal ones for equal outcomes."""
    return _dump(
        {
            "id": outcome.id,
            "nonce": outcome.nonce,
            "at": iso(outcome.at),
            "by": outcome.by,
            "generation": outcome.generation,
            "seq": outcome.seq,
            "reason": outcome.reason,
        }
    )


def decode_request(data: bytes, where: str) -> CheckpointRequest:
    """Parse a request. DamagedError names `where`; NewerFormatError if a newer release wrote it."""
    fields = Fields.of_stored(data, where, LISTS)
    keep_until = fields.take_field("keep_until", str, None)
    topics = fields.take_field("topics", dict)
    numbers = fields.take_field("witnesses", list)
    if not all(isinstance(name, str) for name in topics.values()):
        raise DamagedError(f"{where}: a topic's name is not a string", code="TDM-A043")
    if not all(map(is_int64, numbers)):
        raise DamagedError(f"{where}: a generation is not a number", code="TDM-A044")
    request = CheckpointRequest(
        id=fields.take_field("id", str),
        nonce=fields.take_field("nonce", str),
        pair=fields.take_field("pair", str),
        cluster_id=fields.take_field("cluster_id", str),
        at=_at(fields.take_field("at", str), where),
        deadline=_at(fields.take_field("deadline", str), where),
        keep_until=None if keep_until is None else _at(keep_until, where),
        by=fields.take_field("by", str),
        reason=fields.take_field("reason", str),
        topics=topics,
        cut=load_offsets(fields.take_field("cut", dict), where),
        witnesses=tuple(numbers),
    )
    fields.refuse_other_fields()
    if not _NONCE.fullmatch(request.nonce):
        raise DamagedError(f"{where}: the nonce is not 32 hex digits", code="TDM-A045")
    return request


def decode_outcome(data: bytes, where: str) -> CheckpointOutcome:
    """Parse an outcome. DamagedError names `where`; NewerFormatError if a newer release wrote it."""
    fields = Fields.of_stored(data, where)
    outcome = CheckpointOutcome(
        id=fields.take_field("id", str),
        nonce=fields.take_field("nonce", str),
        at=_at(fields.take_field("at", str), where),
        by=fields.take_field("by", str),
        generation=fields.take_field("generation", int, None),
        seq=fields.take_field("seq", int, None),
        reason=fields.take_field("reason", str, None),
    )
    fields.refuse_other_fields()
    return outcome


def _at(text: str, where: str) -> int:
    try:
        return from_iso(text)
    except ValueError as error:
        raise DamagedError(f"{where}: {text!r} is not a time", code="TDM-A046") from error
