"""The form of a sign that a topic may have lost records: its fields, its text in heartbeats, its document. Pure.

`loss_detector` decides when there is one. A sign is no proof. It names the last moment before what was noticed, so
that a person can look at what differs since.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final

from tandem.backup_avro.chain.entries import iso
from tandem.backup_avro.chain.integers import is_int64, is_moment, utc_time

_TOPIC: Final = re.compile(r"[A-Za-z0-9._-]{1,249}")
_MOST_WHAT: Final = 200
_MOST_TEXT: Final = 10_000


class LossKind(StrEnum):
    """What was noticed; labels of a metric, so part of the public interface."""

    TOMBSTONES = "tombstones"
    LOG_START = "log-start"
    POLICY = "policy"
    PARTITIONS = "partitions"
    SILENT = "silent"
    FEWER_RECORDS = "fewer-records"


_KINDS: Final = frozenset(kind.value for kind in LossKind)


@dataclass(frozen=True, slots=True, kw_only=True)
class LossSign:
    """One sign for one topic: `what` is the fact in words, after the topic's name.

    `at` is when it was noticed last, `last_good` the last restorable moment before it began; ms by the store's clock.
    """

    kind: LossKind
    topic: str
    at: int
    last_good: int
    what: str

    @property
    def commands(self) -> tuple[str, str]:
        """The commands that show, without a change, which keys differ since, and what a restore would bring beside."""
        moment = iso(self.last_good)
        return (
            f"tandem rewind {self.topic} --to {moment} --dry-run",
            f"tandem restore {self.topic} --at {moment} --suffix .before --dry-run",
        )


def text_of(signs: Iterable[LossSign], *, most: int) -> str:
    """Return as many of the signs, the first ones, as fit into `most` characters; empty without any."""
    found: list[list[str | int]] = []
    for sign in signs:
        more = [*found, [sign.kind.value, sign.topic, sign.at, sign.last_good, sign.what]]
        if len(json.dumps(more)) > most:
            break
        found = more
    return json.dumps(found) if found else ""


def signs_in(text: str) -> tuple[LossSign, ...]:
    """Return the signs in a value of a message, without what is none: anybody may have written it, of any length."""
    try:
        items = json.loads(text) if 0 < len(text) <= _MOST_TEXT else []
    except (ValueError, RecursionError):
        return ()
    return tuple(filter(None, map(_sign, items if isinstance(items, list) else ())))


def _sign(item: object) -> LossSign | None:
    match item:
        case [str(kind), str(topic), at, last_good, str(what)] if (
            kind in _KINDS
            and _TOPIC.fullmatch(topic)
            and is_int64(at)
            and is_int64(last_good)
            and is_moment(at)
            and is_moment(last_good)
            and len(what) <= _MOST_WHAT
        ):
            return LossSign(kind=LossKind(kind), topic=topic, at=at, last_good=last_good, what=what)
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class LossSignStatus:
    """A sign of the last day that a topic may have lost records by accident, as living instances noticed it.

    `what` is the fact, `last_good` the last restorable moment before it. `commands` show what differs since, and change
    nothing.
    """

    kind: LossKind
    topic: str
    what: str
    at: datetime
    last_good: datetime
    commands: tuple[str, ...]

    @property
    def text(self) -> str:
        """The sign in a sentence, with the first of the commands."""
        return f"{self.topic} may have lost records: {self.what}; what differs since is shown by `{self.commands[0]}`"


def sign_status(sign: LossSign) -> LossSignStatus:
    """Return a sign as documents show it."""
    return LossSignStatus(
        kind=sign.kind,
        topic=sign.topic,
        what=sign.what,
        at=utc_time(sign.at),
        last_good=utc_time(sign.last_good),
        commands=sign.commands,
    )
