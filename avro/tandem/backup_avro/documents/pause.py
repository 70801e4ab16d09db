"""Pauses: a person asks both instances to begin no turn for a while. `<root>/<pair>/pauses/<number>.json`.

Numbered from 1 on without gaps, put if absent, never changed; the newest one counts. A pause prevents claims and
nothing else: reading, COMPLETE, coverage and clearing of generations are decided as without it, so no guarantee depends
on it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from tandem.backup_avro.chain.entries import JsonObject, from_iso, iso
from tandem.backup_avro.chain.json_codec import VERSION, Fields, canonical, pack
from tandem.backup_avro.errors import DamagedError
from tandem.backup_avro.json_fields import TIME_MS, in_json

#: The longest pause in ms: a pair in which no instance can take over must not be forgotten.
LONGEST_MS: Final = 30 * 86_400_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """`tandem pause` and `resume`: who asked for what. `number` counts both; `until` None ends the pause before.

    Times are ms since the epoch by the store's clock.
    """

    number: int
    pair: str
    at: int = field(metadata=TIME_MS)
    until: int | None = field(metadata=TIME_MS)
    by: str
    reason: str

    @property
    @in_json
    def paused(self) -> bool:
        """Whether this document begins a pause."""
        return self.until is not None


def in_force(newest: Pause | None, now: int) -> Pause | None:
    """Return the pause in force at `now`, None if there is none. `newest` is the last one that was requested."""
    return newest if newest is not None and newest.until is not None and now < newest.until else None


def encode_pause(pause: Pause) -> bytes:
    """Return the bytes to store: equal ones for equal pauses."""
    document: JsonObject = {
        "v": VERSION,
        "enc": None,
        "number": pause.number,
        "pair": pause.pair,
        "at": iso(pause.at),
        "until": None if pause.until is None else iso(pause.until),
        "by": pause.by,
        "reason": pause.reason,
    }
    return pack(canonical(document))


def decode_pause(data: bytes, where: str) -> Pause:
    """Parse a pause. DamagedError names `where`; NewerFormatError if a newer release of Tandem wrote it."""
    fields = Fields.of_stored(data, where)
    until = fields.take_field("until", str, None)
    pause = Pause(
        number=fields.take_field("number", int),
        pair=fields.take_field("pair", str),
        at=_moment(fields.take_field("at", str), where),
        until=None if until is None else _moment(until, where),
        by=fields.take_field("by", str),
        reason=fields.take_field("reason", str),
    )
    fields.refuse_other_fields()
    return pause


def _moment(text: str, where: str) -> int:
    try:
        return from_iso(text)
    except ValueError as error:
        raise DamagedError(f"{where}: {text!r} is not a time", code="TDM-A062") from error
