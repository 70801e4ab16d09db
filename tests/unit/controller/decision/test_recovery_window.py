"""The recovery window beside what is promised: from real chains whose store has a clock of its own."""

from __future__ import annotations

import random
import re
from dataclasses import replace
from pathlib import Path

import pytest
from support.backups.build_backup import PAIR, Backup, TopicSpec, records
from support.pairs.sights import POLICY, sight
from support.pipeline.doubles import MemoryStore

from tandem.backup_avro.chain.entries import EntryKind
from tandem.backup_avro.chain.generation import Generation
from tandem.backup_avro.errors import ExitCode
from tandem.backup_avro.selection.moments import unbroken_from
from tandem.controller.cli.main import run
from tandem.controller.decision.decide import Reason
from tandem.controller.decision.pair_rules import kept_for_window
from tandem.controller.decision.recovery_window import cut_until, most_copies, recovery_window
from tandem.controller.status.check import CheckLimits, CheckReport, Severity, check_pair
from tandem.controller.status.overview import overview
from tandem.sink.store.chain.chain_reader import ChainReader
from tandem.spark_jobs.restore.plan.options import RestoreOptions, plan_of

START = 1_700_000_000_000
HOUR = 3_600_000
WEEK = replace(POLICY, recovery_window_s=7 * 86_400)


class Turns:
    """A pair that takes one turn after the other; hours count from its first complete generation."""

    def __init__(self) -> None:
        self.store = MemoryStore(clock_ms=START, step_ms=0)
        self.backups: list[Backup] = []

    def turn(self, hour: int) -> Backup:
        """Another generation is complete at that hour; the one before is sealed a minute later."""
        self.store.clock_ms = START + hour * HOUR
        made = Backup.completed(self.store, records("t", 0, range(3)), number=len(self.backups) + 1)
        self.store.clock_ms += 60_000
        if self.backups:
            self.backups[-1].seal()
        self.backups.append(made)
        return made

    @property
    def states(self) -> list[Generation]:
        """The generations as the chains tell; the first was claimed when nothing existed, the others were not."""
        return [
            replace(b.writer.state, claim=replace(b.writer.state.claim, reason=Reason.NOTHING_EXISTS.value))
            if b.number == 1
            else b.writer.state
            for b in self.backups
        ]


@pytest.fixture
def turns() -> Turns:
    return Turns()


def test_without_a_complete_generation_there_is_none(turns: Turns) -> None:
    """Neither of nothing, nor of a build."""
    assert recovery_window([], now=START, policy=WEEK) is None
    assert cut_until([], unbroken_from([]), WEEK) is None
    build = Backup.begun(turns.store, records("t", 0, range(3)))
    assert recovery_window([build.writer.state], now=START, policy=WEEK) is None


def test_a_young_backup_misses_nothing(turns: Turns) -> None:
    """What was never backed up was not lost; the window grows until it is as long as promised, over turns too."""
    turns.turn(0)
    turns.turn(10)
    young = recovery_window(turns.states, now=START + 24 * HOUR, policy=WEEK)
    assert young is not None
    assert (young.length_s, young.promised_s, young.missing_s) == (86_400, 7 * 86_400, 0)
    assert young.full_at is not None
    assert young.full_at.timestamp() * 1000 == START + 7 * 24 * HOUR
    assert young.text == (
        "Recovery window: 1d, as the backup is not older; recovery.window promises 7d, reached at 2023-11-21 22:13:20Z."
    )
    grown = recovery_window(turns.states, now=START + 8 * 24 * HOUR, policy=WEEK)
    assert grown is not None
    assert (grown.full_at, grown.missing_s) == (None, 0)
    assert grown.text == "Recovery window: 8d; recovery.window promises 7d."
    assert cut_until(turns.states, unbroken_from(turns.states), WEEK) is None


def test_what_older_copies_had_is_missing(turns: Turns) -> None:
    """The first copy is gone, and with it what is promised now: said until the second is old enough."""
    turns.turn(0)
    turns.turn(10)
    left = turns.states[1:]
    assert cut_until(left, unbroken_from(left), WEEK) == START + (10 + 7 * 24) * HOUR
    assert cut_until(left, unbroken_from(left), POLICY) is None, "nothing is promised"
    window = recovery_window(left, now=START + 24 * HOUR, policy=WEEK)
    assert window is not None
    assert (window.length_s, window.missing_s) == (14 * 3600, (10 + 6 * 24) * 3600)
    assert window.text == (
        "Recovery window: 14h, as older copies are gone; recovery.window promises 7d, reached at 2023-11-22 08:13:20Z."
    )
    later = recovery_window(left, now=START + 30 * 24 * HOUR, policy=WEEK)
    assert later is not None
    assert (later.missing_s, later.full_at) == (0, None)


def test_where_a_copy_between_two_is_gone_the_window_ends(turns: Turns) -> None:
    """A copy that a checkpoint keeps restores its own moments; those between it and the next are gone."""
    for hour in (0, 10, 20):
        turns.turn(hour)
    one, two, three = turns.states
    assert unbroken_from([three, one, two]) == START
    assert unbroken_from([one, three]) == START + 20 * HOUR
    assert unbroken_from([two, one]) == START
    turns.backups[1].clearing({turns.backups[1].key("t", 0): "kept"})
    assert unbroken_from(turns.states) == START + 20 * HOUR, "what is partly cleared restores no moment"


def test_nothing_is_promised_by_default(turns: Turns) -> None:
    """Said, so that nobody learns it when he needs the past."""
    turns.turn(0)
    window = recovery_window(turns.states, now=START + HOUR, policy=POLICY)
    assert window is not None
    assert (window.promised_s, window.missing_s, window.full_at, window.copies) == (0, 0, None, 2)
    assert window.text == "Recovery window: 1h; recovery.window promises none, so the next turn may end it."


@pytest.mark.parametrize(
    ("window_h", "copies"), [(0, 2), (1, 2), (4, 2), (5, 2), (6, 3), (10, 3), (15, 3), (16, 4), (20, 4), (100, 12)]
)
def test_the_copies_that_turns_every_ten_hours_need(window_h: int, copies: int) -> None:
    """Against a count by the minute: builds of up to half the interval, each older copy sealed when they end."""
    assert most_copies(window_h * 3600, 10 * 3600) == copies
    most = 0
    for build_m in (1, 60, 300):
        for minute in range(600 * (window_h // 10 + 3), 600 * (window_h // 10 + 5)):
            begun = minute // 600  # generation n begins at minute 600 n, and is complete `build_m` later
            complete = begun if minute >= begun * 600 + build_m else begun - 1
            kept = sum((n + 1) * 600 + build_m > minute - window_h * 60 for n in range(complete))
            most = max(most, begun - complete + 1 + kept)
    assert most == copies


def test_check_and_status_say_that_the_window_is_short(turns: Turns) -> None:
    """A warning for as long as moments that were promised are gone, and none before or after."""
    turns.turn(0)
    promised_s = 7 * 86_400.0

    def checked(later_s: float, window_s: float = promised_s) -> CheckReport:
        return check_pair(overview(sight(turns.store, later_s=later_s, window_s=window_s)), {}, CheckLimits())

    def findings(report: CheckReport) -> list[str]:
        return [
            one.message for one in report.findings if one.severity is Severity.WARNING and "promises" in one.message
        ]

    # Chains of tests say that somebody asked for them, so the first one here is not the pair's first.
    costs = "(3 copies at most, by the schedule of turns)"
    assert findings(checked(3600 - 60)) == [
        f"1h can be restored, of 7d that recovery.window promises {costs}: older copies are gone"
    ]
    assert findings(checked(promised_s)) == []
    assert checked(promised_s).summary.endswith(f" is Active, recovery.window 7d {costs}")
    assert checked(promised_s, 0.0).summary.endswith(" is Active"), "none is promised, and none is paid for"


@pytest.mark.parametrize("seed", range(10))
def test_each_moment_of_the_window_is_restored_as_it_was(seed: int) -> None:
    """Ten turns at random times; after each step what may go is cleared, and the state one window ago is asked for."""
    rng = random.Random(seed)
    store = MemoryStore(clock_ms=START, step_ms=0)
    window_ms = rng.choice((1, 20, 50, 120)) * 60_000
    policy = replace(POLICY, recovery_window_s=window_ms / 1000)
    topic = TopicSpec("t")
    active = Backup.completed(store, records("t", 0, range(3)), topics=[topic])
    known, end, asked, cleared = [(store.clock_ms, 3)], 3, 0, 0  # what was restorable when: (time, log end)
    older: list[Backup] = []
    while active.number <= 10 or asked < 100:
        store.clock_ms += rng.randint(1, 10 * 60_000)
        if rng.random() < 0.15:  # a turn: the next copy has what came meanwhile, and the older one may still commit
            end += rng.randint(0, 3)
            following = Backup.begun(store, records("t", 0, range(end)), topics=[topic], number=active.number + 1)
            store.clock_ms += rng.randint(1, 30 * 60_000)
            if rng.random() < 0.5:
                _commit(active, known, end := end + 1)
            following.commit(records("t", 0, range(following.positions[following.key("t", 0)].offset, end)))
            following.complete()
            known.append((store.clock_ms, end))
            store.clock_ms += rng.randint(0, 60_000)
            active.seal()
            older, active = [*older, active], following
        else:
            _commit(active, known, end := end + rng.randint(0, 3))
        now = store.clock_ms
        states = [backup.writer.state for backup in (*older, active)]
        kept = kept_for_window(states, now=now, policy=policy)
        for backup in [one for one in older if one.number not in kept]:
            backup.append(EntryKind.CLEARED, clearing=backup.clearing())
            store.delete([key for key in store.objects if f"/generation={backup.number:08d}/" in key])
            older.remove(backup)
            cleared += 1
        moment = now - window_ms
        if moment >= known[0][0]:
            asked += 1
            made = plan_of(ChainReader(store, PAIR), RestoreOptions(at=moment))
            restored = sum(item.records for found in made.topics for item in found.partitions)
            assert restored == next(upto for at, upto in reversed(known) if at <= moment)
    assert cleared, "nothing was ever cleared: this shows nothing"


def _commit(backup: Backup, known: list[tuple[int, int]], end: int) -> None:
    backup.commit(records("t", 0, range(backup.positions[backup.key("t", 0)].offset, end)))
    known.append((backup.store.clock_ms, end))  # type: ignore[attr-defined]  # a store in memory


@pytest.mark.parametrize("horizon", ["95h", "3d"])
def test_a_sweep_keeps_what_the_window_promises(horizon: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A shorter horizon would end moments that were promised: refused before anything is read."""
    place = ["--root", "file:///nowhere", "--pair", "p", "--set", "recovery.window=4d"]
    assert run(["retention", *place, "--horizon", horizon]) == ExitCode.REFUSED
    told = capsys.readouterr().err
    assert f"--horizon {horizon} would end moments that recovery.window promises: 4d [TDM-T010]" in told
    assert run(["retention", *place, "--horizon", "4d"]) != ExitCode.REFUSED
    assert "TDM-T010" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("says", "code"),
    [
        ((), "TDM-T019"),
        (("--set", "recovery.window=4d"), "TDM-T010"),
        (("--set", "recovery.window=0s"), None),
        (("-c",), None),
    ],
)
def test_a_sweep_knows_what_the_window_promises(
    says: tuple[str, ...], code: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a configuration the default of 0s is nobody's promise, and no reason to sweep; a plan sweeps nothing."""
    root = tmp_path.as_uri()
    config = tmp_path / "tandem.yaml"
    config.write_text(f"pair: p\nstore: {{root: '{root}'}}\n", encoding="utf-8")
    given = ("-c", str(config)) if says == ("-c",) else ("--root", root, "--pair", "p", *says)
    for execute in (("--execute",), ()):
        run(["retention", *given, "--horizon", "1h", *execute])
        told = capsys.readouterr().err
        wanted = code if execute or code != "TDM-T019" else None
        assert set(re.findall(r"TDM-T\d+", told)) == ({wanted} if wanted else set()), told
