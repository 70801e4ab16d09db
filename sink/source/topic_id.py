"""Topic ids as Kafka prints them (url-safe base64 of 16 bytes, no padding) and as UUIDs; pure."""

from __future__ import annotations

import base64
import binascii
from uuid import UUID

from backup_avro.errors import PermanentError


def as_text(topic_id: UUID) -> str:
    """Return the id as Kafka's tools print it."""
    return base64.urlsafe_b64encode(topic_id.bytes).rstrip(b"=").decode()


def as_uuid(text: str) -> UUID:
    """Return the id as a UUID. Raises PermanentError for what is no topic id."""
    try:
        return UUID(bytes=base64.b64decode(text + "==", altchars=b"-_", validate=True))
    except (binascii.Error, ValueError):
        raise PermanentError(f"{text!r} is no topic id") from None


def from_base64(text: str) -> str:
    """Return Kafka's form of an id in librdkafka's, which uses the other base64 alphabet."""
    return text.replace("+", "-").replace("/", "_")
