"""Restore points: each span is judged by asking, for moments in it and beside it, what `--at` would restore."""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import datetime

import pytest
from support.backups.build_backup import Backup, records
from support.backups.requests import cut_request
from support.pairs.sights import POLICY
from support.pipeline.doubles import MemoryStore

from tandem.backup_avro.chain.entries import EntryKind
from tandem.backup_avro.chain.generation import Generation
from tandem.backup_avro.documents.checkpoint import Checkpoint, CheckpointOutcome
from tandem.backup_avro.errors import RefusedError
from tandem.backup_avro.selection.moments import moment_at
from tandem.controller.cli.output.point_lines import point_rows
from tandem.controller.decision.restore_points import PointKind, RestorePoint, restore_points
from tandem.sink.store.chain.pins import FOR_EVER, LASTING, Pin

START = 1_700_000_000_000
HOUR = 3_600_000
DAY = replace(POLICY, recovery_window_s=86_400)


def chain(store: MemoryStore, number: int, begins: int, hours: int, *, seal: bool = True) -> Backup:
    """A generation that is complete at hour `begins` and commits every hour until it is sealed."""
    store.clock_ms = START + begins * HOUR
    made = Backup.completed(store, records("t", 0, range(3)), number=number)
    for hour in range(1, hours + 1):
        store.clock_ms = START + (begins + hour) * HOUR
        made.append(EntryKind.CONFIRM, head_at=store.clock_ms)
    if seal:
        made.seal()
    return made


def spans(points: tuple[RestorePoint, ...]) -> list[tuple[int, int, int]]:
    """(generation, first ms, last ms) of the moments of generations that have a command with --at."""
    return [
        (one.generation or 0, ms(one.start), ms(one.end))
        for one in points
        if one.kind is PointKind.GENERATION and one.command is not None and "--at" in one.command
    ]


def ms(at: datetime | None) -> int:
    assert at is not None
    return round(at.timestamp() * 1000)


@pytest.mark.parametrize("seed", range(20))
def test_each_moment_is_in_the_span_of_the_generation_that_restores_it(seed: int) -> None:
    """Turns that overlap, follow each other with a hole, or lost one in between; every half hour is asked for."""
    chance = random.Random(seed)
    store, hour, states = MemoryStore(clock_ms=START, step_ms=0), 0, list[Generation]()
    for number in range(1, 6):
        hours = chance.randint(1, 6)
        made = chain(store, number, hour, hours, seal=number < 5)
        if chance.random() < 0.7 or number == 5:
            states.append(made.writer.state)
        hour += hours + chance.choice((-1, 0, 2))
    found = spans(restore_points(states, now=START + hour * HOUR, policy=DAY))
    asked = 0
    for half in range(-2, 2 * hour + 2):
        at = START + half * HOUR // 2
        named = [number for number, first, last in found if first <= at < last or (first == last == at)]
        try:
            answer = moment_at(states, at)[0]
            # In a hole `--at` gives the last state before it: a state of an earlier moment, so no span has that one.
            expected = [answer.number] if answer.moments[-1].at >= at else []
        except RefusedError:
            expected = []
        if at > max(last for _, _, last in found) or any(at == last for _, _, last in found):
            continue  # beyond the newest moment the newest state is meant; where two spans meet both names are right
        assert named == expected, f"half hour {half} of seed {seed}"
        asked += 1
    assert asked > 10


def test_how_long_each_stays() -> None:
    """The Active's until its turn and the window after that, a sealed one for the window, longer for a checkpoint."""
    store = MemoryStore(clock_ms=START, step_ms=0)
    one = chain(store, 1, 0, 5)
    two = chain(store, 2, 4, 3, seal=False)
    states, now = [one.writer.state, two.writer.state], START + 8 * HOUR
    newest, second, first = restore_points(states, now=now, policy=DAY)
    assert (newest.kind, newest.generation, newest.command) == (PointKind.NEWEST, 2, "tandem restore")
    assert ms(second.kept_until) == two.writer.state.claim.at + 8 * 86_400_000
    assert second.kept_by is not None
    assert second.kept_by.startswith("the turn due 2023-11-22 02:13:20Z, and 1d more")
    assert ms(first.kept_until) == START + 5 * HOUR + 86_400_000
    plain = restore_points(states, now=now, policy=POLICY)
    assert plain[2].kept_by == "nothing: it is cleared next"
    assert ms(plain[1].kept_until) == two.writer.state.claim.at + 7 * 86_400_000
    pin = Pin(id=f"{LASTING}x", generation=1, owner="checkpoint nightly", until=FOR_EVER)
    held = restore_points(states, now=now, policy=POLICY, pins=[pin])[2]
    assert (held.kept_until, held.kept_by) == (None, "checkpoint nightly, until that is deleted")
    reader = replace(pin, id="reader-1", until=now + 1000)
    assert restore_points(states, now=now, policy=POLICY, pins=[reader])[2].kept_by == "nothing: it is cleared next"
    assert all(point.kept_until is None for point in restore_points(states, now=now, policy=None))


def test_what_is_left_of_a_cleared_generation() -> None:
    """Partitions that stay are restored by number, and a person lets them go; while all goes there is no command."""
    store = MemoryStore(clock_ms=START, step_ms=0)
    one = chain(store, 1, 0, 5)
    two = chain(store, 2, 4, 3, seal=False)
    one.clearing({one.key("t", 0): "3 keys vanished"})
    point = restore_points([one.writer.state, two.writer.state], now=START + 8 * HOUR, policy=DAY)[-1]
    assert point.command == "tandem restore t --generation 1 --no-merge"
    assert point.kept_by == "a person, who may `tandem release` t"
    three = chain(store, 3, 9, 1)
    three.clearing()
    point = restore_points([three.writer.state], now=START + 11 * HOUR, policy=DAY)[-1]
    assert (point.command, point.why_not) == (None, "it is being cleared")
    assert restore_points([], now=START, policy=DAY) == ()


def test_checkpoints_come_with_their_command_or_the_reason() -> None:
    """A completed one, one that is being made, one that failed, one that can't be read; as rows, too."""
    store = MemoryStore(clock_ms=START, step_ms=0)
    one = chain(store, 1, 0, 5, seal=False)
    key = one.key("t", 0)
    request = cut_request(at=START + 2 * HOUR, deadline=START + 3 * HOUR, cut={key: 3}, topics={key.topic_id: "t"})
    done = CheckpointOutcome(id="nightly", nonce=request.nonce, at=START, by="a", generation=1, seq=4)
    failed = CheckpointOutcome(id="other", nonce=request.nonce, at=START, by="a", reason="no time")
    points = restore_points(
        [one.writer.state],
        now=START + 5 * HOUR // 2,
        policy=DAY,
        checkpoints=[
            Checkpoint(request=request, outcome=done),
            Checkpoint(request=replace(request, id="soon")),
            Checkpoint(request=replace(request, id="other"), outcome=failed),
        ],
        unreadable={"torn": "no JSON"},
    )
    found = [one for one in points if one.kind is PointKind.CHECKPOINT]
    assert [(one.name, one.command, one.why_not) for one in found] == [
        ("nightly", "tandem restore --checkpoint nightly", None),
        ("soon", None, "it is being made"),
        ("other", None, "it is failed: no time"),
        ("torn", None, "it can't be read: no JSON"),
    ]
    rows = list(point_rows(points))
    moment = "2023-11-15 00:13:20Z"
    assert rows[2] == ("checkpoint nightly", None, moment, "a person, who may delete it", found[0].command)
    assert rows[-1] == ("checkpoint torn", None, None, None, "none: it can't be read: no JSON")
    assert rows[1][1:3] == ("2023-11-14 22:13:20Z", "2023-11-15 03:13:20Z")
