"""Which transcoder there is: the compiled one if it could be built, else the one in plain Python."""

from __future__ import annotations

from functools import cache

import structlog

from sink.transcode.reference import ReferenceTranscoder
from sink.transcode.segment import Transcoder

_LOG = structlog.get_logger()


@cache
def best_transcoder() -> Transcoder:
    """Return the fastest transcoder of this installation, the same for all, and warn once if it is the slow one."""
    try:
        from sink.transcode.compiled import CompiledTranscoder  # noqa: PLC0415 - it may not be there
    except ImportError as error:
        _LOG.warning(
            "the compiled transcoder is not there: catching up takes about fifty times as long",
            why=str(error),
            remedy="install a C compiler and reinstall the package (`pip install --force-reinstall --no-deps`)",
        )
        return ReferenceTranscoder()
    return CompiledTranscoder()
