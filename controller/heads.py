"""Heads on the coordination topic: how far each chain was, kept where whoever writes to the bucket can't reach. Pure.

The topic is no authority. What it knows, and the bucket lacks, is shown and told; nothing is decided by it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Final

from backup_avro.coordination import CoordinationMessage
from backup_avro.fold import Generation
from backup_avro.head import Head

#: Under this name the details of a message hold the SHA-256 of chain entry `chain_seq`. Older releases pass it by.
DETAIL: Final = "head_sha256"
_SHA256: Final = re.compile(r"[0-9a-f]{64}", re.ASCII)


def details(state: Generation) -> dict[str, str]:
    """Return what goes with `generation` and `chain_seq` of a message."""
    return {DETAIL: state.head_sha256}


def head_in(message: CoordinationMessage) -> Head | None:
    """Return the head that a message publishes, None if there is none."""
    sha256 = message.details.get(DETAIL, "")
    if message.generation is None or message.chain_seq is None or not _SHA256.fullmatch(sha256):
        return None
    if message.generation < 1 or message.chain_seq < 0:
        return None
    return Head(generation=message.generation, seq=message.chain_seq, sha256=sha256)


def missing(known: Iterable[Head], generations: Iterable[Generation], *, numbers: Collection[int]) -> tuple[Head, ...]:
    """Return the heads that the store does not have, ascending. Of each of `numbers` there is a claim or a chain.

    Of those of them that are not among `generations`, cleared and damaged ones, nothing can be told.
    """
    states: Mapping[int, Generation] = {state.number: state for state in generations}

    def lacks(head: Head) -> bool:
        state = states.get(head.generation)
        return head.generation not in numbers if state is None else head.missing_in(state)

    return tuple(sorted(filter(lacks, known), key=lambda head: head.generation))
