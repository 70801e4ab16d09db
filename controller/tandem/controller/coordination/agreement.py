"""The terms that both instances of a pair must share besides its name: the store and the guarded topics. Pure.

Each instance sends its terms in its heartbeats. They are hints, like all messages: a difference is logged and shown,
and no decision depends on it. The backup under each root is whole in itself, so nothing is lost while the instances
disagree; but they do not work as a pair.
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
    """The terms of one instance. `root` is the URL of its store, without credentials.

    `origin` is the SHA-256 of the pair's first claim in that store, None as long as there is no claim: a store has one
    origin, by whatever URL it is reached. `topics` is a hash of the configuration's topic selection.
    """

    root: str
    origin: str | None
    topics: str


def topics_id(include: Iterable[str], expressions: Iterable[str], exclude: Iterable[str]) -> str:
    """Return a hash of the topic selection that does not depend on the order in the configuration file."""
    whole = json.dumps([sorted(set(names)) for names in (include, expressions, exclude)])
    return hashlib.sha256(whole.encode()).hexdigest()[:_SHOWN]


def dispute(one: str, terms: PairTerms, other: str, others: PairTerms) -> str | None:
    """Return the differences between the instances `one` and `other` in one sentence; None if they agree.

    Two URLs may lead to one store, and one URL, by two endpoints, to two stores. So if both instances know a first
    claim, the claims are compared. If neither does, nothing is stored yet, and it is too early to tell.
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
