"""A soak: servers, writers and a pair for long; looked at all along, compared now and then, judged at the end."""

from __future__ import annotations

import csv
import secrets
import threading
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import astuple, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Final

from chaos.crew import Crew, Topics, UnhealthyError, make_topics, raise_to
from chaos.facts import Facts, Place
from chaos.judge import Finding, Restored, judge, judge_guard, overdue
from chaos.restoring import (
    confirmed,
    log_starts,
    placed,
    read_backups,
    restore_with_spark,
    sweep_with_spark,
)
from chaos.writers import Kind, Order
from support.pairs.instances import Instance, Pair, store_section
from support.patience import answered

from soak.process import in_use, look
from soak.samples import Judgement, Sample
from soak.samples import judge as judge_samples
from tandem.backup_avro.errors import TransientError
from tandem.controller.sandbox.kafka import KafkaServer
from tandem.controller.sandbox.ports import LOOPBACK, pick_ports
from tandem.controller.sandbox.s3 import S3Server
from tandem.controller.sandbox.sigv4 import S3Key
from tandem.sink.store.chain.chain_reader import ChainReader

NAMES: Final = ("a", "b")
_BUCKET = "soak"
_LOOK_S = 10.0
_SERVER_S = 90.0
_PATIENCE_S = 240.0
_SOME = 12
#: What is not judged: so many handovers, by which each instance has been through all roles twice, and so much of the
#: time, in which pools and caches fill.
WARM_UP_TURNS = 4
WARM_UP_SHARE = 0.2

# Small segments, cleaned soon; tombstones live just long enough for the tombstone rule to hold.
_CLEANED: Final = {
    "cleanup.policy": "compact",
    "segment.ms": "5000",
    "segment.bytes": "1048576",
    "min.cleanable.dirty.ratio": "0.1",
    "max.compaction.lag.ms": "5000",
    "delete.retention.ms": "60000",
    "file.delete.delay.ms": "1000",
}
TOPICS: Final[Topics] = {
    "steady": (4, _CLEANED),
    "stamped": (2, _CLEANED | {"message.timestamp.type": "LogAppendTime"}),
    "wide": (24, _CLEANED),
}
PLACES: Final[tuple[Place, ...]] = tuple((topic, n) for topic, (count, _) in TOPICS.items() for n in range(count))
_BUSY: Final = tuple(place for place in PLACES if place[0] != "wide")
_WIDE: Final = tuple(place for place in PLACES if place[0] == "wide")
ORDERS: Final = (
    Order(name="plain", kind=Kind.PLAIN, places=_WIDE, rate=100, keys=300, stamped=frozenset()),
    Order(name="idempotent", kind=Kind.IDEMPOTENT, places=_BUSY, rate=200, keys=2000, stamped=frozenset({"stamped"})),
    Order(
        name="transactional", kind=Kind.TRANSACTIONAL, places=_BUSY, rate=200, keys=2000, stamped=frozenset({"stamped"})
    ),
)
_PAIR: Final[Mapping[str, Any]] = {
    "flush": {"interval": "2s"},
    "groups": {"interval": "30s"},
    "grace": {"rewrite": "1m"},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a soak does; all in seconds. `compare_s` and `sweep_s` are times between two of them."""

    seconds: float
    turn_s: float = 180.0
    compare_s: float = 300.0
    sweep_s: float = 900.0
    horizon: str = "5m"
    seed: str = "soak"


@dataclass(slots=True, kw_only=True)
class Tally:
    """What a soak saw."""

    seconds: float = 0.0
    written: int = 0
    generations: int = 0
    guarded_turns: int = 0
    guarded_partitions: int = 0
    commits: int = 0
    restores: int = 0
    spark_restores: int = 0
    sweeps: int = 0
    compared: int = 0
    scrapes: int = 0
    findings: list[Finding] = field(default_factory=list)
    judgements: dict[str, Judgement] = field(default_factory=dict)

    def __str__(self) -> str:
        return (
            f"{self.seconds / 60:.0f} min; {self.written:,} records written; {max(0, self.generations - 1)} handovers, "
            f"{self.guarded_turns} turns guarded ({self.guarded_partitions:,} partitions compared), "
            f"{self.commits:,} chain entries; {self.restores} restores ({self.spark_restores} by Spark), "
            f"{self.compared:,} records compared, {len(self.findings)} wrong; {self.sweeps} sweeps; "
            f"{self.scrapes:,} scrapes"
        )


class Soak:
    """Carries a plan out in `folder`; what was measured goes to `samples.csv` in it. No process is left behind."""

    def __init__(self, plan: Plan, folder: Path, *, say: Callable[[str], None]) -> None:
        self._plan = plan
        self._folder = folder
        self._say = say
        self._facts = Facts(PLACES)
        self._confirmed: dict[Place, int] = {}
        self._samples: dict[str, list[Sample]] = {name: [] for name in NAMES}
        self._warm_at: float | None = None
        self.tally = Tally()

    def run(self) -> Tally:
        """Return what was seen. Raises UnhealthyError, RestoreFailedError, TandemError; `tally` has what there was."""
        self._began = time.monotonic()
        with ExitStack() as stack:
            self._set_up(stack)
            self._go_on()
            self._compare_with_spark()
            self._await_cleared()
            self._stop_pair()
            self._judge()
        return self.tally

    @property
    def _now(self) -> float:
        return time.monotonic() - self._began

    # --- what stands there ------------------------------------------------------------------------------------------

    def _set_up(self, stack: ExitStack) -> None:
        self._kafka = KafkaServer(self._folder / "kafka", overrides={"log.cleaner.backoff.ms": "2000"})
        stack.callback(self._kafka.stop)
        key = S3Key(access_key=f"key-{secrets.token_hex(4)}", secret_key=secrets.token_urlsafe(24))
        s3 = S3Server(self._folder / "s3", bucket=_BUCKET, key=key)
        stack.callback(s3.stop)
        self._kafka.start(timeout_s=_SERVER_S)
        s3.start(timeout_s=_SERVER_S)
        make_topics(self._kafka.bootstrap, TOPICS)
        pair_folder = self._folder / "pair"
        pair_folder.mkdir()
        section = store_section(f"s3://{_BUCKET}/root", s3)
        settings = {**_PAIR, "rotation": {"interval": f"{self._plan.turn_s:.0f}s"}}
        self._pair = stack.enter_context(
            Pair(pair_folder, bootstrap=self._kafka.bootstrap, store=section, topics=list(TOPICS), **settings)
        )
        self._reader = ChainReader(self._pair.store, self._pair.name, ended=True)
        self._crew = stack.enter_context(
            Crew(self._kafka.bootstrap, ORDERS, PLACES, self._facts, seed=self._plan.seed, limit_s=_PATIENCE_S)
        )
        ports = dict(zip(NAMES, pick_ports(len(NAMES)), strict=True))
        self._pages = {name: f"http://{LOOPBACK}:{port}" for name, port in ports.items()}
        self._running: dict[str, Instance] = {
            name: self._pair.start(name, http={"listen": f"{LOOPBACK}:{ports[name]}"}) for name in NAMES
        }
        stack.callback(self._end_pair)
        self._pair.wait("generation 1 is complete", lambda: self._pair.complete(1), timeout_s=_PATIENCE_S)
        self._say(f"set up in {self._now:.0f} s, in {self._folder}")

    def _end_pair(self) -> None:
        for instance in self._running.values():
            if instance.alive:
                instance.kill()

    # --- the time between -------------------------------------------------------------------------------------------

    def _go_on(self) -> None:
        compare_at, sweep_at = self._plan.compare_s, self._plan.sweep_s
        stop = threading.Event()
        looking = threading.Thread(target=self._look_on, args=(stop,), name="look", daemon=True)
        looking.start()
        try:
            while self._now < self._plan.seconds:
                self._check_crew()
                if self._now >= compare_at:
                    compare_at = self._now + self._plan.compare_s
                    self._compare()
                if self._now >= sweep_at:
                    sweep_at = self._now + self._plan.sweep_s
                    self._sweep()
                time.sleep(1.0)
        finally:
            stop.set()
            looking.join()

    def _look_on(self, stop: threading.Event) -> None:
        """Measure both processes until told to stop, whatever the campaign waits for meanwhile."""
        with (self._folder / "samples.csv").open("w", encoding="utf-8", newline="") as table:
            rows = csv.writer(table)
            rows.writerow(["instance", *(item.name for item in fields(Sample))])
            while not stop.wait(_LOOK_S):
                for name, instance in self._running.items():
                    with suppress(OSError):  # it ended, or is too busy for a page: the one is noticed, the other passes
                        allocated, blocks = in_use(self._scrape(name))
                        sample = replace(look(instance.process.pid, at=self._now), allocated=allocated, blocks=blocks)
                        self._samples[name].append(sample)
                        rows.writerow([name, *(round(value, 2) for value in astuple(sample))])
                table.flush()

    def _scrape(self, name: str) -> str:
        """As production would: Prometheus asks each instance, a load balancer asks for its health, a person looks.

        Returns the metrics.
        """
        pages = []
        for path in ("/livez", "/", "/metrics"):
            with urllib.request.urlopen(f"{self._pages[name]}{path}", timeout=30) as answer:
                pages.append(answer.read().decode())
            self.tally.scrapes += 1
        return str(pages[-1])

    def _check_crew(self) -> None:
        for name, instance in self._running.items():
            if not instance.alive:
                raise UnhealthyError(
                    f"{name} ended with exit code {instance.process.returncode}\n{instance.last_words()}"
                )
        self._crew.check()
        if self._warm_at is None and self._generations() > WARM_UP_TURNS:
            self._warm_at = self._now

    def _generations(self) -> int:
        with suppress(TransientError):  # a busy machine; looked at again in a moment
            self._reader.refresh()
        return sum(state.complete for state in self._reader.history())

    def _compare(self) -> None:
        """Read back what each complete generation holds, and judge it."""
        before = self._note_confirmed()
        newest, *alone = answered(lambda: read_backups(self._reader), TransientError, _PATIENCE_S)
        findings = []
        for restored, least in ((newest, before), *((each, {}) for each in alone)):
            self._crew.await_facts(restored.ends)
            findings += judge(restored, self._facts, confirmed=least)
            self._count(restored)
        lowest = {
            place: min((end, *(each.ends.get(place, end) for each in alone))) for place, end in newest.ends.items()
        }
        self._facts.forget(lowest)
        self._conclude([*findings, *self._judge_guard()])

    def _judge_guard(self) -> tuple[Finding, ...]:
        """Return what the shrink guard holds though no log lost a key. Raises UnhealthyError if it did nothing."""
        guarded = judge_guard(self._reader.history(), (instance.text() for instance in self._pair.instances))
        self.tally.guarded_turns, self.tally.guarded_partitions = guarded.turns, guarded.partitions
        if guarded.trouble is not None:
            raise UnhealthyError(guarded.trouble)
        return guarded.findings

    def _compare_with_spark(self) -> None:
        """Load the newest state into new topics, and judge what is in them."""
        before = self._note_confirmed()
        copies = restore_with_spark(
            self._pair.settings,
            self._folder / "pair",
            bootstrap=self._kafka.bootstrap,
            suffix=".restored",
            places=PLACES,
        )
        self._crew.await_facts(copies.ends)
        self._note_confirmed()
        restored = placed(copies, self._facts, log_starts=log_starts(self._reader.history()))
        self.tally.spark_restores += 1
        self._count(restored)
        self._conclude(judge(restored, self._facts, confirmed=before))

    def _sweep(self) -> None:
        folder, number = self._folder / "pair", self.tally.sweeps + 1
        sweep_with_spark(self._pair.settings, folder, log=f"retention-{number}", horizon=self._plan.horizon)
        self.tally.sweeps = number

    def _note_confirmed(self) -> dict[Place, int]:
        raise_to(self._confirmed, confirmed(answered(self._reader.refresh, TransientError, _PATIENCE_S)))
        return dict(self._confirmed)

    def _count(self, restored: Restored) -> None:
        self.tally.restores += 1
        self.tally.compared += len(restored.rows)

    def _conclude(self, findings: Sequence[Finding]) -> None:
        self.tally.findings += findings
        self._sum_up()
        now = {name: samples[-1] for name, samples in self._samples.items() if samples}
        self._say(
            f"{self._now / 60:6.1f} min  generation {self.tally.generations}  {self.tally.restores} restores  "
            + "  ".join(
                f"{name}: {sample.rss / 1e6:.1f} MB, {sample.threads} threads, {sample.descriptors} descriptors"
                for name, sample in now.items()
            )
        )
        if self._facts.contradictions:
            raise UnhealthyError(f"the witnesses disagree: {self._facts.contradictions[:_SOME]}")
        if findings:
            raise UnhealthyError("\n".join(str(finding) for finding in findings[:_SOME]))

    # --- the end ----------------------------------------------------------------------------------------------------

    def _await_cleared(self) -> None:
        """Wait until all that the newest complete generation supersedes is cleared, and judge the guard once more."""
        deadline = time.monotonic() + _PATIENCE_S
        newest = self._newest()
        while late := self._superseded(newest):
            self._check_crew()
            if time.monotonic() > deadline:
                self._conclude(self._judge_guard())
                raise UnhealthyError(f"superseded, and not cleared within {_PATIENCE_S:.0f} s: generations {late}")
            time.sleep(1.0)
        self._conclude(self._judge_guard())

    def _newest(self) -> int:
        states = answered(self._reader.refresh, TransientError, _PATIENCE_S)
        return max(state.number for state in states if state.complete)

    def _superseded(self, newest: int) -> list[int]:
        return overdue(answered(self._reader.refresh, TransientError, _PATIENCE_S), newest)

    def _stop_pair(self) -> None:
        for name, instance in self._running.items():
            code = instance.terminate()
            if code != 0:
                raise UnhealthyError(f"{name} ended with exit code {code} after SIGTERM\n{instance.last_words()}")

    def _sum_up(self) -> None:
        states = self._reader.history()
        self.tally.seconds = self._now
        self.tally.written = self._facts.records
        self.tally.generations = max((state.number for state in states if state.complete), default=0)
        self.tally.commits = sum(state.seq for state in states)

    def _judge(self) -> None:
        self._sum_up()
        warm_at = self._plan.seconds if self._warm_at is None else self._warm_at
        start = max(warm_at, WARM_UP_SHARE * self._plan.seconds)
        for name, samples in self._samples.items():
            self.tally.judgements[name] = judge_samples(samples, start=start, width=2 * self._plan.turn_s)
