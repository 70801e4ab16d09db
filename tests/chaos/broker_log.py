"""What the broker says of transactions that it confirmed to their producers and did not end in the logs.

A broker that shuts down tells a producer that its transaction is committed, and then may find that the partitions have
no leader any more. It takes them for deleted, writes no marker, and counts the transaction as complete. The records
stay in an open transaction, which the producer's next one continues and ends: if that is aborted, so are they. No
consumer ever sees them (Kafka 4.3.1).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

from chaos.facts import Place

_SKIPPED: Final = re.compile(
    r"^(?P<at>[\d-]+ [\d:.]+) .*Couldn't find leader endpoint for partitions \w+\((?P<places>[^)]*)\) while trying to "
    r"send transaction markers for (?P<name>\S+),"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SkippedMarkers:
    """A transaction that was ended `at` this time (UNIX s) without markers in some partitions."""

    at: float
    transactional_id: str
    places: frozenset[Place]


def skipped_markers(log: Path) -> list[SkippedMarkers]:
    """Return all that a broker's log and its predecessor tell, in no order."""
    return [one for file in (log, log.with_name(f"{log.name}.1")) if file.exists() for one in _in(file)]


def _in(file: Path) -> Iterator[SkippedMarkers]:
    with file.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            if found := _SKIPPED.match(line):
                yield SkippedMarkers(
                    at=datetime.strptime(found["at"], "%Y-%m-%d %H:%M:%S.%f").astimezone().timestamp(),
                    transactional_id=found["name"],
                    places=frozenset(_place(name) for name in found["places"].split(", ")),
                )


def _place(name: str) -> Place:
    topic, _, partition = name.rpartition("-")
    return topic, int(partition)
