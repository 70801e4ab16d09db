"""The content of the status page: selected, sorted and bounded from an overview, turns and job results. Pure."""

from __future__ import annotations

import heapq
import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import PurePath
from typing import Final

from tandem.backup_avro.chain.integers import utc_time
from tandem.backup_avro.documents.outcome import JobKind, JobOutcome
from tandem.controller.cli.output.output import age, duration, size
from tandem.controller.decision.restore_points import RestorePoint
from tandem.controller.history.describe import Holding
from tandem.controller.history.turns import Turn
from tandem.controller.http.page.problem_list import ProblemList, problem_list
from tandem.controller.http.page.timeline import Timeline, timeline
from tandem.controller.http.page.trends import TrendLine, Trends
from tandem.controller.status.overview import (
    GenerationState,
    GenerationStatus,
    InstanceStatus,
    Overview,
    PositionStatus,
)

#: The most rows of each list on the page.
ROWS: Final = 50
_NEAR_S: Final = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """One figure. `good` is False if it needs attention, `word` says why in a word; None if it is not judged.

    `line` is how it was, if an instance has kept it.
    """

    name: str
    value: str
    detail: str
    good: bool | None = None
    word: str = ""
    line: TrendLine | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CatchUp:
    """How far an instance is with the first reading of a generation: a share from 0 to 1, and the seconds left.

    `left_s` is None while the pace is not known.
    """

    share: float
    left_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LastRun:
    """The last verification, drill or retention. `came` is its result in a word or two."""

    kind: str
    at: datetime | None
    good: bool | None
    came: str
    what: str
    seconds: float | None
    command: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionRow:
    """One partition; `words` are its problems. `held`, what the generation holds of it, None if nobody asked."""

    position: PositionStatus
    words: tuple[str, ...]
    held: Holding | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Partitions:
    """The partitions of one generation, worst first. `hidden` is the number of those that are not listed.

    `total` is what the generation holds of all of them, None if nobody asked.
    """

    generation: int
    rows: tuple[PartitionRow, ...]
    hidden: int
    total: Holding | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Freshness:
    """The age of a part of the page: its name, seconds (None: no data yet), and why there is no newer data."""

    what: str
    age_s: float | None
    trouble: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """The page. `me` is the instance that shows it, None for a report from the store alone; that has no `freshness`.

    `found` is None as long as the instance waits for its store or its brokers. `active` is the generation that takes
    records.
    """

    pair: str
    me: str | None
    found: Overview | None
    tiles: tuple[Tile, ...] = ()
    timeline: Timeline | None = None
    listed: ProblemList | None = None
    catch_ups: Mapping[str, CatchUp] = field(default_factory=dict)
    points: tuple[RestorePoint, ...] = ()
    active: GenerationStatus | None = None
    partitions: Partitions | None = None
    runs: tuple[LastRun, ...] = ()
    freshness: tuple[Freshness, ...] = ()

    @property
    def problems(self) -> int:
        """The number of problems."""
        return 0 if self.found is None else len(self.found.problems)


def content(
    found: Overview,
    *,
    me: str | None,
    turns: Sequence[Turn],
    ran: Mapping[JobKind, JobOutcome | None] | None,
    config: PurePath | None = None,
    trends: Trends | None = None,
) -> Content:
    """Return the content of the page. `ran` is None if the last runs are not known; `trends` of a running instance.

    `config` is the configuration file to name in the commands on the page; None: the commands find it by themselves.
    """
    active = _active(found)
    trends = trends or Trends()
    runs = () if ran is None else tuple(_run(kind, one) for kind, one in ran.items())
    listed = problem_list(found, active, lambda command: _called(command, config))
    return Content(
        pair=found.pair,
        me=me,
        found=found,
        tiles=tuple(_tiles(found, active, trends)),
        timeline=timeline(turns, [one.instance for one in found.instances], found.at, silent_since=_silent(found)),
        catch_ups=dict(_catch_ups(found, trends)),
        points=tuple(
            replace(one, command=one.command and _called(one.command, config)) for one in found.restore_points
        ),
        listed=listed,
        active=active,
        partitions=None if active is None else worst_partitions(active.number, active.positions, listed),
        runs=tuple(replace(one, command=_called(one.command, config)) for one in runs),
    )


def _called(command: str, config: PurePath | None) -> str:
    """Return a command, with the configuration file if it is a `tandem` command."""
    if config is None or not command.startswith("tandem "):
        return command
    return f"{command} -c {shlex.quote(str(config))}"


def _silent(found: Overview) -> dict[str, datetime]:
    """Return since when instances that are dead have said nothing; those that were never heard are left out."""
    return {one.instance: one.heard_at for one in found.instances if one.alive is False and one.heard_at is not None}


def _catch_ups(found: Overview, trends: Trends) -> Iterator[tuple[str, CatchUp]]:
    generations = {one.number: one for one in found.generations}
    for one in found.instances:
        generation = None if one.generation is None else generations.get(one.generation)
        if not one.alive or not one.base_remaining or generation is None:
            continue
        total = sum(position.base_end - position.log_start for position in generation.positions)
        if total > 0:
            left_s = trends.seconds_left(one.instance, generation.number)
            yield one.instance, CatchUp(share=max(0.0, 1 - one.base_remaining / total), left_s=left_s)


def _active(found: Overview) -> GenerationStatus | None:
    """Return the generation that takes records: the newest complete one, else the newest that is built."""
    appended = [one for one in found.generations if one.state is GenerationState.COMPLETE]
    return max(
        appended or [one for one in found.generations if one.positions], key=lambda one: one.number, default=None
    )


# --- figures ----------------------------------------------------------------------------------------------------------


def _tiles(found: Overview, active: GenerationStatus | None, trends: Trends) -> Iterator[Tile]:
    restore = found.restore
    if restore is None:
        waits = "it takes a complete generation"
        yield Tile(name="Restorable", value="nothing", detail=waits, good=False, word="not yet")
        yield Tile(name="Beyond the backup", value="unknown", detail=waits)
    else:
        window = restore.window
        yield Tile(
            name="Restorable",
            value=f"the last {duration(window.end - window.start)}",
            detail=f"up to {age(window.end, now=found.at)}, from generation {restore.generation} of {restore.instance}",
            good=not restore.tainted,
            word="tainted" if restore.tainted else "",
        )
        held = 0 if active is None else sum(one.held_back for one in active.positions)
        yield replace(_beyond(restore.lag, held), line=trends.lag())
    yield _margin(active)
    yield replace(_stored(found), line=trends.stored())


def _beyond(lag: int | None, held: int) -> Tile:
    if lag is None:
        return Tile(name="Beyond the backup", value="unknown", detail="the logs' ends are not known")
    detail = "in the logs, and not restorable yet" if lag else "it has all that can be read of the logs"
    if held:
        detail += f"; {held:,} more wait behind open transactions"
    return Tile(name="Beyond the backup", value=f"{lag:,} offsets", detail=detail)


def _margin(active: GenerationStatus | None) -> Tile:
    known = [] if active is None else [one for one in active.positions if one.tombstone_margin_s is not None]
    least = min(known, key=margin_of, default=None)
    if least is None:
        return Tile(name="Tombstone margin", value="none", detail="nothing that is compacted is read")
    left_s = margin_of(least)
    return Tile(
        name="Tombstone margin",
        value=duration(left_s) if left_s > 0 else f"over since {duration(-left_s)}",
        detail=f"least of all partitions: {least.topic}-{least.partition}",
        good=left_s > 0,
        word="" if left_s > 0 else "late",
    )


def margin_of(one: PositionStatus) -> float:
    """Return the tombstone margin in seconds, infinite for what has none."""
    return math.inf if one.tombstone_margin_s is None else one.tombstone_margin_s


def _stored(found: Overview) -> Tile:
    total = sum(one.bytes for one in found.generations)
    count = len(found.generations)
    detail = f"in {count} generation{'s' if count != 1 else ''}"
    base = None if found.restore is None else found.restore.generation
    alone = sum(one.bytes for one in found.generations if one.number == base)
    if alone and count > 1:
        detail += f", {total / alone:.1f} times the one that a restore uses"
    return Tile(name="Stored", value=size(total), detail=detail)


# --- partitions -------------------------------------------------------------------------------------------------------


def worst_partitions(
    generation: int, positions: Sequence[PositionStatus], listed: ProblemList | None = None
) -> Partitions:
    """Return the worst of these partitions of a generation. A taint that a problem of `listed` says is only marked."""
    worst = heapq.nsmallest(ROWS, positions, key=_worst_first)
    return Partitions(
        generation=generation,
        rows=tuple(PartitionRow(position=one, words=tuple(_words(one, listed))) for one in worst),
        hidden=len(positions) - len(worst),
    )


def _worst_first(one: PositionStatus) -> tuple[object, ...]:
    wrong = (one.tainted_from is None, not one.held_back, one.complete, margin_of(one) > _NEAR_S)
    return (*wrong, -(one.lag or 0), margin_of(one), one.topic, one.partition)


def _words(one: PositionStatus, listed: ProblemList | None) -> Iterator[str]:
    if one.tainted_from is not None:
        said = f"{one.topic}-{one.partition} from offset {one.tainted_from}: {one.tainted_reason}"
        number = None if listed is None else listed.number_of(said)
        told = f"tainted from offset {one.tainted_from:,}: {one.tainted_reason}"
        yield told if number is None else f"tainted (problem {number})"
    if one.held_back:
        yield "behind an open transaction"
    if not one.complete:
        yield "not read through yet"
    if one.tombstone_margin_s is not None and one.tombstone_margin_s <= 0:
        yield "away from the log's end for too long"


# --- runs, instances --------------------------------------------------------------------------------------------------


def _run(kind: JobKind, one: JobOutcome | None) -> LastRun:
    command = f"tandem {kind.value}"
    if kind is JobKind.RETENTION:  # without --execute no result is stored
        command += " --execute"
    if one is None:
        return LastRun(
            kind=kind.value, at=None, good=None, came="never", what="nothing was kept", seconds=None, command=command
        )
    came = "clean" if one.clean else f"failed: {one.error}" if one.error else kind.findings(one.findings)
    if one.clean and one.unsettled:
        left = sum(before.findings for before in one.unsettled)
        came = f"{kind.findings(left)} of earlier runs were not read again"
    return LastRun(
        kind=kind.value,
        at=utc_time(one.at),
        good=one.good,
        came=came,
        what=one.what,
        seconds=one.seconds,
        command=command,
    )


def heard(one: InstanceStatus) -> str:
    """Return as text when an instance was heard last."""
    if one.alive is None:
        return "not known from the store alone"
    if one.heard_age_s is None:
        return "never"
    if one.left:
        return f"stopped {duration(one.heard_age_s)} ago"
    if one.alive:
        return "now" if one.heard_age_s < 1 else f"{duration(one.heard_age_s)} ago"
    return f"silent for {duration(one.heard_age_s)}"
