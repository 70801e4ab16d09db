"""An idle pair of 1,000 partitions with the settings that it has by itself: `python -m bench.cases.idle [SECONDS]`.

Prints, for each of the two instances, the share of a core that it used while nothing was written, and its memory.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import yaml
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from bench.servers import BenchKafka
from tandem.sink.store import open_store
from tandem.sink.store.chain.chain_reader import ChainReader

_TOPICS, _PARTITIONS = 10, 100
_PAIR = "idle"
_PATIENCE_S = 300.0
_SETTLE_S = 20.0
"""What COMPLETE brings with it is over by then."""


def main() -> None:
    """Run once."""
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 120.0
    with tempfile.TemporaryDirectory(prefix="tandem-bench-") as name:
        folder = Path(name)
        for part in ("kafka", "store"):
            (folder / part).mkdir()
        kafka = BenchKafka(folder / "kafka")
        kafka.start()
        processes: list[subprocess.Popen[bytes]] = []
        try:
            _fill(kafka.bootstrap)
            processes += [_start(folder, kafka.bootstrap, instance) for instance in ("a", "b")]
            _wait(folder, processes)
            time.sleep(_SETTLE_S)
            before = [_cpu_s(process.pid) for process in processes]
            time.sleep(seconds)
            after = [_cpu_s(process.pid) for process in processes]
            found: list[dict[str, Any]] = [
                {
                    "core_share": (end - begin) / seconds,
                    "memory_mb": _memory_mb(process.pid),
                    "partitions": _TOPICS * _PARTITIONS,
                }
                for process, begin, end in zip(processes, before, after, strict=True)
            ]
            sys.stdout.write(json.dumps(found) + "\n")
        finally:
            for process in processes:
                process.kill()
            kafka.kill()


def _fill(bootstrap: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    topics = [NewTopic(f"idle-{n}", num_partitions=_PARTITIONS, replication_factor=1) for n in range(_TOPICS)]
    for future in admin.create_topics(topics).values():
        future.result(60)
    producer = Producer({"bootstrap.servers": bootstrap})
    for n in range(_TOPICS):
        for partition in range(_PARTITIONS):
            producer.produce(f"idle-{n}", key=b"key", value=b"value", partition=partition)
        producer.poll(0)
    producer.flush(60)


def _start(folder: Path, bootstrap: str, instance: str) -> subprocess.Popen[bytes]:
    path = folder / f"{instance}.yaml"
    document = {
        "pair": _PAIR,
        "instance": instance,
        "instances": ["a", "b"],
        "kafka": {"bootstrap.servers": bootstrap},
        "topics": {"patterns": ["idle-.*"]},
        "store": {"root": (folder / "store").as_uri()},
        "coordination": {"replication_factor": 1},
    }
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    main = "import sys; from tandem.controller.cli.main import main; sys.exit(main())"
    with (folder / f"{instance}.log").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "-c", main, "run", "-c", str(path)], stdout=log, stderr=log, env=os.environ
        )


def _wait(folder: Path, processes: list[subprocess.Popen[bytes]]) -> None:
    store = open_store((folder / "store").as_uri())
    deadline = time.monotonic() + _PATIENCE_S
    while not any(state.complete for state in ChainReader(store, _PAIR).refresh()):
        if time.monotonic() > deadline or any(process.poll() is not None for process in processes):
            logs = "".join((folder / f"{name}.log").read_text()[-2000:] for name in ("a", "b"))
            raise RuntimeError(f"no generation became complete:\n{logs}")
        time.sleep(1)


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _memory_mb(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    return int(next(line for line in lines if line.startswith("VmRSS")).split()[1]) / 1024


if __name__ == "__main__":
    main()
