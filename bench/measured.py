"""One measured run in a process of its own, so that its memory and processor time are its own."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What a run did: `bytes` as its kind counts them, `peak_mb` of resident memory."""

    records: int
    bytes: int
    seconds: float
    cpu_s: float
    peak_mb: float

    @property
    def rate(self) -> float:
        """Records per second."""
        return self.records / self.seconds

    @property
    def mb_per_s(self) -> float:
        """Megabytes per second."""
        return self.bytes / self.seconds / 1e6


def measured(work: Callable[[], tuple[int, int]]) -> Run:
    """Run `work`, which returns (records, bytes)."""
    before = resource.getrusage(resource.RUSAGE_SELF)
    began = time.perf_counter()
    records, size = work()
    seconds = time.perf_counter() - began
    after = resource.getrusage(resource.RUSAGE_SELF)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Run(records=records, bytes=size, seconds=seconds, cpu_s=cpu_s, peak_mb=_peak_mb())


def _peak_mb() -> float:
    """Return the most memory that was resident; `ru_maxrss` would know the parent's before the program was loaded."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) / 1024


def report(run: Run) -> None:
    """Print a run for `spawn`."""
    sys.stdout.write(json.dumps(asdict(run)) + "\n")


def spawn(module: str, *arguments: str) -> Run:
    """Run a module of this package in a process of its own and return what it reports."""
    ended = subprocess.run(
        [sys.executable, "-m", f"bench.{module}", *arguments], capture_output=True, text=True, check=False, timeout=900
    )
    if ended.returncode:
        raise RuntimeError(f"bench.{module} {' '.join(arguments)} failed:\n{ended.stdout}{ended.stderr}"[-4000:])
    return Run(**json.loads(ended.stdout.splitlines()[-1]))
