"""The layout of the time line: the turns of a pair as bars, in percent of the width. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from itertools import pairwise
from typing import Final

from tandem.controller.cli.output.output import duration
from tandem.controller.history.turns import Turn

_TICKS: Final = 4
_LEAST_WIDTH: Final = 0.4
_LABELLED: Final = 2.5
_WORDED: Final = 24.0
#: Pixels of an instance's name, of a bar with its gap, and between two instances.
NAME_PX: Final = 21
BAR_PX: Final = 27
GAP_PX: Final = 6
_STEPS: Final = (
    *(timedelta(seconds=s) for s in (1, 2, 5, 10, 15, 30)),
    *(timedelta(minutes=m) for m in (1, 2, 5, 10, 15, 30)),
    *(timedelta(hours=h) for h in (1, 2, 3, 6, 12)),
    *(timedelta(days=d) for d in (1, 2, 4, 7, 14, 28, 91, 182, 364)),
)


class GenerationSpan(StrEnum):
    """The state of a generation in one span of its life."""

    READING = "reading all"
    ACTIVE = "Active"
    SEALED = "sealed"
    KEPT = "kept in part"
    SILENT = "nobody appends"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One span of a generation. `x` and `width` are percents of the time line's width, `y` is in pixels.

    `label` is empty if there is no room. `told` describes the bar in words.
    """

    stretch: GenerationSpan
    y: int
    x: float
    width: float
    label: str
    tainted: bool
    told: str


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceRows:
    """The rows of one instance; `y` and `height` in pixels, without its name above."""

    name: str
    y: int
    height: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Handover:
    """The moment at which a turn passed from one lane to another, in percent of the width."""

    x: float
    told: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AxisTick:
    """A moment on the axis, in percent of the width."""

    x: float
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """The time line, `height` pixels high without the axis. `told` describes it in words, a line per generation."""

    lanes: tuple[InstanceRows, ...]
    height: int
    bars: tuple[Bar, ...]
    handovers: tuple[Handover, ...]
    ticks: tuple[AxisTick, ...]
    told: tuple[str, ...]


def timeline(
    turns: Sequence[Turn],
    instances: Sequence[str],
    now: datetime,
    *,
    silent_since: Mapping[str, datetime] | None = None,
) -> Timeline | None:
    """Return the time line of these turns up to `now`, None if there are none.

    `silent_since` has the instances that are dead: nothing of theirs is shown as going on after that moment.
    """
    silent = silent_since or {}
    if not turns:
        return None
    turns = sorted(turns, key=lambda turn: turn.generation)
    rows_of = _rows_of(turns, instances)
    lanes: dict[str, InstanceRows] = {}
    height = 0
    for name, rows in rows_of.items():
        lanes[name] = InstanceRows(name=name, y=height + NAME_PX, height=BAR_PX * len(rows))
        height += NAME_PX + BAR_PX * len(rows) + GAP_PX
    start = min(turn.claimed_at for turn in turns)
    scale = _Scale(start, max(now, start + timedelta(seconds=1)))
    return Timeline(
        lanes=tuple(lanes.values()),
        height=height,
        bars=tuple(
            bar
            for name, rows in rows_of.items()
            for row, its in enumerate(rows)
            for turn in its
            for bar in _bars(turn, lanes[name].y + BAR_PX * row, scale, silent.get(name))
        ),
        handovers=tuple(_handovers(turns, scale)),
        ticks=tuple(_ticks(scale)),
        told=tuple(_told(turn, now, silent.get(turn.instance)) for turn in turns),
    )


def _rows_of(turns: Sequence[Turn], instances: Sequence[str]) -> dict[str, list[list[Turn]]]:
    """Return each instance's turns in rows without overlap: an instance may build beside its own Active generation."""
    found: dict[str, list[list[Turn]]] = {name: [[]] for name in instances}
    for turn in turns:
        rows = found.setdefault(turn.instance, [[]])
        free = next((row for row in rows if not row or _over(row[-1], turn.claimed_at)), None)
        if free is None:
            rows.append([turn])
        else:
            free.append(turn)
    return found


def _over(turn: Turn, moment: datetime) -> bool:
    return turn.ended_at is not None and turn.ended_at <= moment and turn.state is None


class _Scale:
    def __init__(self, start: datetime, end: datetime) -> None:
        self.start, self.end = start, end

    def at(self, moment: datetime) -> float:
        share = (moment - self.start) / (self.end - self.start)
        return round(100 * min(1.0, max(0.0, share)), 2)


def _bars(turn: Turn, y: int, scale: _Scale, silent: datetime | None) -> Iterator[Bar]:
    until = turn.ended_at or scale.end
    last = _last_at_work(turn, until, silent)
    moments = (
        (GenerationSpan.READING, turn.claimed_at, turn.completed_at or last),
        (GenerationSpan.ACTIVE, turn.completed_at, turn.sealed_at or last),
        (GenerationSpan.SILENT, last if last < until else None, until),
        (GenerationSpan.SEALED, turn.sealed_at, until),
        (GenerationSpan.KEPT, turn.ended_at if turn.state is not None else None, scale.end),
    )
    for stretch, begin, end in moments:
        if begin is None or end < begin:
            continue
        x = scale.at(begin)
        width = max(_LEAST_WIDTH, scale.at(end) - x)
        yield Bar(
            stretch=stretch,
            y=y,
            x=min(x, 100 - width),
            width=round(width, 2),
            label=_label(turn, stretch, width),
            tainted=turn.tainted and stretch is GenerationSpan.ACTIVE,
            told=f"generation {turn.generation} of {turn.instance}: {stretch.value} for {duration(end - begin)}",
        )


def _last_at_work(turn: Turn, until: datetime, silent: datetime | None) -> datetime:
    """Return up to when an open generation was worked on: `until`, unless its owner is dead."""
    if silent is None or turn.sealed_at is not None or turn.ended_at is not None:
        return until
    return min(until, max(silent, turn.completed_at or turn.claimed_at))


def _label(turn: Turn, stretch: GenerationSpan, width: float) -> str:
    named = stretch is GenerationSpan.ACTIVE or (stretch is GenerationSpan.READING and turn.completed_at is None)
    if not named or width < _LABELLED:
        return ""
    wide = stretch is GenerationSpan.ACTIVE and turn.tainted and width >= _WORDED
    return f"{turn.generation} tainted" if wide else str(turn.generation)


def _handovers(turns: Sequence[Turn], scale: _Scale) -> Iterator[Handover]:
    for before, after in pairwise(turns):
        if after.completed_at is not None and before.instance != after.instance and before.completed_at is not None:
            yield Handover(
                x=scale.at(after.completed_at),
                told=f"handover: generation {after.generation} of {after.instance} is complete",
            )


def _ticks(scale: _Scale) -> Iterator[AxisTick]:
    span = scale.end - scale.start
    step = next((step for step in _STEPS if span / step <= _TICKS), span)
    zero = scale.start.replace(hour=0, minute=0, second=0, microsecond=0)
    moment = zero + -(-(scale.start - zero) // step) * step
    form = "%H:%M:%S" if step < timedelta(minutes=1) else "%H:%M" if step < timedelta(days=1) else "%b %d"
    while moment <= scale.end:
        midnight = moment == moment.replace(hour=0, minute=0, second=0, microsecond=0)
        yield AxisTick(x=scale.at(moment), label=f"{moment:%b %d}" if midnight else f"{moment:{form}}")
        moment += step


def _told(turn: Turn, now: datetime, silent: datetime | None) -> str:
    last = _last_at_work(turn, now, silent)
    parts = [f"generation {turn.generation} of {turn.instance}: claimed {turn.claimed_at:%Y-%m-%d %H:%M:%S}Z"]
    if turn.completed_at is None:
        parts.append("never complete" if turn.ended_at else f"reading for {duration(last - turn.claimed_at)}")
    else:
        parts.append(f"complete after {duration(turn.completed_at - turn.claimed_at)}")
        parts.append(f"Active for {duration((turn.sealed_at or last) - turn.completed_at)}")
    if last < now:
        parts.append(f"its instance silent for {duration(now - last)}")
    if turn.tainted:
        parts.append("tainted")
    if turn.sealed_at is not None:
        parts.append("sealed")
    if turn.ended_at is not None:
        parts.append("cleared" if turn.state is None else "cleared in part")
    return ", ".join(parts)
