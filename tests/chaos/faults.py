"""What goes wrong in a round: drawn from a seed, before anything happens. Pure.

A round has one to three faults on different victims, which overlap; each ends by itself. The same seed and round always
give the same schedule; what the processes were doing at that moment differs, as it does in life.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from chaos.gates import Mode


class Blow(StrEnum):
    """The kinds of faults."""

    KILL = "kill"  # SIGKILL, started again after a while
    PAUSE = "pause"  # SIGSTOP for longer than every time-out, then SIGCONT
    LEAVE = "leave"  # SIGTERM, started again
    TWIN = "twin"  # a second process of the same identity
    STALE_TWIN = "stale-twin"  # the first one is stopped meanwhile, and wakes up when the second one has taken over
    SERVER_KILL = "server-kill"
    SERVER_STOP = "server-stop"
    SERVER_PAUSE = "server-pause"
    NETWORK = "network"
    FAILOVER = "failover"
    TOPIC_DELETED = "coordination-deleted"
    TOPIC_EMPTIED = "coordination-emptied"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault: it begins `at` seconds into the round and lasts `lasts` seconds.

    `victim` is `a`, `b`, `kafka`, `s3`, `a>kafka`, `a>s3`, … or `coordination`.
    """

    blow: Blow
    victim: str
    at: float
    lasts: float = 0.0
    mode: Mode | None = None

    def __str__(self) -> str:
        what = self.blow.value if self.mode is None else self.mode.value
        return f"{what}({self.victim}@{self.at:.0f}+{self.lasts:.0f})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How long things last, in seconds. `timeout` is the longest time-out of the pair: a pause lasts longer."""

    spread: float
    shortest: float
    longest: float
    timeout: float


_Draw = Callable[[random.Random, Scale], list[Fault]]


def schedule(seed: int, number: int, scale: Scale) -> tuple[Fault, ...]:
    """Return the faults of a round in the order in which they begin."""
    draw = random.Random(f"{seed}/{number}")
    faults: list[Fault] = []
    struck: set[str] = set()
    for _ in range(draw.choice([1, 1, 2, 2, 3])):
        # The first rounds take one kind of each family, so that a short campaign meets all families.
        family = FAMILIES[(number - 1 + draw.randrange(2)) % len(FAMILIES)] if not faults else draw.choice(FAMILIES)
        drawn = family(draw, scale)
        touched = {part for fault in drawn for part in _touches(fault)}
        if not touched & struck:
            struck |= touched
            faults += drawn
    return tuple(sorted(faults, key=lambda fault: fault.at))


def _touches(fault: Fault) -> set[str]:
    """Return what a second fault of the round must leave alone: no server that is down can be suspended."""
    return {fault.victim}


def _time(draw: random.Random, scale: Scale) -> tuple[float, float]:
    return round(draw.uniform(0, scale.spread), 1), round(draw.uniform(scale.shortest, scale.longest), 1)


def _instances(draw: random.Random, scale: Scale) -> list[Fault]:
    at, lasts = _time(draw, scale)
    blow = draw.choice([Blow.KILL, Blow.KILL, Blow.LEAVE])
    victims = draw.choice([("a",), ("b",), ("a", "b")])
    return [Fault(blow=blow, victim=victim, at=at, lasts=lasts) for victim in victims]


def _pauses(draw: random.Random, scale: Scale) -> list[Fault]:
    at, lasts = _time(draw, scale)
    victims = draw.choice([("a",), ("b",), ("a",), ("b",), ("a", "b")])
    return [
        Fault(blow=Blow.PAUSE, victim=victim, at=round(at + draw.uniform(0, 1), 1), lasts=round(scale.timeout + lasts))
        for victim in victims
    ]


def _twins(draw: random.Random, scale: Scale) -> list[Fault]:
    at, lasts = _time(draw, scale)
    blow = draw.choice([Blow.TWIN, Blow.STALE_TWIN])
    if blow is Blow.STALE_TWIN:
        lasts = round(lasts + scale.timeout)
    return [Fault(blow=blow, victim=draw.choice("ab"), at=at, lasts=lasts)]


def _servers(draw: random.Random, scale: Scale) -> list[Fault]:
    at, lasts = _time(draw, scale)
    blow = draw.choice([Blow.SERVER_KILL, Blow.SERVER_STOP, Blow.SERVER_PAUSE, Blow.SERVER_PAUSE])
    if blow is Blow.SERVER_PAUSE:
        lasts = round(lasts + scale.timeout / 2, 1)
    return [Fault(blow=blow, victim=draw.choice(["kafka", "s3"]), at=at, lasts=lasts)]


def _networks(draw: random.Random, scale: Scale) -> list[Fault]:
    at, lasts = _time(draw, scale)
    mode = draw.choice([Mode.CUT, Mode.SILENT, Mode.SLOW, Mode.DEAF, Mode.DEAF])
    server = draw.choice(["kafka", "s3", "s3"])
    victims = draw.choice([("a",), ("b",), ("a", "b")])
    return [Fault(blow=Blow.NETWORK, victim=f"{victim}>{server}", at=at, lasts=lasts, mode=mode) for victim in victims]


def _operators(draw: random.Random, scale: Scale) -> list[Fault]:
    at, _ = _time(draw, scale)
    return [Fault(blow=Blow.FAILOVER, victim="coordination", at=at)]


def _topics(draw: random.Random, scale: Scale) -> list[Fault]:
    at, _ = _time(draw, scale)
    return [Fault(blow=draw.choice([Blow.TOPIC_DELETED, Blow.TOPIC_EMPTIED]), victim="coordination", at=at)]


FAMILIES: tuple[_Draw, ...] = (_instances, _networks, _pauses, _servers, _twins, _operators, _topics)
"""Where a family has several variants, they are drawn evenly; each family is as likely as any other."""
