"""Pauses: what they hold back and what they don't, how they are stored, who sees them, and how they end."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from support.backups.build_backup import CLUSTER, PAIR, Backup, TopicSpec, records
from support.backups.chains import Chain, complete_generation, key
from support.pairs.messages import message as message_of
from support.pairs.observations import HEARD, POLICY, RUNNING, SILENT, look, mine, peers
from support.pairs.sights import sight
from support.pipeline.doubles import MemoryStore

from tandem.backup_avro.chain import layout
from tandem.backup_avro.chain.json_codec import unpack
from tandem.backup_avro.documents.coordination_message import CoordinationEvent
from tandem.backup_avro.documents.pause import LONGEST_MS, Pause, decode_pause, encode_pause, in_force
from tandem.backup_avro.errors import ConfigError, DamagedError, NewerFormatError, RefusedError
from tandem.controller.cli.handover.reinit import builder
from tandem.controller.cli.main import run
from tandem.controller.coordination.peer_state import PeerState
from tandem.controller.decision.decide import (
    AskPeer,
    ClaimNext,
    Clear,
    Complete,
    Reason,
    Seal,
    StartPipeline,
    TakeOver,
    decide,
)
from tandem.controller.decision.observation import Activation, Observation, Role
from tandem.controller.history.handover_progress import plan
from tandem.controller.status.check import CheckLimits, Severity, check_pair
from tandem.controller.status.health import Fault
from tandem.controller.status.overview import overview
from tandem.controller.status.pair_view import PairView
from tandem.sink.store import ObjectStore
from tandem.sink.store.chain.pauses import PauseReader

GOLDEN = Path(__file__).parents[3] / "golden" / "pause"
K = key()
ORDERS = TopicSpec("orders", partitions=2)
HOUR_MS = 3_600_000


def pause(*, until: int | None = 1_700_003_600_000, at: int = 1_700_000_000_000, number: int = 1) -> Pause:
    """A pause of an hour."""
    return Pause(number=number, pair=PAIR, at=at, until=until, by="me@here", reason="größer")


# --- what is decided in a pause ---------------------------------------------------------------------------------------


PAUSED = pause(at=400_000, until=900_000)


def paused(*chains: Chain, **how: object) -> Observation:
    """What instance a sees at 500 s, in a pause that began at 400 s."""
    return look(*chains, pause=PAUSED, **how)


@pytest.mark.parametrize(
    "seen",
    [
        look(),
        look(peers(1), peer=SILENT),
        look(mine(1), at=2_000_000, pipelines={1: RUNNING}),
        look(mine(1).taint(5), pipelines={1: RUNNING}),
        look(mine(1).taint(5), pipelines={1: RUNNING}, asked_mono={2: 0.0}),
        look(peers(1), activations=(Activation(request_id="", target="a", generation=2, reason="due"),)),
    ],
    ids=["nothing exists", "Active dead", "rotation due", "tainted", "peer silent", "asked by the peer"],
)
def test_nobody_claims_by_itself_or_asks_for_it(seen: Observation) -> None:
    """Whatever would make an instance claim, or ask for a claim, waits for the end of the pause, and no longer."""
    turns = (ClaimNext, AskPeer)
    now = decide(Role.PASSIVE, seen, POLICY)
    assert [action for action in now.actions if isinstance(action, turns)], "it shows nothing"
    held = replace(seen, pause=pause(at=seen.at - 1000, until=seen.at + 1))
    waiting = decide(Role.PASSIVE, held, POLICY)
    assert [action for action in waiting.actions if isinstance(action, turns)] == []
    assert waiting.reason is Reason.PAUSED
    assert decide(Role.PASSIVE, replace(held, at=seen.at + 1), POLICY) == decide(
        Role.PASSIVE, replace(seen, at=seen.at + 1), POLICY
    )


def test_what_was_begun_goes_to_its_end() -> None:
    """A pause holds back claims and nothing else: all other actions are the same with and without it."""
    ready = mine(1), peers(2, 12)
    views = [
        look(mine(1), incarnation="a-2", peer=HEARD),
        look(mine(1), pipelines={}),
        look(*ready, pipelines={1: replace(RUNNING, draining=True, drained_mono=490.0)}),
        look(mine(1).seal(), peers(2, 12)),
    ]
    kinds = set()
    for seen in views:
        free, held = decide(Role.PASSIVE, seen, POLICY), decide(Role.PASSIVE, replace(seen, pause=PAUSED), POLICY)
        assert held.actions == free.actions
        kinds |= {type(action) for action in held.actions}
    assert kinds >= {TakeOver, StartPipeline, Seal, Clear}
    assert Complete not in kinds


def test_a_build_that_was_begun_becomes_complete() -> None:
    """COMPLETE is appended in a pause: what it says is true, and restores gain by it."""
    mine_now = complete_generation(1, {K: 10}, instance="b")
    free = look(mine_now, peers(2))
    assert decide(Role.PASSIVE, replace(free, pause=PAUSED), POLICY).role is decide(Role.PASSIVE, free, POLICY).role


def test_a_person_may_insist() -> None:
    """A request that was made in the pause is granted; one from before it is not, nor one of an instance."""
    asked = Activation(request_id="", target="a", generation=2, reason="now", by_person=True, at=PAUSED.at)
    granted = decide(Role.PASSIVE, paused(peers(1), activations=(asked,)), POLICY)
    assert granted.actions == (ClaimNext(generation=2, reason=Reason.ASKED, detail="now"),)
    future = replace(asked, at=500_000 + 60_000)
    assert decide(Role.PASSIVE, paused(peers(1), activations=(future,)), POLICY).reason is Reason.ASKED
    for late in (
        replace(asked, at=PAUSED.at - 1),
        replace(asked, by_person=False),
        replace(future, at=future.at + 1),  # it would overrule every later pause as well
    ):
        assert decide(Role.PASSIVE, paused(peers(1), activations=(late,)), POLICY).reason is Reason.PAUSED
    both = paused(peers(1), activations=(replace(asked, at=0), asked))
    assert decide(Role.PASSIVE, both, POLICY).reason is Reason.ASKED


def test_requests_carry_their_time() -> None:
    """The peers hands on when a request was made: that is what tells insisting from an old wish."""
    peers = PeerState(pair=PAIR, instances=("a", "b"), incarnation="a-1")
    message = message_of(
        event=CoordinationEvent.ACTIVATE,
        instance="cli",
        incarnation="x",
        cluster_id=CLUSTER,
        at=4711,
        target="a",
        generation=2,
    )
    peers.note_message(message)
    assert [(one.at, one.by_person) for one in peers.activations()] == [(4711, True)]


# --- bytes and store --------------------------------------------------------------------------------------------------


def test_a_pause_holds_up_to_its_end() -> None:
    """To the millisecond; what ends one holds nothing, and neither does none."""
    assert in_force(pause(until=10), 9) == pause(until=10)
    assert in_force(pause(until=10), 10) is None
    assert in_force(pause(until=None), 0) is None
    assert in_force(None, 0) is None


def test_documents_come_back_and_golden_files_are_what_is_written() -> None:
    """What was published stays readable, and the same content is the same bytes."""
    for name, made in (("pause.json", pause()), ("resume.json", pause(until=None, number=2))):
        data = (GOLDEN / name).read_bytes()
        assert encode_pause(made) == data
        assert decode_pause(data, name) == made


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"v": 2}, NewerFormatError, "format version 2 is not known"),
        ({"more": 1}, NewerFormatError, "unknown field more"),
        ({"until": "later"}, DamagedError, "'later' is not a time"),
        ({"at": "then"}, DamagedError, "'then' is not a time"),
        ({"number": None}, DamagedError, "field number is not a int"),
    ],
)
def test_damaged_pauses_are_refused(change: dict[str, object], error: type[DamagedError], words: str) -> None:
    """Strictly parsed, with the place."""
    document = json.loads(unpack(encode_pause(pause()), "x")) | change
    with pytest.raises(error) as refused:
        decode_pause(json.dumps(document).encode(), "pauses/1.json")
    assert str(refused.value).startswith(f"pauses/1.json: {words}")


def test_the_newest_counts_and_a_reader_reads_on() -> None:
    """Numbered by put if absent: two that ask at once get two numbers, and both see the later one."""
    store = MemoryStore()
    ours, theirs = PauseReader(store, PAIR), PauseReader(store, PAIR)
    assert ours.refresh() is None
    first = ours.append(pause(number=0))
    second = theirs.append(pause(number=0, until=None))
    assert (first.number, second.number) == (1, 2)
    assert ours.refresh() == theirs.refresh() == second


def test_one_that_cannot_be_read_ends_the_pause() -> None:
    """Turns go on, which endangers nothing; and the pair can be paused again."""
    store = MemoryStore()
    reader = PauseReader(store, PAIR)
    reader.append(pause())
    store.put_if_absent(layout.pause_key(PAIR, 2), b"{}")
    store.put_if_absent(layout.pause_key(PAIR, 3), encode_pause(pause(number=7)))
    assert reader.refresh() is None
    again = reader.append(pause())
    assert (again.number, reader.refresh()) == (4, again)


# --- what people see --------------------------------------------------------------------------------------------------


def completed(store: ObjectStore, number: int = 1, instance: str = "a") -> Backup:
    """A generation that is COMPLETE."""
    return Backup.completed(store, records("orders", 0, range(10)), topics=[ORDERS], number=number, instance=instance)


def seen_paused(store: ObjectStore, **how: object) -> PairView:
    """A look at a pair that was paused a second ago, for an hour."""
    seen = sight(store, **how)  # type: ignore[arg-type]  # as `sight` has it
    return replace(seen, pause=pause(at=seen.at - 1000, until=seen.at + HOUR_MS))


def test_status_and_check_show_it(store: ObjectStore) -> None:
    """A pause is a remark and no problem, but a WARNING to who watches: it must not be forgotten."""
    completed(store)
    found = overview(seen_paused(store, heard_s={"a": 1, "b": 1}))
    assert (found.healthy, found.pause is not None) == (True, True)
    assert found.notes[0].startswith("the pair is paused by me@here until 20")
    report = check_pair(found, {}, CheckLimits())
    assert (report.severity, report.findings[0].message) == (
        Severity.WARNING,
        "paused by me@here for another 1h (größer)",
    )


def test_a_paused_pair_whose_active_dies_is_critical(store: ObjectStore) -> None:
    """And it is said that nobody takes over by itself."""
    completed(store)
    found = overview(seen_paused(store, heard_s={"b": 1}, later_s=3600))
    report = check_pair(found, {}, CheckLimits())
    assert report.severity is Severity.CRITICAL
    assert report.findings[0].fault is Fault.ACTIVE_SILENT
    assert "`tandem resume`, or `tandem failover --force`" in report.findings[0].remedy
    alone = check_pair(overview(seen_paused(store, later_s=3600)), {}, CheckLimits())
    assert alone.severity is Severity.CRITICAL


def test_remedies_do_not_promise_what_a_pause_holds_back(store: ObjectStore) -> None:
    """Tainted, sealed without a successor, overdue, nothing complete: each says that the pause comes first."""
    backup = Backup.claim(store, topics=[ORDERS])
    dropped = overview(replace(seen_paused(store), generations=(), newest=1))
    assert "the pair is paused" in dropped.problems[0].remedy
    backup.commit(records("orders", 0, range(10)))
    backup.complete()
    late = overview(seen_paused(store, heard_s={"a": 1, "b": 1}, later_s=30 * 86400))
    overdue = next(problem for problem in late.problems if problem.fault is Fault.TURN_OVERDUE)
    assert "the pair is paused" in overdue.remedy
    backup.taint("orders", 0, 10)
    tainted = overview(seen_paused(store, heard_s={"a": 1, "b": 1}))
    assert "the pair is paused" in tainted.problems[0].remedy
    backup.seal()
    sealed = overview(seen_paused(store, heard_s={"a": 1, "b": 1}))
    assert "the pair is paused" in sealed.problems[0].remedy


def test_a_failover_is_refused_unless_forced(store: ObjectStore) -> None:
    """With the way out; forced, the pause is among the warnings, and its begin known to the request."""
    completed(store)
    seen = seen_paused(store, heard_s={"a": 1, "b": 1}, topics=[ORDERS])
    with pytest.raises(RefusedError) as refused:
        plan(seen, to=None, force=False)
    assert refused.value.code == "TDM-I008"
    forced = plan(seen, to=None, force=True)
    assert seen.pause is not None
    assert forced.paused_at == seen.pause.at
    assert forced.warnings[0].endswith("this turn is taken in spite of it")
    assert plan(replace(seen, pause=None), to=None, force=False).paused_at is None


def test_pause_and_resume(store: ObjectStore, config: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Brokers are not needed; status, check and failover see it; resuming ends it, and is no error without one."""
    completed(store)
    assert run(["pause", "-c", config, "--for", "2h", "--reason", "broker  upgrade", "-o", "json"]) == 0
    printed = capsys.readouterr()
    told = json.loads(printed.out)
    assert (told["paused"], told["number"], told["reason"]) == (True, 1, "broker upgrade")
    assert "look by themselves within a heartbeat" in printed.err
    assert run(["check", "-c", config, "--s3-only"]) == 1
    assert capsys.readouterr().out.startswith("WARNING - paused by ")
    assert run(["status", "-c", config, "--s3-only"]) == 0
    assert "broker upgrade" in capsys.readouterr().out
    assert run(["resume", "-c", config]) == 0
    assert f"the pause of pair {PAIR} is over: turns that are due begin now" in capsys.readouterr().out
    assert run(["check", "-c", config, "--s3-only"]) == 0
    capsys.readouterr()
    assert run(["resume", "-c", config]) == 0
    assert capsys.readouterr().out == f"pair {PAIR} was not paused: there is nothing to end\n"


def test_without_an_end_it_lasts_two_hours(store: ObjectStore, config: str, capsys: pytest.CaptureFixture[str]) -> None:
    """And a pair of which nothing is stored is doubted: it may be a typing mistake."""
    assert run(["pause", "-c", config, "-o", "json"]) == 0
    printed = capsys.readouterr()
    told = json.loads(printed.out)
    assert told["until"][:13] != told["at"][:13]
    assert "nothing is stored yet for pair shop" in printed.err
    found = PauseReader(store, PAIR).refresh()
    assert found is not None
    assert found.until is not None
    assert 7_195_000 <= found.until - found.at <= 7_205_000


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--for", "1h", "--until", "2026-05-04T10:00:00Z"], "are not allowed together"),
        (["--until", "2020-05-04T10:00:00Z"], "is over already"),
        (["--until", "2020-05-04T10:00:00"], "says no zone"),
        (["--until", "tomorrow"], "is no moment"),
        (["--for", "0s"], "is over already"),
        (["--for", "31d"], "is longer than 30d"),
        (["--for", "two hours"], "--for two hours"),
    ],
)
def test_pauses_that_are_none(
    config: str, store: ObjectStore, arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 2, and nothing is written."""
    assert run(["pause", "-c", config, *arguments]) == 2
    assert says in capsys.readouterr().err
    assert PauseReader(store, PAIR).refresh() is None
    assert LONGEST_MS == 30 * 24 * HOUR_MS


# --- reinit -----------------------------------------------------------------------------------------------------------


def test_reinit_asks_whose_copy_it_is(store: ObjectStore) -> None:
    """The Active if nothing is said; else the instance, or the owner of the generation."""
    completed(store)
    seen = sight(store, heard_s={"a": 1, "b": 1}, topics=[ORDERS])
    assert builder(seen, None, None) == "a"
    assert builder(seen, "b", None) == "b"
    assert builder(seen, None, 1) == builder(seen, "a", 1) == "a"
    assert builder(replace(seen, generations=()), None, None) is None
    asked = plan(seen, to=builder(seen, None, None), force=False)
    assert (asked.target, asked.generation, asked.beside_itself) == ("a", 2, True)


@pytest.mark.parametrize(
    ("instance", "generation", "says"),
    [("c", None, "choose a or b"), (None, 7, "there are 1"), ("b", 1, "generation 1 is a's, not b's")],
)
def test_reinit_of_what_is_not_there(
    store: ObjectStore, instance: str | None, generation: int | None, says: str
) -> None:
    """Refused with what there is."""
    completed(store)
    with pytest.raises(ConfigError) as refused:
        builder(sight(store), instance, generation)
    assert says in str(refused.value)
