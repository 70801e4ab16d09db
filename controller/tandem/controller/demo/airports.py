"""The demo's input: the world's airports, keyed by ICAO code, and their updates, closures and reopenings."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass

from tandem.backup_avro.errors import PermanentError

Headers = tuple[tuple[str, bytes | None], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AirportChange:
    """One record to be written. A null value is a tombstone: the airport is closed."""

    key: bytes
    value: bytes | None
    headers: Headers = ()


def load() -> dict[str, dict[str, object]]:
    """Return ICAO code -> row of the airport. Raises PermanentError if the package with the data is not installed."""
    try:
        import airportsdata  # noqa: PLC0415 (an extra: only the demo needs it)
    except ModuleNotFoundError as error:
        raise PermanentError(
            "the demo's input, the package airportsdata, is not installed",
            code="TDM-D001",
            remedy="pip install 'tandem-kafka-backup[sandbox]', or run `make demo`",
        ) from error
    return {code: dict(row) for code, row in airportsdata.load("ICAO").items()}


def first_load(table: dict[str, dict[str, object]]) -> Iterator[AirportChange]:
    """Yield one record for every airport."""
    for code, row in table.items():
        yield AirportChange(key=code.encode(), value=_encode(row), headers=_headers(code, "load"))


def changes(table: dict[str, dict[str, object]], *, seed: int) -> Iterator[AirportChange]:
    """Yield an infinite sequence of changes; `seed` makes it repeatable.

    Two thirds are updates, the rest closures (tombstones), empty values and reopenings.
    """
    chance = random.Random(seed)  # noqa: S311 (repeatable, not secret)
    codes = sorted(table)
    for number in range(1, 1 << 62):
        code = chance.choice(codes)
        kind = chance.random()
        if kind < 0.2:
            yield AirportChange(key=code.encode(), value=None, headers=_headers(code, "closed"))
        elif kind < 0.3:
            yield AirportChange(
                key=code.encode(), value=b"", headers=(("note", None), ("note", b""), ("note", b"twice"))
            )
        else:
            row = table[code] | {"elevation": round(chance.uniform(0, 4000), 1), "revision": number}
            yield AirportChange(key=code.encode(), value=_encode(row), headers=_headers(code, "update"))


def _encode(row: dict[str, object]) -> bytes:
    return json.dumps(row, sort_keys=True, ensure_ascii=False).encode()


def _headers(code: str, cause: str) -> Headers:
    """Return headers for every third airport, one of them with a null value; else none."""
    return (("cause", cause.encode()), ("checked-by", None)) if sum(code.encode()) % 3 == 0 else ()
