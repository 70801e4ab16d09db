"""What the last verifications, drills and sweeps came to. `<root>/<pair>/results/<kind>-<at>-<nonce>.json`.

Each is an object of its own, put once and never changed; only the newest few are kept. They are for people, and for
whoever watches the pair. `verify` holds the ends of chains against what the kept ones say they read; no more depends on
them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from backup_avro.chain import JsonObject, from_iso, iso
from backup_avro.chain_json import VERSION, Fields, canonical, pack
from backup_avro.errors import DamagedError
from backup_avro.integers import is_int64, number_in


class OutcomeKind(StrEnum):
    """What was run."""

    VERIFY = "verify"
    DRILL = "drill"
    RETENTION = "retention"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One run. `at` is when it ended, in ms since the epoch by the store's clock; `by` who ran it.

    `clean`: it came to its end, and nothing was found. `what` says for people what was looked at. `generations`:
    generation -> the chain entry up to which it was read. `phases`: name -> seconds. `error` is why it did not end.
    """

    kind: OutcomeKind
    pair: str
    at: int
    by: str
    clean: bool
    what: str
    findings: int
    records: int
    bytes: int
    generations: Mapping[int, int] = field(default_factory=dict)
    phases: Mapping[str, float] = field(default_factory=dict)
    error: str | None = None

    @property
    def seconds(self) -> float:
        """How long all of it took."""
        return sum(self.phases.values())


def encode_outcome(outcome: Outcome) -> bytes:
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
    }
    return pack(canonical(document))


def decode_outcome(data: bytes, where: str) -> Outcome:
    """Parse what `encode_outcome` wrote. DamagedError names `where`."""
    fields = Fields.of_stored(data, where)
    kind = fields.take("kind", str)
    if kind not in {one.value for one in OutcomeKind}:
        raise DamagedError(f"{where}: unknown kind {kind}")
    at = fields.take("at", str)
    generations = fields.take("generations", dict)
    phases = fields.take("phases_ms", dict)
    numbers = {number_in(number): seq for number, seq in generations.items()}
    if None in numbers or not all(map(_is_count, numbers.values())):
        raise DamagedError(f"{where}: generations are not numbers")
    if not all(map(_is_count, phases.values())):
        raise DamagedError(f"{where}: phases are not milliseconds")
    try:
        moment = from_iso(at)
    except ValueError as error:
        raise DamagedError(f"{where}: {error}") from error
    outcome = Outcome(
        kind=OutcomeKind(kind),
        pair=fields.take("pair", str),
        at=moment,
        by=fields.take("by", str),
        clean=fields.take("clean", bool),
        what=fields.take("what", str),
        findings=fields.take("findings", int),
        records=fields.take("records", int),
        bytes=fields.take("bytes", int),
        generations={number: seq for number, seq in numbers.items() if number is not None},
        phases={name: ms / 1000 for name, ms in phases.items()},
        error=fields.take("error", str, None),
    )
    fields.end()
    return outcome


def _is_count(value: object) -> bool:
    return is_int64(value) and value >= 0
