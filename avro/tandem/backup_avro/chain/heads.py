"""Heads: the last entry of a chain, by number and hash, as an observer saw it and may keep it outside of the bucket.

An older state of a bucket is valid in itself: it can be recognised as older only with the knowledge of a later entry.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Self

from tandem.backup_avro.chain.generation import Generation
from tandem.backup_avro.errors import ConfigError, DamagedError

_HEAD: Final = re.compile(r"([1-9][0-9]{0,7}):(0|[1-9][0-9]{0,18}):([0-9a-f]{64})", re.ASCII)


class RolledBackError(DamagedError):
    """An entry that is known to have been written is not in the bucket: the bucket is in an older or another state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """Entry `seq` of a generation's chain, 0 for its claim, and the SHA-256 of its bytes (64 hex digits)."""

    generation: int
    seq: int
    sha256: str

    @classmethod
    def of(cls, state: Generation) -> Self:
        """Return the head up to which a state was read."""
        return cls(generation=state.number, seq=state.seq, sha256=state.head_sha256)

    @classmethod
    def parse(cls, place: str, text: str) -> Self:
        """Return the head whose text `str` made. ConfigError names `place`."""
        match = _HEAD.fullmatch(text.strip())
        if match is None:
            raise ConfigError(
                f"{place} {text!r} is no head: GENERATION:ENTRY:SHA256 was expected",
                code="TDM-A004",
                remedy="`tandem describe GENERATION` shows it",
            )
        return cls(generation=int(match[1]), seq=int(match[2]), sha256=match[3])

    def __str__(self) -> str:
        return f"{self.generation}:{self.seq}:{self.sha256}"

    def missing_in(self, state: Generation) -> bool:
        """Whether a state of its generation ends before this head, or has another entry under its number."""
        return state.seq < self.seq or (state.seq == self.seq and state.head_sha256 != self.sha256)


def longest(known: dict[int, Head], head: Head) -> None:
    """Store a head in `known`, by generation, unless a later one is there."""
    known[head.generation] = later(known.get(head.generation), head)


def later(before: Head | None, head: Head) -> Head:
    """Return `head`, or `before`, the earlier known head of its generation, if that is at least as far."""
    return head if before is None or before.seq < head.seq else before
