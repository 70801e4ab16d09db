"""What a pair takes as its topics grow: `python -m bench.pairs.growth THOUSANDSxPARTITIONS [...]`.

Each word is one case: so many thousands of records of 100 B of JSON in a topic of so many partitions, a broker and a
folder as store, two instances with the settings that they have by themselves, but for a commit every ten seconds.
Prints a row for each: the catch-up of the first instance from its start to COMPLETE; half a minute with nothing to
read; half a minute in which each partition gets a record every ten seconds, in processor time for each commit; from
SIGTERM to the first commit of the next process; and a failover to the other instance until the older copy is cleared.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from confluent_kafka import Producer

from bench.load import Load, fill
from bench.measured import peak_mb
from bench.pairs.processes import PairProcesses, again_and_again
from bench.servers import BenchKafka

_STAGE_S: Final = 30.0
_SETTLE_S: Final = 15.0
_LOOK_S: Final = 0.2
_COLUMNS: Final = (
    "records, partitions",
    "catch-up: s",
    "records/s",
    "CPU µs a record",
    "MB",
    "idle: cores",
    "a commit: CPU ms",
    "restart: s",
    "failover: s",
    "its CPU s",
    "MB of both",
)


def main() -> None:
    """Print a table."""
    cases = [tuple(int(number) for number in word.split("x")) for word in sys.argv[1:]]
    print("|", " | ".join(_COLUMNS), "|\n|---|" + "--:|" * (len(_COLUMNS) - 1), flush=True)
    for thousands, partitions in cases:
        load = Load(records=1_000 * thousands, size=100, partitions=partitions)
        with tempfile.TemporaryDirectory(prefix="tandem-bench-") as name, ExitStack() as stack:
            folder = Path(name)
            kafka = BenchKafka(folder / "kafka", heap_mb=1024 + partitions // 8)
            kafka.start()
            stack.callback(kafka.kill)
            sys.stderr.write(f"filling {load.topic}\n")
            fill(kafka.bootstrap, load)
            (folder / "store").mkdir()
            pair = PairProcesses(
                folder,
                {
                    "pair": "growth",
                    "kafka": {"bootstrap.servers": kafka.bootstrap},
                    "topics": {"include": [load.topic]},
                    "store": {"root": (folder / "store").as_uri()},
                    "flush": {"interval": "10s"},
                },
            )
            stack.callback(pair.close)
            print("|", " | ".join(_row(pair, kafka, load)), "|", flush=True)


def _row(pair: PairProcesses, kafka: BenchKafka, load: Load) -> list[str]:
    pair.start("a")
    took_s = pair.wait("a complete generation", lambda: pair.complete(1), every_s=_LOOK_S)
    cpu_s, memory_mb = pair.cpu_s("a"), peak_mb(pair.processes["a"].pid)
    pair.start("b")
    time.sleep(_SETTLE_S)
    idle_s = pair.cpu_s("a")
    time.sleep(_STAGE_S)
    idle_s = pair.cpu_s("a") - idle_s
    with _busy(kafka.bootstrap, load):
        time.sleep(_SETTLE_S)
        commits, commits_s = pair.sequence(1), pair.cpu_s("a")
        time.sleep(_STAGE_S)
        commits, commits_s = pair.sequence(1) - commits, pair.cpu_s("a") - commits_s
        began = time.monotonic()
        pair.end("a")
        before = pair.sequence(1)
        pair.start("a")
        pair.wait("a commit", lambda: pair.sequence(1) > before, every_s=_LOOK_S)
        restart_s = time.monotonic() - began
    both_s = pair.cpu_s("a") + pair.cpu_s("b")
    began = time.monotonic()
    pair.command("failover", "--to", "b", "--yes")
    failover_s = time.monotonic() - began
    peaks = [peak_mb(process.pid) for process in pair.processes.values()]
    return [
        f"{load.records:,}, {load.partitions:,}",
        f"{took_s:.1f}",
        f"{load.records / took_s:,.0f}",
        f"{cpu_s / load.records * 1e6:.2f}",
        f"{memory_mb:.0f}",
        f"{idle_s / _STAGE_S:.3f}",
        f"{commits_s / max(1, commits) * 1e3:.0f}",
        f"{restart_s:.1f}",
        f"{failover_s:.1f}",
        f"{pair.cpu_s('a') + pair.cpu_s('b') - both_s:.1f}",
        " and ".join(f"{peak:.0f}" for peak in peaks),
    ]


@contextmanager
def _busy(bootstrap: str, load: Load) -> Iterator[None]:
    """Write a record into each partition every ten seconds, evenly."""
    producer = Producer({"bootstrap.servers": bootstrap})
    written, began = 0, time.monotonic()

    def write() -> None:
        nonlocal written
        due = int((time.monotonic() - began) * load.partitions / 10)
        for number in range(written, due):
            producer.produce(load.topic, key=b"key", value=b"value", partition=number % load.partitions)
        written = due
        producer.poll(0)

    with again_and_again(write, every_s=0.1):
        yield
    producer.flush(60)


if __name__ == "__main__":
    main()
