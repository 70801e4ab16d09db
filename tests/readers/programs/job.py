"""What a program is to do, the facts that it writes, and how it tells what it found. Needs nothing but Python."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

#: Each line of a result begins with it; all others are the program's log.
MARK = "RESULT "
PARTITIONS = 5


@dataclass(frozen=True)
class Job:
    """`phase` is write (bring in the facts from `first` up to `last`, which is left out) or read (come up, tell)."""

    phase: str
    bootstrap: str
    name: str
    folder: str
    first: int
    last: int
    options: dict[str, str]


@dataclass(frozen=True)
class Fact:
    """A record that an application writes; a value of None deletes its key."""

    number: int
    key: str
    value: str | None
    partition: int

    @property
    def headers(self) -> list[tuple[str, bytes]]:
        return [("n", b"%d" % self.number)]


def load_job() -> Job:
    return Job(**json.loads(sys.argv[1]))


def facts(job: Job) -> Iterator[Fact]:
    """Yield facts of 40 keys, 5 of them deleted: in three partitions, a fourth with one key; the fifth gets none."""
    for number in range(job.first, job.last):
        rest = number % 40
        deleted = rest % 7 == 6
        yield Fact(number, f"key-{rest:02d}", None if deleted else str(number), 3 if rest == 39 else rest % 3)


class Stopwatch:
    """Seconds since it was made."""

    def __init__(self) -> None:
        self._began = time.monotonic()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began


def tell(case: str, ready_s: float | None, state: Any = None) -> None:
    """Write a result: how long it took until the application had all, None if it gave up waiting."""
    line = json.dumps({"case": case, "ready_s": ready_s, "state": state}, sort_keys=True)
    output = sys.__stdout__  # Faust makes sys.stdout a logger
    if output is not None:
        output.write(f"\n{MARK}{line}\n")
        output.flush()
