"""The time line: where bars, handovers and ticks are, and the same in words."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from support.backups.build_backup import Backup, TopicSpec, records
from support.pipeline.doubles import MemoryStore

from tandem.backup_avro.chain.entries import EntryKind
from tandem.controller.history.turns import Turn, turn_of
from tandem.controller.http.page.timeline import GenerationSpan, timeline
from tandem.controller.status.overview import GenerationState

START = datetime(2026, 5, 4, 10, 0, tzinfo=UTC)


def at(hours: float | None) -> datetime | None:
    return None if hours is None else START + timedelta(hours=hours)


def turn(
    number: int,
    instance: str,
    claimed: float,
    completed: float | None = None,
    sealed: float | None = None,
    *,
    ended: float | None = None,
    state: GenerationState | None = GenerationState.COMPLETE,
    tainted: bool = False,
) -> Turn:
    """Hours after the start."""
    return Turn(
        generation=number,
        instance=instance,
        state=state,
        tainted=tainted,
        claimed_at=START + timedelta(hours=claimed),
        completed_at=at(completed),
        sealed_at=at(sealed),
        ended_at=at(ended),
    )


def test_a_turn_is_read_active_sealed() -> None:
    """Shares of the time from the first claim to now; a lane for each instance; a handover where b is complete."""
    old = turn(1, "a", 0, 1, 5, ended=6, state=None)
    new = turn(2, "b", 3, 4)
    line = timeline([new, old], ["a", "b"], START + timedelta(hours=10))
    assert line is not None
    assert [(lane.name, lane.y, lane.height) for lane in line.lanes] == [("a", 21, 27), ("b", 75, 27)]
    assert line.height == 108
    lanes = {lane.y: number for number, lane in enumerate(line.lanes)}
    assert [(bar.stretch, lanes[bar.y], bar.x, bar.width, bar.label) for bar in line.bars] == [
        (GenerationSpan.READING, 0, 0, 10, ""),
        (GenerationSpan.ACTIVE, 0, 10, 40, "1"),
        (GenerationSpan.SEALED, 0, 50, 10, ""),
        (GenerationSpan.READING, 1, 30, 10, ""),
        (GenerationSpan.ACTIVE, 1, 40, 60, "2"),
    ]
    assert [hand.x for hand in line.handovers] == [40]
    assert [(tick.x, tick.label) for tick in line.ticks] == [(20, "12:00"), (50, "15:00"), (80, "18:00")]
    assert line.told == (
        "generation 1 of a: claimed 2026-05-04 10:00:00Z, complete after 1h, Active for 4h, sealed, cleared",
        "generation 2 of b: claimed 2026-05-04 13:00:00Z, complete after 1h, Active for 6h",
    )


def test_what_was_given_up_what_is_kept_what_is_tainted() -> None:
    """A build that never ended, a part that stays until now, a taint in picture and words."""
    turns = [
        turn(1, "a", 0, 1, 4, ended=5, state=GenerationState.KEPT, tainted=True),
        turn(2, "b", 1, ended=2, state=None),
        turn(3, "b", 3, 3.5),
        turn(4, "a", 9, state=GenerationState.OPEN),
    ]
    line = timeline(turns, ["a", "b"], START + timedelta(hours=10))
    assert line is not None
    first = [bar for bar in line.bars if bar.told.startswith("generation 1 ")]
    assert [(bar.stretch, bar.tainted, bar.label) for bar in first] == [
        (GenerationSpan.READING, False, ""),
        (GenerationSpan.ACTIVE, True, "1 tainted"),
        (GenerationSpan.SEALED, False, ""),
        (GenerationSpan.KEPT, False, ""),
    ]
    assert first[-1].x + first[-1].width == pytest.approx(100)
    assert line.told[0].endswith("tainted, sealed, cleared in part")
    assert line.told[1].endswith("never complete, cleared")
    assert line.told[3].endswith("reading for 1h")


def test_a_short_stretch_can_still_be_seen() -> None:
    """It has a least width and no label, and stays inside."""
    long, short = turn(1, "a", 0, 1, 999.999), turn(2, "b", 999.9, 999.99)
    line = timeline([long, short], ["a", "b"], START + timedelta(hours=1000))
    assert line is not None
    assert all(bar.width >= 0.4 and bar.x >= 0 and bar.x + bar.width <= 100.001 for bar in line.bars)
    assert {bar.label for bar in line.bars} == {"", "1"}


@pytest.mark.parametrize("hours", [0.0, 1 / 3600, 0.01, 0.5, 3, 20, 24 * 3, 24 * 60, 24 * 365 * 4])
def test_there_are_a_few_ticks_at_every_scale(hours: float) -> None:
    """Labels must not run into each other on a phone."""
    line = timeline([turn(1, "a", 0, 0)], ["a", "b"], START + timedelta(hours=hours))
    assert line is not None
    assert len(line.ticks) <= 5
    assert all(0 <= tick.x <= 100 for tick in line.ticks)
    assert len({tick.label for tick in line.ticks}) == len(line.ticks)


def test_a_clock_that_went_back_draws_no_nonsense() -> None:
    """A stretch that would end before it begins is left out; an unknown instance gets a lane of its own."""
    line = timeline([turn(1, "x", 2, 1, 0)], ["a", "b"], START + timedelta(hours=1))
    assert line is not None
    assert [lane.name for lane in line.lanes] == ["a", "b", "x"]
    assert all(bar.width > 0 for bar in line.bars)


def test_nothing_is_no_picture() -> None:
    assert timeline([], ["a", "b"], START) is None


def test_turns_come_from_chains(tmp_path: Path) -> None:
    """A generation at each step of its life."""
    del tmp_path
    store = MemoryStore(clock_ms=1_790_000_000_000, step_ms=1000)
    backup = Backup.claim(store, topics=[TopicSpec("orders")])
    found = turn_of(backup.writer.state)
    assert (found.state, found.completed_at, found.ended_at) == (GenerationState.OPEN, None, None)
    backup.commit(records("orders", 0, range(3)))
    backup.complete()
    backup.taint("orders", 0, 1)
    assert turn_of(backup.writer.state).tainted
    assert turn_of(backup.writer.state).completed_at is not None
    backup.seal()
    going = backup.clearing()
    assert turn_of(backup.writer.state).state is GenerationState.CLEARING
    assert turn_of(backup.writer.state).ended_at is None
    backup.append(EntryKind.CLEARED, clearing=going)
    found = turn_of(backup.writer.state)
    assert found.state is None
    assert found.sealed_at is not None
    assert found.ended_at is not None
    assert found.claimed_at < found.sealed_at <= found.ended_at


def test_a_turn_beside_its_own_has_a_row_of_its_own() -> None:
    """An instance whose peer is gone builds the next generation beside its turn: neither hides the other."""
    turns = [turn(1, "a", 0, 1, 2, ended=3, state=None), turn(2, "a", 4, 5), turn(3, "a", 6), turn(4, "b", 7)]
    line = timeline(turns, ["a", "b"], START + timedelta(hours=10))
    assert line is not None
    assert {bar.told[:12]: bar.y for bar in line.bars} == {
        "generation 1": 21,
        "generation 2": 21,
        "generation 3": 48,
        "generation 4": 102,
    }
    assert [lane.height for lane in line.lanes] == [54, 27]


def test_a_label_fits_its_bar() -> None:
    """Where there is no room for the word, the pattern and the legend say it."""
    wide, narrow = (
        timeline([turn(1, "a", 0, 0, tainted=True), turn(2, "b", start, start, tainted=True)], ["a", "b"], now)
        for start, now in ((5, START + timedelta(hours=10)), (9, START + timedelta(hours=10)))
    )
    assert wide is not None
    assert narrow is not None
    assert [bar.label for bar in wide.bars if bar.label] == ["1 tainted", "2 tainted"]
    assert [bar.label for bar in narrow.bars if bar.label] == ["1 tainted", "2"]


def test_a_dead_instance_appends_nothing() -> None:
    """From when it was heard last, nobody works on its generation; what was sealed is sealed."""
    turns = [turn(1, "a", 0, 1, 4), turn(2, "b", 3, 4), turn(3, "a", 9)]
    line = timeline(turns, ["a", "b"], START + timedelta(hours=10), silent_since={"b": START + timedelta(hours=8)})
    assert line is not None
    of_b = [bar for bar in line.bars if bar.y == line.lanes[1].y]
    assert [(bar.stretch, bar.x, bar.width) for bar in of_b] == [
        (GenerationSpan.READING, 30, 10),
        (GenerationSpan.ACTIVE, 40, 40),
        (GenerationSpan.SILENT, 80, 20),
    ]
    assert GenerationSpan.SILENT not in {bar.stretch for bar in line.bars if bar not in of_b}
    assert line.told[1].endswith("complete after 1h, Active for 4h, its instance silent for 2h")
    dead = timeline(turns, ["a", "b"], START + timedelta(hours=10), silent_since={"a": START + timedelta(hours=2)})
    assert dead is not None
    assert dead.told[0].endswith("Active for 3h, sealed"), "it was sealed later"
    (silent,) = (bar for bar in dead.bars if bar.stretch is GenerationSpan.SILENT)
    assert (silent.x, silent.width) == (90, 10), "claimed by a process that was not heard"
