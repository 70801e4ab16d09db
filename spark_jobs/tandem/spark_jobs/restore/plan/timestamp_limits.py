"""The settings that bound the timestamps of a topic's records, as far as a cluster knows them. Pure.

Kafka 3.6 replaced `message.timestamp.difference.max.ms` by `message.timestamp.before.max.ms` and
`message.timestamp.after.max.ms` (KIP-937); until 4.0 the old setting counts where the new ones are not set. Brokers
refuse settings that they do not know, so only known ones are sent.
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
    """Return the changes without those that lift or drop a limit that the cluster does not know.

    A limit with another value stays, so that the cluster's refusal reaches the user.
    """
    return {
        key: value for key, value in changes.items() if key not in LIMITS or key in known or value not in {None, NONE}
    }
