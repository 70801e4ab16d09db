"""Backup and restore beside OSO kafka-backup, whole processes: `make bench PEER=1`, half an hour on two cores.

`python -m bench.side_by_side THOUSANDS SIZE` for one case: THOUSANDS of records with distinct values of SIZE bytes, on
one broker, into folders or into an S3 server on the same machine, restored into fresh topics. The two take turns. Its
engine is built from bench/peer, for the first time in a quarter of an hour, so `cargo` has to be there. Wall time is
that of the command until it has ended; processor time and memory (resident, and what processes share is counted in
each) are those of all its processes together, looked at twenty times a second. Both have the settings that they have by
themselves.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import boto3
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient

from bench.load import Load, fill
from bench.measured import Run, cpu_s_of, resident_of, stat, tree
from bench.outcome import Row, Verdict, at_least, at_most, keep
from bench.servers import BenchKafka, store_section
from tandem.controller.sandbox.s3 import S3Server
from tandem.controller.sandbox.sigv4 import S3Key

_PEER: Final = Path(__file__).with_name("peer")
_CACHE: Final = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "tandem" / "peer"
_LOOK_S: Final = 0.05
_TANDEM: Final = Path(sys.executable).with_name("tandem")


def _load(thousands: int, size: int, kind: str = "json") -> Load:
    return Load(records=thousands * 1_000, size=size, kind=kind, distinct=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A load, the store that both write to, and the targets.

    `backup` is the peer's time divided by ours, `restore` our time divided by the peer's, `restore_s` our time alone.
    """

    load: Load
    into_s3: bool = False
    backup: float | None = None
    restore: float | None = None
    restore_s: float | None = None

    @property
    def name(self) -> str:
        """The load's topic and the store."""
        return f"{self.load.topic}, {'S3' if self.into_s3 else 'folder'}"


# What is small shows what a start takes. The next four are those of the first comparison.
CASES: Final = (
    Case(load=_load(3, 100), restore_s=8.0),
    Case(load=_load(2_000, 100), backup=1.5, restore=1.0),
    Case(load=_load(10_000, 100), backup=4.0, restore=1 / 3),
    Case(load=_load(600, 1_000), backup=1.5, restore=1.2),
    Case(load=_load(3_000, 1_000), backup=2.0, restore=0.5),
    Case(load=_load(300, 10_000), backup=2.0),
    Case(load=_load(600, 1_000, "random")),
    Case(load=_load(600, 1_000, "avro")),
    Case(load=_load(2_000, 100), into_s3=True),
    Case(load=_load(600, 1_000), into_s3=True),
)


def main() -> int:
    """Run all of it; report the middle one of each kind. Exit code 3: a target was missed."""
    parser = argparse.ArgumentParser(prog="bench.side_by_side", description=__doc__)
    parser.add_argument("thousands", type=int, nargs="?")
    parser.add_argument("size", type=int, nargs="?")
    parser.add_argument("--kind", choices=("json", "random", "avro"), default="json")
    parser.add_argument("--s3", action="store_true", help="into a bucket of an S3 server on this machine")
    parser.add_argument("--repeat", type=int, default=3)
    words = parser.parse_args()
    if words.thousands is None:
        cases: tuple[Case, ...] = CASES
    elif words.size is None:
        parser.error("SIZE is missing")
    else:
        cases = (Case(load=_load(words.thousands, words.size, words.kind), into_s3=words.s3),)
    if shutil.which("cargo") is None:
        sys.stderr.write("left out: the peer's engine is built with cargo, and there is none\n")
        return 0
    peer = _built()
    rows: list[Row] = []
    judged: list[Verdict] = []
    with ExitStack() as ends:
        folder = Path(ends.enter_context(tempfile.TemporaryDirectory(prefix="side-by-side-")))
        kafka = BenchKafka(folder / "kafka")
        kafka.start()
        ends.callback(kafka.kill)
        for case in cases:
            found = _measure(case, Both(peer=peer, kafka=kafka, folder=folder), repeat=words.repeat)
            rows += found
            judged += verdicts(case, found)
    for verdict in judged:
        sys.stderr.write(f"{verdict.name}: {verdict.figure}, wanted {verdict.target}\n")
    if cases is CASES:
        path = keep(rows, judged, command="make bench PEER=1", suffix="-peer")
        sys.stderr.write(f"written: {path}\n")
    return 0 if all(verdict.met for verdict in judged) else 3


def verdicts(case: Case, rows: Sequence[Row]) -> list[Verdict]:
    """Hold the rows of a case against its targets."""
    middle = {row.what: row.middle for row in rows}
    theirs, ours = middle["backup, peer"], middle["backup, tandem"]
    found = []
    if case.backup is not None:
        found = [
            at_least(f"{case.name}: backup, the peer's time by ours", theirs.seconds / ours.seconds, case.backup),
            at_most(f"{case.name}: backup, CPU, ours by the peer's", ours.cpu_s / theirs.cpu_s, 0.5),
            at_most(f"{case.name}: backup, memory, ours by the peer's", ours.peak_mb / theirs.peak_mb, 0.25),
            at_most(f"{case.name}: stored bytes, ours by the peer's", ours.stored_mb / theirs.stored_mb, 1.0),
        ]
    if case.restore is not None:
        ratio = middle["restore, tandem"].seconds / middle["restore, peer"].seconds
        found.append(at_most(f"{case.name}: restore, our time by the peer's", ratio, case.restore))
    if case.restore_s is not None:
        found.append(at_most(f"{case.name}: restore, s", middle["restore, tandem"].seconds, case.restore_s))
    return found


def _measure(case: Case, both: Both, *, repeat: int) -> list[Row]:
    """Let the two take turns, so that what disturbs the machine disturbs both."""
    load = case.load
    sys.stderr.write(f"filling {load.topic}\n")
    fill(both.kafka.bootstrap, load)
    runs: dict[str, list[Run]] = {}
    for number in range(repeat):
        with ExitStack() as ends:
            folder = both.folder / f"run{number}"
            folder.mkdir()
            ends.callback(shutil.rmtree, folder)
            s3 = ends.enter_context(_s3(folder)) if case.into_s3 else None
            for what, once in both.turns(load, folder, s3).items():
                run = once()
                runs.setdefault(what, []).append(run)
                sys.stderr.write(
                    f"  {what:<16} {run.seconds:>6.2f} s  cpu {run.cpu_s:>6.2f} s  peak {run.peak_mb:>5.0f} MB"
                    f"  stored {run.stored_mb:>5.0f} MB\n"
                )
    delete_topic(both.kafka, load.topic)
    return [Row(case=case.name, what=what, runs=tuple(several)) for what, several in runs.items()]


@contextmanager
def _s3(folder: Path) -> Iterator[S3Server]:
    key = S3Key(access_key="bench", secret_key=secrets.token_urlsafe(24))
    (folder / "s3").mkdir()
    server = S3Server(folder / "s3", bucket="bench", key=key)
    server.start()
    try:
        yield server
    finally:
        server.kill()


def _built() -> Path:
    """Build the peer outside of the tree, unless that has been done."""
    command = ["cargo", "build", "--release", "--locked", "--manifest-path", str(_PEER / "Cargo.toml")]
    subprocess.run(command, env={**os.environ, "CARGO_TARGET_DIR": str(_CACHE)}, check=True)
    return _CACHE / "release" / "peer"


@dataclass(frozen=True, slots=True, kw_only=True)
class Both:
    """The two, the broker between which they move records, and a folder for all that they write."""

    peer: Path
    kafka: BenchKafka
    folder: Path

    def turns(self, load: Load, folder: Path, s3: S3Server | None) -> dict[str, Callable[[], Run]]:
        """Return what is measured, in its order."""
        return {
            "backup, peer": lambda: self._peer(load, folder, s3, "backup"),
            "backup, tandem": lambda: self._tandem_backs_up(load, folder, s3),
            "restore, peer": lambda: self._peer(load, folder, s3, "restore"),
            "restore, tandem": lambda: self._tandem_restores(load, folder, s3),
        }

    def _peer(self, load: Load, folder: Path, s3: S3Server | None, mode: str) -> Run:
        storage: dict[str, object] = {"backend": "filesystem", "path": str(folder / "peer")}
        if s3 is not None:
            section = store_section(s3, "peer")
            storage = {
                "backend": "s3",
                "bucket": s3.bucket,
                "prefix": "peer",
                "path_style": True,
                "endpoint": section["endpoint_url"],
                "region": section["region"],
                "access_key": section["access_key_id"],
                "secret_key": section["secret_access_key"],
            }
        target = f"{load.topic}.peer"
        cluster = {"bootstrap_servers": [self.kafka.bootstrap], "topics": {"include": [load.topic]}}
        config: dict[str, object] = {
            "mode": mode,
            "backup_id": "bench",
            ("source" if mode == "backup" else "target"): cluster,
            "storage": storage,
            "metrics": {"enabled": False},
            "offset_storage": {"db_path": str(folder / "offsets.db")},
        }
        if mode == "backup":
            config["backup"] = {"stop_at_current_offsets": True}
        else:
            config["restore"] = {"topic_mapping": {load.topic: target}, "create_topics": True}
        path = folder / f"{mode}.json"
        path.write_text(json.dumps(config))
        run = whole(load, [str(self.peer), str(path)], folder / "log")
        if mode == "restore":
            self._check(target, load)
            return run
        return replace(run, stored_mb=self._stored_mb(folder / "peer", s3, "peer"))

    def _tandem_backs_up(self, load: Load, folder: Path, s3: S3Server | None) -> Run:
        (folder / "tandem").mkdir()
        store = json.dumps(_section(folder, s3))
        words = ["-m", "bench.cases.catch_up", self.kafka.bootstrap, load.topic, "zstandard", store, "--pair", "bench"]
        run = whole(load, [sys.executable, *words], folder / "log")
        return replace(run, stored_mb=self._stored_mb(folder / "tandem", s3, "tandem"))

    def _tandem_restores(self, load: Load, folder: Path, s3: S3Server | None) -> Run:
        target = f"{load.topic}.tandem"
        settings = {
            "pair": "bench",
            "kafka": {"bootstrap.servers": self.kafka.bootstrap},
            "store": _section(folder, s3),
        }
        config = folder / "tandem.yaml"
        config.write_text(json.dumps(settings))
        words = ["restore", load.topic, "-c", str(config), "--to", target, "--yes"]
        run = whole(load, [str(_TANDEM), *words], folder / "log")
        self._check(target, load)
        return run

    def _check(self, topic: str, load: Load) -> None:
        """Raise RuntimeError unless the topic holds the records of the load; delete it."""
        consumer = Consumer({"bootstrap.servers": self.kafka.bootstrap, "group.id": "bench"})
        marks = [consumer.get_watermark_offsets(TopicPartition(topic, number), 30) for number in range(load.partitions)]
        consumer.close()
        there = sum(high - low for low, high in marks)
        if there < load.records:
            raise RuntimeError(f"{topic} holds {there} records instead of {load.records}")
        delete_topic(self.kafka, topic)

    @staticmethod
    def _stored_mb(folder: Path, s3: S3Server | None, prefix: str) -> float:
        if s3 is None:
            return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 1e6
        section = store_section(s3, prefix)
        client = boto3.client(
            "s3",
            endpoint_url=section["endpoint_url"],
            region_name=section["region"],
            aws_access_key_id=section["access_key_id"],
            aws_secret_access_key=section["secret_access_key"],
        )
        pages = client.get_paginator("list_objects_v2").paginate(Bucket=s3.bucket, Prefix=f"{prefix}/")
        return sum(item["Size"] for page in pages for item in page.get("Contents", [])) / 1e6


def _section(folder: Path, s3: S3Server | None) -> dict[str, str]:
    """Return the section `store` of Tandem's configuration."""
    return store_section(s3, "tandem") if s3 else {"root": (folder / "tandem").as_uri()}


def delete_topic(kafka: BenchKafka, topic: str) -> None:
    """Delete a topic, so that it takes neither disk nor the broker's memory from what follows."""
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    for future in admin.delete_topics([topic]).values():
        future.result(60)


def whole(load: Load, command: Sequence[str], log: Path) -> Run:
    """Run a command to its end; raise RuntimeError with the end of its output if it fails."""
    cpu: dict[int, float] = {}
    peak = 0
    with log.open("wb") as output:
        began = time.perf_counter()
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, cwd=Path(__file__).parents[1])
        while process.poll() is None:
            resident = 0
            for pid in tree(process.pid):
                fields = stat(pid)
                cpu[pid] = max(cpu.get(pid, 0.0), cpu_s_of(fields))
                resident += resident_of(fields)
            peak = max(peak, resident)
            time.sleep(_LOOK_S)
        seconds = time.perf_counter() - began
    if process.returncode:
        raise RuntimeError(f"{command[0]} failed:\n{log.read_text(errors='replace')[-4000:]}")
    return Run(
        records=load.records,
        bytes=load.records * load.size,
        seconds=seconds,
        cpu_s=sum(cpu.values()),
        peak_mb=peak / 1e6,
    )


if __name__ == "__main__":
    sys.exit(main())
