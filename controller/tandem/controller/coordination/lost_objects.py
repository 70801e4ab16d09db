"""Telling the other instance that objects of its generation are gone. Pure.

Who lets go of a copy looks at the objects of what covers it, and finds what is lost; only who holds that generation can
taint it. Heartbeats say so: a hint, like all messages. Whoever is named looks for itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tandem.backup_avro.chain.integers import number_in
from tandem.backup_avro.documents.coordination_message import CoordinationMessage
from tandem.sink.write.confirm import CoverLostError

LOST: Final = "objects_lost"
"""What is lost, for people."""
_OF: Final = "objects_lost_of"


def details(kept: Mapping[int, CoverLostError]) -> dict[str, str]:
    """Return what goes into the details of a heartbeat, by the generations of mine that are kept because of it."""
    if not kept:
        return {}
    numbers = sorted({error.generation for error in kept.values()})
    return {LOST: "; ".join(sentences(kept)), _OF: " ".join(map(str, numbers))}


def sentences(kept: Mapping[int, CoverLostError]) -> tuple[str, ...]:
    """Return what is lost, a sentence without a remedy for each generation that is kept because of it."""
    return tuple(str(error.args[0]) for _, error in sorted(kept.items()))


def generations_in(message: CoordinationMessage) -> frozenset[int]:
    """Return the generations of which a heartbeat says that objects are lost."""
    said = map(number_in, message.details.get(_OF, "").split(" "))
    return frozenset(number for number in said if number is not None)
