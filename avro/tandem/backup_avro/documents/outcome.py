"""The results of the last verifications, drills and sweeps. `<root>/<pair>/results/<kind>-<at>-<nonce>.json`.

Each is an object of its own, put once and never changed; only the newest few are kept. They are for people, and for
monitoring of the pair. `verify` compares the ends of chains with those that the kept results record as read; nothing
else depends on them.

A finding of a verification or a drill stays open until a later run has read the same again, or it is gone: a clean
sample of other objects does not settle it, nor does a drill of another topic. So each outcome carries the earlier
findings of its kind that it does not settle.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final, cast

from tandem.backup_avro.chain.entries import JsonObject, from_iso, iso
from tandem.backup_avro.chain.integers import is_int64, number_in
from tandem.backup_avro.chain.json_codec import VERSION, Fields, canonical, pack
from tandem.backup_avro.errors import DamagedError
from tandem.backup_avro.json_fields import NOT_IN_JSON, TIME_MS, in_json


class JobKind(StrEnum):
    """Which job ran."""

    VERIFY = "verify"
    DRILL = "drill"
    RETENTION = "retention"

    def findings(self, count: int) -> str:
        """Return the findings of a run of this kind in words: `1 mismatch`, `7 mismatches`, `2 steps failed`."""
        if self is JobKind.RETENTION:
            return f"{count:,} step{'' if count == 1 else 's'} failed"
        return f"{count:,} mismatch{'' if count == 1 else 'es'}"


class JobScope(StrEnum):
    """How far a run went: all that is stored, a sample of it, one generation, a part of one, or keys.

    A drill restores all topics as they are now, or a part: some of them, or of another state.
    """

    ALL = "all"
    SAMPLE = "sample"
    GENERATION = "generation"
    PART = "part"
    KEYS = "keys"


GENERATIONS: Final = 20
"""Most generations, the newest ones, that an outcome names as read."""
_UNSETTLED: Final = 8
_EVERYWHERE: Final = frozenset({JobScope.ALL, JobScope.SAMPLE})
_WHOLE: Final = frozenset({JobScope.ALL, JobScope.GENERATION, JobScope.KEYS})


@dataclass(frozen=True, slots=True, kw_only=True)
class UnsettledFindings:
    """What a verification or a drill found. `at` as in `JobOutcome`; `hurt` are the generations that it found it in."""

    at: int = field(metadata=TIME_MS)
    scope: JobScope
    what: str
    findings: int
    hurt: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOutcome:
    """One run. `at` is when it ended, in ms since the epoch by the store's clock; `by` who ran it.

    `clean`: it came to its end, and nothing was found. `what` says for people what was looked at. `generations`:
    generation -> the chain entry up to which it was read. `phases`: name -> seconds. `error` is why it did not end.
    Of verifications and drills, `scope` says how far it went, and `unsettled` is what earlier ones found and it does
    not settle; of verifications, `hurt` says in which generations something was found.
    """

    kind: JobKind = field(metadata=NOT_IN_JSON)
    pair: str = field(metadata=NOT_IN_JSON)
    at: int = field(metadata=TIME_MS)
    by: str
    clean: bool
    what: str
    findings: int
    records: int
    bytes: int
    generations: Mapping[int, int] = field(default_factory=dict)
    phases: Mapping[str, float] = field(default_factory=dict)
    error: str | None = None
    scope: JobScope | None = None
    hurt: tuple[int, ...] = ()
    unsettled: tuple[UnsettledFindings, ...] = ()

    @property
    def good(self) -> bool:
        """Whether the run completed without findings, and no earlier findings are unsettled."""
        return self.clean and not self.unsettled

    @property
    @in_json
    def seconds(self) -> float:
        """Duration of all phases in seconds."""
        return sum(self.phases.values())


def settles(later: JobOutcome, found: UnsettledFindings) -> bool:
    """Return whether a later run settles a finding: it has read the same again without it, or all of it is gone."""
    if not later.clean or later.scope is None:
        return False
    if later.kind is JobKind.DRILL:
        return later.scope is JobScope.ALL or later.what == found.what
    if later.scope in _WHOLE and (later.scope, later.what) == (found.scope, found.what):
        return True
    hurt, read = set(found.hurt), later.generations.keys()
    if found.scope is not JobScope.KEYS and (
        later.scope is JobScope.ALL or (later.scope is JobScope.GENERATION and hurt and hurt <= read)
    ):
        return True
    # An outcome that names the most generations possible may have left this one out.
    return later.scope in _EVERYWHERE and bool(hurt) and not hurt & read and len(read) < GENERATIONS


def after(outcome: JobOutcome, before: JobOutcome | None) -> JobOutcome:
    """Return the outcome with the unsettled findings up to `before`, the outcome before it."""
    if outcome.scope is None or before is None:
        return outcome
    left = list(before.unsettled)
    if before.scope is not None and before.findings:
        left.append(
            UnsettledFindings(
                at=before.at, scope=before.scope, what=before.what, findings=before.findings, hurt=before.hurt
            )
        )
    # A finding that several runs of the same scope have is listed once, with its newest date.
    newest = {(one.scope, one.what, one.hurt): one for one in left if not settles(outcome, one)}
    if outcome.findings:
        newest.pop((outcome.scope, outcome.what, outcome.hurt), None)
    return replace(outcome, unsettled=tuple(newest.values())[-_UNSETTLED:])


def encode_outcome(outcome: JobOutcome) -> bytes:
    """Return the bytes to store; seconds are written as milliseconds."""
    document: JsonObject = {
        "v": VERSION,
        "enc": None,
        "kind": outcome.kind.value,
        "pair": outcome.pair,
        "at": iso(outcome.at),
        "by": outcome.by,
        "clean": outcome.clean,
        "what": outcome.what,
        "findings": outcome.findings,
        "records": outcome.records,
        "bytes": outcome.bytes,
        "generations": {str(number): seq for number, seq in outcome.generations.items()},
        "phases_ms": {name: round(seconds * 1000) for name, seconds in outcome.phases.items()},
        **({} if outcome.error is None else {"error": outcome.error}),
        **({} if outcome.scope is None else {"scope": outcome.scope.value}),
        **({"hurt": list(outcome.hurt)} if outcome.hurt else {}),
        **({"unsettled": [_unsettled_json(one) for one in outcome.unsettled]} if outcome.unsettled else {}),
    }
    return pack(canonical(document))


def decode_outcome(data: bytes, where: str) -> JobOutcome:
    """Parse the bytes that `encode_outcome` wrote. DamagedError names `where`."""
    fields = Fields.of_stored(data, where)
    kind = fields.take_field("kind", str)
    if kind not in {one.value for one in JobKind}:
        raise DamagedError(f"{where}: unknown kind {kind}", code="TDM-A056")
    at = fields.take_field("at", str)
    generations = fields.take_field("generations", dict)
    phases = fields.take_field("phases_ms", dict)
    numbers = {number_in(number): seq for number, seq in generations.items()}
    if None in numbers or not all(map(_is_count, numbers.values())):
        raise DamagedError(f"{where}: generations are not numbers", code="TDM-A057")
    if not all(map(_is_count, phases.values())):
        raise DamagedError(f"{where}: phases are not milliseconds", code="TDM-A058")
    outcome = JobOutcome(
        kind=JobKind(kind),
        pair=fields.take_field("pair", str),
        at=_moment(at, where),
        by=fields.take_field("by", str),
        clean=fields.take_field("clean", bool),
        what=fields.take_field("what", str),
        findings=fields.take_field("findings", int),
        records=fields.take_field("records", int),
        bytes=fields.take_field("bytes", int),
        generations={number: seq for number, seq in numbers.items() if number is not None},
        phases={name: ms / 1000 for name, ms in phases.items()},
        error=fields.take_field("error", str, None),
        scope=_scope(fields.take_field("scope", str, None), where),
        hurt=_numbers(fields.take_field("hurt", list, []), where),
        unsettled=tuple(_unsettled(one, where) for one in fields.take_field("unsettled", list, [])),
    )
    fields.refuse_other_fields()
    return outcome


def _unsettled_json(one: UnsettledFindings) -> JsonObject:
    document: JsonObject = {
        "at": iso(one.at),
        "scope": one.scope.value,
        "what": one.what,
        "findings": one.findings,
        "hurt": list(one.hurt),
    }
    return document


def _unsettled(document: object, where: str) -> UnsettledFindings:
    fields = Fields(document, where)
    scope = _scope(fields.take_field("scope", str), where)
    assert scope is not None
    one = UnsettledFindings(
        at=_moment(fields.take_field("at", str), where),
        scope=scope,
        what=fields.take_field("what", str),
        findings=fields.take_field("findings", int),
        hurt=_numbers(fields.take_field("hurt", list), where),
    )
    fields.refuse_other_fields()
    return one


def _scope(name: str | None, where: str) -> JobScope | None:
    if name is not None and name not in {one.value for one in JobScope}:
        raise DamagedError(f"{where}: unknown scope {name}", code="TDM-A059")
    return None if name is None else JobScope(name)


def _numbers(values: list[object], where: str) -> tuple[int, ...]:
    if not all(map(_is_count, values)):
        raise DamagedError(f"{where}: generations are not numbers", code="TDM-A060")
    return tuple(cast("list[int]", values))


def _moment(at: str, where: str) -> int:
    try:
        return from_iso(at)
    except ValueError as error:
        raise DamagedError(f"{where}: {error}", code="TDM-A061") from error


def _is_count(value: object) -> bool:
    return is_int64(value) and value >= 0
