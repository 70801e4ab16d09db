"""Backup and restore beside OSO kafka-backup, whole processes: `python -m bench.side_by_side THOUSANDS SIZE`.

THOUSANDS of records with distinct JSON values of SIZE bytes, on one broker, into folders, restored into fresh topics.
The two take turns. Its engine is built from bench/peer, for the first time in a quarter of an hour, so `cargo` has to
be there. Wall time is that of the command until it has ended; processor time and memory (resident, and what processes
share is counted in each) are those of all its processes together, looked at twenty times a second.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient

from bench.load import Load, fill
from bench.measured import Run, report, stat, tree
from bench.servers import BenchKafka

_PEER: Final = Path(__file__).with_name("peer")
_CACHE: Final = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "tandem" / "peer"
_LOOK_S: Final = 0.05
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")
_TICKS: Final = os.sysconf("SC_CLK_TCK")
_TANDEM: Final = Path(sys.executable).with_name("tandem")


def main() -> None:
    """Run all of it; report the middle one of each kind."""
    parser = argparse.ArgumentParser(prog="bench.side_by_side", description=__doc__)
    parser.add_argument("thousands", type=int)
    parser.add_argument("size", type=int)
    parser.add_argument("--repeat", type=int, default=3)
    words = parser.parse_args()
    load = Load(records=words.thousands * 1000, size=words.size, distinct=True)
    peer = _built()
    with tempfile.TemporaryDirectory(prefix="side-by-side-") as name:
        folder = Path(name)
        kafka = BenchKafka(folder / "kafka")
        kafka.start()
        try:
            fill(kafka.bootstrap, load)
            _measure(load, peer, kafka, folder, repeat=words.repeat)
        finally:
            kafka.stop()


def _measure(load: Load, peer: Path, kafka: BenchKafka, folder: Path, *, repeat: int) -> None:
    kinds: dict[str, Callable[[int], Run]] = {
        "backup, peer": lambda number: _peer_backs_up(load, peer, kafka, folder / f"peer{number}"),
        "backup, tandem": lambda number: _tandem_backs_up(load, kafka, folder / f"tandem{number}"),
        "restore, peer": lambda number: _peer_restores(load, peer, kafka, folder / f"peer{number}"),
        "restore, tandem": lambda number: _tandem_restores(load, kafka, folder / f"tandem{number}"),
    }
    runs: dict[str, list[Run]] = {kind: [] for kind in kinds}
    for number in range(repeat):
        for kind, once in kinds.items():
            runs[kind].append(once(number))
        for made in (folder / f"peer{number}", folder / f"tandem{number}"):
            shutil.rmtree(made)
    for kind, several in runs.items():
        report(sorted(several, key=lambda run: run.seconds)[len(several) // 2], what=kind)
    for what in ("backup", "restore"):
        theirs, ours = (statistics.median(run.seconds for run in runs[f"{what}, {who}"]) for who in ("peer", "tandem"))
        sys.stderr.write(f"{what}: {ours / theirs:.2f} of the peer's time\n")


def _built() -> Path:
    """Build the peer outside of the tree, unless that has been done."""
    command = ["cargo", "build", "--release", "--locked", "--manifest-path", str(_PEER / "Cargo.toml")]
    subprocess.run(command, env={**os.environ, "CARGO_TARGET_DIR": str(_CACHE)}, check=True)
    return _CACHE / "release" / "peer"


def _peer_backs_up(load: Load, peer: Path, kafka: BenchKafka, folder: Path) -> Run:
    config = {
        "mode": "backup",
        "backup_id": "bench",
        "source": {"bootstrap_servers": [kafka.bootstrap], "topics": {"include": [load.topic]}},
        "storage": {"backend": "filesystem", "path": str(folder / "store")},
        "backup": {"stop_at_current_offsets": True},
        "metrics": {"enabled": False},
        "offset_storage": {"db_path": str(folder / "offsets.db")},
    }
    return _of(load, _whole([str(peer), _written(folder, "backup", config)], folder))


def _peer_restores(load: Load, peer: Path, kafka: BenchKafka, folder: Path) -> Run:
    target = f"{load.topic}.peer"
    config = {
        "mode": "restore",
        "backup_id": "bench",
        "target": {"bootstrap_servers": [kafka.bootstrap], "topics": {"include": [load.topic]}},
        "storage": {"backend": "filesystem", "path": str(folder / "store")},
        "restore": {"topic_mapping": {load.topic: target}, "create_topics": True},
        "metrics": {"enabled": False},
        "offset_storage": {"db_path": str(folder / "offsets.db")},
    }
    run = _whole([str(peer), _written(folder, "restore", config)], folder)
    _check_and_delete(kafka, target, load)
    return _of(load, run)


def _tandem_backs_up(load: Load, kafka: BenchKafka, folder: Path) -> Run:
    folder.mkdir()
    store = json.dumps({"root": f"file://{folder}/store"})
    (folder / "store").mkdir()
    module = ["-m", "bench.cases.catch_up", kafka.bootstrap, load.topic, "zstandard", store, "--pair", "bench"]
    return _of(load, _whole([sys.executable, *module], folder))


def _tandem_restores(load: Load, kafka: BenchKafka, folder: Path) -> Run:
    target = f"{load.topic}.tandem"
    place = ["--root", f"file://{folder}/store", "--pair", "bench", "--target-bootstrap-servers", kafka.bootstrap]
    run = _whole([str(_TANDEM), "restore", load.topic, *place, "--to", target, "--yes"], folder)
    _check_and_delete(kafka, target, load)
    return _of(load, run)


def _written(folder: Path, name: str, config: dict[str, object]) -> str:
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}.json"
    path.write_text(json.dumps(config))
    return str(path)


def _of(load: Load, run: tuple[float, float, float]) -> Run:
    seconds, cpu_s, peak_mb = run
    return Run(records=load.records, bytes=load.records * load.size, seconds=seconds, cpu_s=cpu_s, peak_mb=peak_mb)


def _whole(command: Sequence[str], folder: Path) -> tuple[float, float, float]:
    """Run a command; return its wall time in s, and the processor time in s and peak memory in MB of all processes."""
    log = folder / "log"
    cpu: dict[int, float] = {}
    peak = 0
    with log.open("wb") as output:
        began = time.perf_counter()
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, cwd=Path(__file__).parents[1])
        while process.poll() is None:
            resident = 0
            for pid in tree(process.pid):
                fields = stat(pid)
                cpu[pid] = max(cpu.get(pid, 0.0), (int(fields[11]) + int(fields[12])) / _TICKS)
                resident += int(fields[21]) * _PAGE
            peak = max(peak, resident)
            time.sleep(_LOOK_S)
        seconds = time.perf_counter() - began
    if process.returncode:
        raise RuntimeError(f"{command[0]} failed:\n{log.read_text(errors='replace')[-4000:]}")
    return seconds, sum(cpu.values()), peak / 1e6


def _check_and_delete(kafka: BenchKafka, topic: str, load: Load) -> None:
    """Raise RuntimeError unless the topic holds the records of the load; delete it."""
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": "bench"})
    marks = [consumer.get_watermark_offsets(TopicPartition(topic, number), 30) for number in range(load.partitions)]
    consumer.close()
    there = sum(high - low for low, high in marks)
    if there < load.records:
        raise RuntimeError(f"{topic} holds {there} records instead of {load.records}")
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    for future in admin.delete_topics([topic]).values():
        future.result(60)


if __name__ == "__main__":
    main()
