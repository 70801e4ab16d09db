"""One hash over a partition's records in their order (timestamp, key, value, headers), and the hash of one record.

Each record's hash includes the hash before it, so the state is 32 bytes after every record: a restore that was killed
resumes from the state that its progress recorded. Offsets and timestamp types are not hashed: a restore can't keep
them. The hash of one record identifies it in its log (`sink.read.log_identity`).
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from typing import Final

from tandem.backup_avro.chain.entries import RecordHash
from tandem.backup_avro.record.current import NOT_UTF8, decode_body
from tandem.sink.transcode.body_operations import HashState
from tandem.sink.transcode.transcoder_result import Segment

#: The state before the first record.
START: Final = bytes(32)

_TIMESTAMP: Final = struct.Struct(">q")
_LENGTH: Final = struct.Struct(">i")
_NULL: Final = _LENGTH.pack(-1)
_NONE: Final = _LENGTH.pack(0)
_DIGITS: Final = 12


def advance(
    state: bytes,
    timestamp: int,
    key: bytes | None,
    value: bytes | None,
    headers: Sequence[tuple[str, bytes | None]] | None,
) -> bytes:
    """Return the state after one more record. Null differs from empty, and the order of headers matters."""
    length = _LENGTH.pack
    out = [state, _TIMESTAMP.pack(timestamp)]
    if key is None:
        out.append(_NULL)
    else:
        out += (length(len(key)), key)
    if value is None:
        out.append(_NULL)
    else:
        out += (length(len(value)), value)
    if headers:
        out.append(length(len(headers)))
        for name, content in headers:
            raw = name.encode("utf-8", NOT_UTF8)
            out += (length(len(raw)), raw)
            if content is None:
                out.append(_NULL)
            else:
                out += (length(len(content)), content)
    else:
        out.append(_NONE)
    return hashlib.sha256(b"".join(out)).digest()


def advance_body(state: bytes, body: bytes | memoryview, count: int) -> HashState:
    """Return the state after the `count` records of a body. Raises DamagedError."""
    tombstones = null_keys = 0
    for record in decode_body(bytes(body), count):
        state = advance(state, record.timestamp, record.key, record.value, record.headers)
        tombstones += record.value is None
        null_keys += record.key is None
    return HashState(state=state, tombstones=tombstones, null_keys=null_keys)


def last_record(segments: Sequence[Segment]) -> RecordHash | None:
    """Return the hash of the last record of the last segment, None if there is no segment."""
    if not segments:
        return None
    last = segments[-1]
    return RecordHash(last.last_offset, hashlib.sha256(memoryview(last.body)[last.last_at :]).hexdigest()[:_DIGITS])
