"""One measured run in a process of its own, so that its memory and processor time are its own."""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from tandem.sink.encryption.encryption_settings import UNENCRYPTED, KeySettings
from tandem.sink.store import StoreAccess

_TICKS: Final = os.sysconf("SC_CLK_TCK")
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")
KEY: Final = "BENCH_KEY"
"""Environment variable with the key of what is stored encrypted, and read again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What a run did: `bytes` as its kind counts them, `peak_mb` of resident memory, `stored_mb` if it stores any."""

    records: int
    bytes: int
    seconds: float
    cpu_s: float
    peak_mb: float
    stored_mb: float = 0.0

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
    return Run(records=records, bytes=size, seconds=seconds, cpu_s=cpu_s, peak_mb=peak_mb())


def peak_mb(pid: int | str = "self") -> float:
    """Return the most memory that was resident; `ru_maxrss` would know the parent's before the program was loaded."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return 0.0
    return int(next((line for line in lines if line.startswith("VmHWM")), "VmHWM 0").split()[1]) / 1024


def rates(works: Mapping[str, Callable[[], object]], size: int) -> dict[str, float]:
    """Return what each work does of `size` bytes, in MB per second of processor time, the middle one of nine rounds.

    They take turns: a machine that is not alone is slower for a minute, and faster again.
    """
    found: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(9):
        for name, work in works.items():
            began = time.process_time()
            work()
            found[name].append(size / (time.process_time() - began) / 1e6)
    return {name: statistics.median(several) for name, several in found.items()}


def tree_cpu_s() -> float:
    """Return the processor time so far of this process, of all below it, and of those of them that have ended."""
    fields = [stat(pid)[11:15] for pid in tree(os.getpid())]
    return sum(int(number) for four in fields for number in four) / _TICKS


def tree_peak_mb() -> float:
    """Return the most memory that was resident in one Python process below this one; none counts as 0."""
    return max(
        (peak_mb(pid) for pid in tree(os.getpid()) if pid != os.getpid() and stat(pid)[-1] != "java"), default=0.0
    )


def peaks_mb() -> dict[str, float]:
    """Return the most memory that was resident: in this process, the largest Python worker, Java, and in all of them.

    Processes that have ended are not counted.
    """
    peaks = {pid: (stat(pid)[-1] == "java", peak_mb(pid)) for pid in tree(os.getpid())}
    workers = [peak for pid, (java, peak) in peaks.items() if pid != os.getpid() and not java]
    return {
        "driver": peaks[os.getpid()][1],
        "worker": max(workers, default=0.0),
        "jvm": max((peak for java, peak in peaks.values() if java), default=0.0),
        "all": sum(peak for _, peak in peaks.values()),
    }


def tree(root: int) -> list[int]:
    """Return a process and all below it."""
    parents = {int(path.name): int(stat(int(path.name))[1]) for path in Path("/proc").glob("[0-9]*")}
    found = [root]
    for pid in found:
        found += [child for child, parent in parents.items() if parent == pid]
    return found


def cpu_s_of(fields: Sequence[str]) -> float:
    """Return the processor time of a process so far, from what `stat` returned."""
    return (int(fields[11]) + int(fields[12])) / _TICKS


def resident_of(fields: Sequence[str]) -> int:
    """Return the bytes that are resident of a process, from what `stat` returned."""
    return int(fields[21]) * _PAGE


def stat(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat from the state on, and the name at the end; zeros if it has just ended."""
    try:
        name, _, rest = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace").rpartition(") ")
    except OSError:
        return ["0"] * 60
    return [*rest.split(), name.partition("(")[2]]


def reading() -> StoreAccess:
    """Return the settings of a folder, what is encrypted in it included."""
    return StoreAccess(encryption=KeySettings(key_env=KEY) if KEY in os.environ else UNENCRYPTED)


def report(run: Run, what: str = "") -> None:
    """Print a run for `spawn`, or one of several for `spawn_all`, which tells them apart by `what`."""
    sys.stdout.write(json.dumps({**asdict(run), "what": what}) + "\n")


def spawn(module: str, *arguments: str) -> Run:
    """Run a module of `bench.cases` in a process of its own and return what it reports."""
    return list(spawn_all(module, *arguments).values())[-1]


def spawn_all(module: str, *arguments: str) -> dict[str, Run]:
    """Run a module of `bench.cases` in a process of its own and return all that it reports."""
    ended = subprocess.run(
        [sys.executable, "-m", f"bench.cases.{module}", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )
    if ended.returncode:
        raise RuntimeError(f"bench.cases.{module} {' '.join(arguments)} failed:\n{ended.stdout}{ended.stderr}"[-4000:])
    lines = [json.loads(line) for line in ended.stdout.splitlines() if line.startswith("{")]
    return {line.pop("what"): Run(**line) for line in lines}
