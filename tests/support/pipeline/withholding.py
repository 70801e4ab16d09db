"""A broker that has records and does not send them: what a process takes out of fetch answers before they are read.

Brokers do so for a moment while they throttle, fetch from tiered storage or take over a partition; the watermark in
their answers is right, and there is no error.
"""

from __future__ import annotations

from pathlib import Path


def withholding(topic: str, *, while_there: Path) -> str:
    """Return the prelude of a process that is sent nothing of partition 0 as long as there is such a file."""
    return f"""
import os
from tandem.sink.kafka.wire import requests
def _emptied(response, names, _parts=requests.fetch_parts):
    for tp, part in _parts(response, names):
        if tp == ({topic!r}, 0) and os.path.exists({str(while_there)!r}):
            part.records = None
        yield tp, part
requests.fetch_parts = _emptied
"""
