"""The demo's story: each chapter runs the commands that a person would type for one task, and prints the result."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tandem.backup_avro.chain import layout
from tandem.backup_avro.errors import PermanentError, TimedOutError
from tandem.backup_avro.json_fields import NOT_IN_JSON
from tandem.controller.config.sources import OTHER_VARIABLES, PREFIX
from tandem.controller.demo import airports
from tandem.controller.demo.topic_contents import latest, read_topic
from tandem.controller.demo.writer import DemoWriter, Ledger, Written
from tandem.sink.kafka.cluster.admin import ClusterAdmin
from tandem.sink.store.chain.chain_reader import ChainReader
from tandem.sink.store.contract.object_store import ObjectStore

PAIR, TOPIC, RESTORED = "airports", "airports", "airports.restored"
PARTITIONS = 4
_CHANGES_PER_SECOND = 150
_WAIT_S = 90.0
_TOPIC_CONFIG = {
    "cleanup.policy": "compact",
    "segment.ms": "2000",
    "segment.bytes": "1048576",
    "min.cleanable.dirty.ratio": "0.01",
    "max.compaction.lag.ms": "2000",
    "delete.retention.ms": "60000",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoServers:
    """A broker, and a store: open for the story, and as `store:` for its processes, with secrets in `variables`."""

    bootstrap_servers: str
    store: ObjectStore
    section: Mapping[str, Any]
    variables: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(slots=True, kw_only=True)
class DemoDocument:
    """`tandem demo`: what the story ends with."""

    records_written: int = 0
    tombstones_written: int = 0
    keys: int = 0
    records_restored: int = 0
    keys_restored: int = 0
    missing: int = 0
    extra: int = 0
    different: int = 0
    seconds: float = 0.0
    phases: dict[str, float] = field(default_factory=dict, metadata=NOT_IN_JSON)

    @property
    def exact(self) -> bool:
        """Whether the restored state is the source's, field by field."""
        return self.keys > 0 and not (self.missing or self.extra or self.different)


class DemoStory:
    """Runs the demo and prints each chapter with `say`. After `close`, every process that it started has ended."""

    def __init__(self, *, folder: Path, servers: DemoServers, say: Callable[[str], None]) -> None:
        self._folder = folder
        self._servers = servers
        self._say = say
        self._admin = ClusterAdmin({"bootstrap.servers": servers.bootstrap_servers})
        self._reader = ChainReader(servers.store, PAIR)
        self._config = folder / "tandem.yaml"
        self._instances: dict[str, subprocess.Popen[bytes]] = {}
        self._ledger = Ledger()
        self._writer = DemoWriter(servers.bootstrap_servers, TOPIC, self._ledger)
        self._chapter = 0
        self.figures = DemoDocument()

    def run(self) -> DemoDocument:
        """Run all chapters. Raises PermanentError or TimedOutError that names the logs, if a chapter fails."""
        for title, chapter in (
            ("A compacted topic gets its first load", self._load),
            ("Two instances come up; one reads everything and becomes Active", self._first_backup),
            ("The other one takes its turn", self._hand_over),
            ("The broker compacts the topic", self._compact),
            ("Spark restores the backup into a new topic", self._restore),
            ("Source and restored topic, key by key", self._compare),
            ("The backup checks itself", self._verify),
        ):
            self._chapter += 1
            self._say(f"\n{self._chapter}. {title}")
            began = time.monotonic()
            chapter()
            self.figures.phases[title] = time.monotonic() - began
        return self.figures

    def close(self) -> None:
        """Stop the writer and both instances."""
        self._writer.stop()
        for process in self._instances.values():
            process.terminate()
        for process in self._instances.values():
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    # --- chapters ---------------------------------------------------------------------------------------------------

    def _load(self) -> None:
        table = airports.load()
        self._admin.create_topic(TOPIC, partitions=PARTITIONS, replication_factor=1, config=_TOPIC_CONFIG)
        self._writer.write(airports.first_load(table))
        self._print_line(
            f"{len(self._ledger):,} airports written to `{TOPIC}` ({PARTITIONS} partitions, cleanup.policy=compact)"
        )
        self._writer.keep_writing(airports.changes(table, seed=7), per_second=_CHANGES_PER_SECOND)
        self._print_line(
            f"a writer goes on with {_CHANGES_PER_SECOND} changes a second: updates, closures (tombstones), "
            "empty values, headers"
        )

    def _first_backup(self) -> None:
        self._config.write_text(yaml.safe_dump(self._settings(), sort_keys=False))
        for name in ("a", "b"):
            self._start(name)
        self._print_line(f"$ tandem run --config {shlex.quote(str(self._config))}    (as a and as b, two processes)")
        self._wait("generation 1 is COMPLETE", lambda: self._complete(1))
        state = self._generation(1)
        records = sum(item.records for item in state.objects.values())
        size = sum(item.bytes for item in state.objects.values())
        self._print_line(
            f"a is Active: generation 1 is COMPLETE, {records:,} records in {len(state.objects)} objects, "
            f"{size / 1e6:.1f} MB in the store"
        )

    def _hand_over(self) -> None:
        # On a slow machine the first copy may be complete before the second process is up, which could not be asked.
        self._tandem("wait", "--for", "role=b:Passive", "--timeout", "2m", quiet=True)
        self._tandem("failover", "--to", "b", "--reason", "demo", "--yes", "--wait", "--timeout", "2m")
        self._wait("the prefix of a is empty", lambda: not self._objects_of("a"))
        state = self._generation(2)
        if state.instance != "b" or not state.complete:
            raise PermanentError(
                f"generation 2 of {state.instance} is not what the failover asked for", code="TDM-D002"
            )
        self._print_line("b is Active: generation 2 is COMPLETE and covers generation 1")
        self._print_line(
            f"a is Passive and its prefix is empty: {len(self._objects_of('a'))} objects; b has "
            f"{len(self._objects_of('b'))}"
        )

    def _compact(self) -> None:
        before = len(self._ledger)
        total = self._wait_for_compaction(before)
        self._print_line(
            f"{len(self._ledger):,} records were written so far, the broker still has {total:,}: "
            "the cleaner removed superseded ones"
        )

    def _restore(self) -> None:
        marked = len(self._ledger)
        self._wait("the backup holds what was written up to now", lambda: self._covered(marked))
        document = json.loads(self._tandem("restore", "--to", RESTORED, "--yes", "-o", "json", quiet=True))
        self._ends = _ends(document)
        self._restored = read_topic(self._servers.bootstrap_servers, RESTORED)
        self.figures.records_restored = len(self._restored)
        self._print_line(f"{len(self._restored):,} records are in `{RESTORED}`, the writer never stopped")

    def _compare(self) -> None:
        self._writer.stop()
        figures = self.figures
        expected = self._ledger.latest(self._ends)
        restored = latest(self._restored)
        figures.records_written, figures.tombstones_written = len(self._ledger), self._ledger.tombstones()
        figures.keys, figures.keys_restored = len(expected), len(restored)
        # A tombstone that compaction has removed with its key is missing on both sides.
        gone = {slot for slot, record in expected.items() if record.value is None and slot not in restored}
        figures.missing = len(expected.keys() - restored.keys() - gone)
        figures.extra = len(restored.keys() - expected.keys())
        figures.different = sum(
            _fields(expected[slot]) != _fields(restored[slot]) for slot in expected.keys() & restored.keys()
        )
        closed = sum(record.value is None for record in expected.values())
        self._print_line(
            f"{figures.keys:,} keys were written below the restored moment; {closed:,} of them are closed: the latest "
            "record is a tombstone"
        )
        self._print_line(
            f"latest record per key, every field (key, value, headers, timestamp, partition): "
            f"{figures.missing} missing, {figures.extra} extra, {figures.different} different"
        )
        self._check_source()

    def _verify(self) -> None:
        document = json.loads(self._tandem("verify", "-o", "json", quiet=True))
        self._print_line(f"verify: {_verdict(document)}")

    # --- parts ------------------------------------------------------------------------------------------------------

    def _settings(self) -> dict[str, Any]:
        return {
            "pair": PAIR,
            "topics": {"include": [TOPIC]},
            "kafka": {"bootstrap.servers": self._servers.bootstrap_servers},
            "store": dict(self._servers.section),
            "coordination": {"replication_factor": 1, "heartbeat_interval": "1s"},
            "flush": {"interval": "2s"},
            "liveness": {"timeout": "10s"},
            "peer": {"timeout": "30s"},
            "handover": {"timeout": "30s"},
        }

    def _environment(self) -> dict[str, str]:
        # A variable that is set for a pair of the user's own would send the demo to that pair's cluster and store.
        kept = {
            name: value for name, value in os.environ.items() if not name.startswith(PREFIX) or name in OTHER_VARIABLES
        }
        return {**kept, **self._servers.variables, "TANDEM_CONFIG": str(self._config)}

    def _start(self, name: str) -> None:
        log = (self._folder / f"{name}.log").open("ab")
        with log:
            self._instances[name] = subprocess.Popen(  # noqa: S603 (our own command)
                [*_TANDEM, "run"],
                stdout=log,
                stderr=log,
                env=self._environment() | {"TANDEM_INSTANCE": name},
            )

    def _tandem(self, *words: str, quiet: bool = False) -> str:
        self._print_line(f"$ tandem {shlex.join(words)}")
        # Without a terminal the commands write log lines to stderr; those go to the demo's log, not to its output.
        with (self._folder / "commands.log").open("ab") as log:
            done = subprocess.run(  # noqa: S603 (our own command)
                [*_TANDEM, *words], stdout=subprocess.PIPE, stderr=log, env=self._environment(), check=False, text=True
            )
        if done.returncode != 0:
            raise PermanentError(
                f"tandem {words[0]} ended with exit code {done.returncode}",
                code="TDM-D003",
                remedy=f"see {self._folder}/commands.log",
            )
        if not quiet:
            for line in done.stdout.splitlines():
                self._say(f"     {line}")
        return done.stdout

    def _print_line(self, line: str) -> None:
        self._say(f"   {line}")

    def _wait(self, what: str, done: Callable[[], bool]) -> None:
        deadline = time.monotonic() + _WAIT_S
        while not done():
            for name, process in self._instances.items():
                if process.poll() is not None:
                    raise PermanentError(
                        f"instance {name} ended with exit code {process.returncode} while waiting until {what}",
                        code="TDM-D004",
                        remedy=f"see {self._folder}/{name}.log",
                    )
            if time.monotonic() > deadline:
                raise TimedOutError(
                    f"timed out after {_WAIT_S:.0f} s while waiting until {what}",
                    code="TDM-D005",
                    remedy=f"see the logs in {self._folder}",
                )
            time.sleep(0.3)

    def _generation(self, number: int) -> Any:  # noqa: ANN401 (a Generation)
        self._reader.refresh()
        return next(state for state in self._reader.history() if state.number == number)

    def _complete(self, number: int) -> bool:
        return any(state.number == number and state.complete for state in self._reader.refresh())

    def _objects_of(self, instance: str) -> list[str]:
        return [info.key for info in self._servers.store.list(f"{layout.check_name(PAIR, 'pair')}/{instance}/")]

    def _covered(self, count: int) -> bool:
        wanted: dict[int, int] = {}
        for record in self._ledger.first(count):
            wanted[record.partition] = max(wanted.get(record.partition, 0), record.offset + 1)
        newest = max(self._reader.refresh(), key=lambda state: state.number)
        reached = {key.partition: position.offset for key, position in newest.positions.items()}
        return all(reached.get(partition, 0) >= offset for partition, offset in wanted.items())

    def _wait_for_compaction(self, before: int) -> int:
        total = 0

        def compacted() -> bool:
            nonlocal total
            total = len(read_topic(self._servers.bootstrap_servers, TOPIC))
            return total < before * 0.97

        self._wait("the cleaner has removed superseded records", compacted)
        return total

    def _check_source(self) -> None:
        """Compare the writer's ledger with the live topic, so that the later comparison rests on the broker's data."""
        live = latest(read_topic(self._servers.bootstrap_servers, TOPIC))
        account = self._ledger.latest()
        wrong = sum(slot not in account or _fields(account[slot]) != _fields(record) for slot, record in live.items())
        lost = sum(record.value is not None and slot not in live for slot, record in account.items())
        if wrong or lost:
            raise PermanentError(f"the live topic and the writer disagree about {wrong + lost} keys", code="TDM-D006")
        self._print_line("the live topic says the same of all keys as the writer")


def _fields(record: Written) -> tuple[object, ...]:
    return record.partition, record.key, record.value, record.headers, record.timestamp


def _ends(document: dict[str, Any]) -> dict[int, int]:
    return {int(part["partition"]): int(part["end"]) for topic in document["topics"] for part in topic["partitions"]}


def _verdict(document: dict[str, Any]) -> str:
    findings = document.get("findings", [])
    return f"{len(findings)} findings"


_TANDEM = (sys.executable, "-c", "import sys; from tandem.controller.cli.main import main; sys.exit(main())")


@contextmanager
def telling(folder: Path, servers: DemoServers, say: Callable[[str], None]) -> Iterator[DemoStory]:
    """Yield a Story and close it when the block ends, also by an exception."""
    story = DemoStory(folder=folder, servers=servers, say=say)
    try:
        yield story
    finally:
        story.close()
