"""Topic ids as Kafka prints them (url-safe base64 of 16 bytes, no padding) and as UUIDs; pure."""

from __future__ import annotations

import base64
import re
from uuid import UUID

from backup_avro.errors import PermanentError

_TEXT = re.compile(r"[A-Za-z0-9_-]{22}", re.ASCII)


def as_text(topic_id: UUID) -> str:
    """Return the id as Kafka's tools print it."""
    return base64.urlsafe_b64encode(topic_id.bytes).rstrip(b"=").decode()


def as_uuid(text: str) -> UUID:
    """Return the id as a UUID. Raises PermanentError for what is no topic id."""
    if not _TEXT.fullmatch(text):
        raise PermanentError(f"{text!r} is no topic id")
    return UUID(bytes=base64.urlsafe_b64decode(text + "=="))


def from_base64(text: str) -> str:
    """Return Kafka's form of an id in librdkafka's, which uses the other base64 alphabet."""
    return text.replace("+", "-").replace("/", "_")
