"""Comparing a backup with its live topic, key by key: `python -m bench.pairs.live THOUSANDS [PARTITIONS]`.

A topic of so many thousands of records of 100 B of JSON, each key twice, in one partition unless said otherwise, on a
broker of its own; one instance backs it up into a folder and ends. Then `tandem verify --against-topic` runs as a
command, with the settings that it has by itself, but two tasks at a time. Prints its seconds with the start of Spark,
its processor time, and the most memory that was resident, looked at four times a second: of the command, of the largest
Python worker, of Java, and of all processes together.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from bench.load import Load, fill
from bench.measured import cpu_s_of, resident_of, stat, tree
from bench.pairs.processes import PairProcesses
from bench.servers import BenchKafka

_LOOK_S: Final = 0.25
_COLUMNS: Final = ("records", "s", "CPU s", "records per CPU s", "command MiB", "largest worker", "JVM", "all")


def main() -> None:
    """Print a row."""
    thousands, partitions = int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 1
    load = Load(records=1_000 * thousands, size=100, partitions=partitions)
    with tempfile.TemporaryDirectory(prefix="tandem-bench-") as name, ExitStack() as stack:
        folder = Path(name)
        kafka = BenchKafka(folder / "kafka")
        kafka.start()
        stack.callback(kafka.kill)
        fill(kafka.bootstrap, load)
        (folder / "store").mkdir()
        pair = PairProcesses(
            folder,
            {
                "pair": "live",
                "kafka": {"bootstrap.servers": kafka.bootstrap},
                "topics": {"include": [load.topic]},
                "store": {"root": (folder / "store").as_uri()},
            },
        )
        stack.callback(pair.close)
        pair.start("a")
        pair.wait("a complete generation", lambda: pair.complete(1))
        pair.end("a")
        print("|", " | ".join(_COLUMNS), "|\n|---|" + "--:|" * (len(_COLUMNS) - 1), flush=True)
        print("|", " | ".join(_row(pair, load)), "|", flush=True)


def _row(pair: PairProcesses, load: Load) -> list[str]:
    began = time.monotonic()
    peaks: dict[str, int] = {}
    used_s: dict[int, float] = {}
    with pair.begin("verify", "--against-topic", "--master", "local[2]") as command:
        while command.poll() is None:
            _look(command, peaks, used_s)
            time.sleep(_LOOK_S)
        said, _ = command.communicate()
    took_s, cpu_s = time.monotonic() - began, sum(used_s.values())
    if command.returncode:
        raise RuntimeError(f"the command failed:\n{said}"[-4000:])
    return [
        f"{load.records:,}",
        f"{took_s:.1f}",
        f"{cpu_s:.1f}",
        f"{load.records / cpu_s:,.0f}",
        *(f"{peaks.get(what, 0) >> 20:,}" for what in ("command", "worker", "java", "all")),
    ]


def _look(command: subprocess.Popen[str], peaks: dict[str, int], used_s: dict[int, float]) -> None:
    total = 0
    for pid in tree(command.pid):
        fields = stat(pid)
        size = resident_of(fields)
        used_s[pid] = max(used_s.get(pid, 0.0), cpu_s_of(fields))
        total += size
        what = "command" if pid == command.pid else "java" if fields[-1] == "java" else "worker"
        peaks[what] = max(peaks.get(what, 0), size)
    peaks["all"] = max(peaks.get("all", 0), total)


if __name__ == "__main__":
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    main()
