"""What each application has to say, worked out from the numbers of the facts alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

_KEYS = 40
_GROUP = "consumer group goes on"


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """A moment of the campaign: facts below `last` are written, a group has read those below `unread`."""

    last: int
    unread: int


Expectation = Callable[[str, Moment], Any]


def newest_values(case: str, moment: Moment) -> Any:
    """Return key -> newest value of a compacted topic; for the group the numbers that it has not had yet."""
    if case == _GROUP:
        return list(range(moment.unread, moment.last))
    return {f"key-{rest:02d}": str(max(range(rest, moment.last, _KEYS))) for rest in range(_KEYS) if rest % 7 != 6}


def counts(_: str, moment: Moment) -> Any:
    """Return key -> [number of facts, sum of their numbers]."""
    of_key: Mapping[int, range] = {rest: range(rest, moment.last, _KEYS) for rest in range(_KEYS)}
    return {f"key-{rest:02d}": [len(numbers), sum(numbers)] for rest, numbers in of_key.items()}


def sequence(_: str, moment: Moment) -> Any:
    """Return the numbers of all facts in their order."""
    return list(range(moment.last))


def connector(_: str, moment: Moment) -> Any:
    """Return what a file connector says: it runs, and each line of its file was sent once."""
    return {"running": True, "lines": list(range(moment.last))}
