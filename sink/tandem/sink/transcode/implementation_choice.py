"""Selects the compiled implementations if they could be built, else those in plain Python."""

from __future__ import annotations

from functools import cache
from typing import Final

import structlog

from tandem.sink.transcode.body_operations import BodyWorker
from tandem.sink.transcode.plain_bodies import PlainBodies
from tandem.sink.transcode.plain_transcoder import BATCH_LIMIT, ReferenceTranscoder
from tandem.sink.transcode.transcoder_result import Transcoder

_LOG = structlog.get_logger()
_REMEDY: Final = "install a C compiler and reinstall the package (`pip install --force-reinstall --no-deps`)"


@cache
def best_transcoder(*, batch_limit: int = BATCH_LIMIT) -> Transcoder:
    """Return the fastest transcoder of this installation, one shared instance; warns once if it is the slow one.

    `batch_limit`: most bytes that the records of one batch may decompress to.
    """
    try:
        from tandem.sink.transcode.compiled import CompiledTranscoder  # noqa: PLC0415 - it may not be there
    except ImportError as error:
        _LOG.warning(
            "the compiled transcoder is not there: catching up takes about fifty times as long",
            why=str(error),
            remedy=_REMEDY,
        )
        return ReferenceTranscoder(batch_limit=batch_limit)
    return CompiledTranscoder(batch_limit=batch_limit)


@cache
def best_bodies() -> BodyWorker:
    """Return the fastest `BodyWorker` of this installation, one shared instance; warns once if it is the slow one."""
    try:
        from tandem.sink.transcode.compiled_bodies import CompiledBodies  # noqa: PLC0415 - it may not be there
    except ImportError as error:
        _LOG.warning(
            "the compiled transcoder is not there: restoring and verifying take many times as long",
            why=str(error),
            remedy=_REMEDY,
        )
        return PlainBodies()
    return CompiledBodies()
