"""How people write "read a topic to its end", and two servers' own rules; the same for all Python clients."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from job import Job, Stopwatch, tell

#: An idiom that has not ended by then never will: the topics hold a few hundred records.
LIMIT_S = 8.0
Headers = Iterable[tuple[str, bytes]]
GROUP = "consumer group goes on"


@dataclass
class Seen:
    """What a reader knows of a partition: its watermarks at the start, and what it has read since."""

    low: int
    high: int
    position: int | None = None
    last: int | None = None
    count: int = 0


def _karapace(seen: Seen) -> bool:
    """Karapace's schema reader: its offset begins below the log and has to come to that of the newest record."""
    return (seen.low - 1 if seen.last is None else seen.last) >= seen.high - 1


def _goka(seen: Seen) -> bool:
    """Goka's partition table: nothing to load, or the message at the high watermark - 1 came, or a later one."""
    return seen.low >= seen.high or (seen.last is not None and seen.last >= seen.high - 1)


IDIOMS: dict[str, Callable[[Seen], bool]] = {
    "last offset + 1 == high watermark": lambda seen: seen.last is not None and seen.last + 1 == seen.high,
    "offset >= end - 1": lambda seen: seen.last is not None and seen.last >= seen.high - 1,
    "position >= end": lambda seen: seen.position is not None and seen.position >= seen.high,
    "count == high - low": lambda seen: seen.count == seen.high - seen.low,
}
SERVERS: dict[str, Callable[[Seen], bool]] = {"Karapace's rule": _karapace, "Goka's rule": _goka}


@dataclass(frozen=True)
class Message:
    """A record that a client got."""

    partition: int
    offset: int
    key: str
    value: str | None
    number: int


def message_of(partition: int, offset: int, key: bytes, value: bytes | None, headers: Headers) -> Message:
    """Return a record as clients give it, with the number of its fact, which is in a header."""
    text = None if value is None else value.decode()
    return Message(partition, offset, key.decode(), text, int(dict(headers)["n"]))


class Client(Protocol):
    """A consumer of one topic: of all its partitions from their start, or as a member of a group."""

    def watermarks(self) -> dict[int, tuple[int, int]]: ...

    def poll(self) -> Iterable[Message]: ...

    def position(self, partition: int) -> int | None: ...

    def commit(self) -> None: ...

    def close(self) -> None: ...


def try_idiom(case: str, reached: Callable[[Seen], bool], connect: Callable[[], Client]) -> None:
    """Read all partitions to their end as the idiom has it, and tell the newest value of each key."""
    watch = Stopwatch()
    client = connect()
    try:
        seen = {number: Seen(*ends) for number, ends in client.watermarks().items()}
        state: dict[str, str] = {}

        def ended() -> bool:
            for number, item in seen.items():
                item.position = client.position(number)
            return all(item.low == item.high or reached(item) for item in seen.values())

        while not (done := ended()) and watch.seconds < LIMIT_S:
            for message in client.poll():
                item = seen[message.partition]
                item.last, item.count = message.offset, item.count + 1
                if message.value is None:
                    state.pop(message.key, None)
                else:
                    state[message.key] = message.value
        tell(case, watch.seconds if done else None, state)
    finally:
        client.close()


def try_group(connect: Callable[[], Client]) -> None:
    """Read on as a group until nothing is left, commit, and tell the numbers of what came."""
    watch = Stopwatch()
    client = connect()
    try:
        ends = client.watermarks()
        numbers: list[int] = []

        def left() -> bool:
            return any(low < high and (client.position(number) or 0) < high for number, (low, high) in ends.items())

        while (some := left()) and watch.seconds < LIMIT_S:
            numbers += [message.number for message in client.poll()]
        client.commit()
        tell(GROUP, None if some else watch.seconds, sorted(numbers))
    finally:
        client.close()


def run(job: Job, write: Callable[[], None], connect: Callable[[bool], Client], servers: bool = False) -> None:
    """Do the job of a client: `connect` is told whether to join the group."""
    if job.phase == "write":
        watch = Stopwatch()
        write()
        tell("write", watch.seconds)
        return
    for case, reached in (IDIOMS | (SERVERS if servers else {})).items():
        try_idiom(case, reached, lambda: connect(False))
    try_group(lambda: connect(True))
