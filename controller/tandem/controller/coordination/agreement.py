"""What the two instances of a pair must have in common besides its name: where they store, and what they guard. Pure.

Each says so in its heartbeats. That is a hint, like all messages: what differs is told and shown, and nothing is
decided by it. Each root is whole in itself, so nothing is lost while they disagree; but they are no pair.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

_SHOWN: Final = 16

REMEDY: Final = (
    "give both instances one file: compare store.root, store.endpoint_url and topics (`tandem config show`), correct "
    "the one that is wrong, and restart it"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PairTerms:
    """What one instance goes by. `root` is the URL of its store, without credentials.

    `origin` is the SHA-256 of the pair's first claim there, None as long as there is none: one place has one, by
    whatever URL it is reached. `topics` is a hash of what the configuration guards.
    """

    root: str
    origin: str | None
    topics: str


def topics_id(include: Iterable[str], expressions: Iterable[str], exclude: Iterable[str]) -> str:
    """Return a hash of which topics are guarded, whatever their order in the file."""
    whole = json.dumps([sorted(set(names)) for names in (include, expressions, exclude)])
    return hashlib.sha256(whole.encode()).hexdigest()[:_SHOWN]


def dispute(one: str, terms: PairTerms, other: str, others: PairTerms) -> str | None:
    """Return in what the instances `one` and `other` differ, in one sentence; None if they agree.

    Two URLs may lead to one place, and one URL, by two endpoints, to two. So the first claim decides where both know
    one. Where neither does nothing is stored yet, and it is too early to tell.
    """
    found = []
    if _two_places(terms, others):
        where = f"{one} stores under {terms.root}, {other} under {others.root}"
        if terms.root == others.root:
            where = f"{one} and {other} both store under {terms.root}, but on two servers"
        found.append(f"{where}: each backs up for itself, and neither takes the turn of the other")
    if terms.topics != others.topics:
        found.append(f"{one} and {other} guard different topics: handovers may not end, and nothing is let go of")
    return "; ".join(found) or None


def _two_places(terms: PairTerms, others: PairTerms) -> bool:
    if terms.origin is None or others.origin is None:
        return terms.root != others.root and terms.origin != others.origin
    return terms.origin != others.origin
