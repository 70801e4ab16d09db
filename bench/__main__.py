"""`make bench`: fill topics on a broker of its own, measure, print a table and a line per target.

Every figure stands beside baselines of the same run, because machines differ and are not always alone. Each run is a
process of its own; the middle one of three counts. Exit code 0: all targets met. 3: at least one was missed.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import secrets
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic

from bench.load import Load, fill
from bench.measured import KEY, Run, spawn, spawn_all
from bench.outcome import Row, Verdict, at_least, at_most, keep
from bench.servers import BenchKafka, store_section
from tandem.controller.sandbox.s3 import S3Server
from tandem.controller.sandbox.sigv4 import S3Key

_SMALL = Load(records=2_000_000, size=100)
_LARGE = Load(records=600_000, size=1000)
_LONG = Load(records=20_000_000, size=100)
_WIDE = Load(records=2_000_000, size=100, partitions=64)
# So many that the start of the job and the tasks' connections, 0.7 s or so, are a small part of a load.
_RESTORED = (Load(records=8_000_000, size=100), Load(records=2_400_000, size=1000))
# As it is by itself, and as Kafka's producer writes in the same run.
_RESTORED_IN = ("zstd", "none")
_MANY_OBJECTS = 1_000_000
_RANDOM = (
    Load(records=2_000_000, size=100, kind="random"),
    Load(records=600_000, size=1000, kind="random"),
)
_OTHERS = (
    *_RANDOM,
    Load(records=2_000_000, size=100, codec="lz4"),
    Load(records=2_000_000, size=100, codec="zstd"),
    Load(records=600_000, size=1000, codec="lz4"),
    Load(records=600_000, size=1000, codec="zstd"),
)


@dataclass(slots=True)
class Bench:
    """What was measured so far."""

    kafka: BenchKafka
    folder: Path
    repeat: int
    rows: dict[tuple[str, str], Row] = field(default_factory=dict)

    def fill(self, load: Load) -> None:
        """Fill a topic."""
        _say(f"filling {load.topic}")
        fill(self.kafka.bootstrap, load)

    def run(self, load: Load, what: str, once: Callable[[], Run], *, repeat: int | None = None) -> Row:
        """Measure, and print the middle run."""
        return self.note(load.topic, what, [once() for _ in range(repeat or self.repeat)])

    def note(self, case: str, what: str, runs: list[Run]) -> Row:
        """Keep what was measured, and print the middle run."""
        row = Row(case=case, what=what, runs=tuple(runs))
        self.rows[case, what] = row
        middle = row.middle
        _say(
            f"  {what:<22} {middle.rate:>12,.0f} records/s {middle.mb_per_s:>8.0f} MB/s {middle.seconds:>7.2f} s "
            f"cpu {middle.cpu_s:>6.2f} s  peak {middle.peak_mb:>4.0f} MB"
        )
        return row

    def again(self, module: str, *arguments: str) -> dict[str, list[Run]]:
        """Measure what one process reports several runs of."""
        runs: dict[str, list[Run]] = {}
        for _ in range(self.repeat):
            for what, run in spawn_all(module, *arguments).items():
                runs.setdefault(what, []).append(run)
        return runs

    def baseline(self, load: Load, kind: str, *, repeat: int | None = None) -> Row:
        """Measure one of the baselines."""
        arguments = (kind, self.kafka.bootstrap, load.topic, str(load.partitions), str(load.records))
        return self.run(load, kind, lambda: spawn("baselines", *arguments), repeat=repeat)

    def catch_up(
        self, load: Load, codec: str = "zstandard", *, s3: S3Server | None = None, encrypted: bool = False
    ) -> Row:
        """Measure a catch-up into a folder, or into a bucket."""
        sent = self.rows[load.topic, "raw"].middle.bytes

        def once() -> Run:
            with tempfile.TemporaryDirectory(dir=self.folder) as root:
                section = {"root": Path(root).as_uri()} if s3 is None else store_section(s3, "bench")
                place = (self.kafka.bootstrap, load.topic, codec, json.dumps(section))
                run = spawn("catch_up", *place, *(("--encrypted",) if encrypted else ()))
            return replace(run, bytes=sent)  # as all others count, not what was stored

        what = f"catch-up, {codec}" + (", S3" if s3 else "") + (", encrypted" if encrypted else "")
        return self.run(load, what, once)

    def workers(self, load: Load, count: int = 2) -> None:
        """Measure a catch-up with worker processes: how long it takes, and the memory of itself and of a worker."""
        runs: dict[str, list[Run]] = {}
        for _ in range(self.repeat):
            with tempfile.TemporaryDirectory(dir=self.folder) as root:
                section = json.dumps({"root": Path(root).as_uri()})
                place = (self.kafka.bootstrap, load.topic, "zstandard", section, "--workers", str(count))
                for what, run in spawn_all("catch_up", *place).items():
                    runs.setdefault(what, []).append(run)
        self.note(load.topic, f"catch-up, {count} workers", runs[""])
        self.note(load.topic, "the largest worker of it", runs["worker"])

    @property
    def kept(self) -> str:
        """The store of the backups that are restored and verified; each load's topic is a pair."""
        return (self.folder / "kept").as_uri()

    def keep(self, load: Load, *, encrypted: bool = False) -> None:
        """Make a backup that is complete."""
        (self.folder / "kept").mkdir(exist_ok=True)
        section = json.dumps({"root": self.kept})
        place = (self.kafka.bootstrap, load.topic, "zstandard", section)
        pair = ("--pair", _pair(load, encrypted=encrypted))
        spawn("catch_up", *place, *pair, *(("--encrypted",) if encrypted else ()))

    def encrypted(self, load: Load) -> None:
        """Measure all again of what is stored encrypted."""
        self.catch_up(load, encrypted=True)
        self.keep(load, encrypted=True)
        pair = _pair(load, encrypted=True)
        runs = self.again("restore", self.kafka.bootstrap, load.topic, pair, self.kept, "zstd")
        self.note(load.topic, "restore, zstd, encrypted: load", runs["load"])
        self.note(load.topic, "verify, one process, encrypted", self.again("verify", pair, self.kept)[""])

    def restore(self, load: Load, codecs: tuple[str, ...]) -> tuple[Row, list[Row]]:
        """Measure restores and Kafka's own producer in turn, so that what disturbs the machine disturbs them alike.

        Returns the producer's row, and that of the load for each codec.
        """
        theirs: list[Run] = []
        ours: dict[str, list[Run]] = {}
        for _ in range(self.repeat):
            theirs.append(self._perform(load))
            for codec in codecs:
                place = (self.kafka.bootstrap, load.topic, _pair(load), self.kept, codec)
                for what, run in spawn_all("restore", *place).items():
                    ours.setdefault(f"restore, {codec}: {what}", []).append(run)
        row = self.note(load.topic, "ProducerPerformance", theirs)
        rows = {what: self.note(load.topic, what, runs) for what, runs in ours.items()}
        return row, [rows[f"restore, {codec}: load"] for codec in codecs]

    def _perform(self, load: Load) -> Run:
        admin = AdminClient({"bootstrap.servers": self.kafka.bootstrap})
        topic = NewTopic(f"performance-{secrets.token_hex(4)}", num_partitions=load.partitions, replication_factor=1)
        for future in admin.create_topics([topic]).values():
            future.result(30)
        run = self.kafka.perform(topic.topic, records=load.records, size=load.size)
        for future in admin.delete_topics([topic.topic]).values():
            future.result(30)
        return run

    def verify(self, load: Load) -> Verdict:
        """Measure a verification on one core."""
        runs = self.again("verify", _pair(load), self.kept)
        row = self.note(load.topic, "verify, one process", runs[""])
        self.note(load.topic, "its decompression alone", runs["decompression"])
        rate = statistics.median(run.bytes / run.cpu_s for run in row.runs) / 1e6
        kind = "JSON" if load.kind == "json" else "random"
        return at_least(f"verify, {load.size} B of {kind}, MB/s of objects per core", rate, 200)

    def sweep(self, load: Load) -> None:
        """Measure a sweep on one core."""
        self.run(load, "sweep, one process", partial(spawn, "sweep", _pair(load), self.kept))


def _pair(load: Load, *, encrypted: bool = False) -> str:
    return f"{load.topic}-encrypted" if encrypted else load.topic


def main() -> int:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(prog="bench", description=__doc__)
    parser.add_argument("--repeat", type=int, default=3, help="runs of each figure")
    part = parser.add_mutually_exclusive_group()
    part.add_argument("--quick", action="store_true", help="only what the targets of small and large records need")
    part.add_argument("--restores", action="store_true", help="only what comes back: restores, verify, sweeps, plans")
    words = parser.parse_args()
    os.environ[KEY] = base64.b64encode(secrets.token_bytes(32)).decode()  # for the processes that measure
    with tempfile.TemporaryDirectory(prefix="tandem-bench-") as name:
        folder = Path(name)
        (folder / "kafka").mkdir()
        kafka = BenchKafka(folder / "kafka")
        kafka.start()
        try:
            bench = Bench(kafka, folder, words.repeat)
            verdicts = list(_what_comes_back(bench) if words.restores else _measure(bench, quick=words.quick))
        finally:
            kafka.kill()
    for verdict in verdicts:
        _say(f"{verdict.name:<44} {verdict.figure:>14}  {verdict.target:>14}  {'met' if verdict.met else 'MISSED'}")
    if words.restores:
        kept = keep(bench.rows.values(), verdicts, command="python -m bench --restores", suffix="-restores")
        _say(f"written: {kept}")
    elif not words.quick:
        _say(f"written: {keep(bench.rows.values(), verdicts, command='make bench')}")
    return 0 if all(verdict.met for verdict in verdicts) else 3


def _measure(bench: Bench, *, quick: bool) -> Iterator[Verdict]:
    yield from _alone(bench)
    for load, times in ((_SMALL, 7.0), (_LARGE, 2.0)):
        bench.fill(load)
        raw, count = bench.baseline(load, "raw"), bench.baseline(load, "count")
        bench.baseline(load, "count-tuned")
        bench.baseline(load, "obvious", repeat=1)
        ours = bench.catch_up(load)
        bench.catch_up(load, "null")
        size = f"{load.size} B"
        yield at_least(f"catch-up, {size}, against a consumer that counts", ours.middle.rate / count.middle.rate, times)
        yield at_least(f"catch-up, {size}, against raw bytes", ours.middle.rate / raw.middle.rate, 0.2)
        yield at_most(f"peak memory, {size}, MB", max(run.peak_mb for run in ours.runs), 300)
        if load is _SMALL:
            yield at_most("CPU seconds, 100 B, against a consumer that counts", _cpu(ours) / _cpu(count), 1 / 3)
        yield from _back(bench, load)
    if quick:
        return
    (bench.folder / "s3").mkdir()
    key = S3Key(access_key="bench", secret_key=secrets.token_urlsafe(24))
    s3 = S3Server(bench.folder / "s3", bucket="bench", key=key)
    s3.start()
    try:
        for load in (_SMALL, _LARGE):
            bench.catch_up(load, s3=s3)
    finally:
        s3.kill()
    for load in (_SMALL, _LARGE):
        bench.workers(load)
        bench.encrypted(load)
    small = bench.rows[_SMALL.topic, "catch-up, zstandard"].middle.rate
    bench.fill(_WIDE)
    bench.baseline(_WIDE, "raw")
    yield at_least("64 partitions instead of 4", bench.catch_up(_WIDE).middle.rate / small, 0.9)
    bench.fill(_LONG)
    bench.baseline(_LONG, "raw", repeat=1)
    ratio = bench.catch_up(_LONG).middle.rate / small
    yield Verdict(
        name="10 times the records", figure=f"{ratio:.2f} x", target="0.85 to 1.15 x", met=0.85 <= ratio <= 1.15
    )
    for load in _OTHERS:
        bench.fill(load)
        bench.baseline(load, "raw")
        bench.baseline(load, "count-tuned")
        bench.catch_up(load)
        if load.kind == "random":
            bench.keep(load)
            yield bench.verify(load)
    yield from _restores(bench)
    yield from _many(bench)


def _back(bench: Bench, load: Load) -> Iterator[Verdict]:
    """Restore a load, and verify it."""
    bench.keep(load)
    yield from _restored(bench, load)
    yield bench.verify(load)
    bench.sweep(load)


def _restores(bench: Bench) -> Iterator[Verdict]:
    """Restore more than a start weighs."""
    for load in _RESTORED:
        bench.fill(load)
        bench.keep(load)
        yield from _restored(bench, load)


def _what_comes_back(bench: Bench) -> Iterator[Verdict]:
    """All that reads backups."""
    yield from _restores(bench)
    for load in _RESTORED:
        yield bench.verify(load)
        bench.sweep(load)
    for load in _RANDOM:
        bench.fill(load)
        bench.keep(load)
        yield bench.verify(load)
    yield from _many(bench)


def _restored(bench: Bench, load: Load) -> Iterator[Verdict]:
    theirs, ours = bench.restore(load, _RESTORED_IN)
    for codec, row in zip(_RESTORED_IN, ours, strict=True):
        ratio = row.middle.rate / theirs.middle.rate
        what = f"restore, {load.records / 1e6:g} million of {load.size} B, {codec}, against ProducerPerformance"
        yield at_least(what, ratio, 1.0)


def _many(bench: Bench) -> Iterator[Verdict]:
    """Plan over a generation of a million objects."""
    (bench.folder / "many").mkdir()
    place = ((bench.folder / "many").as_uri(), str(_MANY_OBJECTS))
    case = f"{_MANY_OBJECTS:,} objects"
    spawn("many_objects", "make", *place)
    bench.note(case, "retention plan", [spawn("many_objects", "retention", *place)])
    run = bench.note(case, "restore plan", [spawn("many_objects", "restore", *place)]).middle
    yield at_most(f"restore plan over {case}, s", run.seconds, 30)
    yield at_most(f"restore plan over {case}, peak MB", run.peak_mb, 1000)


def _alone(bench: Bench) -> Iterator[Verdict]:
    for size in (100, 1000):
        load = Load(records=0, size=size, kind="random")
        alone = bench.run(load, "transcoder alone", partial(spawn, "transcoder", str(size)))
        if size == 100:
            rate = alone.middle.records / alone.middle.cpu_s / 1e6
            yield at_least("transcoder, one core, million records/s", rate, 6.0)


def _cpu(row: Row) -> float:
    return statistics.median(run.cpu_s for run in row.runs)


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
