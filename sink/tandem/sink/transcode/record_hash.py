"""The hash that identifies a record in its log, computed from a transcoder's segments."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Final

from tandem.backup_avro.chain.entries import RecordHash
from tandem.sink.transcode.transcoder_result import Segment

_DIGITS: Final = 12


def last_record(segments: Sequence[Segment]) -> RecordHash | None:
    """Return the hash of the last record of the last segment, None if there is no segment."""
    if not segments:
        return None
    last = segments[-1]
    return RecordHash(last.last_offset, hashlib.sha256(memoryview(last.body)[last.last_at :]).hexdigest()[:_DIGITS])
