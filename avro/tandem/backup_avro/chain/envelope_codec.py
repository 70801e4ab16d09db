"""The JSON form of the envelope of an encrypted object."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING

from tandem.backup_avro.chain.entries import JsonObject
from tandem.backup_avro.errors import DamagedError
from tandem.backup_avro.record.envelope import Envelope

if TYPE_CHECKING:
    from tandem.backup_avro.chain.json_codec import Fields


def dump_envelope(envelope: Envelope) -> JsonObject:
    """Return the JSON form of an envelope."""
    document: JsonObject = {
        "key_id": envelope.key_id,
        "chunk_size": envelope.chunk_size,
        "data_key": base64.b64encode(envelope.data_key).decode(),
    }
    if envelope.wrapping_key:
        document["wrapping_key"] = base64.b64encode(envelope.wrapping_key).decode()
    return document


def load_envelope(fields: Fields, where: str) -> Envelope:
    """Parse the fields of an envelope. DamagedError names `where`."""
    try:
        envelope = Envelope(
            key_id=fields.take_field("key_id", str),
            chunk_size=fields.take_field("chunk_size", int),
            data_key=base64.b64decode(fields.take_field("data_key", str), validate=True),
            wrapping_key=base64.b64decode(fields.take_field("wrapping_key", str, ""), validate=True),
        )
    except ValueError as error:
        raise DamagedError(f"{where}: an envelope has {error}", code="TDM-A020") from error
    fields.refuse_other_fields()
    return envelope
