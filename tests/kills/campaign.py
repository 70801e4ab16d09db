"""Kills at random, and what must be there in the end."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from confluent_kafka.admin import AdminClient
from support.backups.build_backup import PAIR, Backup, TopicSpec
from support.pairs.sessions import kill_session, members
from support.restores.cases import ends_of, read_all, read_with_offsets, rows_of, starts_of

from tandem.backup_avro.record.current import Record
from tandem.controller.sandbox.kafka import KafkaServer
from tandem.sink.store import open_store
from tandem.spark_jobs.restore.plan.offset_mode import OffsetMode
from tandem.spark_jobs.restore.progress.task_progress import TOPIC
from tandem.spark_jobs.restore.records.partitioner import Partitioner, chooser

SOURCES = 4
_KEYS = 500
_ANSWER_S = 300.0
# Of the kills: up to here at any moment from the start on, and up to here before anything was committed.
_WHILE_IT_STARTS = 0.1
_BEFORE_A_COMMIT = 0.3


class Victim(StrEnum):
    """What is killed with SIGKILL."""

    DRIVER = "driver"
    EXECUTOR = "executor"
    WORKER = "worker"
    BROKER = "broker"


_LOTS = (Victim.DRIVER, Victim.EXECUTOR, Victim.EXECUTOR, Victim.WORKER, Victim.BROKER)


# A batch of a run that was killed has moved the one of its successor. That run ends, and the target is deleted.
_SHIFTED = "TDM-R129"
# Not even fillers are cleaned while the target is compared.
_CONFIG = {"cleanup.policy": "compact", "min.compaction.lag.ms": str(10**15)}
# What a broker says when it takes a transaction for ended without having written so everywhere: see docs/restore.md.
_LOST_ITS_END = "likely deleted already and hence can be skipped"


class WrongError(Exception):
    """The target is not what was backed up."""


class VoidError(Exception):
    """The broker has committed a part of a transaction: no restore can end well on it."""


@dataclass(slots=True)
class Run:
    """One driver process and all that it starts: they share a session, whatever process groups they make."""

    process: subprocess.Popen[str]
    lines: list[str] = field(default_factory=list)

    @classmethod
    def start(cls, log: Path, *arguments: str) -> Run:
        with log.open("ab") as errors:
            process = subprocess.Popen(
                [sys.executable, "-m", "kills.driver", *arguments],
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
                env={**os.environ, "SPARK_WORKER_DIR": str(log.parent / "executors")},
            )
        run = cls(process)
        threading.Thread(target=run.read, daemon=True).start()
        return run

    def read(self) -> None:
        """Collect what it says."""
        assert self.process.stdout is not None
        self.lines.extend(iter(self.process.stdout.readline, ""))

    def said(self, text: str) -> bool:
        """Whether a line begins with `text`."""
        return any(line.startswith(text) for line in self.lines)

    @property
    def committed(self) -> int:
        """How many records it said to be committed, those of earlier runs included."""
        return max((int(line.split()[1]) for line in self.lines if line.startswith("committed")), default=0)

    @property
    def over(self) -> bool:
        """Whether the driver has ended."""
        return self.process.poll() is not None

    def members(self, what: str) -> list[int]:
        """Return the processes of its session that have `what` in their command lines."""
        found = []
        for pid in members(self.process.pid):
            with suppress(OSError):
                if what in Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"):
                    found.append(pid)
        return found

    def kill(self) -> None:
        """End all of it."""
        kill_session(self.process.pid)
        self.process.wait()


def history(topic: str, count: int) -> list[Record]:
    """Return what the topic held: keys where the Java producer puts them, over and over, with gaps in the offsets."""
    choose = chooser(Partitioner.MURMUR2, SOURCES)
    ends = [0] * SOURCES
    found = []
    for number in range(count):
        key = f"key-{number % _KEYS}".encode()
        partition = choose(key)
        ends[partition] += 1 + number % 3
        found.append(
            Record(
                topic=topic,
                partition=partition,
                offset=ends[partition],
                timestamp=1_700_000_000_000 + number,
                key=key,
                value=None if number % 11 == 0 else b"%d" % number,
            )
        )
    return sorted(found, key=lambda item: (item.partition, item.offset))


@dataclass(slots=True)
class Campaign:
    """Restores one backup with the offsets of `mode`, killing `kills` times; dense ones into more partitions."""

    kafka: KafkaServer
    folder: Path
    mode: OffsetMode
    kills: int
    count: int
    dice: random.Random
    say: Callable[[str], None]
    victims: Sequence[Victim] = _LOTS
    done: Counter[Victim] = field(default_factory=Counter)
    best: int = 0
    shifted: int = 0

    @property
    def partitions(self) -> int:
        """How many the target has."""
        return SOURCES + 3 if self.mode is OffsetMode.DENSE else SOURCES

    @property
    def topic(self) -> str:
        """What is backed up."""
        return f"killed-{self.mode}"

    @property
    def target(self) -> str:
        """What it is restored into."""
        return f"{self.topic}.restored"

    def run(self) -> str:
        """Kill, let it end, compare. Returns a line of figures; raises WrongError, VoidError."""
        topic = self.topic
        written = history(topic, self.count)
        root = self.folder / topic
        root.mkdir()
        Backup.completed(
            open_store(f"file://{root}"),
            written,
            topics=[TopicSpec(topic, partitions=SOURCES, config=_CONFIG)],
            block_records=200,
        )
        arguments = (f"file://{root}", PAIR, self.kafka.bootstrap, self.target, str(self.partitions), self.mode.value)
        log = self.folder / f"{topic}.log"
        began = time.monotonic()
        old: list[Run] = []
        runs = 1
        run = Run.start(log, *arguments)
        try:
            while sum(self.done.values()) < self.kills:
                self._await_trouble(run, log)
                if run.over:
                    if self._shift_was_noticed(log):
                        run = Run.start(log, *arguments)
                        runs += 1
                        continue
                    self._refuse_a_broken_broker()
                    raise WrongError(f"it ended before it was killed {self.kills} times: give it more --records")
                victim = self.dice.choice(self.victims)
                if not self._kill(victim, run):
                    continue
                self.done[victim] += 1
                self.say(f"{sum(self.done.values())}: {victim}, {run.lines[-1].strip() if run.lines else 'starting'}")
                if victim is Victim.DRIVER:
                    old.append(run)  # its executors go on as zombies for a while
                    run = Run.start(log, *arguments)
                    runs += 1
                    for before in old[:-2]:
                        before.kill()
            while not (well := self._ended_well(run)) and self._shift_was_noticed(log):
                run = Run.start(log, *arguments)
                runs += 1
            if not well:
                self._refuse_a_broken_broker()
                raise WrongError(f"the last run failed: {log.read_text()[-2000:]}")
            time.sleep(0.5)
            report = json.loads(run.lines[-1])
        finally:
            for item in (*old, run):
                item.kill()
        if report["mismatches"] or report["records"] != len(written):
            raise WrongError(f"its own check says {report}")
        self._compare(written)
        kinds = ", ".join(f"{number} {victim}" for victim, number in sorted(self.done.items()))
        return (
            f"{SOURCES} to {self.partitions} partitions: {len(written)} records, {sum(self.done.values())} kills "
            f"({kinds}), {runs} runs, {time.monotonic() - began:.0f} s: 0 lost, 0 twice, 0 out of order, "
            f"{self.shifted} shifts noticed"
        )

    def _shift_was_noticed(self, log: Path) -> bool:
        """If a run with exact offsets ended so, delete the target, as it says: the same command begins anew."""
        if self.mode is not OffsetMode.EXACT or log.read_text().count(_SHIFTED) == 0:
            return False
        self.shifted += 1
        self.best = 0
        log.rename(log.with_suffix(f".{self.shifted}.log"))
        admin = AdminClient({"bootstrap.servers": self.kafka.bootstrap})
        admin.delete_topics([self.target])[self.target].result(60)
        return True

    def _ended_well(self, run: Run) -> bool:
        try:
            return run.process.wait(_ANSWER_S) == 0
        except subprocess.TimeoutExpired:
            return False

    def _refuse_a_broken_broker(self) -> None:
        for line in self.kafka.log.read_text(errors="replace").splitlines():
            if _LOST_ITS_END in line and (f"{self.target}-" in line or f"{TOPIC}-" in line):
                raise VoidError(f"the broker has lost the end of a transaction; its log says: {line}")

    def _await_trouble(self, run: Run, log: Path) -> None:
        """Wait until it has committed something, mostly; now and then it is hit before, or while it starts."""
        chance = self.dice.random()
        if chance > _WHILE_IT_STARTS:
            self._await(run, log, lambda: run.said("loading"), "come to loading")
        if chance > _BEFORE_A_COMMIT:
            # A new run tells first what those before it have committed.
            before = self.best = max(self.best, run.committed)
            self._await(run, log, lambda: run.committed > before, "commit anything")
        time.sleep(self.dice.uniform(0.0, 2.0))

    def _await(self, run: Run, log: Path, done: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + _ANSWER_S
        while not done() and not run.over:
            if time.monotonic() > deadline:
                self._refuse_a_broken_broker()
                raise WrongError(f"a run did not {what}: {log.read_text()[-2000:]}")
            time.sleep(0.05)

    def _kill(self, victim: Victim, run: Run) -> bool:
        match victim:
            case Victim.BROKER:
                self.kafka.kill()
                time.sleep(self.dice.uniform(0.0, 3.0))
                self.kafka.start()
                return True
            case Victim.DRIVER:
                run.process.kill()
                run.process.wait()
                return True
            case Victim.EXECUTOR:
                found = run.members("CoarseGrainedExecutorBackend")
            case Victim.WORKER:
                found = run.members("pyspark.daemon")
        if not found:
            return False
        with suppress(ProcessLookupError):
            os.kill(self.dice.choice(found), signal.SIGKILL)
        return True

    def _compare(self, written: Sequence[Record]) -> None:
        choose = chooser(Partitioner.MURMUR2, self.partitions)
        for number in range(self.partitions):
            if self.partitions == SOURCES:
                self._compare_offsets([item for item in written if item.partition == number])
                continue
            rows = read_all(self.kafka.bootstrap, self.target, number)
            mine = [item for item in written if item.key is not None and choose(item.key) == number]
            for key in {item.key for item in mine} | {row[1] for row in rows}:
                if [row for row in rows if row[1] == key] != rows_of([item for item in mine if item.key == key]):
                    raise WrongError(f"{self.target}-{number}: key {key!r} is not what it was")

    def _compare_offsets(self, items: Sequence[Record]) -> None:
        """Compare one partition in order; the last record lies at the end, and none below its source offset."""
        number, servers = items[0].partition, self.kafka.bootstrap
        found = read_with_offsets(servers, self.target, number)
        start, end = starts_of(servers, self.target)[number], ends_of(servers, self.target)[number]
        if self.mode is OffsetMode.EXACT:
            if [offset for offset, _ in found] != list(range(items[0].offset, items[-1].offset + 1)):
                raise WrongError(f"{self.target}-{number} has not each offset from its first to its last record")
            found = [one for one in found if one[1][1] is not None]
        rows = [row for _, row in found]
        offsets = [offset for offset, _ in found]
        if rows != rows_of(items):
            raise WrongError(f"{self.target}-{number} is not what partition {number} was")
        moved = [at - item.offset for at, item in zip(offsets, items, strict=True)]
        if min(moved) < 0 or (self.mode is OffsetMode.EXACT and max(moved) > 0):
            raise WrongError(f"{self.target}-{number}: records were moved by {min(moved)} to {max(moved)}")
        first = items[0].offset if self.mode is OffsetMode.EXACT else items[-1].offset + 1 - len(items)
        if (start, end) != (first, offsets[-1] + 1):
            raise WrongError(f"{self.target}-{number} is [{start}, {end}), not [{first}, {offsets[-1] + 1})")
