"""A campaign: rounds of hurt, heal, wait, restore, judge, tell."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from support.patience import answered

from chaos.broker_log import skipped_markers
from chaos.crew import POLL_S, Crew, UnhealthyError, raise_to
from chaos.facts import Ends, Facts, Place
from chaos.faults import Fault as Trouble
from chaos.faults import schedule
from chaos.follower import read_topics
from chaos.judge import Fault, Finding, Guarded, Restored, counts, held, judge, judge_guard, overdue
from chaos.restoring import (
    RestoreFailedError,
    TaintedError,
    confirmed,
    log_starts,
    placed,
    positions,
    read_backups,
    restore_with_spark,
    sweep_with_spark,
)
from chaos.stage import COMPACTED, PLACES, SCALE, STAMPED, Stage
from chaos.writers import Kind, Order
from tandem.backup_avro.chain.generation import Generation
from tandem.backup_avro.errors import RefusedError, TandemError, TransientError
from tandem.sink.store.chain.chain_reader import ChainReader

_SOME = 12
_T = TypeVar("_T")

ORDERS: Final = (
    Order(name="plain", kind=Kind.PLAIN, places=PLACES, rate=40, keys=150, stamped=STAMPED),
    Order(name="idempotent", kind=Kind.IDEMPOTENT, places=PLACES, rate=60, keys=150, stamped=STAMPED),
    Order(name="transactional", kind=Kind.TRANSACTIONAL, places=PLACES, rate=80, keys=150, stamped=STAMPED),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a campaign does. Every `spark_every`-th round and the last one end with a restore by Spark; 0: none.

    `limit_s` is the longest wait until the pair is well again.
    """

    rounds: int
    seed: int
    first: int = 1
    spark_every: int = 10
    limit_s: float = 240.0


@dataclass(slots=True, kw_only=True)
class Tally:
    """What a campaign saw. `findings` are those of all restores."""

    rounds: int = 0
    faults: int = 0
    restores: int = 0
    spark_restores: int = 0
    restored_records: int = 0
    seconds: float = 0.0
    findings: list[Finding] = field(default_factory=list)
    trouble: str | None = None
    generations: int = 0
    guarded_turns: int = 0
    guarded_partitions: int = 0
    written: int = 0
    aborted: int = 0
    exits: list[str] = field(default_factory=list)
    orphans: int = 0
    skipped: int = 0

    @property
    def clean(self) -> bool:
        """Whether nothing is wrong."""
        return not self.findings and self.trouble is None

    def __str__(self) -> str:
        found = counts(self.findings)
        return (
            f"{self.rounds} rounds, {self.faults} faults, {self.seconds:.0f} s; {self.written:,} records written, "
            f"{self.aborted:,} aborted; {self.generations} generations, {self.guarded_turns} turns guarded "
            f"({self.guarded_partitions:,} partitions compared); {self.restores} restores, "
            f"{self.spark_restores} of them by Spark, {self.restored_records:,} records restored; "
            f"{len(self.exits)} processes ended by themselves; "
            + (f"{self.skipped} commits whose markers the broker skipped; " if self.skipped else "")
            + ", ".join(f"{found[fault]} {fault.value}" for fault in Fault)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kept:
    """What came back at one moment: the newest state, which must hold `confirmed`, and each generation by itself."""

    when: str
    newest: Restored
    alone: tuple[Restored, ...]
    confirmed: Ends

    @property
    def lowest(self) -> dict[Place, int]:
        """The lowest cut that this moment or a later one can have: positions only grow."""
        return {
            place: min((end, *(restored.ends.get(place, end) for restored in self.alone)))
            for place, end in self.newest.ends.items()
        }


class Campaign:
    """Carries a plan out in `folder`, and tells a line per round to `say`. `run` never leaves a process behind."""

    def __init__(self, plan: Plan, folder: Path, *, say: Callable[[str], None]) -> None:
        self._plan = plan
        self._folder = folder
        self._say = say
        self._facts = Facts(PLACES)
        self._confirmed: dict[Place, int] = {}
        self._kept: list[_Kept] = []
        self._notes: list[str] = []
        self._where = "before the first round"
        self._numbers: set[int] = set()
        self.tally = Tally()

    def run(self) -> Tally:
        """Return what was seen; it stops at the first round that shows something wrong."""
        began = time.monotonic()
        with ExitStack() as stack:
            self._stage = stage = stack.enter_context(Stage(self._folder, note=self._notes.append))
            self._reader = ChainReader(stage.store, stage.pair.name, ended=True)
            seed = self._plan.seed
            self._crew = stack.enter_context(
                Crew(stage.kafka.bootstrap, ORDERS, PLACES, self._facts, seed=str(seed), limit_s=self._plan.limit_s)
            )
            stage.up()
            try:
                self._wait("generation 1 is complete", self._covering)
                self._say(f"set up in {time.monotonic() - began:.0f} s, seed {seed}; logs in {self._folder}")
                for number in range(self._plan.first, self._plan.first + self._plan.rounds):
                    self._round(number)
                    if self.tally.findings:
                        break
            except (UnhealthyError, RestoreFailedError, TaintedError, TandemError, TimeoutError) as error:
                self.tally.trouble = f"{type(error).__name__}: {error}"
                self._say(f"trouble {self._where}: {self.tally.trouble}")
                for note in self._notes:
                    self._say(f"           {note}")
            finally:
                self._count()
                self.tally.seconds = time.monotonic() - began
            # Told to end while the broker still answers; the servers go when the stack is unwound.
            stage.heal()
        return self.tally

    # --- one round --------------------------------------------------------------------------------------------------

    def _round(self, number: int) -> None:
        faults = schedule(self._plan.seed, number, SCALE)
        self._where = f"in round {number} with {' '.join(map(str, faults))}"
        began = time.monotonic()
        written, restores_before = self._facts.records, self.tally.restores
        restored_before = self.tally.restored_records
        self._numbers.clear()
        self._notes.clear()
        self._kept.clear()
        self._hurt(number, faults)
        hurt_s = time.monotonic() - began
        self._stage.heal()
        marked = self._facts.acknowledged()
        first = self._wait("a complete generation covers all that was acknowledged", lambda: self._covering(marked))
        self._wait(f"all that generation {first} supersedes is cleared", lambda: self._cleared_before(first))
        self._wait("the newest state is restored without doubt", lambda: self._kept_without_doubt("after the round"))
        self._judge_guard()
        findings = self._judge_all()
        spark = ""
        if self._spark_is_due(number):
            findings += self._judge_spark(number)
            spark = " (+ Spark)"
        self._facts.forget(self._kept[-1].lowest)
        objects, size, orphans = self._patiently(self._stored)
        if orphans and self._spark_is_due(number):
            objects, size, orphans = self._sweep(number, orphans)
        self.tally.rounds += 1
        self.tally.faults += len(faults)
        self.tally.findings += findings
        self.tally.orphans = orphans
        found = counts(findings)
        numbers = sorted(self._numbers)
        self._say(
            f"round {number:>3}  {time.monotonic() - began:5.1f} s (hurt {hurt_s:.0f})  "
            f"written {self._facts.records - written:>5,}  generations {numbers[0]}-{numbers[-1]}  "
            f"{self.tally.restores - restores_before} restores{spark}, "
            f"{self.tally.restored_records - restored_before:,} records  "
            f"store {objects} objects {size / 1e6:.1f} MB, {orphans} left over  "
            + " ".join(f"{fault.value} {found[fault]}" for fault in (Fault.LOST, Fault.TWICE, Fault.RESURRECTED))
            + f" guarded {self.tally.guarded_turns}"
            + "  "
            + " ".join(map(str, faults))
        )
        for note in self._notes:
            self._say(f"           {note}")
        for finding in findings[:_SOME]:
            self._say(f"           {finding}")

    def _hurt(self, number: int, faults: tuple[Trouble, ...]) -> None:
        """Let the faults begin and end at their times, and restore in between, whatever is the matter just then."""
        draw = random.Random(f"{self._plan.seed}/{number}/looks")
        stage = self._stage
        newest = max((state.number for state in self._patiently(self._history)), default=0)
        steps: list[tuple[float, int, Callable[[], None]]] = []
        for fault in faults:
            steps.append((fault.at, 1, partial(stage.begin, fault, newest)))
            steps.append((fault.at + fault.lasts, 0, partial(stage.end, fault)))
        over = max(at for at, _, _ in steps)
        for _ in range(2):
            at = draw.uniform(0, over)
            steps.append((at, 2, partial(self._look, at)))
        began = time.monotonic()
        for at, _, step in sorted(steps, key=lambda item: item[:2]):
            while time.monotonic() - began < at:
                stage.tend()
                self._check_crew()
                time.sleep(POLL_S)
            step()

    def _look(self, at: float) -> None:
        if self._stage.store_in_reach:
            try:
                self._keep(f"{at:.0f} s into the round")
            except (TransientError, TaintedError) as error:
                self._notes.append(f"no look at {at:.0f} s: {error}")

    def _spark_is_due(self, number: int) -> bool:
        every = self._plan.spark_every
        last = self._plan.first + self._plan.rounds - 1
        return bool(every) and (number == last or number % every == 0)

    # --- waiting ----------------------------------------------------------------------------------------------------

    def _wait(self, what: str, done: Callable[[], _T]) -> _T:
        """Return what `done` returns once that is true. Raises UnhealthyError if it takes too long."""
        deadline = time.monotonic() + self._plan.limit_s
        why = "?"
        while True:
            self._stage.tend()
            self._check_crew()
            try:
                if found := done():
                    return found
                why = self._standing()
            except TransientError as error:
                why = str(error)
            if time.monotonic() > deadline:
                words = "\n".join(
                    slot.running.last_words() for slot in self._stage.slots.values() if slot.running is not None
                )
                raise UnhealthyError(f"waited {self._plan.limit_s:.0f} s in vain until {what}\n{why}\n{words}")
            time.sleep(POLL_S)

    def _patiently(self, call: Callable[[], _T]) -> _T:
        """Call again while the store does not answer, although nothing is meant to keep it: the machine is busy."""
        return answered(call, TransientError, self._plan.limit_s)

    def _check_crew(self) -> None:
        self._crew.check()
        if self._stage.crashes:
            raise UnhealthyError(f"an instance ended with an error that no fault justifies: {self._stage.crashes}")

    def _covering(self, marked: Mapping[Place, int] | None = None) -> int:
        """Return the first sound generation that covers `marked`, 0 if none does, or not both instances run."""
        if not self._stage.settled:
            return 0
        wanted = marked if marked is not None else dict.fromkeys(PLACES, 0)
        covering = (
            state.number
            for state in self._history()
            if state.complete
            and not state.taints
            and state.whole
            and all(positions(state).get(place, -1) >= end for place, end in wanted.items())
        )
        return min(covering, default=0)

    def _cleared_before(self, number: int) -> bool:
        """Whether both instances run, and each generation before `number` is wholly cleared.

        How many later ones there are says nothing: on a busy machine the next turns begin before a copy is cleared.
        """
        return self._stage.settled and not overdue(self._history(), number)

    def _history(self) -> list[Generation]:
        self._reader.refresh()
        states = self._reader.history()
        live = [state for state in states if not state.gone]
        self._numbers.update(state.number for state in live)
        raise_to(self._confirmed, confirmed(live))
        self._conclude_held([finding for state in live for finding in held(state)])
        return states

    def _standing(self) -> str:
        return "\n".join(
            f"generation {g.number} of {g.instance}: seq {g.seq}, complete {g.complete}, sealed {g.sealed}, "
            f"clearing {g.clearing is not None}, taints {len(g.taints)}, at {positions(g) if g.complete else '-'}"
            for g in self._reader.history()
            if not g.gone
        )

    # --- restoring and judging --------------------------------------------------------------------------------------

    def _keep(self, when: str) -> None:
        """Restore now and keep what came for the judge, with what must be in it."""
        self._history()
        before = dict(self._confirmed)
        try:
            newest, *alone = read_backups(self._reader)
        except RefusedError as error:
            raise RestoreFailedError(f"{when}: {error}") from error
        self._kept.append(_Kept(when=when, newest=newest, alone=tuple(alone), confirmed=before))
        raise_to(self._confirmed, newest.ends)
        self.tally.restores += 1 + len(alone)
        self.tally.restored_records += sum(len(restored.rows) for restored in (newest, *alone))

    def _kept_without_doubt(self, when: str) -> bool:
        """Keep it unless something of it is in doubt: a tainted generation, replaced by now, may not be cleared yet."""
        try:
            self._keep(when)
        except TaintedError:
            return False
        return True

    def _judge_all(self) -> list[Finding]:
        """Judge each restore, also against the live topics, once the facts reach its cut."""
        for kept in self._kept:
            for restored in (kept.newest, *kept.alone):
                self._crew.await_facts(restored.ends)
        skipped = skipped_markers(self._stage.kafka.log)
        self._crew.doubt(skipped)
        self.tally.skipped = len(skipped)
        live = read_topics(self._stage.kafka.bootstrap, {place: place for place in COMPACTED})
        findings: list[Finding] = []
        for kept in self._kept:
            for restored, confirmed_before in ((kept.newest, kept.confirmed), *((each, {}) for each in kept.alone)):
                found = judge(restored, self._facts, confirmed=confirmed_before, live=live)
                if found:
                    what = "the newest state, on" if restored is kept.newest else "by itself"
                    self._say(f"           {kept.when}: {what} generation {restored.generation}: {len(found)} findings")
                findings += found
        if self._facts.contradictions:
            raise UnhealthyError(f"the witnesses disagree: {self._facts.contradictions[:_SOME]}")
        return findings

    def _judge_guard(self) -> None:
        """Look at what the shrink guard did so far, and whether it did anything. Raises UnhealthyError."""
        guarded = self._guarded()
        self._conclude_held(guarded.findings)
        if guarded.trouble is not None:
            raise UnhealthyError(guarded.trouble)

    def _guarded(self) -> Guarded:
        guarded = judge_guard(self._reader.history(), (one.text() for one in self._stage.pair.instances))
        self.tally.guarded_turns, self.tally.guarded_partitions = guarded.turns, guarded.partitions
        return guarded

    def _conclude_held(self, findings: Sequence[Finding]) -> None:
        """End the campaign: what is held stays until a person lets it go, so waiting for its end would be in vain."""
        if findings:
            self.tally.findings += findings
            raise UnhealthyError("\n".join(str(finding) for finding in findings[:_SOME]))

    def _judge_spark(self, number: int) -> list[Finding]:
        stage = self._stage
        self._patiently(self._history)
        before = dict(self._confirmed)
        copies = restore_with_spark(
            stage.pair.settings,
            stage.folder / "pair",
            bootstrap=stage.kafka.bootstrap,
            suffix=f".round-{number}",
            places=PLACES,
        )
        self._crew.await_facts(copies.ends)
        # The log may have moved its start between the looks; what the backup says now is at least what it said then.
        restored = placed(copies, self._facts, log_starts=log_starts(self._patiently(self._history)))
        self.tally.spark_restores += 1
        self.tally.restores += 1
        self.tally.restored_records += len(restored.rows)
        return judge(restored, self._facts, confirmed=before)

    def _sweep(self, number: int, orphans: int) -> tuple[int, int, int]:
        """Have retention delete what processes that woke up late have put under generations that were cleared."""
        folder = self._stage.folder / "pair"
        sweep_with_spark(self._stage.pair.settings, folder, log=f"retention.round-{number}")
        stored = self._patiently(self._stored)
        if stored[2]:
            raise UnhealthyError(f"{stored[2]} objects of cleared generations are there after retention, see {folder}")
        self._notes.append(f"retention deleted {orphans} objects of cleared generations")
        return stored

    # --- figures ----------------------------------------------------------------------------------------------------

    def _stored(self) -> tuple[int, int, int]:
        """Return objects and bytes of data in the store, and how many objects lie in generations that are cleared."""
        stage = self._stage
        gone = {state.number for state in self._history() if state.gone}
        objects = size = orphans = 0
        for name in ("a", "b"):
            for info in stage.store.list(f"{stage.pair.name}/{name}/"):
                objects += 1
                size += info.size
                orphans += int(info.key.split("generation=")[1][:8]) in gone
        return objects, size, orphans

    def _count(self) -> None:
        self.tally.written, self.tally.aborted = self._facts.records, self._facts.aborted
        self.tally.exits = list(self._stage.exits)
        self.tally.generations = self._reader.newest
        self._guarded()
