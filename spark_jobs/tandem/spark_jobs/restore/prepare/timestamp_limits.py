"""The settings that bound the timestamps of a topic's records, as far as a cluster knows them. Pure.

Kafka 3.6 put `message.timestamp.before.max.ms` and `message.timestamp.after.max.ms` in the place of
`message.timestamp.difference.max.ms` (KIP-937), which counts until 4.0 where they are not set. Brokers refuse settings
that they do not know, so only those are named that are known.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

#: No limit: the default of all of them but `after`, which is an hour since 4.0.
NONE: Final = str(2**63 - 1)
LIMITS: Final[Mapping[str, str]] = {
    "message.timestamp.before.max.ms": NONE,
    "message.timestamp.after.max.ms": NONE,
    "message.timestamp.difference.max.ms": NONE,
}


def as_known(changes: Mapping[str, str | None], known: Collection[str]) -> dict[str, str | None]:
    """Return the changes without limits that the cluster does not know, where these would be lifted or dropped.

    One that bounds something stays: that the cluster does not take it is for people to know.
    """
    return {
        key: value for key, value in changes.items() if key not in LIMITS or key in known or value not in {None, NONE}
    }
