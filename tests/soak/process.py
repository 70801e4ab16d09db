"""One look at a running process, from /proc. Linux only."""

from __future__ import annotations

import os
from pathlib import Path

from soak.samples import Sample

_TICK_S = 1.0 / os.sysconf("SC_CLK_TCK")


def look(pid: int, *, at: float) -> Sample:
    """Measure a process now. Raises FileNotFoundError or ProcessLookupError if it is gone."""
    folder = Path("/proc", str(pid))
    status = dict(
        line.split(":", 1) for line in (folder / "status").read_text(encoding="utf-8").splitlines() if ":" in line
    )
    # Its name may hold spaces and brackets; what follows the last bracket has fixed places.
    fields = (folder / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return Sample(
        at=at,
        rss=_bytes(status["VmRSS"]),
        anonymous=_bytes(status["RssAnon"]),
        threads=int(status["Threads"]),
        descriptors=len(os.listdir(folder / "fd")),  # noqa: PTH208 (counted, not looked at)
        children=sum(len(task.read_text(encoding="ascii").split()) for task in folder.glob("task/*/children")),
        cpu_s=(int(fields[11]) + int(fields[12])) * _TICK_S,
    )


def in_use(metrics: str) -> tuple[int, int]:
    """Return the bytes that the C library has handed out, and Python's blocks, of an instance's page of metrics."""
    names = ("tandem_malloc_allocated_bytes", "tandem_python_blocks")
    found = {line.partition("{")[0]: line.rpartition(" ")[2] for line in metrics.splitlines()}
    allocated, blocks = (int(float(found[name])) for name in names)
    return allocated, blocks


def _bytes(text: str) -> int:
    return int(text.split(maxsplit=1)[0]) * 1024
