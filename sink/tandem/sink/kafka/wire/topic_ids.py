"""Topic ids as Kafka prints them (url-safe base64 of 16 bytes, no padding) and as UUIDs."""

from __future__ import annotations

import base64
import re
from collections import defaultdict
from collections.abc import Mapping
from typing import Final
from uuid import UUID

from tandem.backup_avro.errors import PermanentError
from tandem.sink.kafka.errors.cluster_errors import UnidentifiedTopicError

#: The value that brokers and clients use for "no id".
ZERO: Final = UUID(int=0)
_TEXT = re.compile(r"[A-Za-z0-9_-]{22}", re.ASCII)
_NAMED: Final = 5


def as_text(topic_id: UUID) -> str:
    """Return the id as Kafka's tools print it."""
    return base64.urlsafe_b64encode(topic_id.bytes).rstrip(b"=").decode()


def as_uuid(text: str) -> UUID:
    """Return the id as a UUID. Raises PermanentError for text that is no topic id; the zero UUID is none."""
    found = UUID(bytes=base64.urlsafe_b64decode(text + "==")) if _TEXT.fullmatch(text) else ZERO
    if found == ZERO:
        raise PermanentError(f"{text!r} is no topic id", code="TDM-K046")
    return found


def from_base64(text: str) -> str:
    """Return Kafka's text form of librdkafka's text (another base64 alphabet); an empty text for the zero UUID."""
    found = text.replace("+", "-").replace("/", "_")
    return "" if found == as_text(ZERO) else found


def unidentified(ids: Mapping[str, str], servers: str) -> dict[str, UnidentifiedTopicError]:
    """Return, by name, an error for each topic that can't be identified: without an id, or with a shared one."""
    named = defaultdict(list)
    for name, of in sorted(ids.items()):
        named[of].append(name)
    none = {
        name: UnidentifiedTopicError(
            f"topic {name} at {servers} has no id: the brokers are older than Apache Kafka 2.8, or speak an older "
            "protocol among themselves, and without ids a topic that was made anew can't be told from the one before",
            code="TDM-K047",
            remedy="upgrade the brokers to Kafka 2.8 or newer, and inter.broker.protocol.version with them; "
            "docs/compatibility.md",
        )
        for name in named.pop("", ())
    }
    shared: dict[str, UnidentifiedTopicError] = {}
    for of, names in named.items():
        if len(names) > 1:
            some = " and ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")
            error = UnidentifiedTopicError(
                f"topics {some} at {servers} have one id, {of}: a topic can't be identified by it",
                code="TDM-K048",
                remedy="check which cluster answers at kafka.bootstrap.servers; leave all but one of "
                "them out with topics.exclude",
            )
            shared |= dict.fromkeys(names, error)
    return none | shared
